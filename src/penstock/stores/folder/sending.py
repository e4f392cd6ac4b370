"""Messages that leave a folder queue for another one: which may, and how both queues come to know."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from penstock.contract.settings import MAX_COUNT
from penstock.rules.moves import REFUSED
from penstock.stores.folder import groups, moves
from penstock.stores.folder.incoming import PuttingQueue
from penstock.stores.folder.index import UNSETTLED
from penstock.stores.folder.layout import DELAY
from penstock.stores.folder.stamps import Move
from penstock.stores.folder.steps import Won
from penstock.stores.folder.view import FOLDER

MOVABLE = ("delayed", "available", "failed")
Headers = Callable[[Mapping[str, str], str | None], dict[str, str]]  # from headers and the reason


class SendingQueue(PuttingQueue):
    """A queue whose messages may move to another one."""

    def look(self, eager: bool) -> None:
        """End leases and delays that are over; `eager`: look at what other processes have done, too."""
        self.refresh(eager=eager)
        self.advance()

    @property
    def has_dead(self) -> bool:
        """Whether there are failed messages that the dead-letter queue has not refused."""
        return bool(self._rows.dead)

    def dead(self, most: int) -> list[str]:
        """The first of these messages."""
        with self.lock:
            return self._rows.in_order(self._rows.dead)[:most]

    def reconsider(self) -> None:
        """Settings have changed: the dead-letter queue may take messages that it refused before."""
        with self.lock:
            self._rows.dead = {uid for uid, row in self._rows.items() if row.state == "failed"}

    def has_room(self, eager: bool) -> bool:
        """Whether max_size allows another message, as far as this process knows."""
        if not self.is_exact:
            return True
        self.refresh(eager=eager)
        with self.lock:
            counts = self._rows.counts()
        return sum(counts[state] for state in UNSETTLED) < self.settings.max_size

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Hold the queue's lock, if its messages are limited."""
        with self.admission.locked() if self.is_exact else nullcontext():
            yield

    def room(self) -> int:
        """How many more messages max_size allows; the queue's lock is held."""
        return max(0, self.settings.max_size - self._count_exactly()) if self.is_exact else MAX_COUNT

    def expect(self, more: int) -> None:
        """Count messages that are about to arrive; the queue's lock is held."""
        if self.is_exact:
            self.admission.admit(more)

    def movable(self, ids: Sequence[str] | None, states: Collection[str]) -> list[str]:
        """Those of the messages, or of all, that are in one of the states, in the order of their arrival."""
        self._look_now(certain=True)
        with self.lock:
            rows = self._rows.items() if ids is None else [(uid, self._rows.get(uid)) for uid in ids]
            return self._rows.in_order(uid for uid, row in rows if row is not None and row.state in states)

    def unfit(self, target: "SendingQueue", ids: Sequence[str]) -> dict[str, Exception]:
        """The messages that another queue does not take, and its errors."""
        refused: dict[str, Exception] = {}
        for uid in ids:
            with self.lock:
                row = self._rows.get(uid)
            status = None if row is None else self._tree.status(self._place(FOLDER[row.state], uid))
            if row is not None and status is not None:
                try:
                    target.check_values(status.size, row.priority)
                except REFUSED as error:
                    refused[uid] = error
        return refused

    def keep_dead(self, ids: Collection[str]) -> None:
        """Keep failed messages that the dead-letter queue does not take."""
        with self.lock:
            self._rows.dead.difference_update(ids)

    def headers(self, uid: str) -> dict[str, str]:
        """The headers of a message; none if it is gone."""
        found = self._find(uid, lambda path: b"")
        return {} if found is None else self._tree.details(found[1], found[0]).headers

    def send(
        self, target: "SendingQueue", ids: Sequence[str], states: Collection[str], headers: Headers | None
    ) -> int:
        """Move those of some messages that are in one of the states; how many. `headers`: what they become."""
        with self.lock:
            rows = [(uid, self._rows.get(uid)) for uid in ids]
        folders = [(uid, FOLDER[row.state]) for uid, row in rows if row is not None and row.state in states]
        with groups.claiming(self._tree, self.file), self._protected(ids), self._moving(), target._moving():
            taking = moves.take(self._tree, self.file, folders, self._clock.now())
            moved = self._cross(target, taking.won, headers) if taking.won else []
            with self.lock:
                for uid in (*moved, *taking.missing):
                    self._forget(uid)
                if taking.missing or len(moved) < len(taking.won):
                    self._mark_stale()
        self.keep_dead(taking.staying)
        self.serve()  # the next of a group may be claimed now
        return len(moved)

    def _cross(self, target: "SendingQueue", won: Sequence[tuple[Won, str]], headers: Headers | None) -> list[str]:
        """Move taken messages, each from a folder; those that moved."""
        tree = self._tree
        if not target._has_order:
            target._learn_order()
        if any(each.stamp.group is not None for each, _ in won):
            groups.make_lock(tree, target.file)
        now = self._clock.now()
        ids = tree.next_ids(now, len(won))
        leaving = []
        for (each, folder), uid in zip(won, ids, strict=True):
            stamp, new = each.stamp, None
            if headers is not None:
                details = tree.details(stamp, "failed")
                new = moves.kept_headers(tree, headers(details.headers, details.reason))
            until = each.until if folder == DELAY and each.until > now else 0
            created_at = stamp.received if stamp.created_at is None else stamp.created_at
            leaving.append((each, folder, Move(target.file, uid, now, until, created_at, new)))
        with target._protected(ids):
            crossed = moves.cross(tree, self.file, leaving)
            with target.lock:
                for _, move, arrived in crossed:
                    if arrived is None:
                        target._mark_stale()
                    else:
                        target._know(move.uid, target._row(move.folder, arrived, move.until))
        target.serve()
        return [each.uid for each, _, _ in crossed]
