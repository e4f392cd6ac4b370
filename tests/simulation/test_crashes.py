"""The power goes before file operations; whatever then is on the disk, no promise is broken."""

from itertools import product
from random import Random

import pytest

from penstock.contract.settings import Settings
from penstock.rules.state import State
from penstock.stores.journal.files import Segment
from penstock.stores.journal.reading import Loader, Rest, look_at_rest
from penstock.stores.text import storage
from tests.simulated_disk import Luck, SimulatedCrash, SimulatedDisk, Write
from tests.simulation.folder_world import FolderWorld
from tests.simulation.kinds import FOLDER, KEEPS, KINDS, MANY, Kind, each_script
from tests.simulation.scripts import SCRIPTS, SECTOR, world_for
from tests.simulation.world import World, crash_states


@pytest.fixture(autouse=True)
def short_mutex_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "compacting" in request.node.name:
        monkeypatch.setattr(storage, "_COMPACT", 500)


@each_script
def test_a_crash_before_file_operations_breaks_no_promise(kind: Kind, name: str) -> None:
    choice, count = Random(name), 0
    for state in crash_states(kind.begin(name, 0), kind.scripts[name], KEEPS, kind.crashes):
        state.check(used=choice.random() < 0.3)
        count += 1
    assert count > 15


@pytest.mark.long
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in KINDS for part in range(kind.parts)], ids=str)
def test_a_hundred_thousand_crash_states_break_no_promise(kind: Kind, part: int) -> None:
    for name, script in kind.scripts.items():
        count = seed = 0
        choice = Random(f"{name} {part}")
        while count < kind.enough:
            seed += 1
            for state in crash_states(kind.begin(name, f"{part}.{seed}"), script, MANY):
                state.check(used=choice.random() < 0.1)
                count += 1


@each_script
@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_crash_while_the_store_starts_after_a_crash_breaks_no_promise(kind: Kind, name: str, times: int) -> None:
    choice = Random(name)
    for state in crash_states(kind.begin(name, 0), kind.scripts[name], ["some"], min(1, kind.crashes * times)):
        if choice.random() < kind.starts * times:
            world = state.kind.thaw(state.promises, state.name, state.disk)
            for second in crash_states(world, lambda world: world.check_after_start(used=True), ["some"], 0.2):
                second.check()


@each_script
def test_a_script_goes_the_same_way_with_the_same_seed(kind: Kind, name: str) -> None:
    if kind is FOLDER:
        pytest.skip("names of files are drawn anew in each run")

    def run() -> list[tuple[str, str, str]]:
        world = kind.begin(name, 0)
        world.run(kind.scripts[name])
        return world.scheduler.trace

    assert run() == run()


# Journals: what is behind the last whole group of a file.


class Run(Luck):
    """Keeps sectors that lie together, from one to another, and the new size or not; and truncations or not."""

    def __init__(self, first: int, end: int, size: bool, truncations: bool) -> None:
        super().__init__(Random(0), "some")
        self._run = first, end
        self._size, self._truncations = size, truncations

    def keeps(self) -> bool:
        return self._truncations

    def pieces(self, offset: int, size: int) -> list[tuple[int, int]]:
        first, end = (min(max(sector * SECTOR - offset, 0), size) for sector in self._run)
        kept = [(first, end)] if first < end else []
        return kept + [(size, size)] * self._size


def rest_of(content: bytes, number: int) -> Rest | None:
    """What opening finds behind the last whole group of a file."""
    file = SimulatedDisk(Random(0)).open("/default", create=True)
    file.write(0, content)
    segment = Segment(0, "default", file, len(content))
    loader = Loader(State("default", Settings()), [number])
    return look_at_rest(segment, loader.replay(segment, 0), True, "doc")


def test_what_is_left_of_a_torn_write_is_never_taken_for_entries_of_another_program() -> None:
    """Of each write any sectors that lie together; other outcomes are left to the other tests."""
    world = world_for("payloads_like_entries", 0)
    looked = 0

    def tear() -> None:
        nonlocal looked
        node = world.disk.node("/data/default")
        writes = [change for change in node.unsynced if isinstance(change, Write)]
        if not writes:
            return
        first = min(write.offset for write in writes) // SECTOR
        end = max(write.offset + len(write.data) for write in writes) // SECTOR + 1
        for start, size, truncations in product(range(first, end), (False, True), (False, True)):
            for stop in range(start + 1, end + 1):
                content = bytearray(node.durable)
                for change in node.unsynced:
                    change.apply(content, Run(start, stop, size, truncations))
                rest = rest_of(bytes(content), 1)
                assert rest is None or not rest.entries, (start, stop, size, truncations, world.disk.trace[-1])
                looked += 1

    world.scheduler.observe = tear
    world.run(SCRIPTS["payloads_like_entries"])
    assert looked > 10_000


@pytest.mark.parametrize("operation", range(1, 23))
def test_what_a_pop_that_died_has_written_acknowledges_no_later_attempt(operation: int) -> None:
    def put(world: World) -> None:
        world.open()
        world.create("jobs", keep_done=10)
        world.ask("jobs").put()
        world.disk.crash_at = world.disk.operations + operation
        world.ask("jobs").pop()

    def claim(world: World) -> None:
        world.open()
        world.check(reopened=True)
        ask = world.ask("jobs")
        for message in ask.claim(lease=60):
            ask.remove(message.id)
            assert ask.ack(message) == [message.receipt]

    world = FolderWorld("a pop that dies")
    with pytest.raises(SimulatedCrash):
        world.run(put)
    disk = world.disk.after_crash(Random(operation), "everything")
    FolderWorld.thaw(world.freeze(), "after it", disk).run(claim)
