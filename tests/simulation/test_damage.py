"""Any byte of any file is damaged: that is found and said, or it changes nothing at all."""

import logging
from collections.abc import Iterator
from random import Random

import pytest

import penstock
from penstock import Draft, Message
from tests.simulated_disk import SimulatedDisk
from tests.simulation.world import FOLDER, World

Listing = dict[str, list[Message]]
SHARE = 5  # `make test` damages one byte in so many


def use(world: World) -> None:
    """A store with a little of everything in it, in several files."""
    world.open()
    world.create("jobs", max_attempts=2, keep_done=500, max_size=50)
    ask = world.ask("jobs")
    ask.put(key="once", headers={"kind": "test"}, retention=1_000)
    ask.put_many([Draft(world.payload(40), priority=-1), Draft(world.payload(), delay=500)])
    ask.ack(*ask.claim())
    ask.put_many([Draft(world.payload()) for _ in range(3)])
    ask.fail(*ask.claim(2), reason="not yet")
    ask.put(world.payload(700))
    ask.fail(*ask.claim(1), reason="never")
    world.pack("jobs")
    ask.claim(1, lease=400)
    ask.put(key="twice")
    world.ask().put()


def closed_store() -> World:
    world = World("damage", segment_size=600)

    def script(world: World) -> None:
        use(world)
        world.close()

    world.run(script)
    return world


def look(world: World, used: bool = True) -> Listing | None:
    """All that the store shows, as it was promised; None if it says that it is damaged."""
    shown: list[Listing] = []

    def script(world: World) -> None:
        world.open()
        world.check(reopened=True)
        shown.append(world.listing())
        if used:
            world.use()  # receipts and keys are as before too
        world.store.close()

    try:
        world.run(script)
    except penstock.StoreCorrupt:
        return None
    return shown[0]


def damaged(world: World, masks: int, every: int = 1) -> Iterator[tuple[str, SimulatedDisk]]:
    """The disk with one byte changed, for each byte of each file, or for every so many."""
    for path, content in sorted(world.disk.files().items()):
        for position, byte in list(enumerate(content))[::every]:
            for mask in {1 << position % 8} if masks == 1 else {1, 2, 4, 8, 16, 32, 64, 128, 255}:
                disk = world.disk.if_it_crashed(Random(0), "everything")
                with disk.open(path) as file:
                    file.write(position, bytes([byte ^ mask]))
                    file.sync()
                yield f"{path} at {position} of {len(content)}, {byte} ^ {mask}", disk


def check_flips_of_closed(masks: int, every: int = 1) -> None:
    world = closed_store()
    promises = world.freeze()
    expected = look(World.thaw(promises, "whole", world.disk.if_it_crashed(Random(0), "everything")))
    assert expected is not None
    refused = 0
    for number, (name, disk) in enumerate(damaged(world, masks, every)):
        try:
            found = look(World.thaw(promises, name, disk), used=number % 5 == 0)
        except BaseException as error:
            error.add_note(f"after damage to {name}")
            raise
        assert found in (None, expected), name
        refused += found is None
    assert refused > 1_000 * masks // every  # most bytes count


def test_a_flipped_bit_in_a_closed_store_is_found_or_harmless() -> None:
    check_flips_of_closed(masks=1, every=SHARE)


@pytest.mark.long
def test_any_flipped_bit_of_a_closed_store_is_found_or_harmless() -> None:
    check_flips_of_closed(masks=9)


@pytest.mark.parametrize("every", [SHARE, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_of_a_closed_store_that_is_cut_off_is_noticed_or_harmless(every: int) -> None:
    world = closed_store()
    promises = world.freeze()
    expected = look(World.thaw(promises, "whole", world.disk.if_it_crashed(Random(0), "everything")))
    for path, content in sorted(world.disk.files().items()):
        for size in range(0, len(content), every):
            disk = world.disk.if_it_crashed(Random(0), "everything")
            with disk.open(path) as file:
                file.truncate(size)
                file.sync()
            name = f"{path} cut to {size} of {len(content)}"
            try:
                found = look(World.thaw(promises, name, disk), used=size % 5 == 0)
            except BaseException as error:
                error.add_note(name)
                raise
            assert found in (None, expected), name


@pytest.mark.parametrize("every", [SHARE, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_in_a_store_that_crashed_is_found_or_only_undoes_what_was_written_last(
    every: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World("damage", segment_size=600)
    shown: list[Listing] = []

    def script(world: World) -> None:
        use(world)
        shown.append(world.listing())
        world.ask("jobs").put()
        world.ask().put()
        shown.append(world.listing())

    world.run(script)
    promises = world.freeze()
    before, after = shown
    undone = refused = 0
    for name, disk in damaged(world, 1, every):
        caplog.clear()
        copy = World.thaw(promises, name, disk)
        found = {}
        try:
            found = open_and_list(copy)
        except penstock.StoreCorrupt:
            refused += 1
            continue
        except BaseException as error:
            error.add_note(f"after damage to {name}")
            raise
        assert found.keys() == after.keys(), name
        for queue, messages in found.items():
            if messages != after[queue]:
                undone += 1
                assert messages == before[queue], name
                kept = [path for path in disk.files() if path.startswith(f"{FOLDER}/.penstock/quarantine/{queue}")]
                assert kept, name
                assert any(record.levelno >= logging.WARNING for record in caplog.records), name
    assert undone > 50 // every
    assert refused > 500 // every


def open_and_list(world: World) -> Listing:
    found: Listing = {}

    def script(world: World) -> None:
        world.open()
        found.update(world.listing())
        world.store.close()

    world.run(script)
    return found
