"""The disk of a text or folder store is full: what has no room is refused and changes nothing."""

from collections.abc import Callable

import pytest

import penstock
from penstock import Draft
from penstock.stores.text import storage
from tests.simulation.folder_world import FolderWorld
from tests.simulation.text_world import TextWorld
from tests.simulation.world import Asking, World

CAPACITY = 12_000
KINDS: list[type[World]] = [TextWorld, FolderWorld]


@pytest.fixture(autouse=True)
def little_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SPARE", 2_000)


def fill(world: World, ask: Asking, size: int) -> int:
    """Put until there is no room; how many messages fitted."""
    for fitted in range(CAPACITY):
        try:
            ask.put(world.payload(size))
        except penstock.DiskFull:
            return fitted
    raise AssertionError("the disk is never full")


def settle_one(ask: Asking) -> None:
    """A claim and its ack, each done or refused for want of room."""
    try:
        for message in ask.claim():
            assert ask.ack(message) == []
    except penstock.DiskFull:
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [10, 900])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_full_disk_refuses_and_damages_nothing_and_with_room_all_works_again(
    kind: type[World], size: int, reopened: bool
) -> None:
    def script(world: World) -> None:
        world.open()
        world.create("jobs", keep_done=10, max_attempts=2)
        world.disk.capacity = CAPACITY
        ask = world.ask("jobs")
        fitted = fill(world, ask, size)
        world.check()
        with pytest.raises(penstock.DiskFull, match="nothing was changed: free"):
            ask.put_many([Draft(world.payload(size), key=f"key {number}") for number in range(fitted + 20)])
        with pytest.raises(penstock.DiskFull):
            ask.put_many([Draft(world.payload(size)) for _ in range(fitted + 20)])
        world.check()
        settle_one(ask)
        world.check()
        world.disk.capacity = 10 * CAPACITY
        if reopened:
            world.reopen()
        ask.put_many([Draft(world.payload(size), key="key 1"), Draft(world.payload(size))])
        claimed = ask.claim(10_000)
        assert len(claimed) >= fitted
        for message in claimed[::2]:
            assert ask.ack(message) == []
        ask.fail(*claimed[1::2], reason="there is room")
        world.reopen()
        ask.purge()
        world.close()

    world = kind(f"{kind.__name__} {size} {reopened}")
    world.run(script)


@pytest.mark.parametrize("kind", KINDS)
def test_however_little_room_there_is_an_operation_is_done_or_refused(kind: type[World]) -> None:
    outcomes = set()
    for room in range(0, 3_000, 150):

        def script(world: World, room: int = room) -> None:
            world.open()
            ask = world.ask()
            ask.put_many([Draft(world.payload()) for _ in range(3)])
            held = ask.claim(2)
            world.disk.capacity = 10**9
            world.disk.capacity -= (world.disk.room() or 0) - room
            operations: dict[str, Callable[[], object]] = {
                "put": lambda: ask.put(headers={"long": "x" * 300}),
                "put_many": lambda: ask.put_many([Draft(world.payload(), key="a"), Draft(world.payload(200))]),
                "ack": lambda: ask.ack(held[0]),
                "fail": lambda: ask.fail(held[1], reason="r" * 100),
                "claim": ask.claim,
            }
            for name, operation in operations.items():
                try:
                    operation()
                    outcomes.add((name, "done"))
                except penstock.DiskFull:
                    outcomes.add((name, "refused"))
                world.check()
            world.disk.capacity = None
            ask.ack(held[0])
            ask.put()
            world.reopen()
            world.close()

        kind(f"room {room}").run(script)
    assert {("put", "done"), ("put", "refused"), ("put_many", "refused")} <= outcomes


@pytest.mark.parametrize(("kind", "size"), [(TextWorld, 10), (TextWorld, 900), (FolderWorld, 900)])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_store_filled_by_puts_can_be_worked_off(kind: type[World], size: int, reopened: bool) -> None:
    def script(world: World) -> None:
        world.open()
        world.disk.capacity = CAPACITY * 3
        ask = world.ask()
        fitted = fill(world, ask, size)
        assert fitted > 5
        if reopened:
            world.reopen()
        for number in range(fitted):
            if number % 2:
                assert ask.pop() is not None
            else:
                [message] = ask.claim()
                assert ask.ack(message) == []
        assert ask.pop() is None
        world.close()

    kind(f"{kind.__name__} {size} {reopened}").run(script)
