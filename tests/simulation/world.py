"""A store on a simulated machine, and all that it promised: who uses it, who crashes it, and who holds it to that.

Everything that a world does follows from its seed. A crash state is what a power cut would leave at one moment: a
disk, and a copy of the promises up to then. Whoever opens a store on it must find them kept.
"""

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import penstock
from penstock import Draft, Message, Queue, State, Store
from penstock.contract.settings import Settings
from penstock.stores.journal import replay
from penstock.stores.journal.packing import Result, Round, build_order
from penstock.stores.journal.store import open_journal
from tests.history import History
from tests.simulated_disk import Keep, SimulatedDisk
from tests.simulation.scheduler import ScheduledClock, Scheduler

FOLDER = "/data"
SEGMENT = 1_500  # bytes: a few groups, so that rotation and packing come by themselves
UNSETTLED = ("delayed", "available", "in_flight", "failed")  # what a reader of the document still sees
Answer = TypeVar("Answer")
Script = Callable[["World"], object]


@dataclass
class Promise:
    """What the store owes for one queue. `certain` is False while its creation or deletion has no answer."""

    settings: Settings
    history: History
    there: bool = True
    certain: bool = True
    above: int = 0  # the highest id in earlier queues of this name
    highest: int = 0
    ids: set[str] = field(default_factory=set)  # ids of answered puts
    becoming: Settings | None = None  # what it may have instead, while an update has no answer

    def decide(self, settings: Settings) -> None:
        """The update was answered: the queue has these settings."""
        assert settings in (self.settings, self.becoming), f"settings that nobody gave: {settings}"
        self.settings, self.becoming = settings, None
        self.history.use(settings)


class World:
    """A simulated machine with a disk and a clock, a store on it, and the store's answers so far."""

    place: Callable[[str], int] = int  # of an id among all that the store ever gave
    grouped = True  # whether some messages have a group
    prompt = True  # as of a History
    leases: tuple[float, ...] = (0.001, 2, 30)  # that consumers ask for
    extensions: tuple[float, ...] = (1, 20)
    longest = 20  # of leases

    def __init__(self, seed: object, disk: SimulatedDisk | None = None, segment_size: int = SEGMENT) -> None:
        self.seed = seed
        self.random = Random(f"world {seed}")
        self.disk = disk or SimulatedDisk(Random(f"disk {seed}"))
        self.scheduler = Scheduler(Random(f"scheduler {seed}"))
        self.scheduler.join_disk(self.disk)
        self.clock = ScheduledClock(self.scheduler)
        self.segment_size = segment_size
        self.promises: dict[str, Promise] = {}
        self.tolerant = False  # whether errors of Penstock are noted instead of raised
        self.errors: list[BaseException] = []
        self.payloads = 0
        self.starts: list[int] = []  # how many operations the disk had done each time that the store was opened
        self._store: Store | None = None
        self.backend: Any = None

    def run(self, script: Script) -> None:
        """Run the script and the actors that it starts to their end; raises the first error of any of them."""
        self.scheduler.run(lambda: script(self))

    # The store

    @property
    def store(self) -> Store:
        assert self._store is not None, "the store is not open"
        return self._store

    def open(self) -> None:
        """Open the store; the queue `default` is there from the first time on."""
        try:
            self._start()
        except (OSError, penstock.PenstockError) as error:
            if not self.tolerant:
                raise
            self.errors.append(error)
            self._start()  # a failure comes once

    def _start(self) -> None:
        self.starts.append(self.disk.operations)
        self._open()

    def _open(self) -> None:
        self.backend = open_journal(
            FOLDER, clock=self.clock, disk=self.disk, threads=self.scheduler, segment_size=self.segment_size
        )
        self._store = Store(FOLDER, self.backend)
        if "default" not in self.promises:
            self._promise("default", Settings())

    def close(self) -> None:
        """Hold the store to its promises, then close it."""
        self.attempt(self.check, None)
        store, self._store = self.store, None
        self.attempt(store.close, None)

    def reopen(self) -> None:
        """Close the store and open it again: nothing may change by that."""
        self.close()
        self.open()
        self.attempt(lambda: self.check(reopened=True), None)

    def pack(self, name: str) -> None:
        """Have a journal packed now."""
        self.attempt(lambda: self.backend.pack(name), None)

    def pack_together(self, *names: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Pack journals in the middle of the traffic; a process that has not opened the store builds the files."""

        def pack() -> None:
            with Round(self.backend, names) as packing:
                results = []
                for number, order in enumerate(packing.begin()):
                    with suppress(OSError):  # as of a task that fails
                        results.append(build_order(order, self.disk, number))
                meanwhile()
                packing.swap([result for result in results if isinstance(result, Result)])

        self.attempt(pack, None)

    def create(self, name: str, **settings: Any) -> None:
        """Make a queue; there must be none of that name."""
        before = self.promises.get(name)
        promise = self._promise(name, Settings(**settings))
        promise.there = promise.certain = False
        try:
            self.store.create(name, **settings)
        except penstock.PenstockError as error:
            if before is not None and (before.there or not before.certain):  # it exists, or the store has stopped
                self.promises[name] = before
            promise.certain = is_refusal(error)
            self.note(error)
        else:
            promise.there = promise.certain = True

    def update(self, name: str, **changes: Any) -> None:
        """Change settings of a queue that is not in use. Until the answer, old and new settings are both legal."""
        promise = self.promises[name]
        try:
            promise.history.check(self.store.queue(name))
        except penstock.PenstockError as error:
            self.note(error)
            return  # the store has stopped
        promise.becoming = promise.settings.changed(changes)
        try:
            told = self.store.queue(name).update(**changes)
        except penstock.PenstockError as error:
            if is_refusal(error):
                promise.becoming = None
            self.note(error)
        else:
            assert told == promise.becoming
            promise.decide(told)

    def delete(self, name: str) -> None:
        """Delete a queue, and forget its history."""
        promise = self.promises[name]
        promise.certain = False
        try:
            self.store.delete(name)
        except penstock.PenstockError as error:
            promise.certain = is_refusal(error)
            self.note(error)
        else:
            promise.there, promise.certain = False, True

    def ask(self, name: str = "default") -> "Asking":
        return Asking(self, name)

    def attempt(self, call: Callable[[], Answer], instead: Answer) -> Answer:
        """The answer; a given value instead, if errors are tolerated and there is one."""
        try:
            return call()
        except penstock.PenstockError as error:
            self.note(error)
            return instead

    def note(self, error: penstock.PenstockError) -> None:
        """Raise an error, unless they are tolerated."""
        if not self.tolerant:
            raise error
        self.errors.append(error)

    def payload(self, size: int = 0) -> bytes:
        """A payload that no other message has."""
        self.payloads += 1
        return f"payload {self.payloads} ".encode().ljust(size, b".")

    # Checks against the history

    def check(self, reopened: bool = False) -> None:
        """Check the store against its answers so far; no actor may be using it."""
        found = {info.name: info for info in self.store.queues()}
        assert found.keys() <= self.promises.keys(), f"queues that nobody made: {found.keys()}"
        for name, promise in self.promises.items():
            if not promise.certain and reopened:
                promise.there, promise.certain = name in found, True
            if not promise.certain:
                continue
            assert promise.there == (name in found), f"queue {name!r} is {'lost' if promise.there else 'back'}"
            if promise.there and promise.becoming is not None:
                if not reopened:
                    continue
                promise.decide(found[name].settings)
            if promise.there:
                assert found[name].settings == promise.settings, f"queue {name!r} has other settings"
                queue = self.store.queue(name)
                (promise.history.reopened if reopened else promise.history.check)(queue)

    def check_ids(self, promise: Promise, ids: list[str]) -> None:
        """Check that new ids are above those of deleted queues of the name."""
        places = [type(self).place(each) for each in ids]
        assert all(place > promise.above for place in places), f"{ids} were ids of a deleted queue"
        promise.highest = max([promise.highest, *places])

    def listing(self) -> dict[str, list[Message]]:
        """Every message of every queue."""
        return {info.name: list(self.store.queue(info.name).messages()) for info in self.store.queues()}

    def check_document(self, listing: dict[str, list[Message]]) -> None:
        """A reader of Kestrel's document sees what was not acknowledged away. The store is closed."""
        for name, messages in listing.items():
            expected = Counter(message.payload for message in messages if message.state in UNSETTLED)
            seen = replay(FOLDER, name, disk=self.disk)
            assert seen.broken is None, f"the journal of {name!r} is broken at {seen.broken}"
            found = Counter([*seen.queue, *seen.open.values()])
            assert found == expected, f"a reader of {name!r} misses {expected - found} and sees {found - expected}"

    def check_after_start(self, used: bool) -> None:
        """Open the store after a crash, check it, use it, and close it."""
        self.open()
        self.check(reopened=True)
        if used:
            self.use()
        listing = self.listing()
        self.close()
        self.check_document(listing)

    def use(self) -> None:
        """A little of everything, to see that the store works as before."""
        for name, promise in self.promises.items():
            if promise.there:
                ask = self.ask(name)
                with suppress(penstock.QueueFull):
                    ask.put_many([Draft(self.payload()), Draft(self.payload(), priority=1)])
                for number, message in enumerate(ask.claim(3)):
                    (ask.ack, ask.fail, ask.release)[number % 3](message)
                for receipt in list(promise.history.receipts)[-2:]:
                    ask.ack(receipt)  # of before the crash, maybe

    # Copies

    def freeze(self) -> bytes:
        """Everything but the machine."""
        promises = [
            (
                name,
                each.settings,
                _frozen(each.history),
                each.there,
                each.certain,
                each.above,
                each.highest,
                each.ids,
                each.becoming,
            )
            for name, each in self.promises.items()
        ]
        return pickle.dumps((promises, self.clock.now(), self.payloads, self.segment_size))

    @classmethod
    def thaw(cls, frozen: bytes, seed: object, disk: SimulatedDisk) -> "World":
        """A copy, on another machine."""
        promises, now, payloads, segment_size = pickle.loads(frozen)
        world = cls(seed, disk, segment_size)
        world.clock = ScheduledClock(world.scheduler, now)
        world.payloads = payloads
        for name, settings, history, *rest in promises:
            world.promises[name] = Promise(settings, _thawed(history, world.clock.now), *rest)
        return world

    def _promise(self, name: str, settings: Settings) -> Promise:
        before = self.promises.get(name)
        above = before.highest if before else 0
        promise = Promise(
            settings, History(self.clock.now, settings, prompt=self.prompt), above=above, highest=above
        )
        self.promises[name] = promise
        return promise


def is_refusal(error: penstock.PenstockError) -> bool:
    """Whether the error says that nothing has changed."""
    return not isinstance(error, penstock.StoreClosed | penstock.StoreCorrupt)


class Asking:
    """A queue of a world whose answers are promises."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._attempt = world.attempt

    @property
    def history(self) -> History:
        return self._world.promises[self._name].history

    @property
    def queue(self) -> Queue:
        return Queue(self._world.store, self._name)

    def put(self, payload: bytes | None = None, **fields: Any) -> str:
        draft = Draft(self._world.payload() if payload is None else payload, **fields)
        return "".join(self.put_many([draft]))

    def put_many(self, drafts: Iterable[Draft]) -> list[str]:
        """Beside what a history knows: an old id never means a message of a new queue of that name."""
        promise = self._world.promises[self._name]
        nothing: list[str] = []
        ids = self._attempt(lambda: promise.history.put_many(self.queue, drafts), nothing)
        self._world.check_ids(promise, ids)
        promise.ids.update(ids)
        return ids

    def pop(self) -> Message | None:
        return self._attempt(lambda: self.history.pop(self.queue), None)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """An operation of the history; with errors that are tolerated it answers with nothing."""
        nothing: Any = 0 if operation in ("remove", "revoke", "redrive", "purge") else []
        call = getattr(self.history, operation)
        return lambda *arguments, **fields: self._attempt(lambda: call(self.queue, *arguments, **fields), nothing)

    def messages(self, state: State | None = None) -> list[Message]:
        """Those in that state whose put was answered: the history could not tell what became of another."""
        nothing: list[Message] = []
        listed = self._attempt(lambda: list(self.queue.messages(state)), nothing)
        return [message for message in listed if message.id in self._world.promises[self._name].ids]


_MACHINE = ("_lock", "_now", "_write")  # attributes of a history that cannot be copied


def _frozen(history: History) -> dict[str, Any]:
    return {name: value for name, value in vars(history).items() if name not in _MACHINE}


def _thawed(frozen: dict[str, Any], now: Callable[[], int]) -> History:
    history = History.__new__(History)
    vars(history).update(frozen, _lock=threading.RLock(), _now=now, _write=None)
    return history


@dataclass
class CrashState:
    """A disk after a power cut: one of the legal outcomes at that moment."""

    name: str  # how to reproduce it
    promises: bytes
    disk: SimulatedDisk
    operation: tuple[str, str, str] = field(default=("", "", ""))
    kind: type[World] = World

    def check(self, used: bool = False) -> World:
        """Start the machine and hold the store to its promises."""
        world = self.kind.thaw(self.promises, self.name, self.disk)
        try:
            world.run(lambda world: world.check_after_start(used))
        except BaseException as error:
            error.add_note(f"in crash state {self.name!r}, before {self.operation}")
            raise
        return world


def crash_states(world: World, script: Script, keeps: Iterable[Keep], chance: float = 1.0) -> Iterator[CrashState]:
    """Disks after power cuts before each operation of the script and after the last; a random choice of them.

    The power stays on, so that one run has them all. The states are made while the script runs and are given when
    it is over; those that are equal to one before are left out.
    """
    keeps = list(keeps)
    states: list[CrashState] = []
    seen: set[int] = set()  # as hashes; one in quintillions is left out for nothing
    promises = b""

    def observe() -> None:
        nonlocal promises
        if chance < 1 and world.random.random() >= chance:
            return
        before, promises = promises, world.freeze()
        if promises != before:
            seen.clear()
        for place, keep in enumerate(keeps[:1] if world.disk.is_synced() else keeps):
            name = f"{world.seed} / {world.disk.operations} {keep} {place}"
            disk = world.disk.if_it_crashed(Random(name), keep)
            content = hash(tuple(sorted(disk.files().items())))
            if content not in seen:
                seen.add(content)
                states.append(CrashState(name, promises, disk, world.scheduler.trace[-1], type(world)))

    world.scheduler.observe = observe
    try:
        world.run(script)
        observe()
    finally:
        world.scheduler.observe = None
    yield from states
