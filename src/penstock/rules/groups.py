"""Groups: messages that are handed out one at a time, in the order of their arrival.

A group's members are its unsettled messages (delayed, available, in flight). Its head is the member with the
lowest number. Only the head can be claimed, and only while no member is in flight: a head that waits for its retry
holds its group. The other available members are blocked: they count as available, and no claim gives them.

A group costs an array of its members' numbers and an entry in a dict, and nothing once it has no members.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator

from penstock.rules.order import Ready
from penstock.rules.rows import AVAILABLE, GONE, IN_FLIGHT, Rows

_MEMBER = (False, True, True, True, False, False)  # by state: GONE, DELAYED, AVAILABLE, IN_FLIGHT, DONE, FAILED
_SLACK = 32  # positions of members that have left, before they are worth a copy


class Groups:
    """The groups of one queue."""

    def __init__(self, rows: Rows, ready: Ready) -> None:
        self._rows = rows
        self._ready = ready
        # The members' numbers, ascending. The first element is the position of the head.
        self._members: dict[str, array[int]] = {}
        self._in_flight: dict[str, int] = {}  # of groups that have some
        self.available = 0  # members that are available
        self.open = 0  # groups whose head can be claimed
        self._passed: list[int] = []  # heads behind which a member is in flight, while a page is loaded

    def __bool__(self) -> bool:
        return bool(self._members)

    def join(self, group: str, seq: int, state: int) -> bool:
        """Add a message with a higher number than every member. True: a claim may take it."""
        members = self._members.get(group)
        if state == AVAILABLE:
            self.available += 1
        if members is not None:
            members.append(seq)
            if state == IN_FLIGHT:  # only while a state is loaded
                if group not in self._in_flight:
                    self._passed.append(members[members[0]])
                self._in_flight[group] = self._in_flight.get(group, 0) + 1
            return False
        self._members[group] = array("q", (1, seq))
        if state == IN_FLIGHT:
            self._in_flight[group] = 1
        if state != AVAILABLE:
            return False
        self.open += 1
        return True

    def loaded(self) -> None:
        """A page is loaded: heads cannot be claimed while a member behind them is in flight."""
        for head in self._passed:
            page, at = self._rows[head]
            if page.state[at] == AVAILABLE:
                self.open -= 1
                self._ready.withdraw(head)
        self._passed.clear()

    def take(self, group: str) -> None:
        """An available message is in flight now: change(), for the usual case."""
        self.available -= 1
        in_flight = self._in_flight.get(group)
        if in_flight is None:  # it was the head
            self.open -= 1
            self._in_flight[group] = 1
        else:  # one behind the head, for a stream
            self._in_flight[group] = in_flight + 1

    def settle(self, group: str, seq: int) -> None:
        """A message in flight has left its group: change(), for the usual case."""
        members = self._members[group]
        head = members[0]
        if head > _SLACK or members[head] != seq or head == len(members) - 1 or self._in_flight[group] > 1:
            self.change(group, seq, IN_FLIGHT, GONE)
            return
        del self._in_flight[group]
        members[0] = head + 1
        seq = members[head + 1]
        page, at = self._rows[seq]
        if page.state[at] == AVAILABLE:
            self.open += 1
            self._ready.come_back(seq, page.priority[at])

    def change(self, group: str, seq: int, before: int, after: int) -> None:
        """A message has changed its state. The group's next message can be claimed, if it is its turn now."""
        members = self._members.get(group)
        in_flight = self._in_flight.get(group, 0)
        was = None if in_flight or members is None else self._claimable(members, seq, before)
        if _MEMBER[before] != _MEMBER[after]:
            members = self._without(group, members, seq) if _MEMBER[before] else self._with(group, members, seq)
        self.available += (after == AVAILABLE) - (before == AVAILABLE)
        if before == IN_FLIGHT or after == IN_FLIGHT:
            in_flight += (after == IN_FLIGHT) - (before == IN_FLIGHT)
            if in_flight:
                self._in_flight[group] = in_flight
            else:
                del self._in_flight[group]
        now = None if in_flight or members is None else self._claimable(members, seq, after)
        if was == now:
            return
        if was is not None:
            self.open -= 1
            if was != seq:  # else it was taken out, or is gone
                self._ready.withdraw(was)
        if now is not None:
            self.open += 1
            page, at = self._rows[now]
            self._ready.come_back(now, page.priority[at])

    def may_be_claimed(self, group: str | None, seq: int) -> bool:
        """Whether a message, if it is available, is not blocked."""
        if group is None:
            return True
        members = self._members.get(group)
        return members is not None and group not in self._in_flight and members[members[0]] == seq

    def next_after(self, group: str, seq: int) -> Iterator[int]:
        """The available members behind one, up to the first that is not available."""
        members = self._members[group]
        for at in range(bisect_left(members, seq, members[0]) + 1, len(members)):
            page, row = self._rows[members[at]]
            if page.state[row] != AVAILABLE:
                return
            yield members[at]

    def _claimable(self, members: "array[int]", seq: int, state: int) -> int | None:
        """The head, if it is available; `seq` is in that state, whatever its row says."""
        head = members[members[0]]
        if head != seq:
            page, at = self._rows[head]
            state = page.state[at]
        return head if state == AVAILABLE else None

    def _with(self, group: str, members: "array[int] | None", seq: int) -> "array[int]":
        if members is None:
            members = self._members[group] = array("q", (1,))
        members.insert(bisect_left(members, seq, members[0]), seq)
        return members

    def _without(self, group: str, members: "array[int] | None", seq: int) -> "array[int] | None":
        if members is None or len(members) - members[0] == 1:
            del self._members[group]
            return None
        head = members[0]
        if members[head] != seq:
            del members[bisect_left(members, seq, head)]
        elif head > _SLACK and 2 * head > len(members):
            del members[1 : head + 1]
            members[0] = 1
        else:
            members[0] = head + 1
        return members
