"""The pipeline on a Spark standalone cluster: what runs on one machine runs there, with the store in a folder that
every machine sees, or behind a server that every machine reaches.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.harness.children import ServerChild
from tests.spark.cluster import WORKERS, Cluster

pytestmark = pytest.mark.long
EVENTS = 3_000

SUBMITTED = """
import sys
import penstock.spark

store, master = sys.argv[1:]
spark = penstock.spark.session()
assert spark.sparkContext.master == master
messages = spark.read.format("penstock").option("store", store).option("queue", "events").load()
rows = messages.selectExpr("concat('again ', cast(payload AS string)) AS payload").repartition(4)
rows.write.format("penstock").mode("append").option("store", store).option("queue", "again").save()
print(messages.count())
"""

STREAMED = """
import sys
import penstock.spark

store, checkpoint = sys.argv[1:]
spark = penstock.spark.session()
reader = spark.readStream.format("penstock").option("store", store).option("queue", "events")
reader = reader.option("mode", "consume").option("stream", "nightly").option("maxRowsPerBatch", 400)
rows = reader.load().selectExpr("concat('again ', cast(payload AS string)) AS payload").repartition(4)
penstock.spark.drain(rows, "penstock", checkpoint, store=store, queue="again")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    for part in range(4):
        lines = [json.dumps({"number": number}) for number in range(part, EVENTS, 4)]
        (folder / f"part-{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(params=["folder", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "store")
    else:
        with ServerChild(tmp_path / "store") as server:
            yield server.url


def payloads(store: str, queue: str) -> list[Any]:
    with penstock.open(store) as opened:
        return sorted(json.loads(message.payload)["number"] for message in opened.queue(queue).messages())


def test_every_job_runs_on_a_cluster(cluster: Cluster, store: str, events: Path, tmp_path: Path) -> None:
    before = cluster.executors()
    there = ["--master", cluster.master, "--json"]
    cluster.penstock(store, "create", "events", "--keep-done", "forever")
    cluster.penstock(store, "load", str(events), "events", "--format", "text", *there)
    assert payloads(store, "events") == list(range(EVENTS))
    counted = cluster.penstock(
        store, "sql", "SELECT count(*) AS n FROM penstock_messages WHERE queue = 'events'", *there
    )
    assert json.loads(counted) == [{"n": EVENTS}]
    with penstock.open(store) as opened:
        queue = opened.queue("events")
        for message in queue.claim(1_000, lease=600):
            message.ack()
    cluster.penstock(store, "archive", str(tmp_path / "archive"), *there)
    cluster.penstock(store, "report", "--out", str(tmp_path / "report"), *there)
    assert (tmp_path / "report" / "report.html").exists()
    copy = str(tmp_path / "copy")
    cluster.penstock(store, "convert", store, copy, *there)
    assert payloads(copy, "events") == list(range(EVENTS))
    if not store.startswith("http"):
        cluster.penstock(store, "expire", *there)
        cluster.penstock(store, "pack", "--spark", *there)
    assert payloads(store, "events") == list(range(EVENTS))
    assert cluster.executors() >= before + WORKERS  # it was the cluster that worked


def test_a_program_can_be_submitted(cluster: Cluster, store: str, events: Path, tmp_path: Path) -> None:
    with penstock.open(store) as opened:
        opened.create("events").put_many([b"%d" % number for number in range(1_000)])
        opened.create("again")
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    submit = f"{cluster.environment['SPARK_HOME']}/bin/spark-submit"
    said = cluster.run(submit, "--master", cluster.master, str(program), store, cluster.master)
    assert said.splitlines()[-1] == "1000"
    with penstock.open(store) as opened:
        again = sorted(message.payload for message in opened.queue("again").messages())
    assert again == sorted(b"again %d" % number for number in range(1_000))


def test_a_stream_is_consumed_and_written_once(cluster: Cluster, store: str, tmp_path: Path) -> None:
    with penstock.open(store) as opened:
        queue = opened.create("events")
        queue.put_many([b"%d" % number for number in range(1_000)])
        opened.create("again")
        program = tmp_path / "program.py"
        program.write_text(STREAMED)
        submit = f"{cluster.environment['SPARK_HOME']}/bin/spark-submit"
        for _ in range(2):  # the second time there is nothing left
            cluster.run(submit, "--master", cluster.master, str(program), store, str(tmp_path / "checkpoint"))
        again = sorted(message.payload for message in opened.queue("again").messages())
        assert again == sorted(b"again %d" % number for number in range(1_000))
        assert not any(queue.counts().values())
