"""Messages that move to another queue of the store: by hand, as dead letters, and back to their origin.

A message is in exactly one queue, also after a crash:

    1. With the source locked, the target's put is made durable. It names the messages that it takes, in the same
       record (`records.Put.taken`).
    2. The removal from the source is written, the source unlocked, the removal made durable.
    3. The target forgets what it has taken.

A crash in between leaves messages in both queues; finish() removes them from the source before the store is used.
A store whose queues are written together does 1 and 2 in one write.

Dead letters are a matter of state, not of an event: a queue with a `dead_letter` has no failed messages, unless
the other queue is full, gone, or does not take their size or priority.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from penstock.contract.message import ORIGIN_HEADER
from penstock.errors import PenstockError, QueueFull, QueueNotFound
from penstock.rules.moves import (
    MOVABLE,
    REFUSED,
    check_dead_letter,
    check_target,
    of_dead_letter,
    sources_of,
    without_past,
)
from penstock.rules.rows import FAILED

if TYPE_CHECKING:
    from penstock.contract.settings import Settings
    from penstock.engine.backend import Engine
    from penstock.engine.queue import Headers, LiveQueue

_AT_ONCE = 500  # messages of one step
_BYTES = 4 << 20  # of their bodies


class Moves:
    """Moves between the queues of an engine, one at a time."""

    def __init__(self, engine: "Engine") -> None:
        self.sources: dict[str, list[str]] = {}  # of each dead-letter queue
        self._engine = engine
        self._lock = engine.threads.lock()
        self._refused: dict[str, set[int]] = defaultdict(set)  # failed messages that stay where they are
        self._armed: dict[str, tuple[int, Callable[[], None]]] = {}  # by source: time and callback of its alarm

    # Settings

    def check(self, queue: str, settings: "Settings") -> None:
        """Refuse a dead-letter queue that does not exist, or has one itself."""
        check_dead_letter(queue, settings, self._settings, self.sources)

    def check_new(self, queues: "Mapping[str, Settings]") -> None:
        """check() for queues that will be made together."""
        live = {name: live.settings for name, live in self._engine.live().items()}
        sources = sources_of({**queues, **live}.items())
        for name, settings in queues.items():
            check_dead_letter(name, settings, lambda target: queues.get(target) or self._settings(target), sources)

    def _settings(self, queue: str) -> "Settings":
        return self._engine.find(queue).settings

    def note(self) -> None:
        """The dead_letter of a queue has changed, or a queue with one was added or removed."""
        self.sources = sources_of((name, live.settings) for name, live in self._engine.live().items())

    def forget_refusals(self) -> None:
        """Settings have changed: a dead-letter queue may take messages that it refused before."""
        self._refused.clear()

    def is_target(self, queue: str) -> bool:
        """Whether a queue takes dead letters."""
        return queue in self.sources

    # Dead letters

    def is_due(self, queue: str) -> bool:
        """Whether settle() may have something to do, for a queue or for the queues whose dead letters it takes."""
        return any(map(self._may_have_died, self._concerned(queue)))

    def settle(self, queue: str) -> None:
        """Move what has failed for good, of a queue and of the queues whose dead letters it takes."""
        for source in self._concerned(queue):
            if self._may_have_died(source):
                self._bury(source)
            self._arm(source)

    def _arm(self, source: "LiveQueue") -> None:
        """Settle when the next lease ends, as consumers of the dead-letter queue may be waiting."""
        due, armed = source.next_time(), self._armed.get(source.name)
        if due is None or (armed is not None and armed[0] <= due):
            return

        def ring() -> None:
            self._armed.pop(source.name, None)
            with suppress(PenstockError):  # stopped meanwhile
                self.settle(source.name)

        self._disarm(source.name)
        self._armed[source.name] = due, ring
        self._engine.alarm.set(ring, due)

    def _disarm(self, source: str) -> None:
        _, ring = self._armed.pop(source, (0, None))
        if ring is not None:
            self._engine.alarm.cancel(ring)

    def close(self) -> None:
        """Settle nothing any more."""
        self.sources = {}
        for source in list(self._armed):
            self._disarm(source)

    def settle_all(self) -> None:
        """Move whatever has failed for good."""
        for target in list(self.sources):
            self.settle(target)

    def _concerned(self, queue: str) -> "list[LiveQueue]":
        found = map(self._engine.get, [queue, *self.sources.get(queue, ())])
        return [live for live in found if live is not None and live.settings.dead_letter is not None]

    def _may_have_died(self, source: "LiveQueue") -> bool:
        return source.failed() != len(self._refused.get(source.name, ())) or source.is_due()

    def _bury(self, source: "LiveQueue") -> None:
        """Move failed messages to the dead-letter queue, as many as it takes."""
        refused = self._refused[source.name]

        def headers(given: Mapping[str, str], reason: str | None) -> dict[str, str]:
            return of_dead_letter(given, source.name, reason)

        with self._lock, suppress(QueueFull, QueueNotFound):
            target = self._engine.find(source.settings.dead_letter or "")
            room = 0 if target is source else target.room()
            failed = source.seqs_in(FAILED) if room or refused else []
            refused.intersection_update(failed)  # the others were redriven or removed
            dead = [seq for seq in failed if seq not in refused] if room else []
            for seqs in _parts(source, dead[:room]):
                try:
                    self._step(source, target, seqs, (FAILED,), headers)
                except REFUSED:
                    for seq in seqs:
                        try:
                            self._step(source, target, [seq], (FAILED,), headers)
                        except REFUSED:
                            refused.add(seq)

    def redrive(self, queue: str, seqs: Sequence[int] | None) -> int:
        """Move dead letters back to the queues that they come from, if those exist; how many."""
        source, moved = self._engine.find(queue), 0
        with self._lock:
            for part in _parts(source, _chosen(source, seqs)):
                origins: dict[str, list[int]] = {}
                for seq, origin in zip(part, source.headers(part, ORIGIN_HEADER), strict=True):
                    if origin not in (None, queue) and self._engine.get(origin) is not None:
                        origins.setdefault(origin, []).append(seq)
                for origin, own in origins.items():
                    target = self._engine.find(origin)
                    moved += self._step(source, target, own, MOVABLE, lambda given, _: without_past(given))
        return moved

    # By hand

    def move(self, queue: str, target: str, seqs: Sequence[int] | None) -> int:
        """Move messages that wait or have failed, without numbers all failed ones; how many."""
        check_target(queue, target)
        source, goal = self._engine.find(queue), self._engine.find(target)
        with self._lock:
            chosen = source.seqs_in(FAILED) if seqs is None else _chosen(source, seqs)
            goal.check_room(len(chosen))
            states = (FAILED,) if seqs is None else MOVABLE
            parts = _parts(source, chosen)
            return sum([self._step(source, goal, part, states, lambda given, _: dict(given)) for part in parts])

    def _step(
        self,
        source: "LiveQueue",
        target: "LiveQueue",
        seqs: Sequence[int],
        states: Collection[int],
        headers: "Headers",
    ) -> int:
        """Move those of some messages that are in one of the states; how many."""
        there: list[int] = []

        def cross() -> int:
            there.extend(seq for seq in seqs if source.state_of(seq) in states)
            if not there:
                return 0
            return self._engine.write_move(
                target, lambda: target.take_over(source, there, headers), lambda: source.give_up(there)
            )

        source.commit(self._engine.exclusively(source, cross))
        target.forget_taken(source.name, there)
        return len(there)

    # After a crash

    def finish(self) -> None:
        """Remove messages from queues that they have left, after a crash in the middle of a move."""
        live = self._engine.live()
        for target in live.values():
            for origin, seqs in target.taken():
                source = live.get(origin)
                if source is not None:
                    source.commit(source.give_up(seqs))
                target.forget_taken(origin, seqs)
        self.note()


def _chosen(source: "LiveQueue", seqs: Sequence[int] | None) -> list[int]:
    """Messages that may move: those that wait or have failed, by number."""
    if seqs is None:
        return sorted(seq for state in MOVABLE for seq in source.seqs_in(state))
    return [seq for seq in sorted(set(seqs)) if source.state_of(seq) in MOVABLE]


def _parts(source: "LiveQueue", seqs: Iterable[int]) -> Iterator[list[int]]:
    """Messages in parts of a size that one step moves."""
    left = iter(seqs)
    while part := list(islice(left, _AT_ONCE)):
        while part:
            fitting = source.fitting(part, _BYTES)
            yield part[:fitting]
            part = part[fitting:]
