"""Streams: their types and names. A stream reads a queue batch by batch, each exactly once (docs/streams.md)."""

import os
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.errors import InvalidArgument, NotSupported
from penstock.system import processes

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
    """Where the messages of a batch are: rows in pages (rules/rows.py), and files with the bodies."""

    pages: list[tuple[int, Any]]
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


class Start(NamedTuple):
    """Where a follower begins: the number before the first message, and that below which some are gone."""

    after: int
    gaps: int


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
