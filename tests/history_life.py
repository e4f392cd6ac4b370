"""What may have become of one message, given everything that was asked of its queue and everything that was told.

An operation takes effect at one moment between its start and its answer, or, if the answer never came, then or not
at all. A life follows all orders in which the operations on its message may have taken effect, as a set of guesses
at its state, and drops those that an answer or a listing contradicts. When none is left, no order explains what
was seen: the store broke a promise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.contract.settings import FIVE_MINUTES, Settings

Record = dict[str, Any]  # an event, a draft or a message, as JSON has it
FOREVER = 1 << 62
SETTLING = ("ack", "fail", "release", "extend")


def milliseconds(seconds: float) -> int:
    """A duration as the stores count it: none that was asked for is rounded down to none."""
    return max(1, round(seconds * 1000)) if seconds else 0


@dataclass(eq=False)
class Operation:
    name: str
    do: str
    asked: Record
    start: int  # the time before the call
    begun: int  # the number of the event
    end: int = FOREVER  # the time after the call, if it returned
    ended: int = FOREVER
    told: Record | None = None
    refused: bool = False
    raised: bool = False  # it returned, but without an answer
    lives: "list[Life]" = field(default_factory=list)  # those that it may have changed

    @property
    def limit(self) -> int | None:
        """To how many messages it may have happened without anyone being told."""
        if self.told is not None or self.do not in ("claim", "pop"):
            return None
        return int(self.asked["n"])


class Settled(NamedTuple):
    """A receipt that was used, and when: between the two times."""

    receipt: str
    how: str
    first: int
    last: int


class Guess(NamedTuple):
    """One state in which the message may be."""

    kind: str = "absent"  # then waiting, held, done, failed or gone
    attempts: int = 0
    first: int = 0  # visible_at (waiting), lease_until (held), settled_at (done, failed): between these
    last: int = 0
    receipt: str | None = None
    consumer: str | None = None
    settled: tuple[Settled, ...] = ()
    time: int = 0  # nothing further happened before this
    applied: frozenset[str] = frozenset()  # the open operations that have taken effect

    def __str__(self) -> str:
        held = f" by {self.consumer} with {self.receipt}" if self.kind == "held" else ""
        times = f", from {self.first} to {self.last}" if self.last else ""
        return f"{self.kind}{held}, attempts {self.attempts}{times}, after {sorted(self.applied)}"


@dataclass(eq=False)
class Life:
    """One message: what is certain about it, and the guesses at its state."""

    id: str
    settings: Settings
    prompt: bool = True  # whether a put takes effect at the moment that it says, not after it
    drafts: dict[str, Record] = field(default_factory=dict)  # by the operation that may have put it
    puts: list[Operation] = field(default_factory=list)
    place: tuple[int, int] = (0, 0)  # the number of the event that began its first put, and its place there
    seen: Record | None = None  # the message as it was first shown
    guesses: set[Guess] = field(default_factory=lambda: {Guess()})
    open: dict[str, Operation] = field(default_factory=dict)
    story: list[Record] = field(default_factory=list)
    answered: int = 0  # the number of the last event that answered an operation on it
    available_since: int | None = None  # the number of the event since which it is certain that it can be claimed

    @property
    def begun(self) -> int:
        """The number of the event before which it was certainly not put."""
        return min(put.begun for put in self.puts)

    @property
    def ended(self) -> int:
        """The number of the event after which it was certainly put."""
        return min(put.ended for put in self.puts)

    @property
    def priority(self) -> int:
        return int(self.drafts[self.puts[0].name]["priority"])

    @property
    def group(self) -> str | None:
        return self.drafts[self.puts[0].name].get("group")

    def has_kept_still(self, since: int, kinds: tuple[str, ...]) -> bool:
        """Whether no operation has changed it since an event, and it certainly is one of these kinds of guess."""
        return not self.open and self.answered <= since and all(guess.kind in kinds for guess in self.guesses)

    def is_before(self, other: "Life") -> bool:
        """Whether it was certainly put before another."""
        if self.ended < other.begun:
            return True
        same = self.puts == other.puts and len(self.puts) == 1  # else a repeat may have come before the batch
        return same and self.place < other.place

    @property
    def received(self) -> tuple[int, int]:
        if self.seen is not None:
            return self.seen["received_at"], self.seen["received_at"]
        return min(put.start for put in self.puts), max(put.end for put in self.puts)

    @property
    def expires(self) -> tuple[int, int]:
        if self.seen is not None:
            at = self.seen["expires_at"]
            return (FOREVER, FOREVER) if at is None else (at, at)
        kept = retention(self.drafts[self.puts[0].name], self.settings)
        first, last = self.received
        return (first + kept, last + kept) if kept else (FOREVER, FOREVER)

    @property
    def is_over(self) -> bool:
        return not self.open and all(guess.kind in ("gone", "absent") for guess in self.guesses)

    def came_from(self, put: Operation, place: int) -> None:
        """That put, or a repeat of it, made the message."""
        if not self.puts:
            self.place = (put.begun, place)
        self.puts.append(put)
        self.drafts[put.name] = put.asked["drafts"][place]

    def answer(self, operation: Operation, now: int) -> bool:
        """The operation has taken effect by now; whether that can be."""
        explained = {guess for guess in self._orders(now, operation.name) if operation.name in guess.applied}
        if explained:
            del self.open[operation.name]
            self.guesses = {guess._replace(applied=guess.applied - {operation.name}) for guess in explained}
        return bool(explained)

    def show(self, message: Record | None, start: int, end: int, must: str | None = None) -> bool:
        """The message was listed so, or not, at a moment from start to end; whether that can be."""
        explained = {
            shown
            for guess in self._orders(end)
            if must is None or must in guess.applied
            for later in self.passing(guess, start, end)
            for shown in _as_shown(later, message, start, end)
        }
        if explained:
            self.guesses = explained
        return bool(explained)

    def forget_open(self) -> None:
        """What was open at the crash has taken effect by now or never will."""
        self.open.clear()
        self.guesses = {guess._replace(applied=frozenset()) for guess in self.guesses}

    def _orders(self, now: int, wanted: str | None = None) -> set[Guess]:
        """Every state that any order of the open operations may have led to; with one wanted, up to that one."""
        reached = set(self.guesses)
        todo = list(reached)
        while todo:
            guess = todo.pop()
            if wanted is not None and wanted in guess.applied:
                continue
            for operation in self.open.values():
                if operation.name in guess.applied:
                    continue
                for after in self._after(operation, guess, now):
                    if operation.told is None and after._replace(time=guess.time) == guess:
                        continue  # as if it had not happened
                    after = after._replace(applied=guess.applied | {operation.name})
                    if after not in reached:
                        reached.add(after)
                        todo.append(after)
        return reached

    def _after(self, operation: Operation, guess: Guess, now: int) -> Iterator[Guess]:
        first, last = max(guess.time, operation.start), min(operation.end, now)
        exact = self._moment(operation, guess)
        if exact is not None:
            if not first <= exact <= last:
                return
            first = last = exact
        if first > last:
            return
        for state in self.passing(guess, first, last):
            yield from _EFFECTS[operation.do](self, operation, state._replace(time=first), first, last)

    def _moment(self, operation: Operation, guess: Guess) -> int | None:
        """When the operation took effect, where that was told."""
        if operation.do == "put" and guess.kind == "absent" and self.seen is not None and self.prompt:
            return int(self.seen["received_at"])
        message = self._told(operation)
        return None if message is None else int(message["claimed_at"])

    def _told(self, operation: Operation) -> Record | None:
        if operation.told is None or operation.do not in ("claim", "pop"):
            return None
        messages: list[Record] = operation.told["messages"]
        return next(message for message in messages if message["id"] == self.id)

    def passing(self, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        """What time alone may have made of it at a moment from first to last."""
        keep_done = self.settings.keep_done
        states = [guess]
        if guess.kind == "held" and guess.first <= last:
            states = [self._ended(guess, guess.first, min(guess.last, last), 0)]
            if guess.last > first:
                states.append(guess._replace(first=max(guess.first, first + 1)))
        elif guess.kind == "done" and keep_done is not None and guess.first + milliseconds(keep_done) <= last:
            states = [_gone(guess)]
            if guess.last + milliseconds(keep_done) > first:
                states.append(guess)
        soonest, latest = self.expires
        for state in states:
            if state.kind in ("absent", "gone"):
                yield state
                continue
            if soonest <= last:
                yield _gone(state)
            if latest > first:
                yield state

    def _ended(self, guess: Guess, first: int, last: int, delay: int) -> Guess:
        most = self.settings.max_attempts
        failed = most and guess.attempts >= most
        return guess._replace(
            kind="failed" if failed else "waiting",
            first=first if failed else first + delay,
            last=last if failed else last + delay,
            receipt=None,
            consumer=None,
        )

    # What each operation does, as far as it can: nothing yielded means that it cannot have happened so.

    def _put(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        draft = self.drafts[operation.name]
        if guess.kind == "absent":
            delay = milliseconds(draft["delay"])
            if self.seen is not None:
                first = last = int(self.seen["received_at"])
            yield guess._replace(kind="waiting", first=first + delay, last=last + delay)
        elif draft["key"] is not None and first < self.received[1] + FIVE_MINUTES:
            yield guess  # a repeat

    def _claim(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        if guess.kind != "waiting" or guess.first > last:
            return
        message = self._told(operation)
        lease = lease_of(operation, self.settings)
        held = guess._replace(
            kind="held",
            attempts=guess.attempts + 1,
            first=first + lease,
            last=last + lease,
            receipt=None if message is None else message["receipt"],
            consumer=operation.asked["consumer"],
        )
        if message is None or (
            message["attempts"] == held.attempts and guess.first <= message["visible_at"] <= guess.last
        ):
            yield held
        if operation.raised:  # a consumer that is interrupted gives back what it got
            yield held._replace(kind="waiting", first=first, last=last, receipt=None, consumer=None)

    def _pop(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        message = self._told(operation)
        if guess.kind != "waiting" or guess.first > last:
            return
        if message is None or message["attempts"] == guess.attempts + 1:
            yield self._finished(guess._replace(attempts=guess.attempts + 1), first, last)

    def _settle(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        how, lost = operation.do, None if operation.told is None else set(operation.told["lost"])
        for receipt in dict.fromkeys(operation.asked["receipts"]):
            if self.id != operation.asked["ids"].get(receipt):
                continue
            if guess.kind == "held" and guess.receipt == receipt:
                if lost is not None and receipt in lost:
                    return
                guess = self._settled(operation, guess, first, last)
            elif lost is not None:
                repeated = [old for old in guess.settled if (old.receipt, old.how) == (receipt, how)]
                must = any(last <= old.first + FIVE_MINUTES for old in repeated)
                if (must and receipt in lost) or (not repeated and receipt not in lost):
                    return
        yield guess

    def _settled(self, operation: Operation, guess: Guess, first: int, last: int) -> Guess:
        if operation.do == "extend":
            lease = lease_of(operation, self.settings)
            return guess._replace(first=first + lease, last=last + lease)
        if operation.do == "release":
            return self._released(guess, first, last)
        guess = _used(guess, operation.do, first, last)
        if operation.do == "ack":
            return self._finished(guess, first, last)
        return self._ended(guess, first, last, milliseconds(operation.asked["delay"]))

    def _released(self, guess: Guess, first: int, last: int) -> Guess:
        used = _used(guess, "release", first, last)
        return used._replace(kind="waiting", first=first, last=last, receipt=None, consumer=None)

    def _finished(self, guess: Guess, first: int, last: int) -> Guess:
        if self.settings.keep_done == 0:
            return _gone(guess)
        return guess._replace(kind="done", first=first, last=last, receipt=None, consumer=None)

    def _remove(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        there = guess.kind not in ("absent", "gone")
        count = None if operation.told is None else operation.told["count"]
        if (count == 0 and there) or (count == len(set(operation.asked["ids"])) and not there):
            return
        yield _gone(guess) if there else guess

    def _revoke(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        is_held = guess.kind == "held"
        count = None if operation.told is None else operation.told["count"]
        if (count == 0 and is_held) or (count == len(set(operation.asked["ids"])) and not is_held):
            return
        yield self._released(guess, first, last) if is_held else guess

    def _redrive(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        if guess.kind != "failed":
            yield guess
        elif operation.told is None or operation.told["count"]:
            yield guess._replace(kind="waiting", attempts=0, first=first, last=last)

    def _purge(self, operation: Operation, guess: Guess, first: int, last: int) -> Iterator[Guess]:
        yield guess if guess.kind in ("held", "absent", "gone") else _gone(guess)


def _used(guess: Guess, how: str, first: int, last: int) -> Guess:
    """Its receipt has been used; of a claim without an answer nobody knows it."""
    if guess.receipt is None:
        return guess
    return guess._replace(settled=(*guess.settled, Settled(guess.receipt, how, first, last)))


_EFFECTS: dict[str, Callable[[Life, Operation, Guess, int, int], Iterator[Guess]]] = {
    "put": Life._put,
    "claim": Life._claim,
    "pop": Life._pop,
    **dict.fromkeys(SETTLING, Life._settle),
    "remove": Life._remove,
    "revoke": Life._revoke,
    "redrive": Life._redrive,
    "purge": Life._purge,
}
_SHOWN_AS = {"delayed": "waiting", "available": "waiting", "in_flight": "held", "done": "done", "failed": "failed"}


def retention(draft: Record, settings: Settings) -> int:
    """For how long a message is kept, in milliseconds; 0 = for ever."""
    return milliseconds(settings.retention if draft["retention"] is None else draft["retention"])


def lease_of(operation: Operation, settings: Settings) -> int:
    return milliseconds(min(operation.asked["lease"], settings.max_lease))


def _gone(guess: Guess) -> Guess:
    return guess._replace(kind="gone", first=0, last=0, receipt=None, consumer=None)


def _as_shown(guess: Guess, message: Record | None, start: int, end: int) -> Iterator[Guess]:
    """The guess, sharpened by what a listing shows, unless that contradicts it."""
    if message is None:
        if guess.kind in ("absent", "gone"):
            yield guess._replace(time=max(guess.time, start))
        return
    if (guess.kind, guess.attempts) != (_SHOWN_AS[message["state"]], message["attempts"]):
        return
    if guess.kind == "held" and guess.consumer != message["consumer"]:
        return
    shown = {"waiting": "visible_at", "held": "lease_until", "done": "settled_at", "failed": "settled_at"}
    at = message[shown[guess.kind]]
    if not guess.first <= at <= guess.last:
        return
    if (message["state"] == "delayed" and at <= start) or (message["state"] == "available" and at > end):
        return
    yield guess._replace(first=at, last=at, time=max(guess.time, start))
