"""Streams and kill -9: a batch is the same whenever it is read, and every message comes out once."""

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from tests.harness.children import noted, scenario
from tests.harness.scenarios import QUEUE, STREAM, committed, payloads_of


def kill_often(url: str, log: Path, seed: int, kills: int) -> None:
    random = Random(seed)
    with penstock.open(url) as store:
        store.create(QUEUE, max_attempts=0)
    for number in range(kills):
        with scenario("stream", log, f"{seed}.{number}", url, str(log)) as child:
            child.wait_until_ready()
            time.sleep(random.uniform(0, 0.6))
            child.kill()
    put, failed, batches = Counter[str](), Counter[str](), dict[int, list[str]]()
    for told in noted(log):
        put.update(told.get("put", []))
        failed.update(told.get("failed", []))
        if "batch" in told:  # one that came again must have the same messages
            assert batches.setdefault(told["batch"], told["payloads"]) == told["payloads"]
    finish(url, committed(log), batches)
    came = Counter(payload for payloads in batches.values() for payload in payloads)
    assert set(put) <= set(came)
    # Once, and once more for each time that it was to fail; what was put last may not have been acknowledged.
    assert came == Counter(dict.fromkeys(came, 1)) + failed
    assert sorted(batches) == list(range(1, len(batches) + 1))


def finish(url: str, start: int, batches: dict[int, list[str]]) -> None:
    """Read to the end."""
    with penstock.open(url) as store:
        streams, reader = Streams(store.run), reader_name()
        streams.begin(QUEUE, STREAM, reader)
        while (batch := streams.next(QUEUE, STREAM, reader, start, 10_000, 1 << 30)) is not None:
            streams.read(QUEUE, STREAM, batch, None)  # what a killed reader said of it is forgotten
            payloads = payloads_of(streams, batch)
            assert batches.setdefault(batch, payloads) == payloads
            assert payloads_of(streams, batch) == payloads
            start = batch
        if start:
            assert payloads_of(streams, start) == batches[start]
        assert not any(store.queue(QUEUE).counts().values())


@pytest.mark.parametrize("kind", ["journal", "slate"])
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 5), *[pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(2, 6)]]
)
def test_readers_that_are_killed_at_any_moment_lose_nothing_and_repeat_nothing(
    tmp_path: Path, kind: str, seed: int, kills: int
) -> None:
    kill_often(f"{kind}:{tmp_path / 'data'}", tmp_path / "log", seed, kills)
