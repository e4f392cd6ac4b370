"""The contents of a queue: which messages there are, in what state. They are asked for, frozen and thawed here.

What changes them is in state.py. The rows say everything about the messages that are there: counts, the order of
claiming and what is due when follow from them, and are made of them again when a page is thawed.
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from penstock.contract.message import STATES, Attempt
from penstock.contract.settings import Settings
from penstock.rules.index.deadlines import Deadlines
from penstock.rules.index.history import History
from penstock.rules.index.ready import Ready
from penstock.rules.index.recent import RecentKeys, RecentReceipts
from penstock.rules.index.rows import AVAILABLE, DELAYED, DONE, IN_FLIGHT, PAGE, Lone, Page, Rows
from penstock.rules.index.streams import FrozenStreams, Stream
from penstock.system.clock import at_least_one

NEVER = 1 << 63
_LOOKED_AT = 1_000  # messages, of those that may have waited for longest


class Frozen(NamedTuple):
    """The contents as they were at one moment: what thaw_page and thaw take over again."""

    next_seq: int
    pages: list[tuple[int, Page]]  # with the number that the first position of each stands for
    receipts: RecentReceipts
    keys: list[tuple[int, str, int]]
    history: dict[int, bytes]
    streams: FrozenStreams = FrozenStreams()
    settings: Settings | None = None  # None: as the queue was made


class Contents:
    """The contents of one queue."""

    def __init__(self, name: str, settings: Settings, first: int = 1) -> None:
        self.name = name
        self.settings = settings
        self.base = settings  # those that its storage begins with
        self.updated = False  # whether others may have come after them
        self._counts = [0] * 6
        self._expiring = 0  # messages with an expires_at
        self._rows = Rows(first)
        self._ready = Ready(self._rows.is_available)
        self._deadlines = Deadlines()
        self._keys = RecentKeys()
        self._receipts = RecentReceipts()
        self._history = History()
        self._streams: dict[str, Stream] = {}
        self._last_batch = 0  # no batch of any stream, gone ones included, has a higher number

    def use(self, settings: Settings) -> None:
        """Decide by these settings from now on; no message changes by that alone."""
        self.settings = settings
        self.updated = True

    @property
    def next_seq(self) -> int:
        """The number that the next new message gets."""
        return self._rows.next_seq

    @property
    def oldest(self) -> int:
        """A number not above that of any message that is there."""
        return self._rows.oldest()

    def next_time(self) -> int | None:
        """When advance() may next have something to do."""
        return self._deadlines.next()

    def available(self) -> int:
        """How many messages can be claimed."""
        return self._counts[AVAILABLE]

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return dict(zip(STATES, self._counts[1:], strict=True))

    def waiting_since(self) -> int | None:
        """Since when the available message can be claimed that has waited longest, as far as a look at some tells.

        Those that came first are looked at. One of them may have come back just now, but hardly a thousand.
        """
        first = islice(self._rows.with_state(AVAILABLE), _LOOKED_AT)
        return min((page.visible_at[at] for page, at in map(self.locate, first)), default=None)

    def peek(self, n: int) -> list[int]:
        """The messages that would be claimed next."""
        return list(islice(self._ready, n))

    def listed(self, state: str | None, first: int, n: int) -> list[int]:
        """Up to n messages in that state (None: in any) by ascending number, from number `first` on."""
        return list(islice(self._rows.with_state(None if state is None else STATES.index(state) + 1, first), n))

    def attempts(self, seq: int) -> list[Attempt]:
        """The attempts at a message, the one that runs or that succeeded included."""
        found = self._rows.find(seq)
        if found is None:
            return []
        page, at = found
        attempts = self._history.of(seq)
        if page.state[at] in (IN_FLIGHT, DONE):
            claims = page.for_claims(at)
            done = page.state[at] == DONE
            ended = (claims.ends_at[at], "acked") if done else (None, None)
            attempts.append(Attempt(page.attempts[at], claims.consumer[at], claims.claimed_at[at], *ended))
        return attempts

    def ended_attempts(self, seq: int) -> bytes:
        """The attempts at a message that have ended, packed."""
        return self._history.packed(seq)

    def attempted(self) -> list[int]:
        """The messages of which attempts are known."""
        seqs = {*self._history.dump(), *self._rows.with_state(IN_FLIGHT), *self._rows.with_state(DONE)}
        return sorted(seqs)

    def parts(self, n: int) -> list[int]:
        """Numbers that end parts of about the same size, n at most: together they have all messages there are."""
        total, seen = self.size(), 0
        ends: list[int] = []
        for first, page in self.pages():
            seen += page.live
            if seen * n >= (len(ends) + 1) * total and seen < total:
                ends.append(first + PAGE - 1)
        return [*ends, self.next_seq - 1] if total else []

    def unsettled(self) -> int:
        """How many messages are not done."""
        return sum(self._counts) - self._counts[DONE]

    def size(self) -> int:
        """How many messages there are, in whatever state."""
        return sum(self._counts)

    @property
    def stored(self) -> int:
        """Bytes that the bodies of all messages take, and of those that a stream may still read again."""
        return self._rows.stored + sum([each.kept.stored for each in self._streams.values()])

    def has(self, seq: int) -> bool:
        """Whether the message is there."""
        return self._rows.find(seq) is not None

    def runs(self, seqs: Sequence[int]) -> list[tuple[Page, int, int]] | None:
        """Where many messages lie that were put one after the other, see Rows.runs."""
        return self._rows.runs(seqs)

    def locate(self, seq: int) -> tuple[Page, int]:
        """Where the columns of a message are that is there."""
        return self._rows[seq]

    def _due(self, page: Page, at: int) -> int:
        """When time next changes the message."""
        state = page.state[at]
        due = NEVER
        if state == IN_FLIGHT:
            due = page.for_claims(at).ends_at[at]
            if not due:  # a stream holds it, until it is settled and no matter what
                return NEVER
        elif state == DELAYED:
            due = page.visible_at[at]
        elif state == DONE and self.settings.keep_done is not None:
            due = page.for_claims(at).ends_at[at] + at_least_one(self.settings.keep_done)
        expires_at = page.expires_at[at]
        return expires_at if 0 < expires_at < due else due

    # What a store says: which numbers are left out, where bodies are

    def skip_to(self, seq: int) -> None:
        """Leave out the numbers before seq."""
        self._rows.skip_to(max(seq, self.next_seq))

    def place(self, first: int, places: Sequence[int], sizes: Sequence[int], crcs: Sequence[int]) -> None:
        """Say where the bodies of messages are that were put one after the other, from `first` on."""
        self._rows.place(first, places, sizes, crcs)

    def expire(self, seq: int, at: int) -> None:
        """Say when a message expires of which that was not known, or not rightly; 0 = never."""
        page, position = self._rows[seq]
        self._expiring += (at != 0) - (page.expires_at[position] != 0)
        page.expires_at[position] = at
        for time in {at, self._due(page, position)}:
            if 0 < time < NEVER:
                self._deadlines.add(time, seq)

    def move(
        self,
        first: int,
        positions: Sequence[int],
        places: Sequence[int],
        sizes: Sequence[int],
        crcs: Sequence[int],
        kept: tuple[str, int] | None = None,
    ) -> None:
        """The bodies of those messages that are still there are elsewhere now; positions count from `first`.

        They are messages of the queue, or those that a stream keeps of a batch.
        """
        rows = self._rows if kept is None else self.kept(*kept)
        if rows is not None:  # else the stream has settled another batch since
            rows.move(first, positions, places, sizes, crcs)

    @property
    def last_batch(self) -> int:
        """No batch of any stream, gone ones included, has a higher number."""
        return self._last_batch

    def stream(self, name: str) -> Stream | None:
        """A stream, if there is one of that name."""
        return self._streams.get(name)

    def is_followed(self) -> bool:
        """Whether someone who follows under a name has not read all that has entered."""
        last = self.next_seq - 1
        return any(each.position is not None and each.position < last for each in self._streams.values())

    def kept(self, stream: str, batch: int) -> Rows | None:
        """The messages of the last batch that a stream has settled; None if that is another."""
        found = self._streams.get(stream)
        return found.kept if found is not None and found.settled == batch else None

    def kept_and_done(self, stream: str, batch: int) -> list[int]:
        """Those messages of the last batch that a stream has settled that are done, and still listed."""
        kept = self.kept(stream, batch)
        rows = [] if kept is None else [(seq, self._rows.find(seq)) for seq in kept.with_state(None)]
        return [seq for seq, found in rows if found is not None and found[0].state[found[1]] == DONE]

    # Copies

    def pages(self) -> list[tuple[int, Page]]:
        """The pages themselves, with the number that the first position of each stands for."""
        return [(first, page) for first, page in self._rows.pages() if page.live]

    def page(self, number: int) -> Page | None:
        """The page of that number, if messages are there whose numbers it stands for."""
        page = self._rows.page(number)
        return page if page is not None and page.live else None

    def lone(self, number: int) -> Lone | None:
        """The only message of that page, if nobody has touched it."""
        return self._rows.lone(number)

    def freeze(self) -> Frozen:
        """A copy of everything, made quickly: many columns, few objects."""
        pages = [(first, page.copy()) for first, page in self.pages()]
        streams = FrozenStreams(self._last_batch, {name: each.copy() for name, each in self._streams.items()})
        settings = self.settings if self.updated else None
        receipts, keys, history = self._receipts.copy(), self._keys.dump(), self._history.dump()
        return Frozen(self.next_seq, pages, receipts, keys, history, streams, settings)

    def thaw_page(self, first: int, page: Page) -> None:
        """Take over a page of a frozen state; pages come in their order, before any record."""
        lanes: dict[int, list[int]] = {}
        keys = page.keys()
        plain = page.positions is None and page.claims is None and not any(page.expires_at)
        plain = plain and page.state.count(AVAILABLE) == len(page.state)
        if plain and page.priority.count(page.priority[0]) == len(page.state):
            self._counts[AVAILABLE] += len(page.state)
            self._ready.arrive(range(first, first + len(page.state)), page.priority[0])
            self._rows.adopt(first, page)
            return
        for at, state in enumerate(page.state):
            if not state:
                continue
            seq = first + keys[at]
            self._counts[state] += 1
            if state == AVAILABLE:
                lanes.setdefault(page.priority[at], []).append(seq)
            if expires_at := page.expires_at[at]:
                self._deadlines.add(expires_at, seq)
                self._expiring += 1
            due = self._due(page, at)
            if due not in (NEVER, expires_at):
                self._deadlines.add(due, seq)
        for priority, arrived in lanes.items():
            self._ready.arrive(arrived, priority)
        self._rows.adopt(first, page)

    def thaw_streams(self, frozen: FrozenStreams) -> None:
        """Take over the streams of a frozen state but the messages that they keep."""
        self._last_batch = frozen.last_batch
        self._streams = dict(frozen.streams)

    def check_streams(self) -> None:
        """ValueError if a stream holds messages that are not there, or are not in flight."""
        for name, stream in self._streams.items():
            held = () if stream.held is None else (*stream.held.seqs, *stream.held.failures)
            for seq in held:
                found = self._rows.find(seq)
                if found is None or found[0].state[found[1]] != IN_FLIGHT:
                    raise ValueError(f"stream {name!r} holds a message that is not there: {seq}")

    def thaw_kept(self, stream: str, first: int, page: Page) -> None:
        """Take over a page of messages that a stream keeps; pages come in their order, after the streams."""
        self._streams[stream].kept.adopt(first, page)

    def thaw(self, frozen: Frozen) -> None:
        """Take over a frozen state but its pages and streams."""
        self._rows.skip_to(max(frozen.next_seq, self.next_seq))
        self._receipts = frozen.receipts
        for end, key, seq in frozen.keys:
            self._keys.load(end, key, seq)
        self._history.load(frozen.history)
