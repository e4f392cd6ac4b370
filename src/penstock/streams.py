"""Streams: what a store offers to those who read a queue batch by batch, each exactly once (docs/streams.md)."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock import processes
from penstock.errors import InvalidArgument, NotSupported
from penstock.index.rows import Page
from penstock.message import Message

HEARTBEAT = 20.0  # seconds after which a reader says again that it is there
LONGEST = 200  # characters of a stream's name
_BOOT = "/proc/sys/kernel/random/boot_id"


class StreamInfo(NamedTuple):
    """A stream as it is listed."""

    queue: str
    stream: str
    mode: str  # "consume" or "follow"
    batch: (
        int  # the number of its latest batch, 0 if there was none; of a follower, the id up to which it has read
    )
    settled: int  # the number of the last one that was settled, 0 if none was
    messages: int  # that it holds
    since: int | None  # when it claimed them
    failures: int  # of them that are to fail
    reader: str  # the process that reads it, or was the last to do so
    lag: int  # messages of the queue that wait to be claimed, or that a follower has not read yet


class BatchPlan(NamedTuple):
    """Where the messages of a batch are: rows in pages, as index/rows.py has them, and files with the bodies."""

    pages: list[tuple[int, Page]]
    files: list[tuple[int, str, str]]  # the number that places have, the name, and where it was pinned


class Lost(NamedTuple):
    """Messages that had entered, and are not stored any more."""

    first: int  # not before this number
    last: int  # and not after that
    messages: int | None  # None: nobody knows how many


class Ahead(NamedTuple):
    """What has entered a queue after one message, up to another."""

    until: int
    parts: list[tuple[int, int]]  # that are read each at once: the last number of each, and how many messages
    lost: Lost | None


class Streams(Protocol):
    """The streams of a store. What changes something returns once that is on stable storage."""

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Be the one process that reads a stream, and say again that one is; StreamInUse while another lives."""

    def next(
        self, queue: str, stream: str, reader: str, start: int, rows: int, size: int, run: str | None = None
    ) -> int | None:
        """Settle batch `start`, which was certainly read; the number of the next, claimed if none is held.

        None if there is nothing to claim, or `rows` is 0. It has at most so many messages, and bytes beyond the
        first message's. With the name of a run, only messages that were there when the run was first named, and
        each once: what fails in a run is for the next.
        """

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are; what was said to fail of them is forgotten.

        Files are pinned for a process of the owner's machine, PROCESS@BOOT; for others there are none.
        """

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """Some messages of a batch by ascending id, from after one on until another; fewer if they are large."""

    def follow(self, queue: str, stream: str, reader: str, position: int) -> None:
        """Follow a queue under a name, having read all up to a message: packing waits for the rest, to a limit."""

    def start(self, queue: str, follower: str, starting: str | int) -> tuple[int, int]:
        """Where one begins who follows: the number before the first message, and that below which some are gone.

        With "earliest" that is stored, with "latest" that is still to come, or from a time on. Who follows has a
        name of its own choice; while it goes on asking, what it has not read is held for it, to a limit.
        """

    def ahead(
        self, queue: str, follower: str, after: int, gaps: int, rows: int, size: int, until: int = 0
    ) -> Ahead:
        """What has entered after a number, within limits, or up to another number; all before it was read.

        Of what is lost only counts what is not below `gaps`. With 0 rows one says only that one is there.
        """

    def entered(self, queue: str, follower: str, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered, from after a number on until another; fewer if they are large."""

    def leave(self, queue: str, follower: str) -> None:
        """Follow no longer."""

    def fail(
        self, queue: str, stream: str, batch: int, ids: Sequence[str], reason: str | None, delay: float = 0
    ) -> None:
        """Let these messages fail when the batch is settled, to be tried again so many seconds after that."""

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if that was done before."""

    def release(self, queue: str, stream: str) -> int:
        """Give back what a stream holds, whose reader must be gone; how many messages."""

    def delete(self, queue: str, stream: str) -> None:
        """Forget a stream that holds nothing, and whose reader is gone."""


def reader_name() -> str:
    """A name for this process that others can tell from all others, here or elsewhere, now or later."""
    return f"{processes.name_of(os.getpid())}@{boot()}@{os.uname().nodename}"


def boot() -> str:
    """When this machine was started, as a name."""
    with suppress(OSError), open(_BOOT) as file:
        return file.read().strip()
    return "unknown"


def is_reader_gone(reader: str) -> bool | None:
    """Whether a reader has ended; None if that cannot be told from here, as it is on another machine."""
    process, _, machine = reader.partition("@")
    started, _, host = machine.partition("@")
    if started == boot():
        return processes.is_gone(process)
    return True if host == os.uname().nodename else None


def checked_stream(name: str) -> str:
    """A name for a stream."""
    if not 1 <= len(name) <= LONGEST or any(not 33 <= ord(each) <= 126 for each in name):
        raise InvalidArgument(
            f"{name!r} is no name for a stream: give 1 to {LONGEST} printable ASCII characters without spaces"
        )
    return name


def not_supported(kind: str) -> NotSupported:
    """What to say of a store that has no streams."""
    return NotSupported(
        f"{kind} has no streams: read and write it with spark.read and .write, or keep the queue in a journal "
        "store (penstock convert)"
    )
