"""Tables of a store: the interface between a kind of store and Spark.

A read is planned in one process, and its parts are read in others. A load is staged in many processes, and one of
them commits it. Parts, loaders and their results travel between processes, so all of them can be pickled. Schemas
and batches are Arrow's; kinds import Arrow themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from penstock.contract.message import STATES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.contract.loads import SinkCommit
    from penstock.contract.settings import Settings
    from penstock.contract.store import Store
    from penstock.contract.streams import Ahead, BatchPlan, StreamInfo

Opener = Callable[[str], "Store"]  # penstock.open
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Read:
    """A read of one table: its store, queue and states."""

    store: str
    table: str
    queue: str | None = None  # None: all queues
    states: tuple[str, ...] = STATES
    split: int | None = None  # into so many parts, where a kind can; None: as its rows are worth


class Part(Protocol):
    """The rows that one process reads."""

    def read(self, schema: Any) -> Iterator[Any]:
        """The rows in batches of that schema."""


@dataclass(frozen=True)
class Target:
    """The store and the queues that rows go to."""

    store: str
    queue: str | None = None  # None: the column `queue` says it
    run: str | None = None  # a load of this name is committed once
    create: Mapping[str, Settings] = field(default_factory=dict)  # queues to be made
    restore: bool = False  # rows have the state and attempts of another store
    streams: bool = False  # the rows are a batch of a streaming query


class Staged(NamedTuple):
    """The staged rows of one task: the load, and the loader's references to them."""

    load: str
    pieces: list[Any]


class Loader(Protocol):
    """Loads messages by the million, all or none. They are invisible until commit()."""

    repeated: bool  # the run was committed before: nothing to stage

    def stage(self, batches: Iterable[Any], partition: int, attempt: int) -> Staged:
        """Stage the rows of one task, durably."""

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        """Commit staged rows in one step. A streaming `batch` is committed once."""

    def abort(self, staged: Sequence[Staged]) -> None:
        """Remove staged rows, unless they are committed."""


class Follower(Protocol):
    """Reads messages in the order in which they enter a queue."""

    def start(self, starting: str | int) -> tuple[int, int]:
        """The number before the first message, and the number below which some are gone."""

    def has_read(self, position: int) -> None:
        """Record that messages up to this number were read and their batch is committed."""

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        """The messages that entered after a number, within limits."""

    def parts(self, after: int, until: int, ahead: Ahead) -> Sequence[Part]:
        """The parts of a batch."""

    def close(self) -> None:
        """Close the store."""


class BatchFiles(Protocol):
    """A stream's batch, read from files of the store on this machine."""

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the batch."""

    def drop(self) -> None:
        """Unpin the files, after all tasks have ended."""


class LogFollower(Protocol):
    """Reads a store's log as it grows, or with `route` the queues that its entries go to."""

    def end(self) -> int:
        """The number of the log's end. All batches that were read before are committed."""

    def reach(self, start: int, end: int, rows: int) -> int:
        """The number after at most `rows` entries, not beyond the end."""

    def parts(self, first: int, last: int) -> Sequence[Part]:
        """The parts of a batch; Spark may ask again for an earlier one."""

    def close(self) -> None:
        """Close the store."""


class Router(Protocol):
    """Delivers entries of a log to the queues whose filters match."""

    checkpoint: str  # the checkpoint folder of the routing query

    def position(self) -> int:
        """The log position up to which all queues are delivered."""

    def deliver(self, found: Any) -> dict[str, int]:
        """Deliver the rows of a batch (an Arrow table); counts of messages by queue."""

    def close(self) -> None:
        """Close the store."""


class Tables:
    """The tables of one kind of store. Files stay pinned while the process `owner` lives."""

    has_history: ClassVar[bool] = False  # the table of messages has the column `history` if a schema names it

    def parts(self, read: Read, schema: Any, owner: int) -> Sequence[Part]:
        """The parts of a table, from a snapshot of the store."""
        raise NotImplementedError

    def loader(self, target: Target, owner: int, opened: Opener) -> Loader:
        """Begin a load."""
        raise NotImplementedError

    def check(self, store: str) -> None:
        """Refuse a folder that is not a store of this kind, before Spark would wrap the error."""

    def check_settings(self, settings: Settings) -> None:
        """NotSupported for settings that no queue of this kind keeps. A server checks them itself."""

    def settings(self, store: str, opened: Opener) -> dict[str, Settings]:
        """The settings of all queues."""
        with opened(store) as found:
            return {info.name: info.settings for info in found.queues()}

    def streams(self, store: str, opened: Opener) -> list[StreamInfo]:
        """Every stream that reads a queue of the store."""
        return []

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        """[queue, messages, bytes] of a run for each queue; None if the run was not committed."""
        raise NotImplementedError

    def follower(self, store: str, queue: str, schema: Any, owner: int) -> Follower | None:
        """A follower that reads the store's files; None: the follower asks the owner or the server."""
        return None

    def batch_files(
        self, plan: BatchPlan, rows: Sequence[Any], queue: str, receipt: tuple[str, str]
    ) -> BatchFiles | None:
        """A stream's batch in files; None if this machine does not have them."""
        return None

    def log(self, store: str, schema: Any, route: bool, owner: int) -> LogFollower:
        """A follower of the log; with `route`, of its matches with the queues' filters."""
        raise NotImplementedError

    def match_schema(self) -> Any:
        """The columns of log(route=True)."""
        raise NotImplementedError

    def router(self, store: str, opened: Opener) -> Router:
        """Open the store to deliver entries of its log."""
        raise NotImplementedError


class Packed(NamedTuple):
    """The size of a queue in bytes, before and after packing."""

    queue: str
    before: int
    after: int


class Expired(NamedTuple):
    """Messages whose time in a queue is over."""

    queue: str
    expired: int  # messages past their expires_at
    done: int  # done messages past keep_done
    bytes: int  # of both
    freed: int | None  # bytes; None: unknown


class Tasks(Protocol):
    """Processes that run a packer's work."""

    def open(self, url: str) -> tuple[Store, Any]:
        """Open a store; also returns its engine, if this process owns it."""

    def run(
        self,
        work: Callable[[list[Item], int], Iterable[Answer]],
        items: Sequence[Item],
        sizes: Sequence[int],
        what: str,
    ) -> list[Answer]:
        """Run the work in tasks, each on some of the items, and collect the answers in any order.

        Work gets its items and a number that no other attempt has. Errors name the work as `what`.
        """


class Packer(Protocol):
    """Frees the space that a store no longer needs."""

    note: str  # for people, after pack()

    def pack(self, url: str, queues: Sequence[str], dry_run: bool, tasks: Tasks) -> list[Packed]:
        """Pack these queues, or all. The error of a queue that cannot be packed comes after the others."""

    def expire(self, url: str, dry_run: bool, tasks: Tasks) -> tuple[list[Expired], int]:
        """Remove expired messages; the queues that had some, and the number of queues examined."""


def grouped(items: Iterable[tuple[Item, int]], part: int) -> list[list[Item]]:
    """Items with their sizes in groups of about `part`, so that small items share a task."""
    groups: list[list[Item]] = []
    room = 0
    for item, size in items:
        if room < size or not groups:
            groups.append([])
            room = max(part, size)
        groups[-1].append(item)
        room -= size
    return groups
