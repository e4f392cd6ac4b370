"""An index of one queue's messages in memory: states, delivery order and due times."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from penstock.contract.message import STATES
from penstock.stores.folder.groups import Groups
from penstock.stores.folder.stamps import Stamp

NEVER = 1 << 63
_SLACK = 64
UNSETTLED = ("delayed", "available", "in_flight")


@dataclass(slots=True)
class Row:
    """A message, without its payload."""

    state: str
    priority: int
    order: int
    until: int = 0  # delayed, in flight: end of the delay or lease; done, failed: time of settling
    expires_at: int | None = None
    version: int = 0  # number of the change (Shared.change) that wrote the row
    taken: bool = False  # picked by a thread of this process that is about to move the file
    group: str | None = None

    @classmethod
    def of(cls, state: str, stamp: Stamp, until: int) -> "Row":
        """The row of a message with these attributes."""
        return cls(state, stamp.priority, stamp.order, until, stamp.expires_at, group=stamp.group)

    @property
    def is_held(self) -> bool:
        """Whether it keeps the others of its group waiting."""
        return self.taken or self.state == "in_flight"


class MessageIndex:
    """The messages of one queue. Its users hold the queue's lock."""

    def __init__(self, keep_done: float | None) -> None:
        self._rows: dict[str, Row] = {}
        self._ready: list[tuple[int, int, str]] = []  # heap of available messages; may have outdated entries
        self._pool: list[tuple[int, int, str]] = []  # the first of them, from which pick_any chooses
        self._last = (0, 0, "")  # the last entry that came into the pool
        self._due: list[tuple[int, str]] = []  # heap by due time; may have outdated entries
        self._groups = Groups()
        self.dead: set[str] = set()  # failed messages, without those that their dead-letter queue has refused
        self._unfinished: set[str] = set()  # postponed messages; their rows are `taken`
        self._counts = dict.fromkeys(STATES, 0)
        self.keep_done(keep_done)

    def keep_done(self, seconds: float | None) -> None:
        """Change how long done messages stay in the index."""
        self._keep_done = None if seconds is None else max(1, round(seconds * 1000))
        for uid, row in self.items():
            if row.state == "done":
                self.put(uid, row)

    def get(self, uid: str) -> Row | None:
        """The row of a message."""
        return self._rows.get(uid)

    def unsettled_anew(self, uids: Iterable[str]) -> set[str]:
        """Those of the ids in queues/ that have no row, or that of a failed message."""
        there = set(uids)
        failed = (uid for uid, row in self._rows.items() if row.state == "failed" and uid in there)
        return there.difference(self._rows).union(failed if self._counts["failed"] else ())

    def in_order(self, uids: Iterable[str]) -> list[str]:
        """Those of the ids that have a row, in the order of their arrival."""
        there = {uid: self._rows[uid].order for uid in uids if uid in self._rows}
        return sorted(there, key=lambda uid: (there[uid], uid))

    def items(self) -> list[tuple[str, Row]]:
        """All ids with their rows."""
        return list(self._rows.items())

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return dict(self._counts)

    def put(self, uid: str, row: Row) -> None:
        """Add or replace a row."""
        self.drop(uid)
        self._rows[uid] = row
        self._counts[row.state] += 1
        if row.state == "failed":
            self.dead.add(uid)
        if row.group is not None and row.state in UNSETTLED:
            first = self._groups.first(row.group)
            self._groups.add(row.group, row.order, uid, row.is_held)
            self._offer(row.group, first)
        elif row.state == "available":
            self._wait(uid, row)
        if (due := self.due_at(row)) < NEVER:
            heapq.heappush(self._due, (due, uid))
        if len(self._due) > 2 * len(self._rows) + _SLACK:
            timed = ((self.due_at(row), uid) for uid, row in self._rows.items())
            self._due = [(due, uid) for due, uid in timed if due < NEVER]
            heapq.heapify(self._due)

    def drop(self, uid: str) -> Row | None:
        """Remove a row."""
        self._unfinished.discard(uid)
        self.dead.discard(uid)
        row = self._rows.pop(uid, None)
        if row is not None:
            self._counts[row.state] -= 1
            if row.group is not None and row.state in UNSETTLED:
                first = self._groups.first(row.group)
                self._groups.drop(row.group, row.order, uid, row.is_held)
                self._offer(row.group, first)
        return row

    def is_first(self, uid: str) -> bool:
        """Whether a picked message is the first of its group, and none of the others is in flight."""
        row = self._rows.get(uid)
        return row is None or row.group is None or self._groups.first(row.group, held=1) == uid

    def group_of(self, uid: str) -> str | None:
        """The group of a message."""
        row = self._rows.get(uid)
        return None if row is None else row.group

    def _offer(self, group: str, before: str | None) -> None:
        """Let the first message of a group be picked, if another was first before."""
        uid = self._groups.first(group)
        if uid is not None and uid != before:
            row = self._rows[uid]
            if row.state == "available":
                self._wait(uid, row)

    def _take(self, uid: str) -> None:
        row = self._rows[uid]
        row.taken = True
        if row.group is not None:
            self._groups.hold(row.group, 1)

    def due_at(self, row: Row) -> int:
        """When a delay, a lease, retention or keep_done of the message ends."""
        due = NEVER
        if row.state in ("delayed", "in_flight"):
            due = row.until
        elif row.state == "done" and self._keep_done is not None:
            due = row.until + self._keep_done
        return due if row.expires_at is None else min(due, row.expires_at)

    def pop_due(self, now: int) -> list[tuple[str, Row]]:
        """Messages that are due, earliest first, each only once: the caller moves it or puts it again."""
        found = []
        while self._due and self._due[0][0] <= now:
            due, name = heapq.heappop(self._due)
            row = self._rows.get(name)
            if row is not None and not row.taken and self.due_at(row) == due:
                found.append((name, row))
        return found

    def next_due(self) -> int:
        """The earliest time at which pop_due may return a message."""
        return self._due[0][0] if self._due else NEVER

    def pick(self, n: int) -> list[str]:
        """Mark the first n available messages as taken; their ids."""
        first = self._first(n)
        for _, _, name in first:
            self._take(name)
        return [name for _, _, name in first]

    def pick_any(self, n: int, window: int, dice: Random) -> list[str]:
        """Mark any n of about the first `window` available messages as taken; their ids."""
        picked: list[str] = []
        while len(picked) < n:
            while len(self._pool) < max(window, n) and self._ready:
                self._pool.append(heapq.heappop(self._ready))
                self._last = self._pool[-1]
            if not self._pool:
                break
            at = dice.randrange(len(self._pool))
            entry, self._pool[at] = self._pool[at], self._pool[-1]
            self._pool.pop()
            if self._is_current(entry):
                self._take(entry[2])
                picked.append(entry[2])
        return picked

    def peek(self, n: int) -> list[str]:
        """The ids of the first n available messages."""
        first = self._first(n)
        for entry in first:
            heapq.heappush(self._ready, entry)
        return [name for _, _, name in first]

    def give_back(self, uid: str) -> None:
        """Make a picked message available again."""
        self._unfinished.discard(uid)
        row = self._rows.get(uid)
        if row is not None and row.taken:
            row.taken = False
            if row.group is not None:
                self._groups.hold(row.group, -1)
                self._offer(row.group, None)
            else:
                self._wait(uid, row)
            if (due := self.due_at(row)) < NEVER:
                heapq.heappush(self._due, (due, uid))

    def postpone(self, uid: str, version: int) -> None:
        """Skip a picked message whose file is still being written, until retry_postponed."""
        row = self._rows.get(uid)
        if row is not None and row.taken:
            row.version = version
            self._unfinished.add(uid)

    def is_postponed(self, uid: str) -> bool:
        """Whether the message is postponed, so that no thread is moving it."""
        return uid in self._unfinished

    def retry_postponed(self) -> None:
        """Make postponed messages available again: their files may be complete by now."""
        while self._unfinished:
            self.give_back(self._unfinished.pop())

    def _wait(self, uid: str, row: Row) -> None:
        entry = (row.priority, row.order, uid)
        if self._pool and entry < self._last:
            self._pool.append(entry)  # it comes before messages that pick_any may already choose
        else:
            heapq.heappush(self._ready, entry)
        if len(self._ready) > 2 * self._counts["available"] + _SLACK:
            rows = self._rows.items()
            entries = [(row.priority, row.order, uid) for uid, row in rows]
            self._ready = [each for each in entries if self._is_current(each)]
            heapq.heapify(self._ready)
            self._pool.clear()

    def _first(self, n: int) -> list[tuple[int, int, str]]:
        """Pop the first n entries that are not outdated."""
        found: dict[str, tuple[int, int, str]] = {}
        while self._pool:
            heapq.heappush(self._ready, self._pool.pop())
        while self._ready and len(found) < n:
            entry = heapq.heappop(self._ready)
            if self._is_current(entry):
                found[entry[2]] = entry  # a message may have two entries
        return list(found.values())

    def _is_current(self, entry: tuple[int, int, str]) -> bool:
        row = self._rows.get(entry[2])
        if row is None or row.state != "available" or row.taken or row.order != entry[1]:
            return False
        return row.group is None or self._groups.first(row.group) == entry[2]
