"""The watch of a server: reads all queues again and again, and answers what is asked about their past and present.

A round of readings takes place every ten seconds, every second while a client waits for changes, and when a client
asks. Whatever is asked, rounds take at most a fiftieth of the time: with very many queues they are rarer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import time
from collections import Counter, deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.contract import names
from penstock.contract.backend import FLOWS, Histogram
from penstock.contract.message import STATES
from penstock.contract.operations import Lookup, Messages
from penstock.contract.refusals import not_found
from penstock.contract.stream_operations import AllStreams
from penstock.contract.streams import StreamInfo, is_reader_gone
from penstock.errors import PenstockError
from penstock.http.server.finding import find
from penstock.http.server.history import HOUR, SPANS, History, Series, Track, thinned
from penstock.http.server.troubles import Look, Problem, of_queue, of_store, of_streams, worst_first
from penstock.system.clock import SystemClock
from penstock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.http.server.server import Service

_PAUSE, _WATCHED = 10.0, 1.0  # seconds between rounds, and while a client waits for changes
_SHARE = 50  # the rounds' share of the time
_QUICK = 0.002  # seconds of a round that need not be spared
_PATIENCE = 1.0  # seconds after which the last value has to do
_CHUNK = 250  # queues that are read in one turn of the event loop
_RECENT = 300.0  # seconds of commits whose latency is told
_PROBLEMS = 100
_REASONS, _LOOKED_AT = 50, 10_000
_LONGEST_REASON = 200  # characters that tell reasons apart
_NUMBERS = re.compile(r"\d+")
_IN, _OUT, _FAILURES = map(FLOWS.index, ("in", "out", "failures"))
_UNSETTLED = ("delayed", "available", "in_flight")
TASK = "penstock-watch"  # the name of the watch's own tasks
_log = logging.getLogger("penstock.server")


class Seen(NamedTuple):
    """What is told of a consumer."""

    queue: str
    consumer: str
    seen: int
    messages: int


class Consumers:
    """The consumers that have asked for messages lately; the least recent are forgotten."""

    MOST = 500

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # the least recent first

    def see(self, queue: str, consumer: str, messages: int) -> None:
        """A consumer was given so many messages, or none."""
        _, before = self._seen.pop((queue, consumer), (0, 0))
        self._seen[queue, consumer] = time.time(), before + messages
        if len(self._seen) > self.MOST:
            del self._seen[next(iter(self._seen))]

    def latest(self) -> list[Seen]:
        """The consumers, the latest first."""
        return [Seen(*key, int(at * 1000), messages) for key, (at, messages) in reversed(self._seen.items())]


class Latency:
    """The latency of recent commits, from a histogram that counts since the start."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._before: deque[tuple[float, list[int]]] = deque()  # elapsed seconds, and counts by bucket

    def note(self, now: float) -> None:
        """Remember the counts, about every half a minute."""
        if not self._before or now - self._before[-1][0] >= HOUR.seconds:
            self._before.append((now, self._histogram.read()[0]))
        while len(self._before) > 1 and now - self._before[1][0] >= _RECENT:
            self._before.popleft()

    def read(self) -> dict[str, Any] | None:
        """The number of recent commits, and which time half and 99 of 100 took at most; None without any."""
        counts = self._histogram.read()[0]
        before = self._before[0][1] if self._before else [0] * len(counts)
        recent = [now - then for now, then in zip(counts, before, strict=True)]
        if not recent[-1]:
            return None
        return {"count": recent[-1], "p50": self._below(recent, 0.5), "p99": self._below(recent, 0.99)}

    def _below(self, cumulative: Sequence[int], part: float) -> float:
        """The value that this part of all values does not exceed, as if they were even within each bucket."""
        wanted, bounds = part * cumulative[-1], self._histogram.bounds
        at = next(at for at, count in enumerate(cumulative) if count >= wanted)
        if at == len(bounds):
            return bounds[-1]
        lower, below = (bounds[at - 1], cumulative[at - 1]) if at else (0.0, 0)
        return round(lower + (bounds[at] - lower) * (wanted - below) / (cumulative[at] - below), 6)


class Spared:
    """A value that costs something: computed again at most for a fiftieth of the time.

    If that takes long, as while a disk hangs, the last value has to do.
    """

    def __init__(self, compute: Callable[[], Awaitable[Any]]) -> None:
        self._compute = compute
        self._value: Any = None
        self._error: Exception | None = None
        self._is_known = False
        self._next = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def expire(self) -> None:
        """Compute the value again the next time."""
        self._next = float("-inf")

    async def get(self) -> Any:
        """The value; the error of its computation."""
        if self._task is None or self._task.done():
            if time.monotonic() < self._next:
                return self._value
            self._task = asyncio.get_running_loop().create_task(self._refresh(), name=TASK)
        await asyncio.wait([self._task], timeout=_PATIENCE if self._is_known else None)
        if self._error is not None:
            raise self._error
        return self._value

    def stop(self) -> None:
        """Cancel the computation."""
        if self._task is not None:
            self._task.cancel()

    async def _refresh(self) -> None:
        began = time.monotonic()
        try:
            self._value, self._error, self._is_known = await self._compute(), None, True
        except Exception as error:
            self._error = error  # get() raises it
        ended = time.monotonic()
        self._next = ended + (0 if ended - began < _QUICK else (ended - began) * _SHARE)


class Watch:
    """The watch of one server, in its event loop."""

    def __init__(self, service: Service, kind: str) -> None:
        self._service = service
        self._backend = service.backend
        self._kind = kind
        self._clock = SystemClock()
        self._started = self._clock.monotonic()
        self.history = History(self._clock.now())
        self._latency = Latency(self._backend.commit_seconds)
        self._round = Spared(self._read)
        self._waits = Spared(self._read_waits)
        self._streams = Spared(self._read_streams)
        self._space = Spared(self._read_space)
        self._troubles = Spared(self._find_troubles)
        self._news = asyncio.Event()  # set and replaced with each change
        self._watchers = 0
        self._watched = asyncio.Event()  # there are watchers
        self._task = asyncio.get_running_loop().create_task(self._run(), name=TASK)

    async def stop(self) -> None:
        """End the rounds."""
        for spared in (self._round, self._waits, self._streams, self._space, self._troubles):
            spared.stop()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    # Rounds

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._round.get()
            except Exception:
                _log.exception("the queues could not be read")
            pause = _SHARE * (time.monotonic() - began)
            await asyncio.sleep(max(_WATCHED, pause))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, _PAUSE - max(_WATCHED, pause))):
                    await self._watched.wait()

    async def _read(self) -> None:
        history = self.history
        try:
            readings = iter(await self._backend.readings())
        except PenstockError as error:  # what is known has to do
            _log.debug("the queues cannot be read: %s", error)
            return
        now = self._clock.monotonic()
        history.begin(now)
        while chunk := list(islice(readings, _CHUNK)):
            history.take(chunk)
            await asyncio.sleep(0)
        self._latency.note(now)
        if history.finish():
            news, self._news = self._news, asyncio.Event()
            news.set()

    async def _read_waits(self) -> dict[str, float]:
        return await self._backend.waits(list(self.history.tracks))

    async def _read_streams(self) -> list[StreamInfo]:
        found: list[StreamInfo] = []
        with suppress(PenstockError):  # it has none, or was closed
            found = await self._backend.run(AllStreams())
        return found

    async def _read_space(self) -> dict[str, int] | None:
        files = self._service.store_files
        if files is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(None, _space_at, files)

    async def _find_troubles(self) -> list[Problem]:
        found: list[Problem] = []
        tracks = iter(list(self.history.tracks.items()))
        while chunk := list(islice(tracks, _CHUNK)):
            for name, track in chunk:
                found += of_queue(name, track, self.history)
            await asyncio.sleep(0)
        return found

    # Answers

    async def changes(self, since: int, wait: float, queue: str | None) -> dict[str, Any]:
        """Wait for a change of any queue, or of one."""
        history = self.history
        await self._round.get()
        if queue is not None:
            queue = names.meant(queue, self._backend)
            await self._known(queue)
        deadline = time.monotonic() + wait
        self._watchers += 1
        self._watched.set()
        try:
            while not self._has_changed(since, queue) and (left := deadline - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), left)
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._watched.clear()
        return {"change": history.change}

    def _has_changed(self, since: int, queue: str | None) -> bool:
        history = self.history
        if queue is None or since > history.change:  # a server before this one had further changes
            return since != history.change
        track = history.tracks.get(queue)
        return track is None or track.change > since

    async def overview(self, search: str, sort: str, skip: int, limit: int, points: int) -> dict[str, Any]:
        """Totals, a page of queues, problems."""
        await self._round.get()
        history = self.history
        wanted = search.lower()
        found = [name for name in history.tracks if wanted in name.lower()]
        waits: dict[str, float] = {}
        if sort == "oldest":
            waits = await self._waits.get()
        found.sort(key=self._key(sort, waits))
        page = [name for name in found[skip : skip + limit] if name in history.tracks]
        if sort != "oldest":
            waits = await self._backend.waits(page)
        rows = [self._row(name, track, waits, points) for name in page if (track := history.tracks.get(name))]
        problems = await self._problems()
        return {
            **self._now(),
            "totals": {"queues": len(history.tracks), **self._told(history.total, points)},
            "found": len(found),
            "queues": rows,
            "problems": [problem._asdict() for problem in problems[:_PROBLEMS]],
            "problems_found": len(problems),
        }

    async def total_history(self, span: str) -> dict[str, Any]:
        """Series of all queues together."""
        await self._round.get()
        return self._series(self.history.total, span)

    async def history_of(self, queue: str, span: str) -> dict[str, Any]:
        """Series of one queue."""
        return self._series(await self._known(queue), span)

    async def find(self, queue: str, state: str | None, text: str, after: str, limit: int) -> dict[str, Any]:
        """A page of messages with a text."""
        return await find(self._backend, queue, state, text, after, limit)

    async def reasons(self, queue: str, state: str) -> dict[str, Any]:
        """Reasons of messages in a state, grouped."""
        await self._backend.run(Lookup(queue))
        counts: Counter[str | None] = Counter()
        latest: dict[str | None, dict[str, Any]] = {}
        seen, complete = 0, True
        fields = ("id", "reason", "settled_at")
        async for message in self._backend.listed(Messages(queue, _LOOKED_AT + 1, fields, state)):
            if seen == _LOOKED_AT:
                complete = False
                break
            seen += 1
            shape = _shape(message.reason)
            counts[shape] += 1
            known = latest.get(shape)
            if known is None or (message.settled_at or 0) >= (known["latest"] or 0):
                latest[shape] = {"reason": message.reason, "latest": message.settled_at, "message": message.id}
        found = counts.most_common(_REASONS)
        return {
            "state": state,
            "messages": seen,
            "complete": complete,
            "reasons": [{**latest[shape], "count": count} for shape, count in found],
            "others": seen - sum(count for _, count in found),
        }

    async def health(self) -> dict[str, Any]:
        """The server's health."""
        await self._round.get()
        service, backend = self._service, self._backend
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "now": self._clock.now(),
            "version": __version__,
            "uptime": round(self._clock.monotonic() - self._started, 3),
            "store": {"kind": self._kind, "open": backend.is_open()},
            "disk": await self._space.get(),
            "commits": self._latency.read(),
            "longest_commit": round(max(0.0, backend.longest_commit()), 3),
            "connections": service.connections,
            "buffered": service.buffered,
            "answers": {str(status): count for status, count in sorted(service.answers.items())},
            "memory": _memory(),
            "cpu": round(used.ru_utime + used.ru_stime, 3),
            "queues": len(self.history.tracks),
        }

    async def activity(self) -> dict[str, Any]:
        """Streams, followers, loads and consumers."""
        now = self._clock.now()
        streams: list[StreamInfo] = await self._streams.get()
        followers, loads = await self._backend.under_way()
        consumers = self._service.consumers
        return {
            "now": now,
            "streams": [
                {
                    **info._asdict(),
                    "age": None if info.since is None else max(0, now - info.since) / 1000,
                    "gone": is_reader_gone(info.reader),
                }
                for info in streams
            ],
            "followers": [each._asdict() for each in followers],
            "loads": [each._asdict() for each in loads],
            "consumers": [] if consumers is None else [each._asdict() for each in consumers.latest()],
        }

    # Parts of answers

    async def _known(self, queue: str) -> Track:
        """What is remembered of a queue; QueueNotFound."""
        for _ in range(2):
            await self._backend.run(Lookup(queue))
            await self._round.get()
            track = self.history.tracks.get(names.meant(queue, self._backend))
            if track is not None:
                return track
            self._round.expire()  # the queue is newer than the latest round
        raise not_found(queue)  # it was deleted just now

    def _now(self) -> dict[str, Any]:
        return {"now": self._clock.now(), "change": self.history.change}

    def _series(self, track: Track, span: str) -> dict[str, Any]:
        series: Series = self.history.series(track, SPANS[span])
        end = self._clock.now() / 1000 + series.end - self._clock.monotonic()
        return {
            **self._now(),
            "seconds": series.seconds,
            "end": round(end) * 1000,
            "covered": series.covered,
            "series": series.columns,
        }

    def _key(self, sort: str, waits: dict[str, float]) -> Callable[[str], Any]:
        history, tracks = self.history, self.history.tracks
        if sort == "queue":
            return str
        if sort == "oldest":
            return lambda name: (-waits.get(name, 0), name)
        if sort == "consumers":
            return lambda name: (-tracks[name].reading.in_line, name)
        if sort in STATES:
            state = STATES.index(sort)
            return lambda name: (-tracks[name].reading.counts[state], name)
        flow = FLOWS.index(sort)
        return lambda name: (-history.rates(tracks[name])[flow], name)

    def _row(self, name: str, track: Track, waits: dict[str, float], points: int) -> dict[str, Any]:
        wait = waits.get(name)
        return {
            "queue": name,
            "up": track.reading.up,
            "oldest": None if wait is None else round(wait, 3),
            "consumers": track.reading.in_line,
            **self._told(track, points),
        }

    def _told(self, track: Track, points: int) -> dict[str, Any]:
        """Counts, rates and lines of a queue, or of all."""
        rates = self.history.rates(track)
        columns = self.history.series(track, HOUR).columns
        depth = [
            None if None in step else sum(value or 0 for value in step)
            for step in zip(*(columns[state] for state in _UNSETTLED), strict=True)
        ]
        return {
            "counts": dict(zip(STATES, track.reading.counts, strict=True)),
            "in": rates[_IN],
            "out": rates[_OUT],
            "failures": rates[_FAILURES],
            "depth": thinned(depth, points, mean=False),
            "throughput": thinned(columns["out"], points, mean=True),
        }

    async def _problems(self) -> list[Problem]:
        """Everything that is wrong, the worst first."""
        streams: list[StreamInfo] = await self._streams.get()
        backend, disk, commits = self._backend, await self._space.get(), self._latency.read()
        look = Look(self._clock.now(), backend.is_open(), backend.longest_commit(), disk, commits, streams)
        return worst_first([*of_store(look), *of_streams(look), *await self._troubles.get()])


def _shape(reason: str | None) -> str | None:
    """What reasons of one group have in common: the first line without its numbers."""
    return None if reason is None else _NUMBERS.sub("0", reason.partition("\n")[0][:_LONGEST_REASON])


def _space_at(path: str) -> dict[str, int] | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return {"free": found.f_bavail * found.f_frsize, "total": found.f_blocks * found.f_frsize}


def _memory() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return None  # not Linux
