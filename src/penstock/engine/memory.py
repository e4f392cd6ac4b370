"""The memory store: nothing on disk. For tests, and for queues that may end with their process.

`memory:` is a new store each time. `memory:NAME` is one store for all users of that name in this process, until
the last of them closes it.
"""

import threading
from collections.abc import Callable, Sequence

from penstock.contract.kinds import Kind, Options, split
from penstock.contract.message import Entry
from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings
from penstock.engine.backend import Engine
from penstock.engine.storage import Body
from penstock.errors import InvalidArgument, StoreClosed
from penstock.rules.ledger import Ledger
from penstock.rules.records import Put, Record
from penstock.system import processes
from penstock.system.clock import Clock, SystemClock
from penstock.system.threads import Lock

_NO_HEADERS: dict[str, str] = {}


class MemoryStorage:
    """Bodies in a dict; records are not kept, as there is nothing to recover from."""

    written = durable = 0

    def __init__(self) -> None:
        self._bodies: dict[int, Body] = {}

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0, settings: Settings | None = None) -> None:
        """Nothing to reserve."""

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Keep the bodies of new messages."""
        if isinstance(record, Put):
            for seq, entry in enumerate(entries, record.first):
                created_at = record.at if entry.created_at is None else entry.created_at
                headers = entry.headers or _NO_HEADERS
                self._bodies[seq] = (entry.payload, headers, created_at, record.at)

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        """Nothing is written."""

    def commit(self, written: int) -> None:
        """Nothing to sync."""

    def find(self, seqs: Sequence[int]) -> list[Body]:
        """The bodies themselves."""
        return [self._bodies[seq] for seq in seqs]

    def sizes(self, seqs: Sequence[int]) -> list[int]:
        """The payloads' sizes."""
        return [len(self._bodies[seq][0]) for seq in seqs]

    def at_hand(self, places: list[Body]) -> list[Body]:
        """All bodies are in memory."""
        return places

    def read(self, places: list[Body]) -> list[Body]:
        """The bodies that find() returned."""
        return places

    def drop(self, seqs: Sequence[int]) -> None:
        """Free the bodies."""
        for seq in seqs:
            del self._bodies[seq]


class MemoryBackend(Engine):
    """Keeps queues in memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.create(DEFAULT, Settings())
        processes.watch_forks(self)

    def forked(self) -> None:
        """In a child: refuse every call. Parent and child would claim the same messages from two copies."""
        self._refusal = _forked
        self._lock = self._threads.lock()
        self._queues = {}

    def _new_storage(self, ledger: Ledger, lock: Lock) -> MemoryStorage:
        return MemoryStorage()


class _SharedBackend(MemoryBackend):
    """A named store, closed with its last user."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.name = name
        self.users = 0

    def close(self) -> None:
        with _sharing:
            self.users -= 1
            if self.users:
                return
            if _shared.get(self.name) is self:  # not so in a child
                del _shared[self.name]
        super().close()

    def forked(self) -> None:
        global _sharing
        super().forked()
        _sharing = threading.Lock()
        _shared.pop(self.name, None)


_sharing = threading.Lock()
_shared: dict[str, _SharedBackend] = {}


def open_memory(name: str, clock: Clock | None) -> MemoryBackend:
    """A new store, or the one of that name."""
    if not name:
        return MemoryBackend(clock or SystemClock())
    with _sharing:
        backend = _shared.get(name)
        if backend is None:
            backend = _shared[name] = _SharedBackend(name, clock or SystemClock())
        elif clock not in (None, backend.clock):
            raise InvalidArgument(
                f"store 'memory:{name}' is open with another clock: leave clock out, or close it"
            )
        backend.users += 1
        return backend


def _forked() -> StoreClosed:
    return StoreClosed(
        "this memory store belongs to the process that this one was forked from: open a store here, on disk if "
        "both are to use it"
    )


class MemoryKind(Kind):
    """`memory:`, or `memory:NAME` for a store that this process shares by name."""

    name = "memory"

    def open(self, url: str, options: Options) -> MemoryBackend:
        return open_memory(split(url)[1], options.clock)

    def absolute(self, url: str) -> str:
        return url

    def files(self, url: str) -> str | None:
        return None


KIND = MemoryKind()
