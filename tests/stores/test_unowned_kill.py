"""A driver that writes into a text or folder store is killed: each queue has all of its messages, or none."""

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.contract.tables import Target
from penstock.stores.unowned import FrameLoader
from tests.harness.children import SYNCS, is_killed_before

QUEUES = ("one", "two", "three")
TIMES = ("received_at", "expires_at", "claimed_at", "settled_at")
ROWS = 20


def write(url: str, restore: bool) -> None:
    """A load in one process: a task, and the commit."""
    rows = ROWS * len(QUEUES)
    columns: dict[str, pa.Array] = {
        "payload": pa.array([f"row {row}" for row in range(ROWS)] * len(QUEUES)),
        "queue": pa.array([each for each in QUEUES for _ in range(ROWS)]),
    }
    if restore:
        columns["attempts"] = pa.array([3] * rows, pa.int32())
        columns["state"] = pa.array(["done" if row % 2 else "failed" for row in range(rows)])
        columns |= {name: pa.nulls(rows, pa.timestamp("us", "UTC")) for name in TIMES}
        columns |= {name: pa.nulls(rows, pa.string()) for name in ("consumer", "reason")}
        columns["history"] = pa.nulls(rows, pa.list_(pa.struct([])))
    loader = FrameLoader(Target(url, None, "monday", {}, restore), os.getpid())
    if not loader.repeated:
        loader.commit([loader.stage([pa.RecordBatch.from_pydict(columns)], 0, 0)])


def counts(url: str, restored: bool) -> dict[str, int]:
    with penstock.open(url) as store:
        found = {name: store.queue(name).counts() for name in QUEUES}
    if restored:
        assert all(each["done"] == each["failed"] for each in found.values())
        assert not any(each["available"] for each in found.values())
    return {name: sum(each.values()) for name, each in found.items()}


@pytest.mark.parametrize("restore", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_killed_driver_leaves_each_queue_with_all_of_its_messages_or_none(
    kind: str, restore: bool, tmp_path: Path
) -> None:
    seen, last = set(), 0
    while True:
        last += 1 if last < 12 else 5
        url = f"{kind}:{tmp_path / str(last)}"
        with penstock.open(url) as store:
            for name in QUEUES:
                store.create(name, keep_done=None)
        killed = is_killed_before(last, partial(write, url, restore), SYNCS)
        found = counts(url, restore)
        assert set(found.values()) <= {0, ROWS}, f"killed before sync {last}: {found}"
        seen.add(tuple(found.values()))
        write(url, restore)  # the run again
        again = counts(url, restore)
        # A queue that was written in the moment of the kill is not remembered: it may have its messages twice.
        assert all(each in (ROWS, 2 * ROWS) for each in again.values()), f"killed before sync {last}: {again}"
        assert sum(each == 2 * ROWS for each in again.values()) <= 1
        assert not list((tmp_path / str(last) / ".penstock" / "staged").iterdir())
        if not killed:
            break
    assert len(seen) == len(QUEUES) + 1  # kills were met between all queues
