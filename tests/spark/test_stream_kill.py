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
from tests.spark.streams import Recorder, check_groups, consuming, reject

OWNER = """
import sys, penstock
store = penstock.open(sys.argv[1])
store.queue("jobs").count()
print("open", flush=True)
sys.stdin.read()
"""


GROUPS = ("a", "b", "a", None, "c")


def put(folder: Path, count: int) -> None:
    with penstock.open(folder) as store:
        store.create("jobs", max_attempts=0).put_many([b"x" * random.randint(0, 300) for _ in range(count)])


class Place:
    """A store, a checkpoint and a folder for what comes out."""

    def __init__(self, folder: Path, kind: str = "journal") -> None:
        self.url = f"{kind}:{folder / 'store'}"
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self.groups: dict[str, str | None] = {}  # by the ids of all messages
        self.out.mkdir()

    def start(self, point: str = "") -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "tests.spark.stream_child", self.url, str(self.checkpoint), str(self.out)]
        return subprocess.Popen(
            [*command, *([point] if point else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def put(self, count: int) -> None:
        groups = [GROUPS[number % len(GROUPS)] for number in range(count)]
        drafts = [penstock.Draft(b"x" * random.randint(0, 300), group=group) for group in groups]
        with penstock.open(self.url) as store:
            queue = store.create("jobs", max_attempts=0, exist_ok=True)
            self.groups |= zip(queue.put_many(drafts), groups, strict=True)

    def finish(self, spark: SparkSession) -> None:
        """Read to the end: this process is the next driver."""

        def process(rows: DataFrame, number: int) -> None:
            reject(rows)
            write(self.out, number, [row.id for row in rows.select("id").collect()])

        stream = consuming(spark, self.url, stream="s", maxRowsPerBatch=20)
        while True:
            penstock.spark.drain(stream, process, self.checkpoint)
            with penstock.open(self.url) as store:
                if not any(store.queue("jobs").counts().values()):
                    return

    def check(self) -> int:
        """All that came out, batch by batch; how many batches came more than once."""
        batches: dict[int, list[list[str]]] = {}
        for path in self.out.glob("*.json"):
            batches.setdefault(int(path.name.partition(".")[0]), []).append(json.loads(path.read_text()))
        for number, runs in batches.items():
            assert all(ids == runs[0] for ids in runs), f"batch {number} was not the same each time"
        check_groups([batches[number][0] for number in sorted(batches)], self.groups)
        with penstock.open(self.url) as store:
            assert [each.messages for each in Streams(store.run).all()] == [0]
        return sum(len(runs) > 1 for runs in batches.values())


@pytest.mark.parametrize("kind", ["journal", pytest.param("slate", marks=pytest.mark.long)])
def test_a_driver_that_is_killed_after_its_sink_goes_on_with_the_same_batch(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    place = Place(tmp_path, kind)
    place.put(100)
    with place.start("after") as child:
        assert child.wait() == -signal.SIGKILL
    place.finish(spark)
    assert place.check() == 1


@pytest.mark.long
@pytest.mark.parametrize("point", ["before", "end"])
def test_a_driver_that_is_killed_elsewhere_goes_on_with_the_same_batch(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    place = Place(tmp_path)
    place.put(100)
    with place.start(point) as child:
        assert child.wait() == -signal.SIGKILL
    place.finish(spark)
    assert place.check() == 0


@pytest.mark.long
def test_drivers_that_are_killed_at_any_moment_lose_nothing_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Fifty of them, one after the other, each at a moment of its own. Seeds are printed."""
    place = Place(tmp_path)
    for seed in range(int(os.environ.get("PENSTOCK_KILLS", "50"))):
        sys.stdout.write(f"seed {seed}\n")
        choose = random.Random(seed)
        place.put(150)
        with place.start() as child:
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
    place.finish(spark)
    sys.stdout.write(f"{place.check()} batches came more than once\n")


def test_the_owner_of_the_store_may_be_killed_in_the_middle_of_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "store", 60)
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
    put(tmp_path / "store", 60)
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
