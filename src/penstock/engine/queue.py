"""A queue at work: what can be asked of it by those who put, take and settle messages.

Operations return at once, with their result and a number: nobody may be told the result before commit() of that
number. A thread calls commit() and waits; a server has one thread commit for all the requests that came meanwhile.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from penstock.contract.message import Entry, Message
from penstock.contract.settings import Settings
from penstock.engine.looking import Looking
from penstock.engine.receipts import parse_ids, parse_receipts
from penstock.engine.taken import NOTHING, Taken, as_seen, claimed, fill
from penstock.engine.turns import Take, Waiter
from penstock.errors import PenstockError
from penstock.rules.ledger import Receipt
from penstock.rules.records import Record, Redrive, Remove

_Settling: TypeAlias = Callable[[list[Receipt], int], tuple[Record | None, list[Receipt]]]

_AS_CLAIMS = 4_400  # so many have room where the settings have it, with the longest filter


class LiveQueue(Looking):
    """One queue, safe for threads."""

    def check(self, entry: Entry) -> None:
        """Raise what a put would raise."""

        def check(now: int) -> None:
            self._ledger.check([entry], now)
            self._storage.make_room([entry])

        self.run(check)

    def put(self, entries: Sequence[Entry]) -> tuple[list[str], int]:
        """Take in all entries or none; their ids."""

        def put(now: int) -> list[str]:
            self._storage.make_room(entries)
            admission = self._ledger.put(entries, now)
            if admission.new:
                self.write(admission.record, admission.new)
            return list(map(str, admission.seqs))

        return self.run(put)

    def claiming(self, n: int, lease: float, consumer: str, most: int | None = None) -> Take:
        """How to lease up to n messages, and if `most` is given no more bytes than that beyond the first."""

        def take(now: int) -> Taken:
            available = self._ledger.available()
            if not available:
                return NOTHING
            count = min(n, available)
            if most is not None and count > 1:
                count = self.fitting(self._ledger.peek(count), most)
            self._storage.make_room(claims=count)
            record = self._ledger.claim(count, lease, consumer, int.from_bytes(os.urandom(8)), now)
            if record is None:
                return NOTHING
            self.write(record)
            return claimed(record, self._ledger, self._storage)

        return take

    def popping(self, consumer: str) -> Take:
        """How to claim and acknowledge one message."""

        def take(now: int) -> Taken:
            seqs = self._ledger.peek(1)
            if not seqs:
                return NOTHING
            self._storage.make_room(claims=1)
            message = as_seen(seqs[0], self._ledger)
            # Read before it is done, so that a message that cannot be read is not lost as well.
            fill([message], self._storage.read(self._storage.find(seqs)))
            record = self._ledger.pop(consumer, now)
            if record is not None:
                self.write(record)
            message.attempts += 1
            message.state, message.consumer = "done", consumer
            message.claimed_at = message.settled_at = now
            message.reason = None
            return Taken(1, (), lambda bodies: [message], [])

        return take

    def take(self, take: Take) -> tuple[Taken, int]:
        """What can be had at once."""
        return self.run(take)

    def at_hand(self, taken: Taken) -> Taken | None:
        """The same for hand_out(), which then need not wait for the disk; None if it must."""
        places = self._storage.at_hand(taken.places)
        return None if places is None else taken._replace(places=places)

    def hand_out(self, taken: Taken) -> list[Message]:
        """What a consumer took and may now be told, with the bodies; what cannot be read is given back."""
        try:
            return taken.build(self._storage.read(taken.places))
        except BaseException:
            self.give_back(taken.receipts)
            raise

    def give_back(self, receipts: list[str]) -> None:
        """Release what its claimer never got."""
        if receipts:
            with suppress(PenstockError):  # the lease may be over, the queue stopped
                self.commit(self.release(receipts)[1])

    def abandon(self, waiter: Waiter) -> None:
        """An interrupted consumer takes no claimed message with it. What it popped is gone, as after a crash."""
        self.step_out(waiter)
        self.give_back(waiter.taken.receipts)

    def ack(self, receipts: Sequence[str]) -> tuple[list[str], int]:
        """Settle for good; which receipts were lost, as of all that settle."""
        return self._settle(receipts, self._ledger.ack)

    def fail(self, receipts: Sequence[str], delay: float, reason: str | None) -> tuple[list[str], int]:
        """End the attempts."""
        return self._settle(receipts, lambda held, now: self._ledger.fail(held, delay, reason, now))

    def release(self, receipts: Sequence[str]) -> tuple[list[str], int]:
        """Give back."""
        return self._settle(receipts, self._ledger.release)

    def extend(self, receipts: Sequence[str], lease: float) -> tuple[tuple[int, list[str]], int]:
        """Hold from now on; until when, and which receipts were lost."""
        until = 0

        def extend(held: list[Receipt], now: int) -> tuple[Record | None, list[Receipt]]:
            nonlocal until
            self._storage.make_room(claims=len(held))
            until = self._ledger.lease_end(lease, now)
            return self._ledger.extend(held, lease, now)

        lost, written = self._settle(receipts, extend)
        return (until, lost), written

    def remove(self, ids: Iterable[str]) -> tuple[int, int]:
        """Take messages out in any state; how many."""
        return self._change(lambda now: self._ledger.remove(parse_ids(ids), now))

    def redrive(self, ids: Iterable[str] | None) -> tuple[int, int]:
        """Start over with failed messages; how many."""
        return self._change(lambda now: self._ledger.redrive(None if ids is None else parse_ids(ids), now))

    def purge(self) -> tuple[int, int]:
        """Take out everything but what is in flight; how many."""
        return self._change(self._ledger.purge)

    def update(self, changes: Mapping[str, Any], check: Callable[[Settings], None]) -> tuple[Settings, int]:
        """Change settings, if the store can keep them; all of them as they are then."""

        def update(now: int) -> Settings:
            settings = self.settings.changed(changes)
            check(settings)
            self._storage.make_room(claims=_AS_CLAIMS)
            record = self._ledger.update(settings, now)
            if record is not None:
                self.write(record)
            return self.settings

        return self.run(update)

    def _settle(self, receipts: Sequence[str], operation: _Settling) -> tuple[list[str], int]:
        """The receipts that were lost, and what to commit."""
        parsed = parse_receipts(receipts)

        def settle(now: int) -> list[Receipt]:
            record, lost = operation([receipt for receipt in parsed if receipt is not None], now)
            if record is not None:
                self.write(record)
            return lost

        lost, written = self.run(settle)
        if not lost and None not in parsed:
            return [], written
        missing = {None, *lost}
        named = dict(zip(receipts, parsed, strict=True))
        return [text for text, receipt in named.items() if receipt in missing], written

    def _change(self, operation: Callable[[int], Remove | Redrive | None]) -> tuple[int, int]:
        def change(now: int) -> int:
            record = operation(now)
            if record is None:
                return 0
            self.write(record)
            return len(record.seqs)

        return self.run(change)
