"""The loader of journal stores: stages Arrow rows as commit groups, by columns, and commits them all at once.

The bodies of a batch are made together, ordered by queue, and cut up; a group is written when its bodies are large
enough. An invalid row is refused before anything of its batch is staged.
"""

import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from zlib_ng.zlib_ng import crc32

from penstock.contract import names
from penstock.contract.loads import SinkCommit
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.contract.tables import Opener, Staged, Target
from penstock.engine.arrow_rows import Column, Key, RowStager, binary, histories, integers, runs
from penstock.engine.loads import Restored, restore
from penstock.rules.records import Put, Restore
from penstock.stores.journal import bodies, groups, staging
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.kind import KIND, dialect_of, folder_of
from penstock.stores.journal.loads import has_run, make_folder
from penstock.stores.journal.records import encode_put, encode_record
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.staging import GROUP, Part, Piece
from penstock.stores.owner_operations import TakeIn
from penstock.system.clock import SystemClock, at_least_one
from penstock.system.files import ReadingDisk, SystemDisk, remove_folder

_ITEM = np.dtype([("opcode", "u1"), ("size", "<i4"), ("added", "<i8"), ("expiry", "<i8")])  # before a payload


class _Chunk(NamedTuple):
    """Consecutive bodies of one queue, and their columns."""

    content: bytes | memoryview
    columns: dict[str, Column]
    restored: dict[str, list[Any]] | None


class JournalLoader:
    """Loads messages into the journals of a folder."""

    def __init__(self, target: Target, owner: int, opened: Opener) -> None:
        self._target = target
        self._opened = opened
        self._folder, dialect = folder_of(target.store), dialect_of(target.store)
        staging.check_dialect(dialect)
        view = StoreSnapshot(self._folder, ReadingDisk(), SystemClock().now())
        self._queues = {**target.create, **view.settings()}
        if target.queue is not None and names.checked(target.queue) not in self._queues:
            view.settings(target.queue)  # raises QueueNotFound
        self._load = staging.new_name(owner)
        disk = SystemDisk()
        self.repeated = has_run(disk, Catalog(self._folder, disk), target.run)
        if not self.repeated and not target.streams:
            if KIND.is_held(target.store):
                opened(target.store).close()  # raises, before the work begins, if the store is not shared
            make_folder(disk, self._folder, self._load)

    def stage(self, batches: Iterable[pa.RecordBatch], partition: int, attempt: int) -> Staged:
        disk, target = SystemDisk(), self._target
        folder = staging.folder_of(self._folder, self._load)
        part = Part(disk, folder, self._load, f"part-{partition:05}-{attempt}")
        stager = Stager(part, self._queues, target.queue, partition, target.restore, SystemClock().now())
        try:
            for batch in batches:
                if target.streams and len(batch) and not os.path.isdir(folder):
                    with suppress(FileExistsError):
                        make_folder(disk, self._folder, self._load)
                stager.add(batch)
            return Staged(self._load, stager.finish())
        except BaseException:
            part.discard()
            raise

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        target = self._target
        pieces = [piece for each in staged for piece in each.pieces]
        if batch is not None and not pieces:
            return
        load = next((each.load for each in staged if each.pieces), self._load)
        with closing(self._opened(target.store)) as store:
            store.run(TakeIn(load, pieces, target.create, target.run, None if batch is None else batch()))

    def abort(self, staged: Sequence[Staged]) -> None:
        begun = set() if self._target.streams else {self._load}  # tasks of a stream have loaders of their own
        for load in begun | {each.load for each in staged}:
            folder = staging.folder_of(self._folder, load)
            if not os.path.exists(os.path.join(folder, staging.MANIFEST)):
                remove_folder(SystemDisk(), folder)


class Stager(RowStager):
    """Stages the rows of one task as commit groups."""

    _at_once, _enough, _most = 32 << 20, GROUP, 64 << 20

    def __init__(
        self,
        part: Part,
        queues: Mapping[str, Settings],
        queue: str | None,
        partition: int,
        restore: bool,
        now: int,
    ) -> None:
        super().__init__(queues, queue, partition, restore)
        self._part = part
        self._now = now

    def finish(self) -> list[Piece]:
        """Stage the last rows and sync; the pieces."""
        self._take_all()
        self._part.close()
        return self._part.pieces

    def _add(self, rows: pa.RecordBatch) -> None:
        payload = binary(rows["payload"])
        number = self._queues(rows)
        columns = self._columns(rows, payload, number)
        done = self._done(rows)
        ends = self._ends(rows, columns, done)
        group = number * 2 + done
        order = None if (group == group[0]).all() else np.argsort(group, kind="stable")
        if order is not None:
            payload, group = payload.take(pa.array(order)), group[order]
            columns = {name: column[order] for name, column in columns.items()}
            ends = ends if isinstance(ends, bytes) else [ends[at] for at in order.tolist()]
        content, sizes, crcs = _bodies(payload, columns, ends)
        columns |= {"size": sizes, "crc": crcs}
        restored = self._restored(rows, order) if self._restore else None
        starts = np.append(0, np.cumsum(sizes))
        for first, last in runs(group):
            part = slice(first, last)
            body = content[starts[first] : starts[last]]
            chunk = _Chunk(
                body
                if len(body) > len(content) // 2
                else bytes(body),  # a copy: a small view would keep the whole content in memory
                {name: column[part] for name, column in columns.items()},
                restored and {name: values[part] for name, values in restored.items()},
            )
            self._wait(self._key(group, first), chunk, len(chunk.content))

    def _write(self, key: Key, chunks: list[_Chunk]) -> None:
        queue, done = key
        column = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
        count, sizes = len(column["size"]), column["size"]
        offsets = groups.HEAD_SIZE + np.append(0, np.cumsum(sizes[:-1]))
        where = Bodies(_array("I", offsets), _array("I", sizes), _array("I", column["crc"]))
        times = _array("q", column["visible_at"]), _array("q", column["expires_at"])
        records = encode_put(Put(0, 0, _array("q", column["priority"]), *times, {}), where)
        if chunks[0].restored is not None:
            records += encode_record(_restore([chunk.restored or {} for chunk in chunks]))
        self._part.add(
            queue,
            [chunk.content for chunk in chunks],
            records,
            count,
            done=done,
            payloads=int(column["length"].sum()),
            longest=int(column["length"].max()),
            lowest=int(column["priority"].min()),
            highest=int(column["priority"].max()),
        )

    # Columns of rows

    def _columns(self, rows: pa.RecordBatch, payload: pa.Array, number: Column) -> dict[str, Column]:
        kept = np.array(
            [self._now + at_least_one(each.retention) if each.retention else 0 for each in self._settings]
        )
        return {
            "length": self._lengths(payload, number),
            "priority": self._priorities(rows, number),
            "visible_at": self._times(rows, "visible_at", self._now),
            # Of restored messages NULL means that they never expire.
            "expires_at": self._times(rows, "expires_at", 0 if self._restore else kept[number]),
            "received_at": self._times(rows, "received_at", self._now),
        }

    def _ends(self, rows: pa.RecordBatch, columns: dict[str, Column], done: Column) -> bytes | list[bytes]:
        """The bytes after each payload: an opcode and, of rows with headers or created_at, their meta."""
        names = rows.schema.names
        headers = rows["headers"].to_pylist() if "headers" in names else None
        created_at = self._times(rows, "created_at", -1) if "created_at" in names else None
        if created_at is not None and (created_at == columns["received_at"]).all():
            created_at = None
        end = {False: bodies.end_of(done=False), True: bodies.end_of(done=True)}
        if not any(headers or ()) and (created_at is None or (created_at < 0).all()):
            return end[False] if not done.any() else [end[each] for each in done.tolist()]
        ends = []
        received_at = columns["received_at"].tolist()
        created = received_at if created_at is None else created_at.tolist()
        for at, (is_done, pairs) in enumerate(zip(done.tolist(), headers or [None] * len(rows), strict=True)):
            received = received_at[at]
            made = received if created[at] < 0 else created[at]
            if pairs or made != received:
                ends.append(end[is_done] + bodies.encode_meta(self._headers(at, pairs or ()), made, received))
            else:
                ends.append(end[is_done])
        return ends

    def _restored(self, rows: pa.RecordBatch, order: Column | None) -> dict[str, list[Any]]:
        moved = rows if order is None else rows.take(pa.array(order))
        return {
            "state": [STATES.index(each) + 1 for each in moved["state"].to_pylist()],
            "attempts": integers(moved, "attempts", 0).tolist(),
            "claimed_at": self._times(moved, "claimed_at", 0).tolist(),
            "settled_at": self._times(moved, "settled_at", 0).tolist(),
            "consumer": moved["consumer"].to_pylist(),
            "reason": moved["reason"].to_pylist(),
            "history": histories(moved),
        }


def _bodies(
    payload: pa.Array, columns: dict[str, Column], ends: bytes | list[bytes]
) -> tuple[memoryview, Column, Column]:
    """Bodies one after the other, their sizes and their checksums."""
    heads = np.empty(len(payload), _ITEM)
    heads["opcode"], heads["size"] = bodies.ADDX, columns["length"] + bodies.TIMES
    heads["added"], heads["expiry"] = columns["received_at"], columns["expires_at"]
    starts = np.arange(0, (len(payload) + 1) * bodies.ITEM_HEAD, bodies.ITEM_HEAD, dtype=np.int32)
    head = pa.Array.from_buffers(pa.binary(), len(payload), [None, pa.py_buffer(starts), pa.py_buffer(heads)])
    end = pa.scalar(ends, pa.binary()) if isinstance(ends, bytes) else pa.array(ends, pa.binary())
    made = pc.binary_join_element_wise(head, payload, end, pa.scalar(b"", pa.binary()))
    offsets = np.frombuffer(made.buffers()[1], np.int32)[: len(made) + 1]
    content = memoryview(made.buffers()[2])[: int(offsets[-1])]
    limits = offsets.tolist()
    crcs = [crc32(content[start:stop]) for start, stop in pairwise(limits)]
    return content, np.diff(offsets), np.array(crcs, np.uint32)


def _restore(parts: Sequence[dict[str, list[Any]]]) -> Restore:
    def column(name: str) -> list[Any]:
        return [value for part in parts for value in part[name]]

    return restore(Restored([], *(column(name) for name in parts[0])))


def _array(typecode: str, values: Column) -> "array[int]":
    kind = {"q": np.int64, "I": np.uint32}[typecode]
    return array(typecode, np.ascontiguousarray(values, kind).tobytes())
