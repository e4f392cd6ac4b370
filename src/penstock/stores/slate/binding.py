"""The SlateDB client: its Python binding as blocking calls with a time limit, usable from any thread.

The binding is asyncio code. Its coroutines run here without an event loop: each future is a queue that a thread of
the library fills. So a call costs no switch to a loop's thread, and also works inside a running loop.

As shipped, the binding copies written bytes one by one in Python: 0.25 ms for a kilobyte. `_FastRows` calls the
same functions of the library with each row in one piece. It depends on the version of the binding, and is checked
by a round trip when the first database is opened. If the check fails, `_SlowRows` is used, with a warning.
"""

import asyncio
import ctypes
import logging
import operator
import os
import struct
import threading
import time
from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from penstock.errors import NotSupported, PenstockError, StoreClosed, StoreCorrupt, StoreLocked, StoreUnreachable

Result = TypeVar("Result")
Row: TypeAlias = tuple[bytes, bytes | None]  # key and value; None deletes the key
AT_ONCE = 1_000  # rows that a scan fetches with one call
READ_AHEAD = 1 << 20
LENGTH = struct.Struct(">i")
TAIL = (17, 25)  # bytes after a value: sequence, creation time, flag; 8 more with an expiry time
# Commits flush explicitly. A killed process's compactions are taken over after 5 seconds; no caller waits for it.
_ALWAYS = (
    ("flush_interval", "null"),
    ("l0_sst_size_bytes", str(32 << 20)),
    ("max_unflushed_bytes", str(256 << 20)),
    ("l0_max_ssts", "32"),
    ("l0_max_ssts_per_key", "32"),
    ("compactor_options.poll_interval", '"1s"'),
    ("compactor_options.worker_heartbeat_timeout", '"5s"'),
    ("compactor_options.worker.compactions_poll_interval", '"1s"'),
    ("compactor_options.worker.heartbeat_interval", '"1s"'),
)
_FORK = 2.0  # seconds that a fork waits for calls, and a call for a fork
_processes: dict[str, int] = {}  # by library: the process that loaded it
_log = logging.getLogger("penstock")


class Fenced(StoreLocked, StoreClosed):
    """Another writer has taken over the database."""


class _Call(SimpleQueue[int]):
    """One call of the binding: stands in for the event loop, and for each future that the coroutine awaits.

    Each commit makes two calls, so methods are C functions where possible.
    """

    __slots__ = ("deadline",)
    deadline: float
    call_soon_threadsafe: Any = staticmethod(operator.call)
    cancelled = bool  # bool() is False
    set_result = SimpleQueue.put

    def create_future(self) -> "_Call":
        return self

    def __await__(self) -> Generator[None, None, int]:
        try:
            left = self.deadline - time.monotonic()
            return self.get(timeout=max(0.0, min(left, threading.TIMEOUT_MAX)))
        except Empty:
            raise TimeoutError from None
        yield


class _Calls:
    """The running calls; a fork waits for them.

    A library thread that answers a call registers itself with Python without holding Python's lock. A child that
    is forked at that moment hangs.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._forking = False
        os.register_at_fork(before=self._wait, after_in_parent=self._go_on, after_in_child=self._start_over)

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._forking, _FORK)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            if self._forking:
                self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: not self._count, _FORK)

    def _go_on(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def _start_over(self) -> None:
        self._changed, self._count, self._forking = threading.Condition(), 0, False


_calls = _Calls()


def blocking(call: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Run a coroutine of the binding in this thread; TimeoutError after so many seconds."""
    with _calls:
        return _run(call, seconds)


def _run(call: Coroutine[Any, Any, Result], seconds: float) -> Result:
    loop: Any = _Call()
    loop.deadline = time.monotonic() + seconds
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        call.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    finally:
        asyncio._set_running_loop(before)
        call.close()
    raise RuntimeError("a coroutine of SlateDB's binding awaits something other than its own future")


def load() -> Any:
    """The binding; NotSupported if it is not installed."""
    try:
        from slatedb.uniffi._slatedb_uniffi import slatedb
    except ImportError as error:
        raise NotSupported(
            f"a slate store needs SlateDB, which is not installed ({error}): pip install 'penstock[slate]'"
        ) from error
    check_process("SlateDB")
    return slatedb


def check_process(library: str) -> None:
    """Refuse to use a library that was loaded before this process was forked: its threads are not in the child."""
    if _processes.setdefault(library, os.getpid()) != os.getpid():
        raise NotSupported(
            f"this process was forked from one that uses {library}, and threads do not survive a fork: start "
            "processes that open a slate store by spawn, as multiprocessing.get_context('spawn') does"
        )


async def answer_of(ffi: Any, method: str, target: Any, *arguments: int, most: int | None = None) -> bytes:
    """The bytes that a method of the library answers, at most so many. The binding makes an object of each row."""

    def lift(buffer: Any) -> bytes:
        try:
            return ctypes.string_at(buffer.data, buffer.len if most is None else min(buffer.len, most))
        finally:
            buffer.free()

    library = ffi._UniffiLib
    future = getattr(library, f"uniffi_slatedb_uniffi_fn_method_{method}")(
        target._uniffi_clone_handle(), *arguments
    )
    data: bytes = await ffi._uniffi_rust_call_async(
        future,
        library.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
        library.ffi_slatedb_uniffi_rust_future_complete_rust_buffer,
        library.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
        lift,
        ffi._UniffiFfiConverterTypeError,
    )
    return data


def next_batch(ffi: Any, iterator: Any) -> Coroutine[Any, Any, bytes]:
    """The next rows of a scan, as bytes for rows_in()."""
    return answer_of(ffi, "dbiterator_next_batch", iterator, AT_ONCE)


def scan_options(ffi: Any, read_ahead: int, fetches: int, **more: Any) -> Any:
    """How a database is scanned: committed rows only, and none of them displaces what SlateDB has cached."""
    return ffi.ScanOptions(
        durability_filter=ffi.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=read_ahead,
        cache_blocks=False,
        max_fetch_tasks=fetches,
        **more,
    )


def rows_in(data: bytes) -> list[tuple[bytes, bytes]]:
    """The rows of a scan's batch."""
    length = LENGTH.unpack_from
    rows, at = [], 4
    for _ in range(length(data)[0]):
        end = at + 4 + length(data, at)[0]
        stop = end + 4 + length(data, end)[0]
        rows.append((data[at + 4 : end], data[end + 4 : stop]))
        at = stop + TAIL[data[stop + 16]]
    check_end(data, at)
    return rows


def check_end(data: bytes, at: int) -> None:
    """Check that a batch of rows was decoded up to its last byte; StoreCorrupt."""
    if at != len(data):
        raise StoreCorrupt("rows of a scan cannot be decoded: this version of slatedb is not supported")


class _SlowRows:
    """Writes and scans rows by the binding's own methods."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi

    def batch(self, rows: Iterable[Row]) -> Any:
        batch = self._ffi.WriteBatch()
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        return batch

    async def next(self, iterator: Any) -> list[tuple[bytes, bytes]]:
        return [(row.key, row.value) for row in await iterator.next_batch(AT_ONCE)]


class _Bytes(ctypes.Structure):
    _fields_ = (("len", ctypes.c_int32), ("data", ctypes.c_char_p))


class _FastRows:
    """Writes and scans rows by the library's functions, without releasing the GIL for each row."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi
        name = os.path.join(os.path.dirname(ffi.__file__), os.path.basename(ffi._UniffiLib._name))
        library = ctypes.PyDLL(name)
        prefix = "uniffi_slatedb_uniffi_fn_"
        self._clone = self._function(library, prefix + "clone_writebatch")
        self._put = self._function(library, prefix + "method_writebatch_put")
        self._delete = self._function(library, prefix + "method_writebatch_delete")
        self._buffer = self._function(library, "ffi_slatedb_uniffi_rustbuffer_from_bytes")
        self._buffer.argtypes = (_Bytes, self._buffer.argtypes[1])

    def _function(self, library: ctypes.PyDLL, name: str) -> Any:
        known, function = getattr(self._ffi._UniffiLib, name), getattr(library, name)
        function.argtypes, function.restype = known.argtypes, known.restype
        return function

    def batch(self, rows: Iterable[Row]) -> Any:
        batch = self._ffi.WriteBatch()
        handle, clone, put, buffer = batch._handle, self._clone, self._put, self._buffer
        status = self._ffi._UniffiRustCallStatus.default()
        told, given = ctypes.byref(status), _Bytes()
        for key, value in rows:
            # The library expects bytes after their length, and copies them during the call.
            given.len, given.data = len(key) + 4, len(key).to_bytes(4) + key
            name = buffer(given, told)
            if value is None:
                self._delete(clone(handle, told), name, told)
            else:
                given.len, given.data = len(value) + 4, len(value).to_bytes(4) + value
                put(clone(handle, told), name, buffer(given, told), told)
            if status.code:
                self._ffi._uniffi_check_call_status(self._ffi._UniffiFfiConverterTypeError, status)
        return batch

    async def next(self, iterator: Any) -> list[tuple[bytes, bytes]]:
        return rows_in(await next_batch(self._ffi, iterator))


_rows: _SlowRows | _FastRows | None = None
_choosing = threading.Lock()


def _chosen_rows(ffi: Any) -> _SlowRows | _FastRows:
    """_FastRows if its round trip succeeds in this process, else _SlowRows."""
    global _rows
    with _choosing:
        if _rows is None:
            try:
                fast = _FastRows(ffi)
                _try_out(ffi, fast)
                _rows = fast
            except Exception as error:
                _log.warning(
                    "this version of SlateDB's binding is not supported (%s): writes are slow", str(error)
                )
                _rows = _SlowRows(ffi)
        return _rows


def _try_out(ffi: Any, rows: _FastRows) -> None:
    """Write rows to a database in memory and read them back."""
    builder = ffi.ObjectStoreBuilder(ffi.ObjectStoreType.IN_MEMORY)
    database = blocking(ffi.DbBuilder("try", builder.build()).build(), 10)
    try:
        wanted: list[Row] = [
            (b"\x00", b""),
            (b"\x01\xff", bytes(range(256)) * 9),
            (b"gone", b"x"),
            (b"gone", None),
        ]
        blocking(database.write(rows.batch(wanted)), 10)
        for key, value in wanted[:2] + wanted[3:]:
            if blocking(database.get(key), 10) != value:
                raise ValueError("what was written did not come back")
        everything = ffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
        if blocking(rows.next(blocking(database.scan(everything), 10)), 10) != wanted[:2]:
            raise ValueError("a scan did not give what was written")
    finally:
        blocking(database.shutdown(), 10)


class Database:
    """A database that this process writes. It raises Penstock's errors, which name it by `what`."""

    def __init__(
        self, store: Any, path: str, settings: Sequence[tuple[str, str]], what: str, timeout: float
    ) -> None:
        self._ffi = ffi = load()
        self._store, self._path = store, path
        self._what = what
        self.timeout = timeout
        self._rows = _chosen_rows(ffi)
        options = ffi.Settings.default()
        for name, value in (*_ALWAYS, *settings):
            options.set(name, value)
        builder = ffi.DbBuilder(path, store)
        builder.with_settings(options)
        with told(ffi, what, timeout, opening=True):
            self._db = blocking(builder.build(), timeout)
        self._wal = ffi.FlushOptions(flush_type=ffi.FlushType.WAL)
        self._memtable = ffi.FlushOptions(flush_type=ffi.FlushType.MEM_TABLE)
        self._scanning = scan_options(ffi, READ_AHEAD, 2)

    def write(self, rows: Iterable[Row], seconds: float | None = None) -> None:
        """Apply all the rows or none; durable once flush() has returned."""
        self._run(self._db.write(self._rows.batch(rows)), seconds)

    def flush(self, seconds: float | None = None) -> None:
        """Hand everything that was written to the object store."""
        self._run(self._db.flush_with_options(self._wal), seconds)

    def flush_tables(self) -> None:
        """Write the rows of the write-ahead log to tables."""
        self._run(self._db.flush_with_options(self._memtable))

    def collect_garbage(self, min_age: float) -> None:
        """Remove unreferenced files that are at least so many seconds old."""
        ffi = self._ffi
        admin = ffi.AdminBuilder(self._path, self._store).build()
        each = ffi.GarbageCollectorDirectoryOptions(
            interval_ms=None, min_age_ms=int(min_age * 1000), dry_run=False
        )
        self._run(
            admin.run_gc_once(
                ffi.GarbageCollectorOptions(
                    manifest_options=each,
                    wal_options=each,
                    wal_fence_options=None,
                    compacted_options=each,
                    compactions_options=each,
                    detach_options=None,
                )
            )
        )

    def get(self, key: bytes) -> bytes | None:
        """The value under a key."""
        found: bytes | None = self._run(self._db.get(key))
        return found

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys are from `start` to before `end`, in the order of keys."""
        iterator = self._iterator(start, end, self._scanning)
        while True:
            rows = self._run(self._rows.next(iterator))
            yield from rows
            if len(rows) < AT_ONCE:
                return

    def _iterator(self, start: bytes, end: bytes, options: Any) -> Any:
        bounds = self._ffi.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)
        return self._run(self._db.scan_with_options(bounds, options))

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The last key from `start` to before `end`."""
        backwards = scan_options(self._ffi, 1, 1, order=self._ffi.IterationOrder.DESCENDING)
        row = self._run(self._iterator(start, end, backwards).next())
        return None if row is None else bytes(row.key)

    def forked(self) -> None:
        """In a forked child: forget the handles, as the library must not even free them there."""
        self._db._handle = self._store._handle = None

    def close(self) -> None:
        # Without writing tables, which would wait for compaction: the write-ahead log has everything.
        self._run(self._db.shutdown_with_options(self._ffi.CloseOptions(flush_type=None)))

    def _run(self, call: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        try:
            return blocking(call, self.timeout if seconds is None else seconds)
        except (TimeoutError, self._ffi.Error, self._ffi.InternalError) as error:
            raise _translated(error, self._ffi, self._what, self.timeout) from error


@contextmanager
def told(ffi: Any, what: str, seconds: float, opening: bool = False) -> Iterator[None]:
    """Translate the binding's errors into Penstock's. While a database is opened, an unknown error is damage."""
    try:
        yield
    except (TimeoutError, ffi.Error, ffi.InternalError) as error:
        ours = _translated(error, ffi, what, seconds)
        if opening and isinstance(ours, RuntimeError):
            ours = StoreCorrupt(f"{what} is damaged: SlateDB cannot open it ({ours})")
        raise ours from error


def _translated(error: Any, ffi: Any, what: str, seconds: float) -> PenstockError | RuntimeError:
    message = getattr(error, "message", str(error))
    if isinstance(error, TimeoutError):
        return StoreUnreachable(
            f"{what} did not answer in {seconds:g} seconds; a change may take effect all the same: "
            "check that it can be reached and has space left, then try again"
        )
    if isinstance(error, ffi.Error.Closed) and error.reason == ffi.CloseReason.FENCED:
        return Fenced(
            f"another process has opened {what} and writes it now, so this one has stopped: nothing that was "
            "acknowledged is lost; use the store there, or close it there and open it here again"
        )
    if isinstance(error, ffi.Error.Unavailable):
        return StoreUnreachable(f"{what} cannot be reached ({message}): check the connection, then try again")
    if isinstance(error, ffi.Error.Data):
        return StoreCorrupt(f"{what} is damaged: {message}")
    return RuntimeError(f"SlateDB failed on {what}: {message}")
