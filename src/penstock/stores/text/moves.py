"""Moves between the queues of a text store: by hand, as dead letters, and back to their origin.

A message is in exactly one queue, also after a crash. Both queues are locked, in one order among all processes:

    1. The source's mutex file notes which messages are about to move, and the ids that they get.
    2. The target's put is made durable; its line in the mutex file names the source.
    3. The messages are removed from the source, in the same line that closes the note of step 1.
    4. The target's mutex file notes that nothing of them is left in the source.

A crash in between leaves a note in one mutex file or both. Whichever queue is locked next, the process lets go of
it, locks both, and goes on from what the target's file has: what arrived there leaves the source, and all else
stays. That holds for files that a person has edited since.

Dead letters are a matter of state, not of an event, as in `engine/moves.py`. A queue moves its own before and
after each operation. A queue that takes them looks at its sources first; so does a consumer that waits there.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from penstock.contract.message import ORIGIN_HEADER
from penstock.contract.settings import Settings
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    PenstockError,
    QueueFull,
    QueueNotFound,
    StoreClosed,
    StoreUnavailable,
)
from penstock.rules.moves import (
    MOVABLE,
    REFUSED,
    check_dead_letter,
    of_dead_letter,
    sources_of,
    without_past,
)
from penstock.rules.rows import FAILED
from penstock.stores.text.catalog import errors_of_the_disk, stem_of
from penstock.stores.text.files import SUFFIX, mutex_of
from penstock.stores.text.format import COMMENT, parse
from penstock.stores.text.mutex import Leaving
from penstock.stores.text.queue import Headers, TextFileQueue
from penstock.stores.text.storage import Edited
from penstock.stores.text.variables import facts, read_head
from penstock.stores.text.view import FAR, View
from penstock.system.clock import SteadyClock
from penstock.system.files import Disk, Status
from penstock.system.threads import Threads

if TYPE_CHECKING:
    from penstock.stores.text.backend import TextBackend

_AT_ONCE = 500  # messages of one step
_BYTES = 4 << 20  # of their entries
_HEAD = 1 << 16  # bytes of a file in which its settings are looked for
_LOOK = 1.0  # seconds between two looks at the settings of all queues,
_SHARE = 50  # and at least so many times as long as a look takes
_TRIES = 5  # of a step whose files are edited meanwhile
Result = TypeVar("Result")


class Moves:
    """Moves between the queues of a backend."""

    def __init__(self, backend: "TextBackend", disk: Disk, clock: SteadyClock, threads: Threads) -> None:
        self._backend = backend
        self._disk = disk
        self._clock = clock
        self._threads = threads
        self._lock = threads.lock()
        self._sources: dict[str, list[str]] = {}  # of each dead-letter queue
        self._next_look = 0.0
        self._letters: dict[str, tuple[Status, str | None]] = {}  # dead_letter by path
        self._refused: dict[str, tuple[Settings, set[str]]] = {}  # by source: messages that such settings refuse

    def forked(self) -> None:
        """In a forked child: another thread of the parent may hold the lock."""
        self._lock = self._threads.lock()

    # Settings

    def check(self, queue: str, settings: Settings) -> None:
        """Refuse a dead-letter queue that does not exist, or has one itself."""
        if settings.dead_letter is not None:
            self.forget()
            check_dead_letter(queue, settings, lambda name: self._backend.find(name).settings, self.sources())

    def forget(self) -> None:
        """The dead_letter of a queue has changed."""
        self._next_look = 0.0

    def sources(self) -> Mapping[str, Sequence[str]]:
        """The queues whose dead letters each queue takes. Changes of other processes show after a second."""
        if self._clock.monotonic() < self._next_look:
            return self._sources
        with self._lock:
            if (began := self._clock.monotonic()) >= self._next_look:
                with suppress(OSError, PenstockError):  # operations raise it
                    self._look_for_sources()
                ended = self._clock.monotonic()
                self._next_look = ended + max(_LOOK, _SHARE * (ended - began))
        return self._sources

    def _look_for_sources(self) -> None:
        letters, found = {}, []
        for name, path in self._backend.files().items():
            with suppress(OSError):  # it was removed, or may not be read
                letters[path] = self._letter(path)
                found.append((name, Settings(dead_letter=letters[path][1])))
        self._sources, self._letters = sources_of(found), letters

    def _letter(self, path: str) -> tuple[Status, str | None]:
        """The dead_letter of a queue, as the beginning of its file has it, and the file's status."""
        there, known = self._disk.status(path), self._letters.get(path)
        if known is not None and known[0] == there:
            return known
        with self._disk.open(path, follow=True) as file:
            data = file.read(0, _HEAD)
        return there, read_head(parse(data).entries)[0].dead_letter if b"\\dead_letter=" in data else None

    # Dead letters

    def pull(self, queue: str) -> None:
        """Have other queues move their dead letters to this one."""
        for name in self.sources().get(queue, ()):
            with suppress(PenstockError):  # operations on that queue raise it
                source = self._backend.find(name)
                if source.may_have_dead():
                    source.serve()

    def pull_all(self) -> None:
        """The same for all queues."""
        for target in list(self.sources()):
            self.pull(target)

    def bury(self, queue: TextFileQueue) -> None:
        """Move failed messages of a queue to its dead-letter queue, as many as that takes."""
        # The others stay failed until one of the two queues is used again.
        with suppress(QueueFull, QueueNotFound, DiskFull, StoreUnavailable):
            letter = self._look(queue, lambda view, now: view.settings.dead_letter)
            target = self._backend.find(letter or "")
            if self._place(queue) == self._place(target):
                return
            takes, room = self._look(target, lambda view, now: (view.settings, view.ledger.room()))
            known, refused = self._refused.get(queue.name, (takes, set[str]()))
            if known != takes:
                refused = set()
            self._refused[queue.name] = takes, refused
            if not room:
                return
            for part in self._look(queue, lambda view, now: _parts(view, None, (FAILED,), refused, room)):
                self._bury(queue, target, part, refused)
            if target.in_line:
                target.serve()

    def _bury(self, source: TextFileQueue, target: TextFileQueue, ids: list[str], refused: set[str]) -> None:
        def headers(given: Mapping[str, str], reason: str | None) -> dict[str, str]:
            return of_dead_letter(given, source.name, reason)

        try:
            self._step(source, target, ids, (FAILED,), headers)
        except REFUSED:
            for each in ids:
                try:
                    self._step(source, target, [each], (FAILED,), headers)
                except REFUSED:
                    refused.add(each)

    def redrive(self, source: TextFileQueue, ids: Sequence[str] | None) -> int:
        """Move dead letters back to the queues that they come from, if those exist; how many."""
        moved = 0
        for part in source.run(lambda view, now: _parts(view, ids, MOVABLE)):
            origins: dict[str, list[str]] = {}
            for each, origin in source.headers(part, ORIGIN_HEADER):
                if origin not in (None, source.name):
                    origins.setdefault(origin, []).append(each)
            for origin, own in origins.items():
                with suppress(QueueNotFound):
                    target = self._backend.find(origin)
                    moved += self._step(source, target, own, MOVABLE, lambda given, _: without_past(given))
                    self._serve(source, target)
        return moved

    # By hand

    def move(self, source: TextFileQueue, target: TextFileQueue, ids: Sequence[str] | None) -> int:
        """Move messages that wait or have failed, without ids all failed ones; how many."""
        if self._place(source) == self._place(target):
            raise InvalidArgument(f"queues {source.name!r} and {target.name!r} are one file: name another queue")
        states = (FAILED,) if ids is None else MOVABLE
        parts = source.run(lambda view, now: _parts(view, ids, states))
        target.run(lambda view, now: view.ledger.check_room(sum(map(len, parts))))
        moved = sum([self._step(source, target, part, states, lambda given, _: dict(given)) for part in parts])
        self._serve(source, target)
        return moved

    def _serve(self, *queues: TextFileQueue) -> None:
        for queue in queues:
            if queue.in_line:
                queue.serve()

    # Both queues

    def _look(self, queue: TextFileQueue, look: Callable[[View, int], Result]) -> Result:
        """Look at a queue, without moving its dead letters first."""
        with queue.locked() as view:
            return look(view, queue.advance(view))

    def _step(
        self,
        source: TextFileQueue,
        target: TextFileQueue,
        ids: Sequence[str],
        states: Collection[int],
        headers: Headers,
    ) -> int:
        """Move those of some messages that are in one of the states; how many."""
        for _ in range(_TRIES):
            try:
                with self._both(source, target) as (here, there):
                    if not (here.is_moving or there.is_moving):
                        now = max(source.advance(here), target.advance(there))
                        seqs = [seq for seq in _seqs(here, ids) if _is_in(here, seq, states)]
                        return self._transfer(source, here, target, there, seqs, headers, now) if seqs else 0
                for queue in (source, target):
                    self.finish(queue)
            except Edited:
                continue
        raise StoreClosed(
            f"the files {source.path!r} and {target.path!r} change all the time: edit them while no process "
            "uses them"
        )

    def _transfer(
        self,
        source: TextFileQueue,
        here: View,
        target: TextFileQueue,
        there: View,
        seqs: Sequence[int],
        headers: Headers,
        now: int,
    ) -> int:
        # First, or else every try on a full disk would read the messages, and write into the source's mutex file.
        target.storage.make_room(len(seqs), sum(here.table.lengths[seq] for seq in seqs))
        leavers = source.leavers(here, seqs, now, headers)
        for each in leavers:
            there.ledger.check_values(len(each.draft.payload), each.draft.priority)
        there.ledger.check_room(len(leavers))
        ids = [os.urandom(8).hex() for _ in seqs]
        entries = target.entries(there, now, leavers, ids)
        source.announce(here, now, Leaving(_path(target, source), dict(zip(seqs, ids, strict=True))))
        target.take_over(there, now, leavers, ids, entries, _path(source, target))
        with suppress(Edited):  # the next operation finishes it
            source.give_up(here, now, seqs)
            target.forget_taken(there, now)
        return len(seqs)

    @contextmanager
    def _both(self, one: TextFileQueue, other: TextFileQueue) -> Iterator[tuple[View, View]]:
        """Hold the locks of two queues, in an order that all processes keep to."""
        first, second = sorted((one, other), key=self._place)
        try:
            with first.storage.locked(), second.storage.locked():
                yield one.storage.current(), other.storage.current()
        except OSError as error:
            changed = next((each for each in (one, other) if each.storage.has_effect), one)
            raise changed.refusal(error) from error

    def _place(self, queue: TextFileQueue) -> str:
        """The identity of a queue's file, by which locks are ordered."""
        return lock_order(queue.path, self._disk)

    # After a crash

    def finish(self, queue: TextFileQueue) -> None:
        """Finish the moves of a queue that a crash has interrupted."""
        with queue.locked() as view:
            paths = {view.taken, view.leaving.to if view.leaving is not None else ""} - {""}
        for path in paths:
            with self._at(self._found(queue, path)) as other:
                if other is None or self._place(other) == self._place(queue):
                    self._give_up(queue)
                else:
                    with self._both(queue, other) as (here, there):
                        self._finish(queue, here, other, there)
                        self._finish(other, there, queue, here)

    def _found(self, queue: TextFileQueue, path: str) -> str:
        """The file of another queue, from its path in the mutex file of a queue."""
        path = os.path.normpath(os.path.join(os.path.dirname(queue.path), path))
        with errors_of_the_disk(path):
            return self._disk.real(path)

    def _give_up(self, queue: TextFileQueue) -> None:
        """End a move whose other queue is gone."""
        with queue.locked() as view:
            now = queue.advance(view)
            if view.leaving is not None:
                queue.give_up(view, now, [])
            if view.taken:
                queue.forget_taken(view, now)

    def _finish(self, source: TextFileQueue, here: View, target: TextFileQueue, there: View) -> None:
        is_open = here.leaving is not None and self._found(source, here.leaving.to) == target.path
        is_taken = there.taken and self._found(target, there.taken) == source.path
        if not (is_open or is_taken):
            return
        now = max(source.advance(here), target.advance(there))
        target.storage.sync()  # a process that was killed may have written without a sync
        source.storage.sync()
        if is_open and here.leaving is not None:
            arrived = _arrived(target.storage.read_all())
            source.give_up(here, now, [seq for seq, each in here.leaving.ids.items() if each in arrived])
        if is_taken:
            target.forget_taken(there, now)

    @contextmanager
    def _at(self, path: str) -> Iterator[TextFileQueue | None]:
        """The queue in a file, also if it is no queue of this store; None if there is none."""
        is_there = self._disk.exists(path)
        known = self._backend.in_use(path) if is_there else None
        if known is not None or not is_there:
            yield known
            return
        queue = self._backend.working(stem_of(os.path.basename(path)), path)
        try:
            yield queue
        finally:
            queue.storage.close()


def lock_order(path: str, disk: Disk) -> str:
    """The key by which the locks of several queues are ordered; the same for all names of a file."""
    with errors_of_the_disk(path):
        return stem_of(mutex_of(path, disk).removesuffix(SUFFIX))


def _path(queue: TextFileQueue, other: TextFileQueue) -> str:
    """The path of a queue's file as the mutex file of another has it."""
    return os.path.relpath(queue.path, os.path.dirname(other.path) or ".")


def _seqs(view: View, ids: Sequence[str]) -> list[int]:
    return [seq for each in ids if (seq := view.table.by_id.get(each)) is not None]


def _is_in(view: View, seq: int, states: Collection[int]) -> bool:
    """Whether a message is in one of the states, and no other program has marked it."""
    found = view.ledger.state.rows.find(seq)
    return found is not None and found[0].state[found[1]] in states and found[0].visible_at[found[1]] != FAR


def _parts(
    view: View,
    ids: Sequence[str] | None,
    states: Collection[int],
    but: Collection[str] = (),
    most: int | None = None,
) -> list[list[str]]:
    """Messages in some states, without ids all of them, in parts of a size that one step moves."""
    rows = view.ledger.state.rows
    seqs = _seqs(view, ids) if ids is not None else [seq for state in states for seq in rows.with_state(state)]
    found = [seq for seq in sorted(set(seqs)) if _is_in(view, seq, states) and view.table.ids[seq] not in but][
        :most
    ]
    parts: list[list[str]] = []
    size = 0
    for seq in found:
        length = view.table.lengths[seq]
        if not parts or len(parts[-1]) == _AT_ONCE or size + length > _BYTES:
            parts.append([])
            size = 0
        parts[-1].append(view.table.ids[seq])
        size += length
    return parts


def _arrived(data: bytes) -> set[str | None]:
    """The ids of messages that a queue's file has, or has had until they were removed."""
    said = [(entry, facts(entry)) for entry in parse(data).entries]
    return {each.id for entry, each in said if entry.control != COMMENT or each.removed}
