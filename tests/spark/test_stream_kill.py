"""Streams and kill -9: every message comes out once, none is lost, none stays held."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
import penstock.spark
from penstock.contract.stream_operations import Streams
from tests.harness.children import ServerChild
from tests.spark.stream_child import write
from tests.spark.streams import Recorder, consuming

OWNER = """
import sys, penstock
store = penstock.open(sys.argv[1])
store.queue("jobs").count()
print("open", flush=True)
sys.stdin.read()
"""


def start(folder: Path, point: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.spark.stream_child", *(str(folder / each) for each in PARTS)]
    return subprocess.Popen(
        [*command, *([point] if point else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )


PARTS = ("store", "checkpoint", "out")


def put(folder: Path, count: int) -> None:
    with penstock.open(folder / "store") as store:
        names = [info.name for info in store.queues()]
        queue = store.queue("jobs") if "jobs" in names else store.create("jobs", max_attempts=0)
        queue.put_many([b"x" * random.randint(0, 300) for _ in range(count)])


def check(folder: Path, count: int) -> int:
    """Of all that came out, batch by batch; how many batches came more than once."""
    batches: dict[int, list[list[str]]] = {}
    for path in (folder / "out").glob("*.json"):
        batches.setdefault(int(path.name.partition(".")[0]), []).append(json.loads(path.read_text()))
    for number, runs in batches.items():
        assert all(ids == runs[0] for ids in runs), f"batch {number} was not the same each time"
    ids = [each for runs in batches.values() for each in runs[0]]
    assert sorted(ids, key=int) == [str(number) for number in range(1, count + 1)]
    with penstock.open(folder / "store") as store:
        assert not any(store.queue("jobs").counts().values())
        assert [each.messages for each in Streams(store.run).all()] == [0]
    return sum(len(runs) > 1 for runs in batches.values())


def finish(spark: SparkSession, folder: Path) -> None:
    """Read to the end: this process is the next driver."""

    def process(rows: DataFrame, number: int) -> None:
        write(folder / "out", number, [row.id for row in rows.select("id").collect()])

    stream = consuming(spark, folder / "store", stream="s", maxRowsPerBatch=20)
    penstock.spark.drain(stream, process, folder / "checkpoint")


def test_a_driver_that_is_killed_after_its_sink_goes_on_with_the_same_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, 100)
    (tmp_path / "out").mkdir()
    with start(tmp_path, "after") as child:
        assert child.wait() == -signal.SIGKILL
    finish(spark, tmp_path)
    assert check(tmp_path, 100) == 1


@pytest.mark.long
@pytest.mark.parametrize("point", ["before", "end"])
def test_a_driver_that_is_killed_elsewhere_goes_on_with_the_same_batch(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    put(tmp_path, 100)
    (tmp_path / "out").mkdir()
    with start(tmp_path, point) as child:
        assert child.wait() == -signal.SIGKILL
    finish(spark, tmp_path)
    assert check(tmp_path, 100) == 0


@pytest.mark.long
def test_drivers_that_are_killed_at_any_moment_lose_nothing_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fifty of them, one after the other, each at a moment of its own. Seeds are printed."""
    (tmp_path / "out").mkdir()
    total = 0
    for seed in range(int(os.environ.get("PENSTOCK_KILLS", "50"))):
        sys.stdout.write(f"seed {seed}\n")
        choose = random.Random(seed)
        put(tmp_path, 150)
        total += 150
        with start(tmp_path) as child:
            assert child.stdout is not None
            java = 0
            for line in child.stdout:
                if line.startswith("java"):
                    java = int(line.split()[1])
                if line.startswith("batch"):
                    break
            time.sleep(choose.uniform(0, 2.5))
            for process in (java, child.pid):
                os.kill(process, signal.SIGKILL)
    finish(spark, tmp_path)
    sys.stdout.write(f"{check(tmp_path, total)} batches came more than once\n")


def test_the_owner_of_the_store_may_be_killed_in_the_middle_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path, 60)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "store")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        sink = Recorder()

        def process(rows: DataFrame, number: int) -> None:
            if number == 1:
                owner.kill()
                owner.wait()
            sink(rows, number)

        penstock.spark.drain(
            consuming(spark, tmp_path / "store", maxRowsPerBatch=20), process, tmp_path / "checkpoint"
        )
        assert sorted(sink.ids(), key=int) == [str(number) for number in range(1, 61)]
        with penstock.open(tmp_path / "store") as store:
            assert not any(store.queue("jobs").counts().values())
    finally:
        owner.kill()
        owner.communicate()


def test_a_server_may_be_killed_and_started_again_in_the_middle_of_a_batch(
    spark: SparkSession, tmp_path: Path, port: int
) -> None:
    put(tmp_path, 60)
    servers: list[ServerChild] = []
    try:
        servers.append(ServerChild(tmp_path / "store", "--port", str(port)))
        sink = Recorder()

        def process(rows: DataFrame, number: int) -> None:
            if number == 1:
                servers[-1].kill()
                servers.append(ServerChild(tmp_path / "store", "--port", str(port)))
            sink(rows, number)

        stream = consuming(spark, servers[0].url, maxRowsPerBatch=20)
        penstock.spark.drain(stream, process, tmp_path / "checkpoint")
        assert sorted(sink.ids(), key=int) == [str(number) for number in range(1, 61)]
    finally:
        for server in servers[-1:]:
            server.kill()
    with penstock.open(tmp_path / "store") as store:
        assert not any(store.queue("jobs").counts().values())
