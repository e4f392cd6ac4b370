"""Rows: the fields of a queue's messages in memory, as columns of numbers in pages of 1,024 neighbours.

Sequence numbers only grow, so a row is found by arithmetic: page = seq >> 10, position = seq & 1023. A page is
dropped with its last row. A page with few rows left is shrunk to those and finds them through a small dict, so
that one old message never holds the memory of its thousand neighbours. A page that begins after a gap, in a queue
that gets few of a store's numbers, is sparse from the start. A message that is alone in its page and was never
claimed is just a tuple of numbers, `Lone`.

A waiting message costs 45 bytes, 16 of them for the place of its body. The fields of claims (consumer, time,
receipt, reason) are columns that a page gets when the first of its messages is claimed: 40 bytes more. The column
of groups comes with the first message of a group: 8 bytes more.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

GONE, DELAYED, AVAILABLE, IN_FLIGHT, DONE, FAILED = range(6)  # STATES[n - 1] is the name of state n

BITS = 10
PAGE = 1 << BITS  # rows
COLUMNS = ("priority", "visible_at", "expires_at", "attempts", "place", "size", "crc")
# Number within the page, state, priority, visible_at, expires_at; place, size and crc of the body. A plain tuple
# instead of a class: Python's garbage collector visits tuples of numbers only once.
Lone: TypeAlias = tuple[int, int, int, int, int, int, int, int]
CLAIM_COLUMNS = ("claimed_at", "ends_at", "nonce", "consumer", "reason")
_BITS, _SIZE, _MASK = BITS, PAGE, PAGE - 1
MANY = 16  # messages from which on slices are quicker than single rows
_SHRINK = 8  # a page shrinks when at most one in this many of its rows is left
_FEW = PAGE // _SHRINK
_GAP = 16  # a page whose first row has at least this position is sparse from the start


class Claims:
    """The columns of a page for claimed messages."""

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
        "attempts", "claims", "crc", "expires_at", "groups", "live", "place", "positions", "priority", "size",
        "state", "visible_at",
    )  # fmt: skip

    def __init__(self, sparse: bool = False) -> None:
        self.state = bytearray()
        self.priority = array("q")
        self.visible_at = array("q")
        self.expires_at = array("q")  # 0 = never
        self.attempts = array("I")
        self.place = array("Q")  # place, size and checksum of the body; only the storage interprets them
        self.size = array("I")
        self.crc = array("I")
        self.live = 0
        # Of a sparse page: from a number within the page to the row's position in the columns.
        self.positions: dict[int, int] | None = {} if sparse else None
        self.claims: Claims | None = None
        self.groups: list[str | None] | None = None  # may be shorter than the other columns

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
        """Its row, if it has only one that was never claimed."""
        if self.live != 1 or len(self.state) != 1 or not self.positions or self.claims or self.attempts[0]:
            return None
        if self.groups is not None:
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

    def group(self, at: int) -> str | None:
        """The group of the row at that position."""
        return self.groups[at] if self.groups is not None and at < len(self.groups) else None

    def groups_of(self, start: int, end: int) -> Sequence[str | None]:
        """The groups of neighbouring rows."""
        if self.groups is None or len(self.groups) < end:
            return [self.group(at) for at in range(start, end)]
        return self.groups[start:end]

    def put_into(self, groups: Sequence[str | None], at: int) -> None:
        """Set the groups of the rows from a position on."""
        if self.groups is None:
            self.groups = []
        self.groups += [None] * (at + len(groups) - len(self.groups))
        self.groups[at : at + len(groups)] = groups

    def shrink(self) -> None:
        """Drop the columns' space of rows that are gone."""
        keys = self.keys()
        left = sorted(at for state in range(DELAYED, FAILED + 1) for at in positions_in(self.state, state))
        kept = self.part([keys[at] for at in left])
        for name in self.__slots__:
            setattr(self, name, getattr(kept, name))

    def part(self, keys: Sequence[int]) -> "Page":
        """A sparse page with copies of some rows, by their ascending numbers within the page."""
        at = list(keys) if self.positions is None else [self.positions[key] for key in keys]
        part = Page()
        part.state = _pick(self.state, at)
        for name in COLUMNS:
            setattr(part, name, _pick(getattr(self, name), at))
        if self.claims is not None:
            claims, part.claims = self.for_claims(at[-1]), Claims()
            for name in CLAIM_COLUMNS:
                setattr(part.claims, name, _pick(getattr(claims, name), at))
        if self.groups is not None:
            part.put_into([self.group(row) for row in at], 0)
        part.live = len(at)
        part.positions = {key: position for position, key in enumerate(keys)}
        return part

    def expanded(self) -> "Page":
        """The page with every row at its own position, up to the last one."""
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
            if (group := self.group(at)) is not None:
                page.put_into([group], key)
        return page

    def extend(self, later: "Page") -> None:
        """Add rows of the same page that come after its own."""
        start = len(self.state)
        if self.claims is not None or later.claims is not None:
            claims, more = self.for_claims(start - 1), later.for_claims(len(later.state) - 1)
            claims.grow(start)
            for name in CLAIM_COLUMNS:
                setattr(claims, name, getattr(claims, name)[:start] + getattr(more, name)[start:])
        if later.groups is not None:
            self.put_into(later.groups[start:], start)
        self.state += later.state[start:]
        for name in COLUMNS:
            getattr(self, name).extend(getattr(later, name)[start:])
        self.live += later.live

    def copy(self) -> "Page":
        """A copy of the page."""
        page = Page()
        page.state = self.state[:]
        for column in COLUMNS:
            setattr(page, column, getattr(self, column)[:])
        page.live = self.live
        page.positions = None if self.positions is None else dict(self.positions)
        page.groups = None if self.groups is None else self.groups[:]
        if self.claims is not None:
            page.claims = Claims()
            for column in CLAIM_COLUMNS:
                setattr(page.claims, column, getattr(self.claims, column)[:])
        return page

    def keys(self) -> Sequence[int]:
        """The number within the page of each position."""
        return range(PAGE) if self.positions is None else list(self.positions)


def is_constant(column: "array[int]") -> bool:
    """Whether all values of a column, which is not empty, are equal; ten times as fast as count()."""
    return column.tobytes() == column[:1].tobytes() * len(column)


def positions_in(states: bytearray, state: int | None) -> Iterator[int]:
    """Positions with that state; None: of all rows."""
    if state is None:
        yield from (at for at, here in enumerate(states) if here)
        return
    at = states.find(state)  # quick for a page without that state
    while at >= 0:
        yield at
        at = states.find(state, at + 1)


def fill(page: Page, count: int) -> None:
    """Append positions without rows."""
    page.state += bytes(count)
    for name in COLUMNS:
        column = getattr(page, name)
        column.frombytes(bytes(column.itemsize * count))


def _pick(column: Any, positions: Sequence[int]) -> Any:
    """The values at ascending positions, in a column of the same type."""
    first, last = positions[0], positions[-1] + 1
    if last - first == len(positions):
        return column[first:last]
    picked = [column[at] for at in positions]
    return array(column.typecode, picked) if isinstance(column, array) else type(column)(picked)


class Rows:
    """All rows of a queue."""

    def __init__(self, first: int) -> None:
        self.next_seq = first
        self.stored = 0  # bytes of the bodies
        self._pages: dict[int, Page | Lone] = {}  # ascending

    def append_one(self, state: int, priority: int, visible_at: int, expires_at: int) -> None:
        """Add a row under the next sequence number: append(), for the usual case."""
        number, position = self.next_seq >> _BITS, self.next_seq & _MASK
        page = self._pages.get(number)
        if page is None and _GAP <= position < _MASK:
            self._pages[number] = (position, state, priority, visible_at, expires_at, 0, 0, 0)
            self.next_seq += 1
            return
        if page is not None and not isinstance(page, Page):
            page = self.page(number)
        if page is None or position == _MASK:  # the first and the last of a page need more
            self.append(bytes([state]), [priority], [visible_at], [expires_at])
            return
        if (positions := page.positions) is not None:
            if len(positions) >= _FEW:
                page = self._expand(number, page)
            else:
                positions[position] = len(page.state)
        page.state.append(state)
        page.priority.append(priority)
        page.visible_at.append(visible_at)
        page.expires_at.append(expires_at)
        page.attempts.append(0)
        page.place.append(0)
        page.size.append(0)
        page.crc.append(0)
        page.live += 1
        self.next_seq += 1

    def append(
        self,
        states: bytes,
        priority: Sequence[int],
        visible_at: Sequence[int],
        expires_at: Sequence[int],
        groups: Sequence[str | None] = (),
    ) -> None:
        """Add rows under the next sequence numbers, without groups or with one, or None, for each."""
        done = 0
        while done < len(states):
            number, position = self.next_seq >> _BITS, self.next_seq & _MASK
            page = self.page(number)
            if page is None:
                page = self._pages[number] = Page(sparse=position >= _GAP)
                if page.positions is None:
                    fill(page, position)
            count = min(len(states) - done, _SIZE - position)
            if page.positions is not None and len(page.state) + count > _FEW:
                page = self._expand(number, page)
            if page.positions is not None:
                rows = range(len(page.state), len(page.state) + count)
                page.positions.update(zip(range(position, position + count), rows, strict=True))
            taken = slice(done, done + count)
            if groups:
                page.put_into(groups[taken], len(page.state))
            page.state += states[taken]
            page.priority.extend(priority[taken])
            page.visible_at.extend(visible_at[taken])
            page.expires_at.extend(expires_at[taken])
            page.attempts.frombytes(bytes(4 * count))
            page.place.frombytes(bytes(8 * count))
            page.size.frombytes(bytes(4 * count))
            page.crc.frombytes(bytes(4 * count))
            page.live += count
            done += count
            self.next_seq += count
            if position + count == _SIZE:
                self._tidy(number, page)

    def append_spread(
        self,
        seqs: Sequence[int],
        states: bytes,
        priority: Sequence[int],
        visible_at: Sequence[int],
        expires_at: Sequence[int],
        sizes: Sequence[int],
        crcs: Sequence[int],
    ) -> None:
        """Add rows under ascending numbers from the next on, with gaps, and with the sizes of their bodies."""
        self.stored += sum(sizes)
        start = 0
        while start < len(seqs):
            number, position = seqs[start] >> _BITS, seqs[start] & _MASK
            end = bisect_left(seqs, (number + 1) << _BITS, start)
            self.skip_to(seqs[start])
            if end == start + 1 and number not in self._pages and _GAP <= position < _MASK:
                self._pages[number] = (
                    position, states[start], priority[start], visible_at[start], expires_at[start], 0,
                    sizes[start], crcs[start],
                )  # fmt: skip
            else:
                taken = slice(start, end)
                self._extend(
                    number, [seq & _MASK for seq in seqs[taken]], states[taken], priority[taken],
                    visible_at[taken], expires_at[taken], sizes[taken], crcs[taken],
                )  # fmt: skip
            self.next_seq = seqs[end - 1] + 1
            start = end
        page = self._pages.get(seqs[-1] >> _BITS) if seqs else None
        if isinstance(page, Page):
            self._tidy(seqs[-1] >> _BITS, page)

    def _extend(self, number: int, keys: list[int], states: bytes, *columns: Sequence[int]) -> None:
        """Add rows at the end of a page; priority, visible_at, expires_at, size and crc of each."""
        page, count = self.page(number), len(keys)
        if page is None:
            page = self._pages[number] = Page(sparse=True)
        if page.positions is not None and len(page.state) + count > _FEW:
            page = self._expand(number, page)
        start = len(page.state)
        if page.positions is not None:
            page.positions.update(zip(keys, range(start, start + count), strict=True))
            keys = list(range(start, start + count))
        fill(page, keys[-1] + 1 - start)
        for name, values in zip(("priority", "visible_at", "expires_at", "size", "crc"), columns, strict=True):
            column = getattr(page, name)
            if keys[-1] + 1 - start == count:
                column[start:] = array(column.typecode, values)
            else:
                for key, value in zip(keys, values, strict=True):
                    column[key] = value
        for key, state in zip(keys, states, strict=True):
            page.state[key] = state
        page.live += count

    def _expand(self, number: int, page: Page) -> Page:
        """Make a sparse page dense, up to the next position if it is still being filled."""
        page = self._pages[number] = page.expanded()
        if number == self.next_seq >> _BITS:
            fill(page, (self.next_seq & _MASK) - len(page.state))
        return page

    def insert(
        self, seq: int, state: int, priority: int, visible_at: int, expires_at: int, group: str | None = None
    ) -> None:
        """Add a row under a skipped number."""
        number, at = seq >> _BITS, seq & _MASK
        page = self.page(number)
        if page is None:
            page = Page()
            self._pages = dict(sorted([*self._pages.items(), (number, page)]))
        elif page.positions is not None:
            page = self._expand(number, page)
        # The page that is being filled goes on at the position of the next number.
        end = self.next_seq & _MASK if number == self.next_seq >> _BITS else at + 1
        fill(page, max(0, end - len(page.state)))
        page.state[at], page.priority[at] = state, priority
        page.visible_at[at], page.expires_at[at] = visible_at, expires_at
        if group is not None:
            page.put_into([group], at)
        page.live += 1
        self._tidy(number, page)

    def skip_to(self, seq: int) -> None:
        """Skip the numbers before seq."""
        before, self.next_seq = self.next_seq, seq
        page = self._pages.get(seq >> _BITS)
        if isinstance(page, Page) and page.positions is None:
            fill(page, (seq & _MASK) - len(page.state))
        if before >> _BITS != seq >> _BITS and isinstance(left := self._pages.get(before >> _BITS), Page):
            self._tidy(before >> _BITS, left)

    def adopt(self, first: int, page: Page) -> None:
        """Add the rows of a page whose first position has the number `first`; all are later than present rows."""
        self.skip_to(max(first, self.next_seq))
        self.stored += page.size[0] * len(page.size) if is_constant(page.size) else sum(page.size)
        known = self.page(first >> _BITS)
        if known is not None:
            later, page = page.expanded(), known.expanded()
            page.extend(later)
        self._pages[first >> _BITS] = page.as_lone() or page
        self.next_seq = first + (len(page.state) if page.positions is None else max(page.positions) + 1)

    def take_page(self, number: int, page: Page) -> None:
        """Add a whole page; pages come in order."""
        self.stored += sum(page.size)
        self._pages[number] = page

    def copy(self) -> "Rows":
        """A copy of all rows."""
        rows = Rows(self.next_seq)
        rows.stored = self.stored
        rows._pages = {
            number: page.copy() if isinstance(page, Page) else page for number, page in self._pages.items()
        }
        return rows

    def live(self) -> int:
        """How many rows there are."""
        return sum([page.live if isinstance(page, Page) else 1 for page in self._pages.values()])

    def oldest(self) -> int:
        """A lower bound of all messages' numbers."""
        return next(iter(self._pages), self.next_seq >> _BITS) << _BITS

    def place(self, first: int, places: Sequence[int], sizes: Sequence[int], crcs: Sequence[int]) -> None:
        """Record the places of the bodies of new messages, numbered from `first` on."""
        if len(places) == 1:
            page, at = self._pages[first >> _BITS], first & _MASK
            if isinstance(page, Page):
                at = at if page.positions is None else page.positions[at]
                page.place[at], page.size[at], page.crc[at] = places[0], sizes[0], crcs[0]
            else:
                self._pages[first >> _BITS] = (*page[:5], places[0], sizes[0], crcs[0])
            self.stored += sizes[0]
            return
        self.stored += sum(sizes)
        done = 0
        while done < len(places):
            page, at = self[first + done]
            count = min(len(places) - done, _SIZE - at)
            if count == 1 or page.positions is not None:  # a page that is full may have been shrunk at once
                page.place[at], page.size[at], page.crc[at] = places[done], sizes[done], crcs[done]
                done += 1
                continue
            taken = slice(done, done + count)
            page.place[at : at + count] = array("Q", places[taken])
            page.size[at : at + count] = array("I", sizes[taken])
            page.crc[at : at + count] = array("I", crcs[taken])
            done += count

    def move(
        self,
        first: int,
        positions: Sequence[int],
        places: Sequence[int],
        sizes: Sequence[int],
        crcs: Sequence[int],
    ) -> None:
        """Record new places of bodies, for messages that still exist; positions count from `first`."""
        for position, place, size, crc in zip(positions, places, sizes, crcs, strict=True):
            if (found := self.find(first + position)) is not None:
                page, at = found
                self.stored += size - page.size[at]
                page.place[at], page.size[at], page.crc[at] = place, size, crc

    def pages(self) -> Iterator[tuple[int, Page]]:
        """Every page with the number of its first position, ascending."""
        for number, page in self._pages.items():
            yield number << _BITS, page if isinstance(page, Page) else Page.of_one(page)

    def page(self, number: int) -> Page | None:
        """The page of the numbers from number * PAGE on."""
        page = self._pages.get(number)
        if page is None or isinstance(page, Page):
            return page
        whole = self._pages[number] = Page.of_one(page)
        return whole

    def lone(self, number: int) -> Lone | None:
        """The only row of that page, if it was never claimed."""
        page = self._pages.get(number)
        return None if isinstance(page, Page) else page

    def find(self, seq: int) -> tuple[Page, int] | None:
        """The page and position of a message's row; None if there is no such message."""
        page = self.page(seq >> _BITS)
        if page is None:
            return None
        if page.positions is None:
            at = seq & _MASK
            return (page, at) if at < len(page.state) and page.state[at] else None
        found = page.positions.get(seq & _MASK)
        return (page, found) if found is not None and page.state[found] else None

    def __getitem__(self, seq: int) -> tuple[Page, int]:
        """The page and position of an existing message's row."""
        page = self._pages[seq >> _BITS]
        if not isinstance(page, Page):
            page = self._pages[seq >> _BITS] = Page.of_one(page)
        return page, seq & _MASK if page.positions is None else page.positions[seq & _MASK]

    locate = __getitem__

    def runs(self, seqs: Sequence[int]) -> list[tuple[Page, int, int]] | None:
        """Slices (page, start, end) of many messages with consecutive numbers.

        None if the numbers are not consecutive, or too few for slices to be quicker than single rows.
        """
        count = len(seqs)
        if count < MANY or seqs != list(range(seqs[0], seqs[0] + count)):
            return None
        found, seq, last = [], seqs[0], seqs[-1]
        while seq <= last:
            page = self.page(seq >> _BITS)
            if page is None:
                return None
            start = seq & _MASK
            count = min(last - seq + 1, _SIZE - start)
            if page.positions is not None:  # the rows of a sparse page are in order
                start = page.positions.get(start, _SIZE)
                if page.positions.get((seq + count - 1) & _MASK) != start + count - 1:
                    return None
            elif start + count > len(page.state):
                return None
            found.append((page, start, start + count))
            seq += count
        return found

    def is_available(self, seq: int) -> bool:
        """Whether a claim may take the message."""
        found = self.find(seq)
        return found is not None and found[0].state[found[1]] == AVAILABLE

    def drop(self, seq: int, page: Page, at: int) -> None:
        """Drop a row."""
        page.state[at] = GONE
        page.live -= 1
        self.stored -= page.size[at]
        page.size[at] = 0
        if page.live * _SHRINK <= len(page.state):
            self._tidy(seq >> _BITS, page)

    def drop_run(self, seq: int, page: Page, start: int, end: int) -> None:
        """Drop neighbouring rows, of which seq is one."""
        page.state[start:end] = bytes(end - start)
        page.live -= end - start
        self.stored -= sum(page.size[start:end])
        page.size[start:end] = array("I", bytes(4 * (end - start)))
        self._tidy(seq >> _BITS, page)

    def _tidy(self, number: int, page: Page) -> None:
        """Shrink a page with few rows left, drop an empty one; not the page that is being filled."""
        if number == self.next_seq >> _BITS:
            return
        if not page.live:
            del self._pages[number]
        elif page.live * _SHRINK <= len(page.state):
            page.shrink()

    def with_state(self, state: int | None, first: int = 0) -> Iterator[int]:
        """Sequence numbers in ascending order of the rows in that state (None: in any), from `first` on."""
        for number in sorted(self._pages):
            if number < first >> _BITS:
                continue
            page = self._pages[number]
            if isinstance(page, Page):
                keys = page.keys()
                found = [(number << _BITS) + keys[at] for at in positions_in(page.state, state)]
            else:
                found = [(number << _BITS) + page[0]] if state in (None, page[1]) else []
            yield from [seq for seq in found if seq >= first]
