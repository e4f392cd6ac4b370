"""The model: a naive queue, a list of messages that every operation searches; and several, with moves between.

It is slow, and written independently of the ledger, so that the two agree only where both are right.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.contract.settings import Settings


@dataclass
class Item:
    seq: int
    priority: int
    visible_at: int
    expires_at: int | None
    key: str | None
    put_at: int
    waiting: bool = True  # delayed or available, depending on the time
    attempts: int = 0
    nonce: int | None = None
    lease_until: int | None = None
    settled_at: int | None = None
    outcome: str | None = None  # "done" or "failed"
    reason: str | None = None
    stream: str | None = None  # that holds it
    read_at: dict[str, int] = field(default_factory=dict)  # when each stream claimed it last
    group: str | None = None
    payload: str = ""
    origin: str | None = None  # the queue that a dead letter failed in


@dataclass
class Stream:
    reader: str
    held: tuple[int, list[int]] | None = None  # a batch: its number and its messages
    failures: dict[int, tuple[str | None, int]] = field(default_factory=dict)  # why, and the delay
    settled: list[tuple[int, list[int]]] = field(default_factory=list)


class Model:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.items: list[Item] = []
        self.next_seq = 1
        self.keys: dict[str, tuple[int, int]] = {}  # key: (seq, put at)
        self.settled: list[tuple[int, int, str, int]] = []  # seq, nonce, how, when
        self.now = 0
        self.streams: dict[str, Stream] = {}
        self.batches = 0  # that there ever were
        self.followers: dict[str, tuple[str, int]] = {}  # who, and up to which message

    def advance(self, now: int) -> None:
        """Millisecond by millisecond would be the same; only those where something happens are visited."""
        while True:
            times = [time for item in self.items if (time := self._next(item)) is not None and time <= now]
            if not times:
                break
            self.now = min(times)
            for item in list(self.items):
                if self._next(item) == self.now:
                    self._happen(item)
        self.now = now

    def _next(self, item: Item) -> int | None:
        times = []
        if item.stream is not None:
            return None
        if item.expires_at is not None:
            times.append(item.expires_at)
        if item.nonce is not None and item.lease_until is not None:
            times.append(item.lease_until)
        if item.outcome == "done" and self.settings.keep_done is not None:
            assert item.settled_at is not None
            times.append(item.settled_at + max(1, round(self.settings.keep_done * 1000)))
        return min(times, default=None)

    def _happen(self, item: Item) -> None:
        if item.expires_at == self.now or item.outcome == "done":
            self.items.remove(item)
        else:
            self._failed(item, None, "lease expired")

    def state(self, item: Item) -> str:
        if item.outcome:
            return item.outcome
        if not item.waiting:
            return "in_flight"
        return "delayed" if item.visible_at > self.now else "available"

    def counts(self) -> dict[str, int]:
        states = [self.state(item) for item in self.items]
        return {name: states.count(name) for name in ("delayed", "available", "in_flight", "done", "failed")}

    def put(self, drafts: list[tuple[int, int, int | None, str | None, str | None]]) -> list[int] | str:
        """(priority, delay ms, retention ms, key, group) each; the numbers, or why not."""
        keys = {key: seq for key, (seq, at) in self.keys.items() if self.now < at + 300_000}
        new: list[Item] = []
        seqs = []
        for priority, delay, retention, key, group in drafts:
            if self.settings.priorities and not (
                self.settings.priorities[0] <= priority <= self.settings.priorities[1]
            ):
                return "priority"
            if key is not None and key in keys:
                seqs.append(keys[key])
                continue
            seq = self.next_seq + len(new)
            kept = round(self.settings.retention * 1000) if retention is None else retention
            expires_at = self.now + kept if kept else None
            new.append(Item(seq, priority, self.now + delay, expires_at, key, self.now, group=group))
            seqs.append(seq)
            if key is not None:
                keys[key] = seq
        counts = self.counts()
        size = counts["delayed"] + counts["available"] + counts["in_flight"]
        if new and self.settings.max_size and size + len(new) > self.settings.max_size:
            return "full"
        self.items += new
        self.next_seq += len(new)
        self.keys |= {item.key: (item.seq, self.now) for item in new if item.key is not None}
        return seqs

    def next(self, n: int) -> list[Item]:
        """A group's messages come one at a time, in order: the first that is not settled, if none is in flight."""
        groups: dict[str | None, list[Item]] = {}
        for item in sorted(self.items, key=lambda item: item.seq):
            if self.state(item) in ("delayed", "available", "in_flight"):
                groups.setdefault(item.group, []).append(item)
        heads = [
            members[0]
            for name, members in groups.items()
            if name is not None and "in_flight" not in map(self.state, members)
        ]
        free = [item for item in [*groups.get(None, []), *heads] if self.state(item) == "available"]
        return sorted(free, key=lambda item: (item.priority, item.seq))[:n]

    def behind(self, claimed: list[Item], wanted: Callable[[Item], bool]) -> list[Item]:
        """What a stream's batch takes along of the groups of what it claims: each group up to a gap."""
        found = []
        for head in claimed:
            members = [item for item in self.items if item.group == head.group is not None and item.seq > head.seq]
            members = [item for item in members if self.state(item) in ("delayed", "available", "in_flight")]
            for item in sorted(members, key=lambda item: item.seq):
                if self.state(item) != "available" or not wanted(item):
                    break
                found.append(item)
        return found

    def claim(
        self,
        n: int,
        lease: int,
        nonce: int,
        wanted: Callable[[Item], bool] = lambda item: True,
        along: bool = False,
    ) -> list[int]:
        lease = min(lease, round(self.settings.max_lease * 1000))
        claimed = [item for item in self.next(len(self.items)) if wanted(item)][:n]
        if along:
            claimed = [*claimed, *self.behind(claimed, wanted)][:n]
        for item in claimed:
            item.waiting, item.nonce, item.lease_until = False, nonce, self.now + lease
            item.attempts += 1
        return [item.seq for item in claimed]

    def pop(self) -> list[int]:
        popped = self.next(1)
        for item in popped:
            item.attempts += 1
            self._done(item)
        return [item.seq for item in popped]

    def settle(
        self, how: str, receipts: list[tuple[int, int]], delay: int | None = 0, reason: str | None = None
    ) -> list[tuple[int, int]]:
        """Ack, fail or release; the receipts that were lost."""
        held = self._held(receipts)
        lost = []
        for seq, nonce in receipts:
            repeated = any(
                (seq, nonce, how) == (s, n, h) and self.now <= at + 300_000 for s, n, h, at in self.settled
            )
            if (seq, nonce) not in held and not repeated:
                lost.append((seq, nonce))
        for (seq, nonce), item in held.items():
            self.settled.append((seq, nonce, how, self.now))
            if how == "ack":
                self._done(item)
            elif how == "fail":
                self._failed(item, delay, reason)
            else:
                self._back(item, self.now)
        return lost

    def extend(self, receipts: list[tuple[int, int]], lease: int) -> list[tuple[int, int]]:
        lease = min(lease, round(self.settings.max_lease * 1000))
        held = self._held(receipts)
        for item in held.values():
            item.lease_until = self.now + lease
        return [receipt for receipt in receipts if receipt not in held]

    def remove(self, seqs: list[int]) -> set[int]:
        removed = {item.seq for item in self.items if item.seq in seqs and item.stream is None}
        self.items = [item for item in self.items if item.seq not in removed]
        return removed

    def revoke(self, seqs: list[int]) -> set[int]:
        held = [item for item in self.items if item.seq in seqs and item.nonce is not None and item.stream is None]
        self.settle("release", [(item.seq, item.nonce) for item in held if item.nonce is not None])
        return {item.seq for item in held}

    def redrive(self, seqs: list[int] | None) -> set[int]:
        driven = [item for item in self.items if item.outcome == "failed" and (seqs is None or item.seq in seqs)]
        for item in driven:
            item.attempts, item.reason, item.outcome, item.settled_at = 0, None, None, None
            self._back(item, self.now)
        return {item.seq for item in driven}

    def purge(self) -> set[int]:
        return self.remove([item.seq for item in self.items if self.state(item) != "in_flight"])

    def update(self, settings: Settings) -> None:
        """Messages that are done for longer than they are kept now are gone, as if it had always been so."""
        self.settings = settings
        if settings.keep_done == 0:
            self.items = [item for item in self.items if item.outcome != "done"]
        self.advance(self.now)

    # Streams. "no": refused

    def begin(self, stream: str, reader: str) -> str | None:
        if stream in self.followers:
            return "no"
        self.streams.setdefault(stream, Stream(reader)).reader = reader
        return None

    def follow(self, stream: str, reader: str, position: int) -> str | None:
        if stream in self.streams:
            return "no"
        self.followers[stream] = (reader, position)
        return None

    def next_batch(
        self,
        stream: str,
        reader: str,
        start: int,
        n: int,
        nonce: int,
        since: int = 1 << 62,
        below: int = 1 << 62,
    ) -> tuple[int, list[int]] | str | None:
        """What is offered to a reader that has certainly read all up to `start`.

        A run has what is below a number, and what the stream has not claimed since the run began.
        """
        known = self.streams.get(stream)
        if known is None or known.reader != reader:
            return "no"
        numbers = [0, *[number for number, _ in known.settled]]
        if start and start == numbers[-2:][0] != numbers[-1]:
            return known.settled[-1]
        if known.held is not None and known.held[0] == start:
            self.settle_batch(stream, start)
        elif start != numbers[-1]:
            return "no"

        def is_due(item: Item) -> bool:
            return item.seq < below and item.read_at.get(stream, -1) < since

        if known.held is None and (claimed := self.claim(n, 1, nonce, is_due, along=True)):
            self.batches += 1
            known.held = (self.batches, sorted(claimed))
            for item in self.items:
                if item.seq in claimed:
                    item.stream, item.lease_until, item.read_at[stream] = stream, None, self.now
        return known.held

    def read_batch(self, stream: str, batch: int) -> list[int] | str:
        known = self.streams.get(stream)
        if known is None:
            return "no"
        if known.held is not None and known.held[0] == batch:
            known.failures.clear()
            return known.held[1]
        return known.settled[-1][1] if known.settled and known.settled[-1][0] == batch else "no"

    def fail_some(self, stream: str, batch: int, seqs: list[int], reason: str | None, delay: int) -> str | None:
        known = self.streams.get(stream)
        if known is None:
            return "no"
        if known.held is not None and known.held[0] == batch:
            known.failures |= {seq: (reason, delay) for seq in seqs if seq in known.held[1]}
            return None
        return None if (known.settled and batch <= known.settled[-1][0]) or batch == 0 else "no"

    def settle_batch(self, stream: str, batch: int) -> str | None:
        known = self.streams.get(stream)
        if known is None:
            return "no"
        if known.held is None or known.held[0] != batch:
            return None if (known.settled and batch <= known.settled[-1][0]) or batch == 0 else "no"
        for item in self._let_go(stream):
            if item.seq in known.failures:
                reason, delay = known.failures[item.seq]
                self._failed(item, delay or None, reason)
            else:
                self._done(item)
        known.settled.append(known.held)
        known.held = None
        known.failures.clear()
        return None

    def release_batch(self, stream: str) -> str | None:
        known = self.streams.get(stream)
        if known is None:
            return "no"
        for item in self._let_go(stream):
            self._back(item, self.now)
        if known.held is not None:
            known.held = (known.held[0], [])
        known.failures.clear()
        return None

    def delete_stream(self, stream: str) -> str | None:
        if self.followers.pop(stream, None):
            return None
        known = self.streams.get(stream)
        if known is None or (known.held is not None and known.held[1]):
            return "no"
        del self.streams[stream]
        return None

    def _let_go(self, stream: str) -> list[Item]:
        """Take the messages from a stream; expired ones are dropped."""
        held = [item for item in self.items if item.stream == stream]
        for item in held:
            item.stream = None
            if item.expires_at is not None and item.expires_at <= self.now:
                self.items.remove(item)
        return [item for item in held if item in self.items]

    def _held(self, receipts: list[tuple[int, int]]) -> dict[tuple[int, int], Item]:
        return {
            (seq, nonce): item
            for seq, nonce in receipts
            for item in self.items
            if item.seq == seq and item.nonce == nonce and item.stream is None
        }

    def _done(self, item: Item) -> None:
        item.waiting, item.nonce, item.lease_until = False, None, None
        if self.settings.keep_done == 0:
            self.items.remove(item)
        else:
            item.outcome, item.settled_at, item.reason = "done", self.now, None

    def _failed(self, item: Item, delay: int | None, reason: str | None) -> None:
        """Milliseconds until it comes back; None: the first of the queue's backoff, times its factor each time."""
        if delay is None:
            first, factor, most = self.settings.backoff or (0, 1, 0)
            delay = round(1000 * min(most, first * math.prod([factor] * (item.attempts - 1))))
        item.reason = reason
        if self.settings.max_attempts and item.attempts >= self.settings.max_attempts:
            item.waiting, item.nonce, item.lease_until = False, None, None
            item.outcome, item.settled_at = "failed", self.now
        else:
            self._back(item, self.now + delay)

    def _back(self, item: Item, visible_at: int) -> None:
        item.waiting, item.nonce, item.lease_until, item.visible_at = True, None, None, visible_at


MOVABLE = ("delayed", "available", "failed")


class Models:
    """Queues of one store. Messages that have failed for good go to the dead_letter of their queue, and back."""

    def __init__(self, queues: dict[str, Settings], now: int) -> None:
        self.queues = {name: Model(settings) for name, settings in queues.items()}
        self.advance(now)

    def advance(self, now: int) -> None:
        for queue in self.queues.values():
            queue.advance(now)
        for name, queue in sorted(self.queues.items()):
            if (target := queue.settings.dead_letter) is not None:
                for item in self._in_order(name, ("failed",))[: self.room(target)]:
                    item.origin = name
                    self._bring(item, name, target)

    def room(self, name: str) -> int:
        counts, most = self.queues[name].counts(), self.queues[name].settings.max_size
        return (
            max(0, most - sum(counts[each] for each in ("delayed", "available", "in_flight"))) if most else 1 << 32
        )

    def move(self, name: str, target: str, seqs: list[int] | None) -> int | str:
        """How many, or "full"; None: all that have failed."""
        items = self._in_order(name, ("failed",) if seqs is None else MOVABLE, seqs)
        if len(items) > self.room(target):
            return "full"
        for item in items:
            self._bring(item, name, target)
        return len(items)

    def redrive(self, name: str, seqs: list[int] | None) -> int:
        """How many; dead letters go back to their origin."""
        letters: list[Item] = []
        if any(queue.settings.dead_letter == name for queue in self.queues.values()):
            items = self._in_order(name, MOVABLE, seqs)
            letters = [item for item in items if item.origin in self.queues and item.origin != name]
        for item in letters:
            origin, item.origin = item.origin, None
            assert origin is not None
            self._bring(item, name, origin)
        return len(letters) + len(self.queues[name].redrive(seqs))

    def _in_order(self, name: str, states: tuple[str, ...], seqs: list[int] | None = None) -> list[Item]:
        queue = self.queues[name]
        found = [
            item for item in queue.items if queue.state(item) in states and (seqs is None or item.seq in seqs)
        ]
        return sorted(found, key=lambda item: item.seq)

    def _bring(self, item: Item, name: str, target: str) -> None:
        """It is new there, but for what it expires at, its group, its priority and a delay that still runs."""
        source, goal = self.queues[name], self.queues[target]
        visible_at = source.now if item.outcome else max(source.now, item.visible_at)
        source.items.remove(item)
        goal.items.append(
            Item(
                *(goal.next_seq, item.priority, visible_at, item.expires_at, None, source.now),
                group=item.group, payload=item.payload, origin=item.origin,
            )
        )  # fmt: skip
        goal.next_seq += 1
