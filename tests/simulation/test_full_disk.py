"""The disk is full: puts are refused, what is there can be worked off, and then there is room again."""

from collections.abc import Callable
from contextlib import suppress

import pytest

import penstock
from penstock import Draft
from tests.simulation.world import Asking, World

CAPACITY = 300_000


def fill(world: World, ask: Asking, size: int) -> int:
    """Put until there is no room; how many messages fitted."""
    for fitted in range(CAPACITY):
        try:
            ask.put(world.payload(size))
        except penstock.QueueFull:
            return fitted
    raise AssertionError("the disk is never full")


def ack_one_by_one(ask: Asking) -> None:
    while messages := ask.claim():
        assert ask.ack(*messages) == []


def ack_together(ask: Asking) -> None:
    messages = ask.claim(10_000)
    assert ask.ack(*messages) == []


def ack_after_all_were_claimed(ask: Asking) -> None:
    messages = ask.claim(10_000)
    for message in reversed(messages):
        assert ask.ack(message) == []


def pop_all(ask: Asking) -> None:
    while ask.pop():
        pass


def fail_then_ack(ask: Asking) -> None:
    """Every further attempt takes space too, so at some point there may be none for claims; never for removing."""
    try:
        while messages := ask.claim(5):
            ask.fail(*messages, reason="there is no room")
        ask.redrive()
        ack_one_by_one(ask)
    except penstock.QueueFull:
        remove_all(ask)


def release_then_ack(ask: Asking) -> None:
    try:
        for _ in range(3):
            messages = ask.claim(10_000)
            assert ask.release(*messages) == []
        ack_together(ask)
    except penstock.QueueFull:
        ask.purge()


def remove_all(ask: Asking) -> None:
    for message in ask.messages():
        assert ask.remove(message.id) == 1


def purge(ask: Asking) -> None:
    ask.purge()


WAYS: list[Callable[[Asking], None]] = [
    ack_one_by_one,
    ack_together,
    ack_after_all_were_claimed,
    pop_all,
    fail_then_ack,
    release_then_ack,
    remove_all,
    purge,
]


@pytest.mark.parametrize("size", [10, 500, 5_000])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("keep_done", [0, 10])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_full_disk_refuses_puts_and_nothing_else(
    way: Callable[[Asking], None], size: int, reopened: bool, keep_done: int
) -> None:
    world = World(f"{way.__name__} {size}", segment_size=8_000)
    world.disk.capacity = CAPACITY

    def script(world: World) -> None:
        world.open()
        world.create("jobs", keep_done=keep_done, max_attempts=2)
        ask = world.ask("jobs")
        first = fill(world, ask, size)
        if reopened:
            world.reopen()
        with pytest.raises(penstock.QueueFull):
            ask.put_many([Draft(world.payload(size)) for _ in range(first + 1)])
        world.check()
        way(ask)
        world.check()
        assert ask.queue.counts()["available"] == 0
        world.clock.advance(400)  # what was done is no longer listed, and receipts are forgotten
        world.check()
        world.pack("jobs")
        assert fill(world, ask, size) > first * 0.8
        if reopened:
            world.reopen()
        pop_all(ask)
        world.close()

    world.run(script)


def test_another_queue_can_use_the_room_that_one_left() -> None:
    world = World("two queues", segment_size=8_000)
    world.disk.capacity = CAPACITY

    def script(world: World) -> None:
        world.open()
        world.create("other")
        first = fill(world, world.ask(), 100)
        fill(world, world.ask("other"), 1_000)
        world.check()
        pop_all(world.ask())
        world.pack("default")
        assert fill(world, world.ask("other"), 100) > first // 2
        world.close()

    world.run(script)


def test_the_first_put_of_all_fits_or_is_refused_however_little_room_there_is() -> None:
    outcomes = set()
    for room in range(0, 100_000, 500):
        world = World(f"room {room}")

        def script(world: World, room: int = room) -> None:
            world.open()
            world.disk.capacity = 10**9
            world.disk.capacity -= (world.disk.room() or 0) - room
            try:
                world.ask().put()
                outcomes.add("fits")
            except penstock.QueueFull:
                outcomes.add("refused")
            world.close()

        world.run(script)
    assert outcomes == {"fits", "refused"}


@pytest.mark.parametrize("size", [0, 500, 40_000])
@pytest.mark.parametrize("capacity", [9_000, 15_000, 21_000])
def test_settings_that_there_is_no_space_for_stay_as_they_were(capacity: int, size: int) -> None:
    world = World(f"settings {capacity} {size}")
    world.disk.capacity = capacity
    refused = 0

    def script(world: World) -> None:
        nonlocal refused
        world.open()
        ask = world.ask()
        for number in range(25):
            with suppress(penstock.QueueFull):
                ask.put(world.payload(700))
            try:
                world.update("default", filter=f"a = '{'x' * size}'", description=str(number))
            except penstock.DiskFull:
                refused += 1
        for message in ask.claim(50):
            ask.ack(message)
        world.reopen()
        world.close()

    world.run(script)
    assert refused
