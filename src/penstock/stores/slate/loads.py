"""Bulk loads: messages that are staged as frames beside the database, and take effect together or not at all.

    .penstock/staged/LOAD/NAME      frames (wire/frames.py) of a store in a folder
    PREFIX/staged/LOAD/NAME         frames of a store in a bucket

A load's name contains its process. If that process has ended and the load is not committed, the next opening of
the store sets its frames aside for a week.

The load commit:

1. The owner writes the load record. From now on the load is committed.
2. The owner puts the frames into their queues, some at a time. Each write also records how many frames are done,
   so that the next owner continues there.
3. With the last frames the load record is deleted, and the run and the sink's batch are recorded: each takes
   effect once.
4. The staged frames are removed.

    load   01 0F | name    -> JSON: frames, number of frames that are done, run, sink, queues to create
    run    01 10 | name    -> JSON: load; number of messages and bytes of payloads that it brought to each queue
    sink   01 11 | name    -> JSON: query and number of the last committed batch

Clients send loads to the owner (engine/loads.py). A load whose record was not written in time may be committed. It
stays open, so that committing it again finishes it. Its frames stay until then, or until the store is opened.
"""

import json
import secrets
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.contract.loads import Brought, SinkCommit, is_repeated
from penstock.contract.message import STATES, groups_of
from penstock.contract.settings import Settings
from penstock.engine.loads import Restored, StagedPart, Taken, began_at, restore
from penstock.engine.storage import Body
from penstock.errors import InvalidArgument, QueueExists, StoreCorrupt
from penstock.rules.ledger import Ledger
from penstock.rules.records import Put
from penstock.stores.slate.format import LOAD, RUN, SINK, VERSION, queue_key, unterminated
from penstock.stores.slate.place import STAGED, Place
from penstock.stores.slate.recovery import new_ledger
from penstock.stores.slate.storage import held
from penstock.stores.slate.writing import Changes
from penstock.system.clock import at_least_one
from penstock.system.processes import is_gone, name_of
from penstock.system.threads import Lock
from penstock.wire.frames import Staged, decode_staged, with_times
from penstock.wire.restored import Columns

if TYPE_CHECKING:
    from penstock.stores.slate.store import SlateBackend


def new_name(owner: int) -> str:
    """A new name for a load of a process."""
    return f"{socket.gethostname()}~{name_of(owner)}~{secrets.token_hex(8)}"


def is_given_up(load: str) -> bool:
    """Whether an uncommitted load, found at opening, is abandoned: its process on this machine has ended.

    Loads that clients sent to the previous owner are abandoned, too.
    """
    host, _, rest = load.partition("~")
    return began_at(load) is not None or (host == socket.gethostname() and is_gone(rest.partition("~")[0]))


_AT_ONCE = 16 << 20  # bytes of payloads that are written together, about
_MESSAGES = 20_000  # that are written together, about


class Frame(NamedTuple):
    """Staged messages of one queue."""

    queue: str
    name: str
    messages: int
    bytes: int
    done: bool = False  # the messages are done, and do not count against the queue's limit


def is_done(state: object) -> bool:
    """Whether a frame's messages are done, by its column of states: either all are, or none."""
    return state == "done" or (isinstance(state, list) and "done" in state[:1])


class Load(NamedTuple):
    """A load to commit."""

    name: str
    frames: list[Frame]
    create: Mapping[str, Settings]  # queues to create first
    run: str | None
    sink: SinkCommit | None = None  # set if the load is a batch of a streaming sink


class _Progress:
    """How many frames of a load are in their queues; each commit of frames writes it."""

    def __init__(self, load: Load, done: int) -> None:
        self.lock: Lock = threading.RLock()
        self.load, self.done = load, done

    @property
    def row(self) -> tuple[bytes, bytes]:
        name, frames, create, run, sink = self.load
        content: dict[str, Any] = {"frames": frames, "done": self.done, "run": run, "sink": sink}
        if not self.done:
            content["create"] = {queue: settings.stored() for queue, settings in create.items()}
        return queue_key(LOAD, name), json.dumps(content).encode()

    def collect(self, changes: Changes) -> None:
        name, frames, _, run, sink = self.load
        if self.done < len(frames):
            changes.rows.append(self.row)
            return
        changes.rows.append((queue_key(LOAD, name), None))
        if run is not None:
            content = {"load": name, "brought": brought(frames)}
            changes.rows.append((queue_key(RUN, run), json.dumps(content).encode()))
        if sink is not None:
            changes.rows.append((queue_key(SINK, sink.sink), json.dumps(sink[1:]).encode()))


def brought(frames: Sequence[Frame]) -> list[list[Any]]:
    """The messages and bytes that frames bring to each queue."""
    found: dict[str, list[int]] = {}
    for each in frames:
        counts = found.setdefault(each.queue, [0, 0])
        counts[0] += each.messages
        counts[1] += each.bytes
    return [[queue, *counts] for queue, counts in sorted(found.items())]


class SlatePart:
    """The frames that one client has sent, each a file or an object; a frame that was not stored is sent again."""

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

    def add(self, queue: str, settings: Settings, staged: Staged, frame: bytes, now: int) -> None:
        self._backend._writer.check_space(staged.entries)
        name = f"{self._name}-{len(self.frames)}"
        self._place.stage(self._load, name, with_times(frame, now))
        size = sum(len(entry.payload) for entry in staged.entries)
        done = staged.restored is not None and is_done(staged.restored.state)
        self.frames.append(Frame(queue, name, len(staged.entries), size, done))


class LoadCommit:
    """Commits loads, in the process that owns the store."""

    def __init__(self, backend: "SlateBackend") -> None:
        self._backend = backend
        self._place: Place = backend._place
        self._lock = threading.Lock()
        self._unfinished: dict[str, _Progress] = {}
        self._in_doubt: set[str] = set()  # loads whose record may have been written

    def resume(self) -> None:
        """After opening: finish committed loads, and set abandoned ones aside."""
        start, end = bytes((VERSION, LOAD)), bytes((VERSION, LOAD + 1))
        for key, value in list(self._backend._database.scan(start, end)):
            content = json.loads(value)
            frames = [Frame(*each) for each in content["frames"]]
            name = key[2:-1].decode()
            sink = SinkCommit(*content["sink"]) if content.get("sink") else None
            create = {queue: Settings(**settings) for queue, settings in content.get("create", {}).items()}
            self._put_frames(_Progress(Load(name, frames, create, content["run"], sink), content["done"]))
        for name in self._place.list_loads():
            if is_given_up(name):
                self._place.discard_load(name)

    def run(self, name: str) -> list[list[Any]] | None:
        """The messages and bytes that a run brought to each queue; None if the run has not taken effect."""
        taken = self.taken(name)
        return None if taken is None else [list(each) for each in taken.brought]

    def commit(self, load: Load) -> bool:
        """Let a load take effect; False if its run or sink batch already has. Repeating the call is harmless."""
        with self._lock:
            if load.name in self._finish():
                return True
            if self._is_repeated(load):
                self._place.remove_load(load.name)
                return False
            if load.frames and not self._place.has_load(load.name):
                return True  # it was committed before, and the answer was lost
            with ExitStack() as done:
                self._expect(load, done)
                progress = _Progress(load, 0)
                self._in_doubt.add(load.name)
                self._backend._writer.lead(lambda: self._backend._writer.write_now([progress.row]))
                self._unfinished[load.name] = progress
                self._finish()
            return True

    # As the depot of loads that clients send (engine/loads.py)

    def settings(self, queue: str) -> Settings:
        return self._backend.find(queue).settings

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        return new_ledger(queue, settings)

    def check_new(self, queues: Mapping[str, Settings]) -> None:
        self._backend.check_new(queues)

    def begin(self, load: str, forget_before: int) -> None:
        first = bytes((VERSION, RUN))
        gone = []
        for key, _ in self._backend._database.scan(
            first + b"0-0-", first + b"0-1"
        ):  # names of loads that clients sent
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
        return self.commit(Load(load, frames, queues, run, sink))

    def counts(self, load: str) -> bool:
        return False

    def has_landed(self, sink: SinkCommit) -> bool:
        value = self._backend._database.get(queue_key(SINK, sink.sink))
        return value is not None and is_repeated(sink, SinkCommit(sink.sink, *json.loads(value)))

    def taken(self, run: str) -> Taken | None:
        value = self._backend._database.get(queue_key(RUN, run))
        if value is None:
            return None
        content = json.loads(value)
        return Taken(content["load"], [Brought(*each) for each in content["brought"]])

    def drop(self, load: str) -> None:
        if load not in self._in_doubt:
            self._place.remove_load(load)

    # How a load takes effect

    def _finish(self) -> list[str]:
        """Finish interrupted loads first, so that a repetition under another name finds their run or batch."""
        names = list(self._unfinished)
        for name in names:
            self._put_frames(self._unfinished[name])
            del self._unfinished[name]
            self._in_doubt.discard(name)
        return names

    def _is_repeated(self, load: Load) -> bool:
        if load.sink is not None and self.has_landed(load.sink):
            return True
        return load.run is not None and self.run(load.run) is not None

    def _expect(self, load: Load, done: ExitStack) -> None:
        """Refuse a load that does not fit, before anything is written; else reserve room for its messages."""
        waiting = {frame.queue: 0 for frame in load.frames}
        for frame in load.frames:
            waiting[frame.queue] += 0 if frame.done else frame.messages
        for queue, more in sorted(waiting.items()):
            if queue in load.create and queue not in self._backend._storages:  # it will be created
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

    def _put_frames(self, progress: _Progress) -> None:
        """Put all remaining frames of a load into their queues, then remove them from the staging area."""
        writer, (load, frames, create, _, _) = self._backend._writer, progress.load
        for queue, settings in create.items() if not progress.done else ():
            with suppress(QueueExists):
                self._backend.create(queue, settings, of_load=True)
        while True:
            some = list(_together(frames[progress.done :]))
            staged = [self._staged(load, frame) for frame in some]

            def take(some: list[Frame] = some, staged: list[Staged] = staged) -> None:
                for frame, content in zip(some, staged, strict=True):
                    self._put(frame.queue, content)
                progress.done += len(some)
                writer.changed(progress)
                writer.commits.flush()

            writer.lead(take)
            if progress.done >= len(frames):
                break
        self._place.remove_load(load)

    def _staged(self, load: str, frame: Frame) -> Staged:
        """The messages of a committed load's frame; StoreCorrupt if they are missing or damaged."""
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
            f"load {load} of {self._place.what} is committed, and a part of its staged messages "
            f"{wrong}: {STAGED}/{load}/{frame.name}: restore it from a backup"
        )

    def _put(self, queue: str, staged: Staged) -> None:
        storage, ids = self._backend._storages.get(queue), self._backend._ids
        if storage is None or not len(staged.entries):
            return  # None: the queue was deleted meanwhile
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
                restored = restore(became)  # numbers messages from 0
                history = {first + at: packed for at, packed in restored.history.items()}
                ledger.state.replay(restored._replace(at=now, first=first, history=history))

        with self._backend._router.in_order(queue) if self._backend._router.deferred else nullcontext():
            live.run(put)


def _together(frames: Sequence[Frame]) -> Iterator[Frame]:
    """The first frames that are written together."""
    size = messages = 0
    for each in frames:
        if messages and (size + each.bytes > _AT_ONCE or messages + each.messages > _MESSAGES):
            return
        size, messages = size + each.bytes, messages + each.messages
        yield each


def _arriving(
    staged: Staged, became: Restored | None, first: int, settings: Settings, now: int
) -> tuple[Put, list[Body]]:
    """The Put record of staged messages, and their bodies."""
    bodies: list[Body] = []
    visible_at, expires_at = [], []
    for at, entry in enumerate(staged.entries):
        received_at = now if became is None else became.received_at[at]
        created_at = received_at if entry.created_at is None else entry.created_at
        bodies.append((entry.payload, entry.headers or {}, created_at, received_at))
        visible = staged.visible_at[at] if staged.visible_at else None
        if visible is None:
            visible = now + at_least_one(settings.delay) if settings.delay and became is None else now
        visible_at.append(visible)
        expires = staged.expires_at[at] if staged.expires_at else None
        if expires is None:
            expires = now + at_least_one(settings.retention) if settings.retention and became is None else 0
        expires_at.append(expires)
    priority = [entry.priority for entry in staged.entries]
    return Put(now, first, priority, visible_at, expires_at, {}, groups_of(staged.entries)), bodies


def _restored(columns: Columns, now: int) -> Restored:
    received_at = [now if each is None else each for each in columns.received_at]
    # A waiting message that was tried needs a claim time, which no reader sees: else it gets no claims record.
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
