"""A page of rows: what is known of up to 1,024 messages with neighbouring numbers, in columns of numbers.

A page of which few rows are left is shrunk to those and finds them through a small dict, so that one old message
never holds the memory of its thousand neighbours. A message that is alone in its page and that nobody has touched
is just a tuple of numbers, `Lone`: a queue that gets few of a store's messages has nothing else.

A waiting message costs 45 bytes here, 16 of them for where its body lies. What only claimed messages have (who,
when, receipt, reason) lies in columns that a page gets when the first of its messages is claimed: 40 bytes more.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

GONE, DELAYED, AVAILABLE, IN_FLIGHT, DONE, FAILED = range(6)  # STATES[n - 1] is the name of state n

BITS = 10
PAGE = 1 << BITS  # rows
COLUMNS = ("priority", "visible_at", "expires_at", "attempts", "place", "size", "crc")
# Its number within the page, state, priority, visible_at, expires_at; place, size and crc of the body. Not a class
# of its own: Python's search for garbage in cycles looks at plain tuples of numbers only once.
Lone: TypeAlias = tuple[int, int, int, int, int, int, int, int]
CLAIM_COLUMNS = ("claimed_at", "ends_at", "nonce", "consumer", "reason")


class Claims:
    """The columns of a page that only claimed messages have."""

    __slots__ = ("claimed_at", "consumer", "ends_at", "nonce", "reason")

    def __init__(self) -> None:
        self.claimed_at = array("q")
        self.ends_at = array("q")  # in_flight: end of the lease; done and failed: when it was settled
        self.nonce = array("Q")  # the secret of the receipt that holds, or last held, the message
        self.consumer: list[str | None] = []
        self.reason: list[str | None] = []

    def grow(self, size: int) -> None:
        """Make room for so many rows."""
        more = max(0, size - len(self.nonce))
        for column in (self.claimed_at, self.ends_at, self.nonce):
            column.frombytes(bytes(8 * more))
        self.consumer += [None] * more
        self.reason += [None] * more


class Page:
    """Up to 1,024 rows with neighbouring sequence numbers."""

    __slots__ = (
        "attempts", "claims", "crc", "expires_at", "live", "place", "positions", "priority", "size", "state",
        "visible_at",
    )  # fmt: skip

    def __init__(self, sparse: bool = False) -> None:
        self.state = bytearray()
        self.priority = array("q")
        self.visible_at = array("q")
        self.expires_at = array("q")  # 0 = never
        self.attempts = array("I")
        self.place = array("Q")  # where the body is, how long, and its checksum; the store's to interpret
        self.size = array("I")
        self.crc = array("I")
        self.live = 0
        # Of the rows that there are, in a page that was shrunk or has had few from the beginning.
        self.positions: dict[int, int] | None = {} if sparse else None
        self.claims: Claims | None = None

    @classmethod
    def of_one(cls, lone: Lone) -> "Page":
        """A page of one row, with room for a few."""
        position, state, priority, visible_at, expires_at, place, size, crc = lone
        page = cls(sparse=True)
        page.state.append(state)
        page.priority.append(priority)
        page.visible_at.append(visible_at)
        page.expires_at.append(expires_at)
        page.attempts.append(0)
        page.place.append(place)
        page.size.append(size)
        page.crc.append(crc)
        page.live = 1
        page.positions = {position: 0}
        return page

    def as_lone(self) -> Lone | None:
        """Its row, if there is but one, which nobody has touched."""
        if self.live != 1 or len(self.state) != 1 or not self.positions or self.claims or self.attempts[0]:
            return None
        [position] = self.positions
        return (
            position, self.state[0], self.priority[0], self.visible_at[0], self.expires_at[0], self.place[0],
            self.size[0], self.crc[0],
        )  # fmt: skip

    def for_claims(self, at: int) -> Claims:
        """The columns for claimed messages, with room for the row at that position."""
        claims = self.claims
        if claims is None:
            claims = self.claims = Claims()
        if at >= len(claims.nonce):
            claims.grow(max(len(self.state), min(2 * at, PAGE)))
        return claims

    def shrink(self) -> None:
        """Keep only the rows that are left."""
        if self.positions is None:
            there = sorted(at for state in range(DELAYED, FAILED + 1) for at in positions_in(self.state, state))
            left = [(at, at) for at in there]
        else:
            left = [(key, at) for key, at in self.positions.items() if self.state[at]]
        kept = [at for _, at in left]
        self.positions = {key: position for position, (key, _) in enumerate(left)}
        self.state = bytearray(self.state[at] for at in kept)
        for column in COLUMNS:
            setattr(self, column, _pick(getattr(self, column), kept))
        if self.claims is not None:
            self.claims.grow(max(len(self.claims.nonce), kept[-1] + 1))
            for column in CLAIM_COLUMNS:
                setattr(self.claims, column, _pick(getattr(self.claims, column), kept))

    def expanded(self) -> "Page":
        """The page with every position in its place again, as far as there are rows."""
        if self.positions is None:
            return self
        page = Page()
        page.live = self.live
        if self.claims is not None:
            self.claims.grow(len(self.state))  # rows that came later may have none yet
            page.claims = Claims()
            page.claims.grow(max(self.positions, default=0) + 1)
        for key, at in self.positions.items():
            fill(page, key - len(page.state))
            page.state.append(self.state[at])
            for name in COLUMNS:
                getattr(page, name).append(getattr(self, name)[at])
            if self.claims is not None:
                for name in CLAIM_COLUMNS:
                    getattr(page.claims, name)[key] = getattr(self.claims, name)[at]
        return page

    def extend(self, later: "Page") -> None:
        """Add the rows of the same page that come after those that are here."""
        start = len(self.state)
        if self.claims is not None or later.claims is not None:
            claims, more = self.for_claims(start - 1), later.for_claims(len(later.state) - 1)
            claims.grow(start)
            for name in CLAIM_COLUMNS:
                setattr(claims, name, getattr(claims, name)[:start] + getattr(more, name)[start:])
        self.state += later.state[start:]
        for name in COLUMNS:
            getattr(self, name).extend(getattr(later, name)[start:])
        self.live += later.live

    def copy(self) -> "Page":
        """The page as it is now."""
        page = Page()
        page.state = self.state[:]
        for column in COLUMNS:
            setattr(page, column, getattr(self, column)[:])
        page.live = self.live
        page.positions = None if self.positions is None else dict(self.positions)
        if self.claims is not None:
            page.claims = Claims()
            for column in CLAIM_COLUMNS:
                setattr(page.claims, column, getattr(self.claims, column)[:])
        return page

    def keys(self) -> Sequence[int]:
        """The number within the page of each position."""
        return range(PAGE) if self.positions is None else list(self.positions)


def positions_in(states: bytearray, state: int | None) -> Iterator[int]:
    """Positions with that state; with any, if it is None."""
    if state is None:
        yield from (at for at, here in enumerate(states) if here)
        return
    at = states.find(state)  # a page without it costs next to nothing
    while at >= 0:
        yield at
        at = states.find(state, at + 1)


def fill(page: Page, count: int) -> None:
    """Positions whose numbers are left out."""
    page.state += bytes(count)
    for name in COLUMNS:
        column = getattr(page, name)
        column.frombytes(bytes(column.itemsize * count))


def _pick(column: Any, positions: Sequence[int]) -> Any:
    picked = [column[at] for at in positions]
    return array(column.typecode, picked) if isinstance(column, array) else picked
