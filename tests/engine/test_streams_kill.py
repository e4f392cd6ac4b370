"""Streams and kill -9: a batch is the same whenever it is read, and every message comes out once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from tests.stream_child import QUEUE, STREAM, committed

ROOT = Path(__file__).parents[2]


class Series:
    """Processes that read one stream, one after the other, each killed at a moment of its own."""

    def __init__(self, url: str, log: Path, seed: int) -> None:
        self.url, self.log, self.random = url, str(log), Random(seed)
        self.put, self.batches, self.failed = Counter[str](), dict[int, list[str]](), Counter[str]()
        with penstock.open(url) as store:
            store.create(QUEUE, max_attempts=0)
        log.touch()

    def use_and_kill(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.stream_child", self.url, self.log, name]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(self.random.uniform(0, 0.6))
            child.kill()
        assert child.returncode == -signal.SIGKILL

    def read_log(self) -> None:
        """What the processes were told; a batch that came again must have the same messages."""
        with open(self.log) as lines:
            for line in lines:
                told = json.loads(line)
                self.put.update(told.get("put", []))
                self.failed.update(told.get("failed", []))
                if "batch" in told:
                    assert self.batches.setdefault(told["batch"], told["payloads"]) == told["payloads"]

    def finish(self) -> None:
        """Read to the end."""
        with penstock.open(self.url) as store:
            streams, reader, start = Streams(store.run), reader_name(), committed(self.log)
            streams.begin(QUEUE, STREAM, reader)
            while (batch := streams.next(QUEUE, STREAM, reader, start, 10_000, 1 << 30)) is not None:
                streams.read(
                    QUEUE, STREAM, batch, None
                )  # what was said of it before its reader was killed is forgotten
                payloads = payloads_of(streams, batch)
                assert self.batches.setdefault(batch, payloads) == payloads
                assert payloads_of(streams, batch) == payloads
                start = batch
            if start:
                assert payloads_of(streams, start) == self.batches[start]
            assert not any(store.queue(QUEUE).counts().values())


def payloads_of(streams: Streams, batch: int) -> list[str]:
    found, after = list[str](), ""
    while page := streams.messages(QUEUE, STREAM, batch, after, "", 1_000):
        found += [message.payload.decode() for message in page]
        after = page[-1].id
    return found


def kill_often(url: str, folder: Path, seed: int, kills: int) -> None:
    series = Series(url, folder / "log", seed)
    for number in range(kills):
        series.use_and_kill(f"{seed}.{number}")
    truncate_torn(folder / "log")
    series.read_log()
    series.finish()
    came = Counter(payload for payloads in series.batches.values() for payload in payloads)
    assert set(series.put) <= set(came)
    # Once, and once more for each time that it was to fail; what was put last may not have been acknowledged.
    assert came == Counter(dict.fromkeys(came, 1)) + series.failed
    assert sorted(series.batches) == list(range(1, len(series.batches) + 1))


def truncate_torn(log: Path) -> None:
    data = log.read_bytes()
    os.truncate(log, data.rfind(b"\n") + 1)


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_readers_that_are_killed_at_any_moment_lose_nothing_and_repeat_nothing(tmp_path: Path, kind: str) -> None:
    kill_often(f"{kind}:{tmp_path / 'data'}", tmp_path, 1, 5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["journal", "slate"])
@pytest.mark.parametrize("seed", range(2, 6))
def test_readers_that_are_killed_often_lose_nothing_and_repeat_nothing(
    tmp_path: Path, kind: str, seed: int
) -> None:
    kill_often(f"{kind}:{tmp_path / 'data'}", tmp_path, seed, 25)
