"""The last hour and day of every queue, in memory: readings in, series out. Pure: no clock, no store.

A round reads the counts and counters of every queue. A change becomes a row in two rings, of short steps for the
hour and of long ones for the day. Rows have a step's number, the counts at its end, and what happened in it. A
queue without news gets no row, so an idle queue costs little memory and hardly any time.

Steps are numbered by elapsed time, so that a clock that is set leaves no gap.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.contract.backend import FLOWS, Reading
from penstock.contract.message import STATES

_MOST = 0xFFFFFFFF  # of a value in a row
_NARROW = 0xFFFF  # rows have two bytes for each value until one is higher
_LEAST = 10.0  # seconds: after less time what has happened says nothing of a rate
_WIDTH = len(STATES) + len(FLOWS)
_NOTHING = (0,) * len(FLOWS)
WAITING = [STATES.index(state) for state in ("delayed", "available", "in_flight")]  # those that max_size limits
_FAILED = STATES.index("failed")


class Span(NamedTuple):
    """A length of time that is remembered: so many steps of so many seconds."""

    seconds: int
    steps: int


SPANS = {"hour": Span(30, 120), "day": Span(900, 96)}
HOUR, DAY = SPANS.values()


class Series(NamedTuple):
    """Values by step: counts at the end of each, and rates a second. None: not known."""

    seconds: int  # of a step
    end: int  # of the last step, in elapsed seconds; that may still be running
    covered: list[float]  # seconds of each step that rates are of: of a first or last step only some
    columns: dict[str, list[float | None]]


class _Ring:
    """Rows of one queue, at most one a step; and one from before, which says with which counts the time begins."""

    __slots__ = ("steps", "values")

    def __init__(self) -> None:
        self.steps, self.values = array("I"), array("H")

    def add(self, step: int, counts: Sequence[int], flows: Sequence[int], oldest: int) -> None:
        """Add to the row of a step, and drop rows that the counts before step `oldest` do not need."""
        if self.steps and self.steps[-1] == step:
            flows = [have + new for have, new in zip(self.values[len(STATES) - _WIDTH :], flows, strict=True)]
            del self.values[-_WIDTH:]
        else:
            self.steps.append(step)
        row = [min(value, _MOST) for value in (*counts, *flows)]
        if self.values.typecode == "H" and max(row) > _NARROW:
            self.values = array("I", self.values)
        self.values.extend(row)
        if (unneeded := bisect_left(self.steps, oldest) - 1) > 0:
            del self.steps[:unneeded], self.values[: unneeded * _WIDTH]

    def row(self, at: int) -> Sequence[int]:
        return self.values[at * _WIDTH : (at + 1) * _WIDTH]

    def happened(self, first: int) -> list[int]:
        """The sums of flows from a step on."""
        sums = [0] * len(FLOWS)
        for at in range(bisect_left(self.steps, first), len(self.steps)):
            for flow, value in enumerate(self.row(at)[len(STATES) :]):
                sums[flow] += value
        return sums


class Track:
    """What is remembered of one queue."""

    __slots__ = ("change", "day", "hour", "reading", "since")

    def __init__(self, reading: Reading, since: float, change: int) -> None:
        self.reading = reading  # the latest
        self.since = since  # when it was seen first
        self.change = change  # the number of its latest change
        self.hour: _Ring | None = None
        self.day: _Ring | None = None

    def add(self, now: float, before: Sequence[int], counts: Sequence[int], flows: Sequence[int]) -> None:
        """Remember that counts have changed, or that something has happened."""
        if self.hour is None or self.day is None:
            self.hour, self.day = _Ring(), _Ring()
            for ring, span in ((self.hour, HOUR), (self.day, DAY)):
                ring.add(int(self.since) // span.seconds, before, _NOTHING, 0)
        for ring, span in ((self.hour, HOUR), (self.day, DAY)):
            step = int(now) // span.seconds
            ring.add(step, counts, flows, step - span.steps + 1)

    def ring(self, span: Span) -> _Ring | None:
        return self.hour if span is HOUR else self.day


class History:
    """The history of a store's queues, and of all of them together."""

    def __init__(self, change: int = 0) -> None:
        """`change`: the number of the first change. A restarted server goes on above those of its last run."""
        self.change = change
        self.rounds = 0
        self.tracks: dict[str, Track] = {}
        self.total = Track(Reading("", True, (0,) * len(STATES), _NOTHING, 0), 0, change)
        self._covered: dict[Span, dict[int, float]] = {span: {} for span in SPANS.values()}
        self._seen: set[str] = set()
        self._now = self._before = 0.0
        self._changes = False
        self._counts, self._flows = [0] * len(STATES), [0] * len(FLOWS)

    # A round: begin, take readings of every queue, finish

    def begin(self, now: float) -> None:
        """Begin a round. `now`: elapsed seconds, never less than before."""
        self._before, self._now = self._now, now
        self._seen, self._changes = set(), False
        self._flows = [0] * len(FLOWS)
        if not self.rounds:
            self.total.since = now

    def take(self, readings: Iterable[Reading]) -> None:
        """Take readings of some queues."""
        tracks, seen = self.tracks, self._seen
        for reading in readings:
            seen.add(reading.queue)
            track = tracks.get(reading.queue)
            if track is None:
                self._meet(reading)
            elif track.reading != reading:
                self._take(track, reading)

    def finish(self) -> bool:
        """End a round; queues that were not seen are forgotten. Whether anything has changed."""
        if len(self._seen) != len(self.tracks):
            for queue in self.tracks.keys() - self._seen:
                gone = self.tracks.pop(queue)
                self._counts = [all_ - its for all_, its in zip(self._counts, gone.reading.counts, strict=True)]
                self._changes = True
        before, counts = self.total.reading.counts, tuple(self._counts)
        if self._changes:
            self.change += 1
            self.total.change = self.change
            if self.rounds and (counts != before or any(self._flows)):
                self.total.add(self._now, before, counts, self._flows)
            self.total.reading = self.total.reading._replace(counts=counts)
        if self.rounds:
            for span, covered in self._covered.items():
                step = int(self._now) // span.seconds
                covered[step] = covered.get(step, 0.0) + self._now - self._before
                for old in [each for each in covered if each <= step - span.steps]:
                    del covered[old]
        self.rounds += 1
        return self._changes

    def _meet(self, reading: Reading) -> None:
        """A queue that is new; all that it has counted happened since the last round, unless this is the first."""
        self._changes = True
        track = self.tracks[reading.queue] = Track(reading, self._now, self.change + 1)
        self._counts = [all_ + its for all_, its in zip(self._counts, reading.counts, strict=True)]
        if self.rounds and reading.flows is not None and any(reading.flows):
            track.add(self._now, _EMPTY, reading.counts, reading.flows)
            self._flows = [all_ + its for all_, its in zip(self._flows, reading.flows, strict=True)]

    def _take(self, track: Track, reading: Reading) -> None:
        before, track.reading = track.reading, reading
        track.change, self._changes = self.change + 1, True
        flows = happened(before, reading)
        if before.counts != reading.counts:
            columns = zip(self._counts, reading.counts, before.counts, strict=True)
            self._counts = [all_ + new - old for all_, new, old in columns]
        elif not any(flows):
            return  # consumers came or went
        track.add(self._now, before.counts, reading.counts, flows)
        self._flows = [all_ + new for all_, new in zip(self._flows, flows, strict=True)]

    # Looking back

    def series(self, track: Track, span: Span) -> Series:
        """The counts and rates of a queue by step, up to the step of the latest round."""
        last = int(self._now) // span.seconds
        first = last - span.steps + 1
        ring, covered = track.ring(span), self._covered[span]
        known = int(track.since) // span.seconds
        counts, flows = track.reading.counts, _NOTHING
        steps: Sequence[int] = () if ring is None else ring.steps
        at = bisect_left(steps, first) - 1  # the row with the counts before
        rows: list[Sequence[float | None]] = []
        for step in range(first, last + 1):
            seconds = covered.get(step)
            flows = _NOTHING
            if ring is not None:
                if at + 1 < len(steps) and steps[at + 1] == step:
                    at += 1
                    flows = tuple(ring.row(at)[len(STATES) :])
                if at >= 0:
                    counts = tuple(ring.row(at)[: len(STATES)])
            if step < known or (seconds is None and step != known):
                rows.append(_UNKNOWN)
            else:
                rows.append((*counts, *(round(flow / seconds, 6) if seconds else 0.0 for flow in flows)))
        columns = dict(zip((*STATES, *FLOWS), map(list, zip(*rows, strict=True)), strict=True))
        seconds_of = [round(covered.get(step, 0.0), 6) for step in range(first, last + 1)]
        return Series(span.seconds, (last + 1) * span.seconds, seconds_of, columns)

    def rates(self, track: Track) -> list[float]:
        """Flows a second, in the step of the latest round and in the one before."""
        last = int(self._now) // HOUR.seconds
        if track.hour is None or track.hour.steps[-1] < last - 1:
            return [0.0] * len(FLOWS)
        covered = self._covered[HOUR]
        seconds = max(covered.get(last, 0.0) + covered.get(last - 1, 0.0), _LEAST)
        return [round(flow / seconds, 3) for flow in track.hour.happened(last - 1)]

    def age(self, track: Track) -> float:
        """For how many seconds a queue has been watched."""
        return self._now - track.since

    def happened(self, track: Track, seconds: float) -> list[int]:
        """The sums of flows in about the last seconds, an hour at most."""
        if track.hour is None:
            return [0] * len(FLOWS)
        return track.hour.happened(int(self._now - seconds) // HOUR.seconds + 1)


_EMPTY = (0,) * len(STATES)
_UNKNOWN = (None,) * _WIDTH


def happened(before: Reading, reading: Reading) -> Sequence[int]:
    """What has happened between two readings.

    Counters that are lower than before are those of a new queue of that name, or of a store that was opened anew.
    Without counters, the change of counts tells what it can: more messages that are not settled, or fewer.
    """
    if reading.flows is None or before.flows is None:
        change = sum(reading.counts[state] - before.counts[state] for state in WAITING)
        failed = max(0, reading.counts[_FAILED] - before.counts[_FAILED])
        return max(change, 0), max(-change - failed, 0), failed, 0, failed
    flows = [new - old for new, old in zip(reading.flows, before.flows, strict=True)]
    return reading.flows if min(flows) < 0 else flows


def thinned(values: Sequence[float | None], points: int, mean: bool) -> list[float | None]:
    """Fewer values: each the mean, or the last, of as many neighbours."""
    size = -(-len(values) // points)
    thin: list[float | None] = []
    for start in range(0, len(values), size):
        known = [value for value in values[start : start + size] if value is not None]
        thin.append(None if not known else round(sum(known) / len(known), 3) if mean else known[-1])
    return thin
