"""Spark tables of slate stores: reads of a snapshot of the database, and bulk loads.

The driver reads the messages' states, which are in records of their queues. Tasks read payloads, headers and the
log (log_tables.py). A task is sent its rows, and the snapshot to open.

Tasks of a load stage frames beside the database. The commit asks the owner of the store, or opens the store.
Before it no message of the load is visible; once the owner has recorded the load, all will be (loads.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.contract.arrow import column_of
from penstock.contract.loads import SinkCommit
from penstock.contract.operations import Lookup, Queues
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.contract.streams import StreamInfo
from penstock.contract.tables import Opener, Part, Read, Staged, Tables, Target
from penstock.engine.arrow_columns import (
    BODY,
    attempts_of,
    batches_of,
    joined,
    parts_of,
    queue_row,
    rows_as_batch,
    rows_of,
    sources_of,
    table_of,
)
from penstock.engine.arrow_rows import send
from penstock.errors import PenstockError, QueueFull, QueueNotFound, StreamMismatch
from penstock.rules.ledger import Ledger
from penstock.stores.owner_operations import SlateOwner
from penstock.stores.slate import entries, recovery, snapshot
from penstock.stores.slate.bodies import runs_of
from penstock.stores.slate.format import (
    decode_metadata,
    decode_payload,
    key_u64,
    log_prefix,
    object_of,
    payload_key,
)
from penstock.stores.slate.loads import Frame, Load, is_done, new_name
from penstock.stores.slate.log_tables import MATCHED, LogFollower, Router, log_end, log_parts, sliced
from penstock.stores.slate.place import Place, parse
from penstock.stores.slate.recovery import PRIORITIES
from penstock.stores.slate.snapshot import Snapshot, View, place_at, read_only
from penstock.system.clock import SystemClock
from penstock.wire.frames import decode_columns

_PART_ROWS, _SMALL_PART_ROWS = 200_000, 20_000  # that are sent to a task, at most and at least
_BESIDE = 200  # bytes that a body costs beside its payload
_NEAR = 128  # a scan reads across gaps of up to so many messages
_COMMITTING = "committing"  # once this file is staged, only the owner may remove the load's frames


class SlateTables(Tables):
    """The tables of slate stores."""

    has_history = True

    def parts(self, read: Read, schema: pa.Schema, owner: int) -> Sequence[Part]:
        log = parse(read.store).log
        taken = snapshot.take(read.store, owner, objects="payload" in schema.names or read.table == "log")
        held = False
        try:
            taken, view = snapshot.opened_for(taken, log)
            with closing(view):
                if read.table == "log":
                    recovery.check_instance(view, log)
                    logged = log_parts(view, taken, log, log_end(view, log))
                    held = bool(logged)
                    return logged
                parts = _parts(view, taken, log, read, schema)
            held = any(part.snapshot is not None for part in parts)
            return parts
        finally:
            if not held:
                snapshot.drop(taken)

    def loader(self, target: Target, owner: int, opened: Opener) -> "SlateLoader":
        return SlateLoader(target, owner, opened)

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        with closing(opened(store)) as found:
            return SlateOwner(found.run).run(run)

    def log(self, store: str, schema: pa.Schema, route: bool, owner: int) -> LogFollower:
        return LogFollower(store, schema, route, owner)

    def match_schema(self) -> pa.Schema:
        return MATCHED

    def streams(self, store: str, opened: Opener) -> list[StreamInfo]:
        with read_only(store) as (view, log):
            queues = recovery.load(view, log).queues
        return [stream for name in sorted(queues) for stream in queues[name].ledger.streams.all()]

    def router(self, store: str, opened: Opener) -> Router:
        return Router(store, opened)


# Reads


@dataclass(frozen=True)
class RowsPart:
    """Rows for one task, which adds bodies from a snapshot; without a snapshot the rows are complete."""

    snapshot: Snapshot | None
    log: str
    rows: bytes  # as an Arrow stream
    queues: tuple[str, ...]  # rows have indexes into these names; empty: the rows are the table's

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.rows) as stream:
            rows = stream.read_next_batch()
        if not self.queues:
            yield rows
            return
        queues = pa.array(self.queues, pa.string())
        if self.snapshot is None:
            for part in batches_of(rows, bodies=False):
                yield table_of({}, part, queues, schema)
            return
        with closing(snapshot.opened(self.snapshot)) as view:
            bodies = Bodies(view, self.log, "payload" in schema.names)
            for part in batches_of(rows, bodies=True):
                yield table_of(bodies.columns(part["seq"].to_pylist(), schema), part, queues, schema)


def _parts(view: View, taken: Snapshot, log: str, read: Read, schema: pa.Schema) -> list[RowsPart]:
    found = recovery.load(view, log)
    sized = read.table == "messages" and BODY.intersection(schema.names)  # tasks and batches are cut by size
    if sized or recovery.has_others(found):
        recovery.measure(found, view, log)
    now = max(SystemClock().now(), found.at)
    ledgers = {name: loaded.ledger for name, loaded in sorted(found.queues.items())}
    if read.queue is not None:
        if read.queue not in ledgers:
            raise QueueNotFound(f"there is no queue {read.queue!r}: create it first")
        ledgers = {read.queue: ledgers[read.queue]}
    for ledger in ledgers.values():
        ledger.state.advance(now)
    if read.table == "messages":
        return _messages(ledgers, taken, log, read.states, schema)
    if read.table == "queues":
        made = rows_as_batch(_queues(ledgers), schema)
    else:
        made = joined([attempts_of(name, ledger.state, schema) for name, ledger in ledgers.items()])
    return [RowsPart(None, log, _sent(part), ()) for part in parts_of(made, bodies=False)] if len(made) else []


def _queues(ledgers: dict[str, Ledger]) -> Iterator[dict[str, Any]]:
    for name, ledger in ledgers.items():
        yield queue_row(name, ledger.settings, ledger.state.counts())


def _messages(
    ledgers: dict[str, Ledger], taken: Snapshot, log: str, states: Sequence[str], schema: pa.Schema
) -> list[RowsPart]:
    bodies = bool(BODY.intersection(schema.names))
    wanted = dict.fromkeys([*sources_of(schema.names), "seq", "size"])
    wanted = {name: None for name in wanted if name not in ("place", "crc")}
    contents = [ledger.state for ledger in ledgers.values()]
    found = [rows_of(each.pages(), number, wanted, states, each.history) for number, each in enumerate(contents)]
    found = [each for each in found if len(each)]
    if not found:
        return []
    rows = joined(found)
    if bodies and len(found) > 1:
        rows = rows.take(pa.array(np.argsort(rows["seq"].to_numpy(), kind="stable")))
    parts, names = [], tuple(ledgers)
    for part in parts_of(rows, bodies, _BESIDE, _PART_ROWS, _SMALL_PART_ROWS):
        first, end = int(part["seq"][0].as_py()), int(part["seq"][-1].as_py()) + 1
        parts.append(RowsPart(sliced(taken, log, first, end) if bodies else None, log, _sent(part), names))
    return parts


def _sent(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


class Bodies:
    """Reads the bodies of messages from a view."""

    def __init__(self, view: View, log: str, payloads: bool) -> None:
        self._view = view
        self._prefix = log_prefix(log)
        self._payloads = payloads

    def columns(self, seqs: list[int], schema: pa.Schema) -> dict[str, pa.Array]:
        """The body columns of these messages; a message may occur several times."""
        found: dict[int, tuple[Any, ...]] = {}
        for run in runs_of(sorted(set(seqs)), _NEAR):
            self._find(run, found)
        missing = [seq for seq in seqs if seq not in found]
        if missing:
            raise PenstockError(f"message {missing[0]} has no payload or no log entry: the store has lost it")
        bodies = [found[seq] for seq in seqs]
        values = dict(
            zip(("payload", "headers", "created_at", "received_at"), zip(*bodies, strict=True), strict=True)
        )
        return {
            field.name: column_of(list(values[field.name]), field.type) for field in schema if field.name in BODY
        }

    def _find(self, run: list[int], found: dict[int, tuple[Any, ...]]) -> None:
        view, prefix, first, end = self._view, self._prefix, run[0], run[-1] + 1
        wanted = set(run)
        payloads: dict[int, bytes] = {}
        if self._payloads:
            for some in view.batches(payload_key(first), payload_key(end)):
                for key, value in some:
                    seq = int.from_bytes(key[-8:])
                    if seq in wanted:
                        payloads[seq] = payload_of(view, seq, value)
        for some in view.batches(prefix + key_u64(first), prefix + key_u64(end)):
            for key, value in some:
                seq = int.from_bytes(key[-8:])
                if seq in wanted and (not self._payloads or seq in payloads):
                    metadata, payload = decode_metadata(value), payloads.get(seq, b"")
                    if seq in payloads:
                        checksum = metadata.headers.get(entries.CHECKSUM_HEADER)
                        entries.check_object(f"objects/{seq}", payload, checksum, view.what)
                    found[seq] = entries.body_of(metadata, payload)


def payload_of(view: View, seq: int, value: bytes) -> bytes:
    """The payload of a payload record, which may be an object."""
    content = decode_payload(value)
    if isinstance(content, bytes):
        return content
    try:
        return view.get_object(object_of(content))
    except FileNotFoundError:
        raise PenstockError(
            f"message {seq} was settled after this DataFrame was planned, and its payload is gone: load() it again"
        ) from None


# Loads


class _Frames:
    """Stages the frames of one task, for arrow_rows.send()."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.frames: list[Frame] = []

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        name = f"{part}-{number}"
        self._place.stage(load, name, frame)
        columns, payloads = decode_columns(frame)
        done = is_done(columns.get("state"))
        self.frames.append(Frame(queue, name, len(payloads), sum(map(len, payloads)), done))


class SlateLoader:
    """Loads messages into the queues of a slate store."""

    def __init__(self, target: Target, owner: int, opened: Opener) -> None:
        self._target = target
        self._opened = opened
        with closing(opened(target.store)) as store:
            self._queues = _limits(store, target)
            self.repeated = target.run is not None and SlateOwner(store.run).run(target.run) is not None
        self._load = new_name(owner)

    def stage(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> Staged:
        taker = _Frames(place_at(self._target.store))
        send(taker, self._load, self._target, self._queues, batches, partition, attempt)
        return Staged(self._load, taker.frames)

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        target = self._target
        frames = [frame for each in staged for frame in each.pieces]
        if batch is not None and not frames:
            return
        name = next((each.load for each in staged if each.pieces), self._load)
        load = Load(name, frames, dict(target.create), target.run, None if batch is None else batch())
        with closing(self._opened(target.store)) as store:
            if frames:
                place_at(target.store).stage(name, _COMMITTING, b"")
            try:
                SlateOwner(store.run).take_in(load)
            except (QueueFull, QueueNotFound, StreamMismatch):  # refused: nothing was written
                place_at(target.store).remove_load(name)
                raise

    def abort(self, staged: Sequence[Staged]) -> None:
        place = place_at(self._target.store)
        begun = set() if self._target.streams else {self._load}  # each batch of a stream has its own loader
        for load in begun | {each.load for each in staged}:
            try:
                place.staged(load, _COMMITTING)
            except FileNotFoundError:
                place.remove_load(load)


def _limits(store: Store, target: Target) -> dict[str, Settings]:
    """The queues that rows may be for, with the priorities that a slate store supports; QueueNotFound."""
    known = {**target.create, **{info.name: info.settings for info in store.run(Queues())}}
    if target.queue is not None and target.queue not in known:
        store.run(Lookup(target.queue))  # raises QueueNotFound
    limited = {}
    for name, settings in known.items():
        lowest, highest = settings.priorities or PRIORITIES
        priorities = (max(lowest, PRIORITIES[0]), min(highest, PRIORITIES[1]))
        limited[name] = replace(settings, priorities=priorities)
    return limited
