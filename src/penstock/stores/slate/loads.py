"""Loads: many messages that are staged beside the database, and take effect all of them or none.

    .penstock/staged/LOAD/NAME      frames (wire/frames.py) of a store in a folder
    PREFIX/staged/LOAD/NAME         of one in a bucket

A load has the name of the process that it belongs to. If that process is gone, what it staged is set aside when
the store is opened, for a week.

The load commit: a load counts from the moment that its record is written. Then its frames are taken in, some at a
time, and how far that is, is written with the messages: an owner that opens the store and finds the record goes on
from there. What was staged is removed after that. A run is remembered, and takes effect once; so is the last batch
of a streaming sink.

    load   01 0F | name    -> JSON: its frames, how many of them were taken in, run, sink, queues that it makes
    run    01 10 | name    -> JSON: its load; how many messages, and bytes of payloads, it brought to each queue
    sink   01 11 | name    -> JSON: the query and the batch that has landed last

Clients send loads to the owner (engine/loads.py). One whose record could not be written in time may count. It
stays open, so that committing it again finishes it; what is staged of it stays until then, or until the store is
opened.
"""

import json
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.contract.loads import Brought, SinkCommit, is_repeated
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.engine.loads import Restored, StagedPart, Taken, began_at, restore
from penstock.engine.storage import Body
from penstock.errors import InvalidArgument, QueueExists, StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.records import Put
from penstock.stores.slate.extensions import load_key, run_key, sink_key
from penstock.stores.slate.format import LOAD, RUN, VERSION, unterminated
from penstock.stores.slate.place import STAGED, Place
from penstock.stores.slate.recovery import new_ledger
from penstock.stores.slate.storage import NotedReceipts, held
from penstock.stores.slate.writing import Changes
from penstock.system.clock import at_least_one
from penstock.system.processes import is_gone, name_of
from penstock.system.threads import Lock
from penstock.wire.frames import Staged, decode_staged
from penstock.wire.restored import Columns

if TYPE_CHECKING:
    from penstock.stores.slate.store import SlateBackend
    from penstock.wire.frames import Staged


def new_name(owner: int) -> str:
    """A name for a load of a process."""
    return f"{socket.gethostname()}~{name_of(owner)}~{secrets.token_hex(8)}"


def is_given_up(load: str) -> bool:
    """Of a load that has no record, when a store is opened: whether its process, of this machine, is gone.

    So are those that clients have sent to the process that had the store open before.
    """
    host, _, rest = load.partition("~")
    return began_at(load) is not None or (host == socket.gethostname() and is_gone(rest.partition("~")[0]))


_AT_ONCE = 16 << 20  # bytes of payloads that are written with one batch, about
_MESSAGES = 20_000


class Frame(NamedTuple):
    """What is staged: messages of one queue."""

    queue: str
    name: str
    messages: int
    bytes: int
    done: bool = False  # all of them are done, and take no room


def is_done(state: object) -> bool:
    """Whether the messages of a frame are done, by its column of states; then all of them are."""
    return state == "done" or (isinstance(state, list) and "done" in state[:1])


class Load(NamedTuple):
    """What is to be taken in."""

    name: str
    frames: list[Frame]
    create: Mapping[str, Settings]  # queues to be made first
    run: str | None
    sink: SinkCommit | None = None  # the batch of a streaming sink that it is


class _Progress:
    """How far a load is; written with what it brings."""

    def __init__(self, load: Load, done: int) -> None:
        self.lock: Lock = threading.RLock()
        self.name, self.frames, self.run, self.sink, self.done = load.name, load.frames, load.run, load.sink, done
        self.create = load.create

    @property
    def row(self) -> tuple[bytes, bytes]:
        content: dict[str, Any] = {"frames": self.frames, "done": self.done, "run": self.run, "sink": self.sink}
        if not self.done:
            content["create"] = {name: asdict(settings) for name, settings in self.create.items()}
        return load_key(self.name), json.dumps(content).encode()

    def collect(self, changes: Changes) -> None:
        """The record, or that it is not needed any more."""
        if self.done < len(self.frames):
            changes.rows.append(self.row)
            return
        changes.rows.append((load_key(self.name), None))
        if self.run is not None:
            content = {"load": self.name, "brought": brought(self.frames)}
            changes.rows.append((run_key(self.run), json.dumps(content).encode()))
        if self.sink is not None:
            changes.rows.append((sink_key(self.sink.sink), json.dumps(self.sink[1:]).encode()))


def brought(frames: Sequence[Frame]) -> list[list[Any]]:
    """Messages and bytes by queue."""
    found: dict[str, list[int]] = {}
    for each in frames:
        counts = found.setdefault(each.queue, [0, 0])
        counts[0] += each.messages
        counts[1] += each.bytes
    return [[queue, *counts] for queue, counts in sorted(found.items())]


class LoadCommit:
    """Takes loads in, by the owner of a store."""

    def __init__(self, backend: "SlateBackend") -> None:
        self._backend = backend
        self._place: Place = backend._place
        self._lock = threading.Lock()
        self._unfinished: dict[str, _Progress] = {}
        self._in_doubt: set[str] = set()  # loads whose records were to be written, and may have been

    def resume(self) -> None:
        """After opening: finish what counts, and set aside what never will."""
        start, end = bytes((VERSION, LOAD)), bytes((VERSION, LOAD + 1))
        for key, value in list(self._backend._database.scan(start, end)):
            content = json.loads(value)
            frames = [Frame(*each) for each in content["frames"]]
            name = key[2:-1].decode()
            sink = SinkCommit(*content["sink"]) if content.get("sink") else None
            create = {queue: Settings(**settings) for queue, settings in content.get("create", {}).items()}
            self._work(_Progress(Load(name, frames, create, content["run"], sink), content["done"]))
        for name in self._place.list_loads():
            if is_given_up(name):
                self._place.discard_load(name)

    def taken(self, run: str) -> dict[str, Any] | None:
        """The load that a run was, and what it has brought; None if it has not taken effect."""
        value = self._backend._database.get(run_key(run))
        return None if value is None else dict(json.loads(value))

    def run(self, name: str) -> list[list[Any]] | None:
        """What a run has brought into each queue; None if it has not taken effect."""
        taken = self.taken(name)
        return None if taken is None else list(taken["brought"])

    def has_landed(self, sink: SinkCommit) -> bool:
        """Whether a batch of a streaming sink has taken effect; StreamMismatch."""
        value = self._backend._database.get(sink_key(sink.sink))
        return value is not None and is_repeated(sink, SinkCommit(sink.sink, *json.loads(value)))

    def may_count(self, load: str) -> bool:
        """Whether a load counts, or may: then what is staged of it must stay."""
        return load in self._in_doubt

    def take_in(self, load: Load) -> bool:
        """Let a load take effect; False if its run or batch has before. What is asked again is done once."""
        with self._lock:
            if load.name in self._finish():
                return True
            if self._is_repeated(load):
                self._place.remove_load(load.name)
                return False
            if load.frames and not self._place.has_load(load.name):
                return True  # it was taken in, and its sender was not told
            with ExitStack() as done:
                self._expect(load, done)
                progress = _Progress(load, 0)
                self._in_doubt.add(load.name)
                self._backend._writer.lead(lambda: self._backend._writer.write_now([progress.row]))
                self._unfinished[load.name] = progress
                self._finish()
            return True

    def _finish(self) -> list[str]:
        """Take in what counts and was interrupted: the same under another name must find that it has been."""
        names = list(self._unfinished)
        for name in names:
            self._work(self._unfinished[name])
            del self._unfinished[name]
            self._in_doubt.discard(name)
        return names

    def _is_repeated(self, load: Load) -> bool:
        if load.sink is not None and self.has_landed(load.sink):
            return True
        return load.run is not None and self.run(load.run) is not None

    def _expect(self, load: Load, done: ExitStack) -> None:
        """Refuse what cannot be taken in, before anything is; the rest has its place until it is there."""
        waiting = {frame.queue: 0 for frame in load.frames}
        for frame in load.frames:
            waiting[frame.queue] += 0 if frame.done else frame.messages
        for queue, more in sorted(waiting.items()):
            if queue in load.create and queue not in self._backend._storages:  # it will be made
                Ledger(queue, load.create[queue]).check_room(more)
            else:
                self._expect_in(queue, more, done)

    def _expect_in(self, queue: str, more: int, done: ExitStack) -> None:
        live = self._backend.find(queue)
        storage = self._backend._storages[queue]
        if storage.held:
            raise held(storage)
        live.run(lambda now: storage.ledger.expect_room(more, now))

        def expect_no_more() -> None:
            with storage.lock:
                storage.ledger.expect_no_more(more)

        done.callback(expect_no_more)

    def _work(self, progress: _Progress) -> None:
        writer = self._backend._writer
        for queue, settings in progress.create.items() if not progress.done else ():
            with suppress(QueueExists):
                self._backend.create(queue, settings)
        while True:
            some = list(_together(progress.frames[progress.done :]))
            staged = [self._staged(progress.name, frame) for frame in some]

            def take(some: list[Frame] = some, staged: list[Staged] = staged) -> None:
                for frame, content in zip(some, staged, strict=True):
                    self._put(frame.queue, content)
                progress.done += len(some)
                writer.changed(progress)
                writer.commits.flush()

            writer.lead(take)
            if progress.done >= len(progress.frames):
                break
        self._place.remove_load(progress.name)

    def _staged(self, load: str, frame: Frame) -> Staged:
        """What was staged; StoreCorrupt, as the load counts."""
        wrong = "is missing"
        try:
            staged = decode_staged(self._place.staged(load, frame.name))
            if len(staged.entries) == frame.messages:
                return staged
            wrong = f"has not {frame.messages} messages"
        except FileNotFoundError:
            pass
        except (InvalidArgument, ValueError, LookupError, TypeError) as error:
            wrong = f"cannot be read ({error})"
        raise StoreCorrupt(
            f"load {load} of {self._place.what} took effect, and a part of what was staged of it "
            f"{wrong}: {STAGED}/{load}/{frame.name}: put that back from a backup"
        )

    def _put(self, queue: str, staged: Staged) -> None:
        storage, ids = self._backend._storages.get(queue), self._backend._ids
        if storage is None or not len(staged.entries):
            return  # the queue was deleted meanwhile
        live = self._backend.find(queue)
        ledger = live._ledger

        def put(now: int) -> None:
            writer = self._backend._writer
            writer.changed(storage)
            first = ids.reserve(len(staged.entries))
            ledger.state.skip_to(first)
            became = None if staged.restored is None else _restored(staged.restored, now)
            record, bodies = _arriving(staged, became, first, ledger.settings, now)
            ledger.state.replay(record)
            storage.take_in(record, bodies)
            if became is not None:
                restored = restore(became)  # which counts from 0
                history = {first + at: packed for at, packed in restored.history.items()}
                ledger.state.replay(restored._replace(at=now, first=first, history=history))

        with self._backend._router.in_order(queue) if self._backend._router.deferred else nullcontext():
            live.run(put)


def _together(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Those that are written at once."""
    size = messages = 0
    for each in frames:
        if messages and (size + each.bytes > _AT_ONCE or messages + each.messages > _MESSAGES):
            return
        size, messages = size + each.bytes, messages + each.messages
        yield each


def _arriving(
    staged: Staged, became: Restored | None, first: int, settings: Settings, now: int
) -> tuple[Put, list[Body]]:
    """The record of staged messages, and their bodies."""
    bodies: list[Body] = []
    visible_at, expires_at = [], []
    for at, entry in enumerate(staged.entries):
        received_at = now if became is None else became.received_at[at]
        created_at = received_at if entry.created_at is None else entry.created_at
        bodies.append((entry.payload, entry.headers or {}, created_at, received_at))
        visible = staged.visible_at[at] if staged.visible_at else None
        visible_at.append(now if visible is None else visible)
        expires = staged.expires_at[at] if staged.expires_at else None
        if expires is None:
            expires = now + at_least_one(settings.retention) if settings.retention and became is None else 0
        expires_at.append(expires)
    priority = [entry.priority for entry in staged.entries]
    return Put(now, first, priority, visible_at, expires_at, {}), bodies


def _restored(columns: Columns, now: int) -> Restored:
    received_at = [now if each is None else each for each in columns.received_at]
    # What waits was claimed at some time if it was tried, which nobody sees: else its record would not be written.
    tried = map(any, zip(columns.attempts, columns.reason, columns.history, strict=True))
    settled = [state in ("done", "failed") for state in columns.state]
    claimed_at = [
        known or (since if once and not ended else 0)
        for known, since, once, ended in zip(columns.claimed_at, received_at, tried, settled, strict=True)
    ]
    return Restored(
        received_at,
        [STATES.index(state) + 1 for state in columns.state],
        columns.attempts,
        claimed_at,
        [each or 0 for each in columns.settled_at],
        columns.consumer,
        columns.reason,
        columns.history,
    )


class SlatePart:
    """What one sender has sent, a file or an object for each batch: one that could not be kept is sent again."""

    is_broken = False

    def __init__(self, backend: "SlateBackend", load: str, name: str) -> None:
        self._backend = backend
        self._place: Place = backend._place
        self._load = load
        self._name = name
        self.frames: list[Frame] = []

    @property
    def messages(self) -> int:
        return sum(frame.messages for frame in self.frames)

    def add(self, queue: str, settings: Settings, staged: "Staged", frame: bytes, now: int) -> None:
        from penstock.wire.frames import with_times

        self._backend._writer.check_space(staged.entries)
        name = f"{self._name}-{len(self.frames)}"
        self._place.stage(self._load, name, with_times(frame, now))
        size = sum(len(entry.payload) for entry in staged.entries)
        done = staged.restored is not None and is_done(staged.restored.state)
        self.frames.append(Frame(queue, name, len(staged.entries), size, done))


class SlateDepot:
    """Loads that are staged beside the database."""

    def __init__(self, backend: "SlateBackend") -> None:
        self._backend = backend
        self._place: Place = backend._place

    def settings(self, queue: str) -> Settings:
        return self._backend.find(queue).settings

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        return new_ledger(queue, settings, NotedReceipts())

    def check_settings(self, settings: Settings) -> None:
        self._backend._check_settings(settings)

    def begin(self, load: str, forget_before: int) -> None:
        first = bytes((VERSION, RUN))
        gone = []
        for key, _ in self._backend._database.scan(first + b"0-0-", first + b"0-1"):  # as such loads are named
            began = began_at(unterminated(key, 2)[0].decode())
            if began is not None and began < forget_before:
                gone.append(key)
        if gone:
            self._backend._remove([(key, None) for key in gone])

    def new_part(self, load: str, part: str) -> SlatePart:
        return SlatePart(self._backend, load, part)

    def take_in(
        self,
        load: str,
        parts: Sequence[StagedPart],
        queues: Mapping[str, Settings],
        run: str | None,
        sink: SinkCommit | None,
    ) -> bool:
        frames = [frame for part in parts for frame in cast("SlatePart", part).frames]
        return self._backend.loads.take_in(Load(load, frames, queues, run, sink))

    def counts(self, load: str) -> bool:
        return False

    def has_landed(self, sink: SinkCommit) -> bool:
        return self._backend.loads.has_landed(sink)

    def taken(self, run: str) -> Taken | None:
        taken = self._backend.loads.taken(run)
        return None if taken is None else Taken(taken["load"], [Brought(*each) for each in taken["brought"]])

    def drop(self, load: str) -> None:
        if not self._backend.loads.may_count(load):
            self._place.remove_load(load)
