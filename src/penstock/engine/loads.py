"""Loads that clients send to a store that is open, batch by batch.

A load has parts, each filled by one sender, and a part has batches of one queue each, numbered from 0 on. A
batch is a frame (wire/frames.py), and on stable storage once add() returns. Sending the last batch of a part again
changes nothing, nor does committing again: a committed load is remembered, as its run or, for a week, by its own
name.

An open load ends with the process that has the store open: recovery removes staged batches. A load that was idle
for a day is dropped. Each kind of store has a depot that stages batches and commits them.
"""

import re
import secrets
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.contract.loads import MAX_RUN, Brought, LoadInfo, Outcome, Sent, SinkCommit, TooManyLoads
from penstock.contract.message import Attempt, Entry, Plain
from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings, text
from penstock.errors import DiskFull, InvalidArgument, LoadNotFound
from penstock.rules.ledger import Ledger
from penstock.rules.recent import pack
from penstock.rules.records import Restore
from penstock.rules.rows import AVAILABLE, DONE, FAILED
from penstock.system.clock import Alarm, Clock
from penstock.system.files import is_full

if TYPE_CHECKING:
    from penstock.wire.frames import Staged

MOST = 100  # open loads of a store
MOST_BATCHES = 250_000  # batches and parts of all open loads
MOST_QUEUES = 100_000  # queues that all open loads will make
_KEPT = ("failed", "released")  # an attempt that was acknowledged is the message's own
_DAY = 24 * 3600 * 1000
_WEEK = 7 * _DAY
_OWNERS = re.compile(r"0-0-([0-9]{1,15})\.[0-9a-f]{16}", re.ASCII)  # no process has the number 0
_PART = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)


class Taken(NamedTuple):
    """A committed load."""

    load: str
    brought: list[Brought]


class StagedPart(Protocol):
    """One sender's staged batches, kept by the store until the load is committed."""

    is_broken: bool  # a write to it has failed, and its content is unknown

    @property
    def messages(self) -> int:
        """How many messages it has."""

    def add(self, queue: str, settings: Settings, staged: "Staged", frame: bytes, now: int) -> None:
        """Stage a batch that is not empty on stable storage: the decoded messages, and the frame they came in."""


class Depot(Protocol):
    """Where a kind of store stages batches, and how it commits them."""

    def settings(self, queue: str) -> Settings:
        """The settings of a queue; QueueNotFound."""

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        """The rules that staged messages of a queue are checked by."""

    def check_new(self, queues: Mapping[str, Settings]) -> None:
        """Refuse queues that cannot be made."""

    def begin(self, load: str, forget_before: int) -> None:
        """Prepare for a load. Names of the owner's loads that began before that time may be forgotten."""

    def new_part(self, load: str, part: str) -> StagedPart:
        """A new staging place for one sender."""

    def take_in(
        self,
        load: str,
        parts: Sequence[StagedPart],
        queues: Mapping[str, Settings],
        run: str | None,
        sink: SinkCommit | None,
    ) -> bool:
        """Commit these parts, all or none; False if the run or the batch was committed before."""

    def counts(self, load: str) -> bool:
        """After an error: whether recovery commits the load at the next open, so that it cannot be repeated."""

    def has_landed(self, sink: SinkCommit) -> bool:
        """Whether a stream's batch was committed; StreamMismatch."""

    def taken(self, run: str) -> Taken | None:
        """The committed load of a name."""

    def drop(self, load: str) -> None:
        """Remove staged batches that were not committed."""


@dataclass
class _OpenPart:
    staged: StagedPart
    lock: threading.Lock = field(default_factory=threading.Lock)
    batches: int = 0
    last: object = None  # the identity of the last batch


@dataclass
class _Open:
    """An open load."""

    name: str
    queues: Mapping[str, Settings]
    touched: int
    parts: dict[str, _OpenPart] = field(default_factory=dict)
    size: int = 0  # parts and batches
    senders: int = 0  # that stage a batch now
    is_ending: bool = False


class OpenLoads:
    """The open loads of one store."""

    def __init__(self, depot: Depot, clock: Clock, alarm: Alarm) -> None:
        self._depot = depot
        self._clock = clock
        self._alarm = alarm
        self._open: dict[str, _Open] = {}
        self._runs: set[str] = set()  # runs that are being committed
        self._size = 0  # parts and batches
        self._changed = threading.Condition()

    def run(self, run: str) -> list[Brought] | None:
        taken = self._depot.taken(text("run", run, 1, MAX_RUN))
        return None if taken is None else taken.brought

    def under_way(self) -> list[LoadInfo]:
        """The open loads."""
        with self._changed:
            opened = [(each, list(each.parts.values())) for each in self._open.values()]
        return [
            LoadInfo(
                each.name, began_at(each.name) or each.touched, each.touched, len(parts),
                sum(part.staged.messages for part in parts), sorted(each.queues),
            )
            for each, parts in opened
        ]  # fmt: skip

    def begin(self, queues: Mapping[str, Settings]) -> str:
        """Open a load. Its commit makes those of these queues that do not exist by then."""
        self._depot.settings(DEFAULT)  # raises if the store is closed
        self._depot.check_new(queues)
        now = self._clock.now()
        name = new_owners_name(now)
        with self._changed:
            if len(self._open) >= MOST:
                raise TooManyLoads(f"{MOST} loads are open: commit or abort some, or try again later")
            if sum(len(each.queues) for each in self._open.values()) + len(queues) > MOST_QUEUES:
                raise TooManyLoads(f"loads would make more than {MOST_QUEUES} queues: create them before")
            with _space():
                self._depot.begin(name, now - _WEEK)
            self._open[name] = _Open(name, queues, now)
            self._alarm.set(self._sweep, min(each.touched for each in self._open.values()) + _DAY)
        return name

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Stage the next batch of a part; repeating the last batch changes nothing."""
        from penstock.wire.frames import decode_staged  # here, as most processes never need it

        staged = decode_staged(frame)
        known_by = (queue, len(frame), zlib.crc32(frame))
        with self._sending(load) as opened, self._part(opened, part) as to:
            if number == to.batches - 1 and known_by == to.last:
                return
            if number != to.batches:
                raise InvalidArgument(
                    f"batch {number} of part {part!r}, or another one than before: the next is {to.batches}"
                )
            settings = self._settings(opened, queue)
            check(self._depot.ledger(queue, settings), staged.entries)
            if staged.entries:
                with _space():
                    to.staged.add(queue, settings, staged, frame, self._clock.now())
            to.last = known_by
            to.batches += 1
            with self._changed:
                self._grow(opened)

    def commit(self, load: str, sent: Sequence[Sent], run: str | None, sink: SinkCommit | None = None) -> Outcome:
        """Commit the named parts, in this order, all or none.

        As that run, or as that batch of a stream, if one is given: then it is remembered as such.
        """
        if run is not None and began_at(text("run", run, 1, MAX_RUN)) is not None:
            raise InvalidArgument(f"run {run!r} is the name of a load: give it another one")
        with self._ending(load, run or load) as opened:
            if opened is None:
                return self._before(load, run, sink)
            parts = [_sent(opened, each).staged for each in sent]
            if len({each.part for each in sent}) < len(sent):
                raise InvalidArgument("a part is named twice")
            messages = sum(part.messages for part in parts)
            try:
                known_as = run if run is not None or sink is not None else load
                loaded = self._depot.take_in(load, parts, opened.queues, known_as, sink)
            except BaseException:
                if self._depot.counts(load):
                    self._forget(opened)
                raise
            self._forget(opened)
            return Outcome(loaded, messages if loaded else 0)

    def abort(self, load: str) -> None:
        """Drop a load, if it is open."""
        with self._ending(load) as opened:
            if opened is not None:
                self._depot.drop(load)
                self._forget(opened)

    def close(self) -> None:
        for load in list(self._open):
            self.abort(load)

    # Exclusion: senders share a load, a commit or an abort has it alone

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
                part = opened.parts[name] = _OpenPart(self._depot.new_part(opened.name, name))
                self._grow(opened)
        with part.lock:
            if part.staged.is_broken:
                raise _broken(name)
            yield part

    @contextmanager
    def _ending(self, load: str, run: str = "") -> Iterator[_Open | None]:
        """The load, for this thread alone from here on; after an error it stays open."""
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

    # Lookup and expiry

    def _settings(self, opened: _Open, queue: str) -> Settings:
        try:
            return self._depot.settings(queue)
        except LookupError:
            if queue in opened.queues:
                return opened.queues[queue]
            raise

    def _before(self, load: str, run: str | None, sink: SinkCommit | None) -> Outcome:
        """The answer to a commit of a load that is not open: it may be committed already."""
        if sink is not None and self._depot.has_landed(sink):
            return Outcome(False, 0)  # by this load, or by another
        taken = self._depot.taken(run or load) if run is not None or began_at(load) is not None else None
        if taken is None:
            raise _not_there(load)
        if taken.load != load:
            return Outcome(False, 0)
        return Outcome(True, sum(each.messages for each in taken.brought))

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
        """Drop loads that were idle for a day."""
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


def check(ledger: Ledger, entries: Sequence[Entry]) -> None:
    """Refuse messages that a put would refuse. The queue's max_size is checked at the commit."""
    if isinstance(entries, Plain):
        entries = [Entry(max(entries.payloads, key=len))] if entries else []
    for entry in entries:
        if entry.key is not None:
            raise InvalidArgument("a message of a load has no key: the load itself is there once")
        ledger.check_values(len(entry.payload), entry.priority)


def full() -> DiskFull:
    """The error for a full disk."""
    return DiskFull("no space left for a load: settle messages, or free some space on that disk")


@contextmanager
def _space() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise full() from error
        raise


def _sent(opened: _Open, sent: Sent) -> _OpenPart:
    part = opened.parts.get(sent.part)
    if part is not None and part.staged.is_broken:
        raise _broken(sent.part)
    there = part.batches if part is not None else 0
    if part is None or there != sent.batches:
        raise InvalidArgument(f"part {sent.part!r} has {there} batches here, not {sent.batches}")
    return part


def _broken(part: str) -> InvalidArgument:
    return InvalidArgument(f"part {part!r} could not be stored: send all of it again, under another name")


def _not_there(load: str) -> LoadNotFound:
    return LoadNotFound(
        f"there is no load {load[:60]!r}: it was aborted, not touched for a day, or the server has started anew "
        "since. Nothing of it is there: begin again"
    )


def new_owners_name(now: int) -> str:
    """A name for a load that the store's owner stages; the load ends when the owner closes the store."""
    return f"0-0-{now}.{secrets.token_hex(8)}"


def began_at(load: str) -> int | None:
    """When a load of the store's owner began; None for any other name."""
    matched = _OWNERS.fullmatch(load)
    return int(matched[1]) if matched else None


# Messages that are restored from another store, with their states and attempts


class Restored(NamedTuple):
    """States and attempts of restored messages as columns; either all messages are done, or none is."""

    received_at: Sequence[int]
    states: Sequence[int]
    attempts: Sequence[int]
    claimed_at: Sequence[int]  # 0 = never
    settled_at: Sequence[int]
    consumers: Sequence[str | None]
    reasons: Sequence[str | None]
    histories: Sequence[Sequence[Attempt] | None]

    @property
    def done(self) -> bool:
        """Whether the messages are done."""
        return self.states[0] == DONE


def restore(restored: Restored) -> Restore:
    """The record of restored messages; those that are neither done nor failed are available again."""
    _, states, attempts, claimed_at, settled_at, consumers, reasons, histories = restored
    settled = [state in (DONE, FAILED) for state in states]
    history = {
        at: b"".join(pack(each) for each in ended if each.outcome in _KEPT)
        for at, ended in enumerate(histories)
        if ended
    }
    return Restore(
        0,
        0,
        bytes(state if kept else AVAILABLE for state, kept in zip(states, settled, strict=True)),
        attempts,
        claimed_at,
        settled_at,
        [consumer if kept else None for consumer, kept in zip(consumers, settled, strict=True)],
        reasons,
        {at: packed for at, packed in history.items() if packed},
    )
