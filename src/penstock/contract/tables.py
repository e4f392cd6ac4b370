"""The tables of a store, read and written by many processes at once: what a kind of store offers to Spark.

A read is planned in one process, and its parts are read in others. A load is staged in many processes, and one of
them commits it. Parts, loaders and what they return travel between processes, so all of it can be pickled. Schemas
and batches are those of Arrow, which is loaded by the kinds that need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

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
    """The rows to read of a store."""

    store: str
    table: str
    queue: str | None = None  # None: of all queues
    states: tuple[str, ...] = STATES  # of messages


class Part(Protocol):
    """The rows that one process reads."""

    def read(self, schema: Any) -> Iterator[Any]:
        """The rows in batches of that schema."""


@dataclass(frozen=True)
class Target:
    """The store and the queues that rows go to."""

    store: str
    queue: str | None = None  # None: the column `queue` says it
    run: str | None = None  # takes effect once under this name
    create: Mapping[str, Settings] = field(default_factory=dict)  # queues to be made
    restore: bool = False  # messages come with what became of them in another store
    streams: bool = False  # it is a batch of a stream


class Staged(NamedTuple):
    """Rows that one task has staged: of which load, and what the loader needs to find them."""

    load: str
    pieces: list[Any]


class Loader(Protocol):
    """Messages by the million into a store, all of them or none. Nothing of them is shown until commit()."""

    repeated: bool  # the run has taken effect before: there is nothing to stage

    def stage(self, batches: Iterable[Any], partition: int, attempt: int) -> Staged:
        """Stage the rows of one task, durably."""

    def commit(self, staged: Sequence[Staged], batch: Callable[[], SinkCommit] | None = None) -> None:
        """Let staged rows take effect, all at once; `batch` names the batch of a stream, which does so once."""

    def abort(self, staged: Sequence[Staged]) -> None:
        """Remove staged rows, unless they have taken effect."""


class Follower(Protocol):
    """Messages as they enter a queue, by number."""

    def start(self, starting: str | int) -> tuple[int, int]:
        """The number before the first message, and that below which some are gone."""

    def has_read(self, position: int) -> None:
        """All up to this number was read, and its batch is over."""

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        """The messages that have entered after a number, within limits."""

    def parts(self, after: int, until: int, ahead: Ahead) -> Sequence[Part]:
        """The parts of a batch."""

    def close(self) -> None:
        """Let go of the store."""


class BatchFiles(Protocol):
    """The messages of a stream's batch, in files of the store that this machine sees."""

    @property
    def parts(self) -> Sequence[Part]:
        """The parts, as many as were asked for."""

    def drop(self) -> None:
        """Let go of the files, after all tasks have ended."""


class LogFollower(Protocol):
    """The log of a store as it grows, by the numbers of its entries; or the queues that want them."""

    def end(self) -> int:
        """Where the log ends now. All batches that were read before are done."""

    def reach(self, start: int, end: int, rows: int) -> int:
        """A number after so many entries at most, before the end."""

    def parts(self, first: int, last: int) -> Sequence[Part]:
        """The parts of a batch, which may have been read before."""

    def close(self) -> None:
        """Let go of the store."""


class Router(Protocol):
    """Delivers entries of a log to the queues that want them."""

    checkpoint: str  # a folder for the notes of a stream that routes

    def position(self) -> int:
        """How far the queues are in the log."""

    def deliver(self, found: Any) -> dict[str, int]:
        """Deliver the rows of a batch (an Arrow table); how many messages, by queue."""

    def close(self) -> None:
        """Let go of the store."""


class Tables:
    """The tables of the stores of one kind. `owner` is the process for which files are held, while it lives."""

    def parts(self, read: Read, schema: Any, owner: int) -> Sequence[Part]:
        """The parts of a table, as the store is now."""
        raise NotImplementedError

    def loader(self, target: Target, owner: int, opened: Opener) -> Loader:
        """Begin a load."""
        raise NotImplementedError

    def check(self, store: str) -> None:
        """Refuse a folder that is no store of this kind, in words that Spark does not wrap."""

    def settings(self, store: str, opened: Opener) -> dict[str, Settings]:
        """The settings of all queues."""
        with opened(store) as found:
            return {info.name: info.settings for info in found.queues()}

    def streams(self, store: str, opened: Opener) -> list[StreamInfo]:
        """Every stream that reads a queue of the store."""
        return []

    def brought(self, store: str, run: str, opened: Opener) -> list[list[Any]] | None:
        """The messages and bytes that a run has brought into each queue; None if it has not taken effect."""
        raise NotImplementedError

    def follower(self, store: str, queue: str, schema: Any, owner: int) -> Follower | None:
        """A follower that reads the store's files; None: its owner or its server is asked."""
        return None

    def batch_files(
        self, plan: BatchPlan, rows: Sequence[Any], queue: str, receipt: tuple[str, str]
    ) -> BatchFiles | None:
        """The parts of a stream's batch in files; None if this machine does not see them."""
        return None

    def log(self, store: str, schema: Any, route: bool, owner: int) -> LogFollower:
        """A follower of the log; with `route` of the queues that want its entries."""
        raise NotImplementedError

    def match_schema(self) -> Any:
        """The columns of log(route=True)."""
        raise NotImplementedError

    def router(self, store: str, opened: Opener) -> Router:
        """Open the store to deliver entries of its log."""
        raise NotImplementedError


class Packed(NamedTuple):
    """A queue that was packed, or would be, and its bytes."""

    queue: str
    before: int
    after: int


class Expired(NamedTuple):
    """What time has let go of a queue."""

    queue: str
    expired: int  # messages whose expires_at has passed
    done: int  # done messages that were listed as long as keep_done says
    bytes: int  # that both take
    freed: int | None  # bytes; None: not known


class Tasks(Protocol):
    """Processes that a packer works with."""

    def open(self, url: str) -> tuple[Store, Any]:
        """Open a store; with its engine, if this process owns it."""

    def run(
        self,
        work: Callable[[list[Item], int], Iterable[Answer]],
        items: Sequence[Item],
        sizes: Sequence[int],
        what: str,
    ) -> list[Answer]:
        """The answers of tasks that each do some of the work, in no order; `what` is done is in errors.

        Work is given items, and a number that no other attempt has.
        """


class Packer(Protocol):
    """Frees the space that a store no longer needs."""

    note: str  # for people, after pack()

    def pack(self, url: str, queues: Sequence[str], dry_run: bool, tasks: Tasks) -> list[Packed]:
        """Pack these queues, or all; what cannot be packed is raised after all others were."""

    def expire(self, url: str, dry_run: bool, tasks: Tasks) -> tuple[list[Expired], int]:
        """Take out what time has let go: of the queues that had some, and how many queues were looked at."""


def grouped(items: Iterable[tuple[Item, int]], part: int) -> list[list[Item]]:
    """Small items together, so that not each of them is a task of its own: items with their sizes, in groups."""
    groups: list[list[Item]] = []
    room = 0
    for item, size in items:
        if room < size or not groups:
            groups.append([])
            room = max(part, size)
        groups[-1].append(item)
        room -= size
    return groups
