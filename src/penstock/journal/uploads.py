"""Loads that clients send to a store that is open, batch by batch.

A load has parts, each filled by one sender, and a part has batches of one queue each, numbered from 0 on. A batch
is on stable storage once add() returns. Sending the last batch of a part again changes nothing, nor does
committing again: a load that has taken effect is remembered, as its run or, for a week, by its own name.

What is open belongs to the process that has the store open, and ends with it: what is found staged when a store is
opened is removed. A load that nobody has touched for a day is dropped.
"""

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.clock import Clock
from penstock.errors import DiskFull, InvalidArgument, PenstockError
from penstock.files import Disk
from penstock.journal import staging
from penstock.journal.ballast import Ballast, is_full
from penstock.journal.catalog import Catalog
from penstock.journal.intake import Load, forget_runs, make_folder, read_run
from penstock.journal.landings import has_landed
from penstock.journal.restoring import Restored
from penstock.journal.staging import MANIFEST, Part
from penstock.landing import Landing
from penstock.ledger import Ledger
from penstock.live.alarm import Alarm
from penstock.live.keeper import check_start
from penstock.message import Entry, Plain
from penstock.names import DEFAULT
from penstock.settings import Settings, text

MAX_RUN = 255  # bytes
MOST = 100  # loads that are open at a time
MOST_BATCHES = 250_000  # and parts that all of them have
MOST_QUEUES = 100_000  # that all of them would make
_DAY = 24 * 3600 * 1000
_WEEK = 7 * _DAY
_PART = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)


class NoSuchLoad(PenstockError, LookupError):
    """A load is not open here (any more), and has not taken effect: begin again."""


class TooManyLoads(PenstockError):
    """So many loads are open that no more can be taken in: try again later."""


class Store(Protocol):
    """What loads are for."""

    def settings(self, queue: str) -> Settings:
        """What a queue was created with; QueueNotFound."""

    def load(self, load: Load) -> bool:
        """Let a load take effect."""


class Batch(NamedTuple):
    """Messages to be staged. Times win over what the entries say: None = nothing is said, 0 = never."""

    entries: Sequence[Entry]
    visible_at: Sequence[int | None] | None = None
    expires_at: Sequence[int | None] | None = None
    restored: Restored | None = None  # what became of them elsewhere


class Sent(NamedTuple):
    """What a commit names: a part, and how many batches it has."""

    part: str
    batches: int


class Outcome(NamedTuple):
    """What became of a load: so many messages, or none as its run has taken effect before."""

    loaded: bool
    messages: int


@dataclass
class _OpenPart:
    file: Part
    lock: threading.Lock = field(default_factory=threading.Lock)
    batches: int = 0
    last: object = None  # what the last batch was known by
    is_broken: bool = False


@dataclass
class _Open:
    """A load that is open."""

    name: str
    folder: str
    queues: Mapping[str, Settings]
    touched: int
    parts: dict[str, _OpenPart] = field(default_factory=dict)
    size: int = 0  # parts and batches
    senders: int = 0  # at work just now
    is_ending: bool = False


class Uploads:
    """The loads that are open in one store. Everything here may wait for the disk."""

    def __init__(
        self, store: Store, catalog: Catalog, disk: Disk, clock: Clock, alarm: Alarm, ballast: Ballast
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._disk = disk
        self._clock = clock
        self._alarm = alarm
        self._ballast = ballast
        self._open: dict[str, _Open] = {}
        self._runs: set[str] = set()  # that are being committed
        self._size = 0  # parts and batches
        self._changed = threading.Condition()

    def now(self) -> int:
        """The store's time."""
        return self._clock.now()

    def run(self, run: str) -> list[tuple[str, int, int]] | None:
        """What a run has brought into each queue: messages, and bytes of payloads; None if it has not."""
        taken = read_run(self._disk, self._catalog, text("run", run, 1, MAX_RUN))
        if taken is None:
            return None
        return [
            (queue, sum(piece.messages for piece in pieces), sum(piece.payloads for piece in pieces))
            for queue, pieces in sorted(taken.by_queue().items())
        ]

    def begin(self, queues: Mapping[str, Settings]) -> str:
        """Open a load, which will make these queues if they are not there by then."""
        self._store.settings(DEFAULT)  # or else the store is closed
        for settings in queues.values():
            check_start(settings)
        now = self._clock.now()
        name = staging.new_owners_name(now)
        with self._changed:
            if len(self._open) >= MOST:
                raise TooManyLoads(f"{MOST} loads are open: commit or abort some, or try again later")
            if sum(len(each.queues) for each in self._open.values()) + len(queues) > MOST_QUEUES:
                raise TooManyLoads(f"loads would make more than {MOST_QUEUES} queues: create them before")
            forget_runs(self._disk, self._catalog, now - _WEEK)
            with self._space():
                folder = make_folder(self._disk, self._catalog.folder, name)
            self._open[name] = _Open(name, folder, queues, now)
            self._alarm.set(self._sweep, min(each.touched for each in self._open.values()) + _DAY)
        return name

    def add(self, load: str, part: str, number: int, queue: str, batch: Batch, known_by: object) -> None:
        """Stage the next batch of a part; the last one again, if it is known by the same, changes nothing."""
        with self._sending(load) as opened, self._part(opened, part) as to:
            if number == to.batches - 1 and known_by == to.last:
                return
            if number != to.batches:
                raise InvalidArgument(
                    f"batch {number} of part {part!r}, or another one than before: the next is {to.batches}"
                )
            settings = self._settings(opened, queue)
            check(queue, settings, batch.entries)
            with self._space():
                self._stage(to, queue, settings, batch)
            to.last = known_by
            to.batches += 1
            with self._changed:
                self._grow(opened)

    def commit(self, load: str, sent: Sequence[Sent], run: str | None, sink: Landing | None = None) -> Outcome:
        """Let the parts that are named take effect, in this order, all at once.

        As that run, or as that batch of a stream, if one is given: then it is remembered as such.
        """
        if run is not None and staging.began_at(text("run", run, 1, MAX_RUN)) is not None:
            raise InvalidArgument(f"run {run!r} is the name of a load: give it another one")
        with self._ending(load, run or load) as opened:
            if opened is None:
                return self._before(load, run, sink)
            pieces = [piece for each in sent for piece in _sent(opened, each).file.pieces]
            if len({each.part for each in sent}) < len(sent):
                raise InvalidArgument("a part is named twice")
            try:
                known_as = run if run is not None or sink is not None else load
                loaded = self._store.load(Load(load, pieces, dict(opened.queues), known_as, sink))
            except BaseException:
                if self._disk.exists(os.path.join(opened.folder, MANIFEST)):
                    self._forget(opened)  # it counts: opening the store will finish it
                raise
            self._forget(opened)
            return Outcome(loaded, sum(piece.messages for piece in pieces) if loaded else 0)

    def abort(self, load: str) -> None:
        """Drop a load, if it is open."""
        with self._ending(load) as opened:
            if opened is not None:
                self._drop(opened)

    def close(self) -> None:
        """Drop everything; the store is about to be closed."""
        for load in list(self._open):
            self.abort(load)

    # Who does what with a load at the same time

    @contextmanager
    def _sending(self, load: str) -> Iterator[_Open]:
        with self._changed:
            opened = self._open.get(load)
            if opened is None or opened.is_ending:
                raise _not_there(load)
            if self._size >= MOST_BATCHES:
                raise TooManyLoads(f"open loads have {MOST_BATCHES} batches: send larger ones, or try again later")
            opened.senders += 1
        try:
            yield opened
        finally:
            with self._changed:
                opened.senders -= 1
                opened.touched = self._clock.now()
                self._changed.notify_all()

    @contextmanager
    def _part(self, opened: _Open, name: str) -> Iterator[_OpenPart]:
        if not _PART.fullmatch(name):
            raise InvalidArgument(f"{name!r} is not the name of a part: give 1 to 64 of a-z, 0-9, _ and -")
        with self._changed:
            part = opened.parts.get(name)
            if part is None:
                file = Part(self._disk, opened.folder, opened.name, f"part-{name}")
                part = opened.parts[name] = _OpenPart(file)
                self._grow(opened)
        with part.lock:
            if part.is_broken:
                raise _broken(name)
            yield part

    @contextmanager
    def _ending(self, load: str, run: str = "") -> Iterator[_Open | None]:
        """The load, which only this thread has from here on; if that fails, it stays open."""
        with self._changed:
            while True:
                opened = self._open.get(load)
                if run not in self._runs and (opened is None or not (opened.is_ending or opened.senders)):
                    break
                self._changed.wait()
            if opened is not None:
                opened.is_ending, opened.touched = True, self._clock.now()
            if run:
                self._runs.add(run)
        try:
            yield opened
        finally:
            with self._changed:
                if opened is not None:
                    opened.is_ending = False
                self._runs.discard(run)
                self._changed.notify_all()

    # What is on disk

    def _settings(self, opened: _Open, queue: str) -> Settings:
        try:
            return self._store.settings(queue)
        except LookupError:
            if queue in opened.queues:
                return opened.queues[queue]
            raise

    def _stage(self, to: _OpenPart, queue: str, settings: Settings, batch: Batch) -> None:
        if not batch.entries:
            return
        if self._ballast.short:
            raise _full()
        try:
            entries, visible_at, expires_at, restored = batch
            now = self._clock.now()
            to.file.add_entries(queue, entries, settings.retention, now, visible_at, expires_at, restored)
            to.file.close()
        except BaseException:
            to.is_broken = True  # nobody knows what is in the file
            to.file.discard()
            raise

    def _before(self, load: str, run: str | None, sink: Landing | None) -> Outcome:
        """The answer to a commit of a load that is not open: it may have taken effect before."""
        if sink is not None and has_landed(self._disk, self._catalog, sink):
            return Outcome(False, 0)  # by this load, or by another
        taken = None
        if run is not None or staging.began_at(load) is not None:
            taken = read_run(self._disk, self._catalog, run or load)
        if taken is None:
            raise _not_there(load)
        if taken.name != load:
            return Outcome(False, 0)
        return Outcome(True, sum(piece.messages for piece in taken.pieces))

    def _drop(self, opened: _Open) -> None:
        staging.remove_folder(self._disk, opened.folder)
        self._forget(opened)

    def _forget(self, opened: _Open) -> None:
        with self._changed:
            del self._open[opened.name]
            self._size -= opened.size
            if not self._open:
                self._alarm.cancel(self._sweep)

    def _grow(self, opened: _Open) -> None:
        opened.size += 1
        self._size += 1

    def _sweep(self) -> None:
        """Drop what nobody has touched for a day."""
        now = self._clock.now()
        with self._changed:
            unused = [
                each.name
                for each in self._open.values()
                if each.touched + _DAY <= now and not (each.senders or each.is_ending)
            ]
        for load in unused:
            self.abort(load)
        with self._changed:
            if self._open:
                oldest = min(each.touched for each in self._open.values())
                self._alarm.set(self._sweep, max(oldest + _DAY, now + 1_000))

    @contextmanager
    def _space(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise _full() from error
            raise


def check(queue: str, settings: Settings, entries: Sequence[Entry]) -> None:
    """Refuse what a put would refuse, but for the size of the queue, which counts when the load takes effect."""
    ledger = Ledger(queue, settings)
    if isinstance(entries, Plain):
        entries = [Entry(max(entries.payloads, key=len))] if entries else []
    for entry in entries:
        if entry.key is not None:
            raise InvalidArgument("a message of a load has no key: the load itself is there once")
        ledger.check_values(len(entry.payload), entry.priority)


def _sent(opened: _Open, sent: Sent) -> _OpenPart:
    part = opened.parts.get(sent.part)
    if part is not None and part.is_broken:
        raise _broken(sent.part)
    there = part.batches if part is not None else 0
    if part is None or there != sent.batches:
        raise InvalidArgument(f"part {sent.part!r} has {there} batches here, not {sent.batches}")
    return part


def _broken(part: str) -> InvalidArgument:
    return InvalidArgument(f"part {part!r} could not be stored: send all of it again, under another name")


def _full() -> DiskFull:
    return DiskFull("no space left for a load: settle messages, or free some space on that disk")


def _not_there(load: str) -> NoSuchLoad:
    return NoSuchLoad(
        f"there is no load {load[:60]!r}: it was aborted, not touched for a day, or the server has started anew "
        "since. Nothing of it is there: begin again"
    )
