"""Settings of a queue (create, update), checks of numbers and texts, and QueueInfo."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, SupportsIndex, TypedDict

from penstock.contract import names
from penstock.errors import InvalidArgument, NotSupported

LOWEST_PRIORITY = -(2**63)
HIGHEST_PRIORITY = 2**63 - 1
MAX_PAYLOAD = 16_777_216
MAX_COUNT = 4_294_967_295
MAX_LABELS = 65_535  # bytes
MAX_SECONDS = 4_294_967_295  # 136 years: what fits the narrowest format, and keeps every time in 64 bits
_ADDED = ("lease", "delay", "backoff", "dead_letter", "labels")  # settings that the first version did not have
FIVE_MINUTES = 300_000  # how long idempotency keys and settled receipts are remembered, in milliseconds


def seconds(name: str, value: float) -> float:
    """The duration; TypeError, InvalidArgument unless it is 0 to MAX_SECONDS."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    if not 0 <= value <= MAX_SECONDS:  # neither is NaN
        raise InvalidArgument(f"{name}={value!r} is not a duration; give 0 to {MAX_SECONDS} seconds")
    return value


def whole(name: str, value: int, lowest: int, highest: int) -> int:
    """The integer; TypeError, InvalidArgument unless it is within the limits."""
    if type(value) is not int:
        try:
            value = index(value)
        except TypeError:
            raise TypeError(f"{name} is an integer, not {type(value).__name__}") from None
    if not lowest <= value <= highest:
        raise InvalidArgument(f"{name}={value} is out of range; give {lowest} to {highest}")
    return value


def index(value: SupportsIndex) -> int:
    """The integer; TypeError for other types, bool included."""
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def utf8(name: str, value: str) -> bytes:
    """The UTF-8 of a text; InvalidArgument for lone surrogates."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} {value!r} is not valid Unicode text: {error.reason}") from None


def text(name: str, value: str, shortest: int, longest: int) -> str:
    """The text; TypeError, InvalidArgument unless its UTF-8 has shortest to longest bytes."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    size = len(utf8(name, value))
    if not shortest <= size <= longest:
        raise InvalidArgument(f"{name} has {size} bytes; give {shortest} to {longest} bytes of UTF-8")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a queue does. Unpacks, so that `store.create("b", **a.settings)` makes another like it.

    Attributes:
        max_size: most messages that wait or are in flight; 0 = no limit
        max_attempts: claims after which a message that is not acknowledged is failed; 0 = no limit
        keep_done: seconds for which acknowledged messages stay listed; 0 = not kept, None = for ever
        filter: which published messages enter the queue (SQL, for example "type = 'order'"); None = none
        start: from where in the log a filtered queue takes published messages; "now" unless the store has a log
        max_payload: largest payload in bytes, at most 16 MiB
        priorities: (lowest, highest) that producers may use; None = every signed 64-bit number
        max_lease: longest lease in seconds that a consumer gets
        retention: seconds after which messages are dropped, unless a put says otherwise; 0 = never
        description: for people
        lease: seconds that a claim lasts, unless it says otherwise
        delay: seconds until a message is available, unless its put says otherwise
        backoff: (first seconds, factor, most seconds) until a message comes back after a fail that names no delay
        dead_letter: the queue of this store that takes the messages that fail for good; None = they stay, failed
        labels: texts by name, for people and tools
    """

    max_size: int = 0
    max_attempts: int = 5
    keep_done: float | None = 0
    filter: str | None = None
    start: str | int = "now"
    max_payload: int = MAX_PAYLOAD
    priorities: tuple[int, int] | None = None
    max_lease: float = 43_200
    retention: float = 0
    description: str = ""
    lease: float = 30
    delay: float = 0
    backoff: tuple[float, float, float] | None = None
    dead_letter: str | None = None
    labels: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)
        keep("max_size", whole("max_size", self.max_size, 0, MAX_COUNT))
        keep("max_attempts", whole("max_attempts", self.max_attempts, 0, 65_535))
        keep("max_payload", whole("max_payload", self.max_payload, 0, MAX_PAYLOAD))
        if self.keep_done is not None:
            seconds("keep_done", self.keep_done)
        seconds("retention", self.retention)
        if seconds("max_lease", self.max_lease) == 0:
            raise InvalidArgument("max_lease=0 would end every lease at once; give the longest lease in seconds")
        if self.priorities is not None:
            keep("priorities", _priority_range(self.priorities))
        if not isinstance(self.filter, str | None):
            raise TypeError(f"filter is a str or None, not {type(self.filter).__name__}")
        text("description", self.description, 0, 1_000)
        if seconds("lease", self.lease) == 0:
            raise InvalidArgument("lease=0 would end every lease at once; give the seconds that the work may take")
        seconds("delay", self.delay)
        if self.backoff is not None:
            keep("backoff", _backoff(self.backoff))
        if self.dead_letter is not None:
            keep("dead_letter", names.checked(self.dead_letter))
        if self.labels is not None:
            keep("labels", _labels(self.labels))

    def keys(self) -> list[str]:
        """The settings' names."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def stored(self) -> dict[str, Any]:
        """The settings for a file or a request: later ones only if they are not the default.

        So a store without them can be read by the versions before.
        """
        return {name: value for name in self.keys() if (value := self[name]) != _LATER.get(name, _LATER)}

    def granted(self, lease: float | None) -> float:
        """Seconds of the lease that a consumer gets who asks for so many; None: for none."""
        return min(self.lease if lease is None else lease, self.max_lease)

    def waiting(self, delay: float | None) -> float:
        """Seconds until a message is available that was put with this delay; None: with none."""
        return self.delay if delay is None else delay

    def backoff_of(self, attempts: int) -> float:
        """Seconds until a message comes back after so many attempts, if its fail names no delay."""
        if self.backoff is None:
            return 0
        first, factor, most = self.backoff
        try:
            return min(first * factor ** max(0, attempts - 1), most)
        except OverflowError:
            return most

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """A copy with changes; NotSupported for a changed `start`, which is fixed at creation."""
        if changes.get("start", self.start) != self.start:
            raise NotSupported(
                f"start={changes['start']!r}: from where in the log a queue takes messages is decided when it is "
                f"created, here as {self.start!r}; leave start out, or create another queue"
            )
        return replace(self, **changes)


_LATER = {each.name: each.default for each in fields(Settings) if each.name in _ADDED}


class Changes(TypedDict, total=False):
    """Settings to change; the others stay."""

    max_size: int
    max_attempts: int
    keep_done: float | None
    filter: str | None
    start: str | int
    max_payload: int
    priorities: tuple[int, int] | None
    max_lease: float
    retention: float
    description: str
    lease: float
    delay: float
    backoff: tuple[float, float, float] | None
    dead_letter: str | None
    labels: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as `store.queues()` lists it.

    Attributes:
        name: the queue's name
        settings: its settings
        counts: how many messages are in each state
        lag: entries of the store's log that a filtered queue has not taken yet; None: no log, or no filter
    """

    name: str
    settings: Settings
    counts: dict[str, int]
    lag: int | None = None


def _priority_range(given: Iterable[int]) -> tuple[int, int]:
    try:
        lowest, highest = given
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"priorities={given!r} is not a range; give (lowest, highest), or None for all"
        ) from None
    lowest = whole("the lowest of priorities", lowest, LOWEST_PRIORITY, HIGHEST_PRIORITY)
    highest = whole("the highest of priorities", highest, LOWEST_PRIORITY, HIGHEST_PRIORITY)
    if lowest > highest:
        raise InvalidArgument(f"priorities=({lowest}, {highest}) is empty; give (lowest, highest)")
    return lowest, highest


def _backoff(given: Iterable[float]) -> tuple[float, float, float]:
    try:
        first, factor, most = given
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"backoff={given!r}; give (first seconds, factor, most seconds), for example (1, 2, 300), or None"
        ) from None
    seconds("the first of backoff", first)
    seconds("the most of backoff", most)
    if seconds("the factor of backoff", factor) < 1 or most < first:
        raise InvalidArgument(
            f"backoff=({first}, {factor}, {most}): the factor is at least 1, and the most at least the first"
        )
    return first, factor, most


def _labels(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise TypeError(f"labels are a dict of str: str, not {type(given).__name__}")
    size = 0
    for name, value in given.items():
        size += len(text("a label's name", name, 1, MAX_LABELS)) + len(
            text(f"label {name!r}", value, 0, MAX_LABELS)
        )
    if size > MAX_LABELS:
        raise InvalidArgument(f"labels of {size} characters; the most is {MAX_LABELS} altogether")
    return dict(given)
