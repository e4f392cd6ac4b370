"""Types and names of streams. A stream reads a queue in batches, each exactly once (docs/streams.md)."""

import os
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import InvalidArgument, NotSupported
from penstock.system import processes

HEARTBEAT = 20.0  # seconds between a reader's signs of life
LONGEST = 200  # characters of a stream's name
_BOOT = "/proc/sys/kernel/random/boot_id"


class StreamInfo(NamedTuple):
    """A stream in a listing. `batch` of a follower is the id of the last message that it has read."""

    queue: str
    stream: str
    mode: str  # "consume" or "follow"
    batch: int  # the number of its latest batch; 0: none yet
    settled: int  # the number of the last settled batch; 0: none yet
    messages: int  # held by the stream
    since: int | None  # when the held messages were claimed
    failures: int  # held messages that will fail when the batch is settled
    reader: str  # the process that reads the stream, or read it last
    lag: int  # messages that wait to be claimed, or that a follower has not read yet


class FollowerInfo(NamedTuple):
    """A follower's session."""

    queue: str
    follower: str
    seen: int  # when it asked last
    position: int  # the number of the last message that it has read
    lag: int  # messages that it has not read yet, about: numbers without a message count
    held_back: int | None  # bytes that are kept for it alone; None: it is just asking


class BatchPlan(NamedTuple):
    """Where the messages of a batch are: rows in pages (rules/rows.py), and files with the bodies."""

    pages: list[tuple[int, Any]]
    files: list[tuple[int, str, str]]  # number in the rows' places, name, path of the pin


class Lost(NamedTuple):
    """A range of messages that entered the queue and are no longer stored."""

    first: int
    last: int
    messages: int | None  # None: the count is unknown


class Ahead(NamedTuple):
    """The messages that entered a queue after one number, up to and including `until`."""

    until: int
    parts: list[tuple[int, int]]  # (last number, count of messages) of each part
    lost: Lost | None


class Start(NamedTuple):
    """Where a follower begins: the number before its first message; below `gaps` some messages are gone."""

    after: int
    gaps: int


def reader_name() -> str:
    """A name for this process that no other process has, on any machine, now or later."""
    return f"{processes.name_of(os.getpid())}@{boot()}@{os.uname().nodename}"


def boot() -> str:
    """The id of this machine's current boot."""
    with suppress(OSError), open(_BOOT) as file:
        return file.read().strip()
    return "unknown"


def is_reader_gone(reader: str) -> bool | None:
    """Whether a reader's process has ended; None if it is on another machine."""
    process, _, machine = reader.partition("@")
    started, _, host = machine.partition("@")
    if started == boot():
        return processes.is_gone(process)
    return True if host == os.uname().nodename else None


def checked_stream(name: str) -> str:
    """The name; InvalidArgument unless it is legal for a stream."""
    if not 1 <= len(name) <= LONGEST or any(not 33 <= ord(each) <= 126 for each in name):
        raise InvalidArgument(
            f"{name!r} is no name for a stream: give 1 to {LONGEST} printable ASCII characters without spaces"
        )
    return name


def not_supported(kind: str) -> NotSupported:
    """The error for a kind of store without streams."""
    return NotSupported(
        f"{kind} has no streams: read and write it with spark.read and .write, or keep the queue in a journal "
        "store (penstock convert)"
    )
