"""A queue as anyone may see it, without changing it: counts, figures, listings, attempts."""

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.contract.message import Attempt, Message
from penstock.engine.figures import EVENTS, Figures
from penstock.engine.receipts import parse_ids
from penstock.engine.taken import as_seen, fill
from penstock.engine.turns import Turns
from penstock.errors import PenstockError

_CHUNK = 256  # messages that are listed under one hold of the lock
_READ = 4 << 20  # bytes of them that are read at once


class Looking(Turns):
    """What can be asked of a queue by those who take nothing from it."""

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self.run(lambda now: self._ledger.counts())[0]

    def figures(self) -> Figures:
        """How the queue is, and what has happened here since it was opened."""

        def look(now: int) -> Figures:
            since = self._ledger.waiting_since()
            put, *by_time = [now - then for now, then in zip(self._counted(), self._before, strict=True)]
            events = {"put": put, **{name: self._written.get(kind, 0) for kind, name in EVENTS.items()}}
            waiting = 0 if since is None else max(now - since, 0) / 1000
            return Figures(self.name, True, self._ledger.counts(), waiting, len(self._line), events, *by_time)

        try:
            return self.run(look)[0]
        except PenstockError:
            return Figures(self.name, False, {}, 0, 0, {}, 0, 0, 0)

    def peek(self, n: int, skip: int = 0) -> Iterator[Message]:
        """What claim would give, after some that are skipped."""
        seqs = self.run(lambda now: self._ledger.peek(n + skip)[skip:])[0]
        for start in range(0, len(seqs), _CHUNK):
            yield from self._messages(seqs[start : start + _CHUNK], "available")

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        seqs = parse_ids([id])
        return self.run(lambda now: self._ledger.attempts(seqs[0]))[0] if seqs else []

    def messages(
        self, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another.

        Without bodies they have neither payload nor headers, and are not said to be created or received.
        """
        for seqs in self._chunks(state, after, until):
            yield from self._messages(seqs, state, bodies)

    def all_attempts(self, after: str = "", until: str = "") -> Iterator[tuple[str, list[Attempt]]]:
        """The attempts at each message, also where there are none, from after one on until another."""

        def look(seqs: Sequence[int]) -> list[tuple[str, list[Attempt]]]:
            return self.run(lambda now: [(str(seq), self._ledger.attempts(seq)) for seq in seqs])[0]

        for seqs in self._chunks(None, after, until):
            yield from look(seqs)

    def parts(self, n: int) -> list[str]:
        """Ids that end parts of about the same size, n at most, for who reads them side by side."""
        return list(map(str, self.run(lambda now: self._ledger.parts(n))[0]))

    def _chunks(self, state: str | None, after: str, until: str) -> Iterator[list[int]]:
        """The messages in that state, some at a time."""
        first = next((seq + 1 for seq in parse_ids([after])), 0)
        last = next(iter(parse_ids([until])), None)
        while seqs := self._list(state, first, last):
            yield seqs
            first = seqs[-1] + 1

    def _list(self, state: str | None, first: int, last: int | None) -> list[int]:
        seqs = self.run(lambda now: self._ledger.listed(state, first, _CHUNK))[0]
        return seqs if last is None else [seq for seq in seqs if seq <= last]

    def _messages(self, seqs: Sequence[int], state: str | None, bodies: bool = True) -> Iterator[Message]:
        """Those of the messages that are still there and in that state, read a few megabytes at a time."""

        def look(now: int) -> tuple[list[Message], Any, Sequence[int]]:
            there = [seq for seq in seqs if self._ledger.has(seq)]
            if not bodies:
                return [as_seen(seq, self._ledger) for seq in there], None, []
            fitting = self.fitting(there, _READ)
            now_read = there[:fitting]
            return [as_seen(seq, self._ledger) for seq in now_read], self._storage.find(now_read), there[fitting:]

        while seqs:
            messages, places, seqs = self.run(look)[0]
            filled = fill(messages, self._storage.read(places)) if bodies else messages
            yield from [message for message in filled if state in (None, message.state)]
