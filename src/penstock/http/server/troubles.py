"""What is wrong with a store and its queues, from what the watch has seen. Pure rules, the worst first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.contract.backend import FLOWS
from penstock.contract.message import STATES
from penstock.contract.monitoring import SEVERITIES
from penstock.contract.streams import StreamInfo, is_reader_gone
from penstock.http.server.history import WAITING, History, Track

_AVAILABLE, _IN_FLIGHT, _FAILED = map(STATES.index, ("available", "in_flight", "failed"))
_IN, _OUT, _FAILURES, _EXPIRED, _GIVEN_UP = range(len(FLOWS))
_LATELY = 600.0  # seconds
_SEVERAL = 10  # failed attempts from which on a queue is failing
_HANGS = 10.0  # seconds of a commit
_SLOW = 1.0  # seconds of a slow commit
_FEW, _FEWER = 0.1, 0.02  # parts of a disk that are free
_PLENTY = 50 << 30  # free bytes of a disk that is never full
_NEARLY = 0.9  # part of its max_size from which on a queue is nearly full
_HELD = 3_600.0  # seconds for which a stream may hold a batch
_GIB = 1 << 30


class Problem(NamedTuple):
    """Something that is wrong, and what to do."""

    kind: str
    severity: str
    queue: str | None
    what: str
    advice: str


class Look(NamedTuple):
    """What is known beside the history."""

    now: int
    is_open: bool
    longest_commit: float
    disk: Mapping[str, int] | None
    commits: Mapping[str, Any] | None
    streams: Sequence[StreamInfo]


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """Problems by severity."""
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def of_store(look: Look) -> Iterator[Problem]:
    """Problems of the store as a whole."""
    if not look.is_open:
        yield Problem(
            "stopped", "error", None, "The store was closed, or an error has stopped it.",
            "Read the server's log, then restart the server.",
        )  # fmt: skip
    if look.longest_commit > _HANGS:
        yield Problem(
            "commit", "error", None, f"A commit has been running for {look.longest_commit:.0f} s.",
            "Look at the disk of the store: it hardly answers.",
        )  # fmt: skip
    elif look.commits is not None and look.commits["p99"] > _SLOW:
        yield Problem(
            "commit", "warning", None,
            f"One commit in a hundred takes {look.commits['p99']:.1f} s or more.",
            "Look at the disk of the store: other programs may keep it busy.",
        )  # fmt: skip
    if look.disk is not None and look.disk["total"]:
        free = look.disk["free"]
        part = free / look.disk["total"]
        if part < _FEW and free < _PLENTY:
            yield Problem(
                "disk", "error" if part < _FEWER else "warning", None,
                f"The disk of the store has {free / _GIB:,.1f} GiB free, {part:.0%} of it.",
                "Free some space: a full disk refuses puts. `penstock pack` frees what settled messages left.",
            )  # fmt: skip


def of_streams(look: Look) -> Iterator[Problem]:
    """Problems of streams: batches that are held for long."""
    for info in look.streams:
        if info.since is None:
            continue
        held = (look.now - info.since) / 1000
        told = f"Stream {info.stream} has held {info.messages:,} messages of batch {info.batch} for {_time(held)}"
        if is_reader_gone(info.reader):
            yield Problem(
                "stream", "warning", info.queue, f"{told}, and its reader has ended.",
                "Start the query again, which goes on with this batch; or give the messages back with "
                f"`penstock streams release {info.stream} --queue {info.queue}`.",
            )  # fmt: skip
        elif held > _HELD:
            yield Problem(
                "stream", "warning", info.queue, f"{told}.",
                "Look at the query that reads it: it may hang, or its batches may be too large.",
            )  # fmt: skip


def of_queue(name: str, track: Track, history: History) -> Iterator[Problem]:
    """Problems of one queue."""
    reading = track.reading
    if not reading.up:
        yield Problem(
            "stopped", "error", name, "An error has stopped the queue.",
            "Read the server's log, then restart the server.",
        )  # fmt: skip
        return
    failed, waiting = reading.counts[_FAILED], sum(reading.counts[state] for state in WAITING)
    if reading.max_size and waiting >= _NEARLY * reading.max_size:
        is_full = waiting >= reading.max_size
        yield Problem(
            "full", "error" if is_full else "warning", name,
            f"{waiting:,} messages of {reading.max_size:,} that it takes"
            + (": puts are refused." if is_full else "."),
            "Add workers, or give the queue a larger max_size.",
        )  # fmt: skip
    if track.hour is None and not failed and not reading.counts[_AVAILABLE]:
        return
    lately = history.happened(track, _LATELY)
    if lately[_FAILURES] >= _SEVERAL and lately[_FAILURES] > lately[_OUT]:
        yield Problem(
            "failing", "error", name,
            f"Most attempts fail: {lately[_FAILURES]:,} of {lately[_FAILURES] + lately[_OUT]:,} in ten minutes.",
            "Look at the reasons, and at what the workers need.",
        )  # fmt: skip
    if failed:
        yield Problem(
            "failed", "warning", name, f"{failed:,} {'message has' if failed == 1 else 'messages have'} failed.",
            "Look at the reasons. Once they are gone, redrive the messages; or remove them.",
        )  # fmt: skip
    if lately[_EXPIRED]:
        yield Problem(
            "leases", "warning", name,
            f"{lately[_EXPIRED]:,} {'lease' if lately[_EXPIRED] == 1 else 'leases'} ran out in ten minutes.",
            "Workers died, or need longer than their lease: look for them, or give the queue a longer lease.",
        )  # fmt: skip
    idle = not lately[_OUT] and not lately[_FAILURES] and not reading.counts[_IN_FLIGHT] and not reading.in_line
    if reading.counts[_AVAILABLE] and idle and history.age(track) > _LATELY:
        yield Problem(
            "unattended", "notice", name,
            f"{reading.counts[_AVAILABLE]:,} available, and no consumer has settled any in ten minutes.",
            "Start a worker.",
        )  # fmt: skip


def _time(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
