"""Dead letters of a folder store, their way back, and moves by hand.

Dead letters are a matter of state: a queue with a `dead_letter` has no failed messages, unless the other queue is
full, gone, or does not take their size or priority. So any process moves the dead letters that it finds. While
the disk is full they stay, too.
"""

from collections.abc import Collection, Mapping, Sequence

from penstock.contract.message import ORIGIN_HEADER
from penstock.rules.moves import check_target, of_dead_letter, sources_of, without_past
from penstock.stores.folder.sending import MOVABLE, Headers, SendingQueue
from penstock.system.threads import Threads

_AT_ONCE = 500  # messages of one step


class Moves:
    """Moves between the queues of an open folder store; `queues` are those that this process knows."""

    def __init__(self, queues: Mapping[str, SendingQueue], threads: Threads) -> None:
        self.sources: dict[str, list[str]] = {}  # of each dead-letter queue
        self._queues = queues
        self._lock = threads.lock()

    def note(self) -> None:
        """Settings of queues have changed, or queues with a dead_letter have come or gone."""
        queues = list(self._queues.values())
        self.sources = sources_of((queue.name, queue.settings) for queue in queues)
        for queue in queues:
            if queue.settings.dead_letter is not None:
                queue.reconsider()

    def concerned(self, queue: str) -> list[SendingQueue]:
        """Of a queue and those whose dead letters it takes, the ones with a dead_letter."""
        found = [self._queues.get(name) for name in (queue, *self.sources.get(queue, ()))]
        return [each for each in found if each is not None and each.settings.dead_letter is not None]

    def bury(self, source: SendingQueue, eager: bool) -> None:
        """Move failed messages to the dead-letter queue, as many as it takes; `eager`: see QueueView.refresh()."""
        target = self._queues.get(source.settings.dead_letter or "")
        if not source.has_dead or target is None or target is source or not target.has_room(eager):
            return
        with self._lock, target.limited():
            dead = source.dead(target.room())
            unfit = source.unfit(target, dead)
            source.keep_dead(unfit)
            self._send(
                source, target, [uid for uid in dead if uid not in unfit], ("failed",),
                lambda given, reason: of_dead_letter(given, source.name, reason),
            )  # fmt: skip

    def redrive(self, source: SendingQueue, ids: Sequence[str] | None) -> int:
        """Move dead letters back to the queues that they come from, if those exist; how many."""
        origins: dict[str, list[str]] = {}
        for uid in source.movable(ids, MOVABLE):
            origin = source.headers(uid).get(ORIGIN_HEADER)
            if origin is not None and origin != source.name and origin in self._queues:
                origins.setdefault(origin, []).append(uid)
        moved = 0
        for origin, own in origins.items():
            moved += self._move(source, self._queues[origin], own, lambda given, _: without_past(given))
        return moved

    def move(self, source: SendingQueue, target: SendingQueue, ids: Sequence[str] | None) -> int:
        """Move messages that wait or have failed, without ids all failed ones; how many."""
        check_target(source.name, target.name)
        return self._move(source, target, source.movable(ids, ("failed",) if ids is None else MOVABLE), None)

    def _move(
        self, source: SendingQueue, target: SendingQueue, ids: Sequence[str], headers: Headers | None
    ) -> int:
        """Move messages, or refuse to before the first has moved."""
        with target.limited():
            target.check_room(len(ids))
            for error in source.unfit(target, ids).values():
                raise error
            return self._send(source, target, ids, MOVABLE, headers)

    def _send(
        self,
        source: SendingQueue,
        target: SendingQueue,
        ids: Sequence[str],
        states: Collection[str],
        headers: Headers | None,
    ) -> int:
        moved = 0
        for start in range(0, len(ids), _AT_ONCE):
            part = ids[start : start + _AT_ONCE]
            target.expect(len(part))
            moved += source.send(target, part, states, headers)
        return moved
