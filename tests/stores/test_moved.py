"""Messages that come from another store into text and folder stores: as they were there, all of them or none."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock import SimulatedClock, Store
from penstock.contract.message import Attempt, Moved
from penstock.errors import PayloadTooLarge, QueueFull
from penstock.stores.folder.backend import FolderBackend, open_folder
from penstock.stores.text.backend import TextBackend, open_text
from tests.simulated_disk import Keep, SimulatedDisk
from tests.simulation.folder_world import BALLAST, SimulatedNeighbours
from tests.simulation.scheduler import Scheduler

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some", "some")
NOW = 1_700_000_000_000
LONG = "a reason " * 400
TRIED = (
    Attempt(1, "one", NOW - 800, NOW - 700, "failed", LONG),
    Attempt(2, "two", NOW - 600, NOW - 500, "released"),
)
MOVED = [
    Moved(b"waits", received_at=NOW - 5_000, visible_at=NOW - 5_000),
    Moved(b"done", 3, {"a": "b"}, created_at=7, received_at=NOW - 4_000, visible_at=NOW - 4_000, state="done",
          attempts=3, claimed_at=NOW - 300, settled_at=NOW - 200, consumer="worker",
          history=(*TRIED, Attempt(3, "worker", NOW - 300, NOW - 200, "acked"))),
    Moved(b"failed\n-\xff", -2, received_at=NOW - 3_000, visible_at=NOW - 2_500, expires_at=NOW + 90_001,
          state="failed", attempts=2, claimed_at=NOW - 600, settled_at=NOW - 500, consumer="two", reason="no luck",
          history=TRIED),
    Moved(b"tried", received_at=NOW - 2_000, visible_at=NOW - 700, attempts=1, reason=LONG, history=TRIED[:1]),
    Moved(b"later", received_at=NOW - 1_000, visible_at=NOW + 60_000, attempts=1, reason="", history=TRIED[1:]),
    Moved(b"held", received_at=NOW - 900, visible_at=NOW - 900, state="in_flight", attempts=1, claimed_at=NOW - 50,
          consumer="holder"),
]  # fmt: skip


class Machine:
    """What has a store of one kind on a disk, and has stopped before it is started again."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.starts = 0
        self.clock = SimulatedClock(NOW)

    def start(self, disk: SimulatedDisk) -> Store:
        if self.kind == "text":
            return Store("text:/store", open_text("text:/store", clock=self.clock, disk=disk))
        self.starts += 1
        neighbours = SimulatedNeighbours(f"machine{self.starts}", 1, Scheduler(Random(1)))
        backend = open_folder("/store", clock=self.clock, disk=disk, neighbours=neighbours, ballast=BALLAST)
        return Store("folder:/store", backend)


def restore(store: Store, queue: str, moved: list[Moved]) -> None:
    assert isinstance(store.backend, TextBackend | FolderBackend)
    store.backend.restore(queue, moved)


def shown(store: Store, queue: str = "jobs") -> list[Any]:
    found = store.queue(queue)
    return [
        (
            each.payload, each.priority, each.headers, each.created_at, each.received_at, each.visible_at,
            each.expires_at, each.state, each.attempts, each.claimed_at, each.settled_at, each.consumer,
            each.reason, found.attempts(each.id),
        )
        for each in found.messages()
    ]  # fmt: skip


def expected(each: Moved) -> Any:
    state = each.state
    if each.waits:
        state = "delayed" if (each.visible_at or 0) > NOW else "available"
    kept = (each.claimed_at, each.settled_at, each.consumer) if not each.waits else (None, None, None)
    return (
        each.payload, each.priority, each.headers or {}, each.created_at or each.received_at, each.received_at,
        each.visible_at, each.expires_at, state, each.attempts, *kept, each.reason, list(each.history),
    )  # fmt: skip


@pytest.fixture(params=["text", "folder"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_real(kind: str, path: Path, clock: SimulatedClock) -> Store:
    return penstock.open(f"{kind}:{path}", clock=clock)


def test_a_message_comes_as_it_was_in_the_other_store(kind: str, tmp_path: Path) -> None:
    clock = SimulatedClock(NOW)
    with open_real(kind, tmp_path, clock) as store, open_real(kind, tmp_path, clock) as other:
        store.create("jobs", keep_done=None).put("before")
        assert len(shown(other)) == 1
        restore(store, "jobs", MOVED)
        restore(store, "jobs", [MOVED[1]])
        wanted = [*map(expected, MOVED), expected(MOVED[1])]
        assert shown(store)[1:] == wanted
        assert shown(other)[1:] == wanted  # who had it open meanwhile
    with open_real(kind, tmp_path, clock) as store:
        assert shown(store)[1:] == wanted
        assert store.queue("jobs").counts() == {
            "delayed": 1,
            "available": 4,
            "in_flight": 0,
            "done": 2,
            "failed": 1,
        }


def test_what_came_goes_on_as_it_would_have_there(kind: str, tmp_path: Path) -> None:
    clock = SimulatedClock(NOW)
    with open_real(kind, tmp_path, clock) as store:
        queue = store.create("jobs", keep_done=1, max_attempts=2)
        restore(store, "jobs", MOVED)
        claimed = queue.claim(5)
        assert [(each.payload, each.attempts) for each in claimed] == [(b"waits", 1), (b"tried", 2), (b"held", 2)]
        claimed[1].fail(reason="again")
        assert [each.payload for each in queue.messages("failed")] == [MOVED[2].payload, b"tried"]
        assert queue.redrive() == 2
        assert queue.claim()[0].attempts == 1
        clock.advance(1)
        assert queue.counts()["done"] == 0  # kept for as long as it would have been there
        clock.advance(60)
        assert b"later" in [each.payload for each in queue.claim(9)]
        clock.advance(29.001)
        assert MOVED[2].payload not in [each.payload for each in queue.messages()]  # expired


def test_what_the_queue_does_not_take_is_refused_and_nothing_comes(kind: str, tmp_path: Path) -> None:
    with open_real(kind, tmp_path, SimulatedClock(NOW)) as store:
        store.create("jobs", keep_done=None, max_size=4).put("before")
        with pytest.raises(QueueFull, match="4 more do not fit"):
            restore(store, "jobs", MOVED)
        store.create("small", max_payload=5)
        with pytest.raises(PayloadTooLarge):
            restore(store, "small", MOVED)
        assert len(shown(store)) == 1
        assert not shown(store, "small")
        restore(store, "jobs", MOVED[1:5])  # what is settled takes no room
        assert len(shown(store)) == 5


def test_a_power_cut_leaves_all_or_none_of_those_that_come_together(kind: str) -> None:
    machine, disk = Machine(kind), SimulatedDisk(Random(kind))
    left: list[SimulatedDisk] = []

    def cut(*operation: str) -> None:
        for number, keep in enumerate(KEEPS):
            left.append(disk.if_it_crashed(Random(f"{disk.operations} {number}"), keep))

    with machine.start(disk) as store:
        store.create("jobs", keep_done=None)
        disk.before_operation = cut
        restore(store, "jobs", MOVED)
        cut()
        disk.before_operation = None
    seen = set()
    for after in left:
        with machine.start(after) as store:
            found = shown(store)
            assert found in ([], [*map(expected, MOVED)])
            seen.add(len(found))
        with machine.start(after) as store:
            assert shown(store) == found
    assert seen == {0, len(MOVED)}
