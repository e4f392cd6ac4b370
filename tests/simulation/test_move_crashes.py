"""The power goes before every file operation of moves and dead letters: each message is in exactly one queue."""

import errno
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from penstock import PenstockError, SimulatedClock
from penstock.contract.message import ORIGIN_HEADER, Entry
from penstock.contract.operations import Ack, Claim, Create, Fail, Messages, Move, Put, Queues, Redrive
from penstock.contract.settings import Settings
from penstock.stores.folder.backend import open_folder
from penstock.stores.journal.store import open_journal
from penstock.stores.text.backend import open_text
from tests.simulated_disk import Keep, SimulatedDisk
from tests.simulation.folder_world import SimulatedNeighbours
from tests.simulation.scheduler import Scheduler

FOLDER = "/data"
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
HARMLESS = {"open", "size", "read", "listdir", "exists", "is_folder", "status", "lock", "unlock", "close"}
HARMLESS |= {"kind", "attributes", "attribute", "is_being_written"}
ORIGINS = {b"a": "jobs", b"b": "jobs", b"c": "jobs", b"d": "mails", b"e" * 900: "mails"}
PROCESSES = itertools.count(1)
MACHINES = itertools.count(1)


# Text and folder stores make more calls: `make test` tries a share of them.
each_kind = pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("journal", 1.0),
        ("text", 0.2),
        ("folder", 0.1),
        *(pytest.param(kind, 1.0, marks=pytest.mark.long) for kind in ("text", "folder")),
    ],
)


class FewerMoved(AssertionError):
    """A move has left messages where they were: on a full disk, or if another process had them in hand."""


@dataclass
class Told:
    """What the program was told: where each message is that was put and not acknowledged."""

    places: dict[bytes, str] = field(default_factory=dict)
    leaving: dict[bytes, str] = field(default_factory=dict)  # where an operation that runs may have brought it


@dataclass
class World:
    """A store on the simulated disk, and what its program was told."""

    kind: str
    disk: SimulatedDisk
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    told: Told = field(default_factory=Told)
    machine: str = field(default_factory=lambda: f"machine{next(MACHINES)}")

    def open(self) -> Any:
        self.backend: Any
        if self.kind == "folder":
            neighbours = SimulatedNeighbours(self.machine, next(PROCESSES), Scheduler(Random(0)))
            self.backend = open_folder(
                FOLDER, clock=self.clock, disk=self.disk, neighbours=neighbours, ballast=1_000
            )
        elif self.kind == "text":
            self.backend = open_text(f"text:{FOLDER}", clock=self.clock, disk=self.disk)
        else:
            self.backend = open_journal(FOLDER, clock=self.clock, disk=self.disk, segment_size=2_000)
        return self.backend

    def put(self, queue: str, *payloads: bytes, group: str | None = None) -> list[str]:
        ids: list[str] = self.backend.run(Put(queue, [Entry(payload, group=group) for payload in payloads]))
        self.told.places |= dict.fromkeys(payloads, queue)
        return ids

    def doing(self, target: str, payloads: list[bytes], do: Callable[[], object]) -> None:
        """Do something that brings messages into another queue."""
        self.told.leaving = dict.fromkeys(payloads, target)
        do()
        self.told.places |= self.told.leaving
        self.told.leaving = {}


def dead_letters(world: World) -> None:
    """Messages fail for good, in a claim, by their leases and beside packing, and go back to their origins."""
    store = world.open()
    store.run(Create("dead", Settings()))
    store.run(Create("jobs", Settings(max_attempts=1, dead_letter="dead")))
    store.run(Create("mails", Settings(max_attempts=1, dead_letter="dead")))
    world.put("jobs", b"a", b"b", b"c", group="g")
    world.put("mails", b"d", b"e" * 900)
    world.put("dead", b"own")
    for queue, dying in (("jobs", [b"a"]), ("mails", [b"d", b"e" * 900])):
        claimed = store.run(Claim(queue, 9, consumer=""))
        assert [message.payload for message in claimed] == dying
        receipts = [message.receipt or "" for message in claimed]
        world.doing("dead", dying, lambda: store.run(Fail(queue, receipts, reason="no")))  # noqa: B023
    store.pack("dead")
    store.run(Claim("jobs", 9, lease=5, consumer=""))
    world.clock.advance(5)
    world.doing("dead", [b"b"], lambda: found_in(store))
    world.told.leaving = {b"a": "jobs", b"b": "jobs", b"d": "mails", b"e" * 900: "mails"}
    assert store.run(Redrive("dead")) == 4
    world.told.places |= world.told.leaving
    world.told.leaving = {}
    store.close()
    store = world.open()
    [message] = store.run(Claim("jobs", consumer=""))
    del world.told.places[message.payload]
    store.run(Ack("jobs", [message.receipt or ""]))
    store.close()


def moves_by_hand(world: World) -> None:
    """Messages move there and back, while both journals rotate and are packed."""
    store = world.open()

    def move(queue: str, target: str, ids: list[str]) -> None:
        if store.run(Move(queue, target, ids)) < len(ids):
            raise FewerMoved

    for queue in ("a", "b"):
        store.run(Create(queue, Settings()))
    ids = world.put("a", *[b"%d" % number * 300 for number in range(6)])
    moving = [b"%d" % number * 300 for number in range(4)]
    world.doing("b", moving, lambda: move("a", "b", ids[:4]))
    store.pack("a")
    there = [message.id for message in store.run(Messages("b"))]
    world.doing("a", moving[:2], lambda: move("b", "a", there[:2]))
    store.pack("b")
    world.put("b", b"last")
    store.close()


def crash_states(kind: str, script: Callable[[World], None], share: float) -> Iterator[tuple[World, str]]:
    """What a power cut leaves before a share of the operations, in several ways, with what was told by then."""
    world = World(kind, SimulatedDisk(Random(0)))
    states: list[tuple[World, str]] = []
    choice = Random(0)

    def look(name: str, path: str) -> None:
        if name not in HARMLESS and choice.random() < share:
            for keep in KEEPS:
                left = world.disk.if_it_crashed(Random(f"{len(states)}"), keep)
                clock = SimulatedClock(world.clock.now())
                where = f"{len(world.disk.trace)} {name} {path} {keep}"
                states.append((World(kind, left, clock, deepcopy(world.told)), where))

    world.disk.before_operation = look
    script(world)
    world.disk.before_operation = None
    yield from states


def found_in(backend: Any) -> Counter[tuple[bytes, str]]:
    """Each message with its queue, whole: what it is told of its past is that of the queue that it is in."""
    found: Counter[tuple[bytes, str]] = Counter()
    for info in backend.run(Queues()):
        assert info.settings.dead_letter is None or not info.counts["failed"]
        for message in backend.run(Messages(info.name)):
            found[message.payload, info.name] += 1
            origin = ORIGINS.get(message.payload) if info.name == "dead" else None
            assert message.headers.get(ORIGIN_HEADER) == origin
            assert (message.reason is None) == (message.attempts == 0 or message.state == "in_flight")
            assert origin is None or (message.state, message.attempts) == ("available", 0)
    return found


def check(world: World, where: str) -> None:
    backend = world.open()
    found = found_in(backend)
    assert all(count == 1 for count in found.values()), where
    payloads = Counter(payload for payload, _ in found)
    assert all(count == 1 for count in payloads.values()), (where, found)
    for payload, place in world.told.places.items():
        assert (payload, place) in found or (payload, world.told.leaving.get(payload)) in found, (where, payload)
    for payload, place in world.told.leaving.items():
        if place == "dead":  # its lease holds, or it is there: it never starts over in its own queue
            states = [each.state for each in backend.run(Messages(ORIGINS[payload])) if each.payload == payload]
            assert states in ([], ["in_flight"]), where
    backend.close()
    assert not any("/held/" in path and not path.endswith("/") for path in world.disk.files()), where
    assert found_in(world.open()) == found, where
    world.backend.close()


@each_kind
@pytest.mark.parametrize("script", [dead_letters, moves_by_hand], ids=lambda script: script.__name__)
def test_a_message_that_moves_is_in_exactly_one_queue_after_any_power_cut(
    kind: str, share: float, script: Callable[[World], None]
) -> None:
    looked = 0
    for world, where in crash_states(kind, script, share):
        check(world, where)
        looked += 1
    assert looked > 50


@each_kind
def test_a_crash_while_an_interrupted_move_is_finished_does_no_harm(kind: str, share: float) -> None:
    """Opening finishes the move; the power goes before each of its operations, too."""
    looked = 0
    choice = Random(7)
    states, operations = (0.01 / share**0.7, min(share, 0.3)) if kind == "folder" else (0.03 / share, share)
    for world, where in crash_states(kind, moves_by_hand, share):
        if len(world.told.leaving) < 2 or choice.random() > states:
            continue
        for again, second in crash_states(kind, lambda later, first=world: reopened(later, first), operations):  # type: ignore[misc]
            again.told = world.told
            check(again, f"{where} / {second}")
            looked += 1
    assert looked > 10


def reopened(later: World, first: World) -> None:
    first.disk.before_operation, later.disk = later.disk.before_operation, first.disk
    found_in(later.open())  # a text store finishes nothing before
    later.backend.close()


@each_kind
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_move_that_an_error_interrupts_leaves_each_message_in_one_queue(
    kind: str, share: float, error: int
) -> None:
    operation = failed = 0
    while True:
        operation += round(1 / share)
        world = World(kind, SimulatedDisk(Random(0)))
        world.disk.fail_at(operation, error)
        with suppress(PenstockError, OSError, FewerMoved):
            moves_by_hand(world)
            if world.disk.operations < operation:
                break
            continue  # the error was of something that can be done without
        failed += 1
        if hasattr(world, "backend"):
            with suppress(PenstockError, OSError):
                world.backend.close()
            check(world, f"operation {operation}")
    assert failed > 20 * share


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("script", [dead_letters, moves_by_hand], ids=lambda script: script.__name__)
def test_a_process_that_another_host_takes_for_dead_in_the_middle_of_a_move_loses_and_doubles_nothing(
    script: Callable[[World], None], step: int
) -> None:
    """It was silent for a minute: the other one recovers what it has in hand, and then it goes on."""
    whole, operations = World("folder", SimulatedDisk(Random(0))), []

    def note(name: str, path: str) -> None:
        if whole.told.places:
            operations.append(whole.disk.operations)

    whole.disk.before_operation = note
    script(whole)
    for operation in operations[::step]:
        world = World("folder", SimulatedDisk(Random(0)))
        other = World("folder", world.disk, world.clock)

        def recover(name: str, path: str, world: World = world, other: World = other, at: int = operation) -> None:
            locked = world.disk.node(f"{FOLDER}/.penstock/locks/%").locked_by is not None
            if world.disk.operations >= at and not locked:
                world.disk.before_operation = None
                other.open().close()

        world.disk.before_operation = recover
        with suppress(PenstockError, OSError, AssertionError):  # it may be told that it was too slow
            script(world)
        world.disk.before_operation = None
        with suppress(PenstockError, OSError):
            world.backend.close()
        check(World("folder", world.disk, world.clock, world.told), f"operation {operation}")
