"""Settings of a queue (create, update), checks of numbers and texts, and QueueInfo."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, SupportsIndex, TypedDict

from penstock.errors import InvalidArgument, NotSupported

LOWEST_PRIORITY = -(2**63)
HIGHEST_PRIORITY = 2**63 - 1
MAX_PAYLOAD = 16_777_216
MAX_COUNT = 4_294_967_295
MAX_SECONDS = 4_294_967_295  # 136 years: what fits the narrowest format, and keeps every time in 64 bits
FIVE_MINUTES = 300_000  # how long idempotency keys and settled receipts are remembered, in milliseconds


def seconds(name: str, value: float) -> float:
    """The duration; TypeError, InvalidArgument unless it is 0 to MAX_SECONDS."""
    if isinstance(value, bool) or not isinstance(value, int | float):
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

    def keys(self) -> list[str]:
        """The settings' names."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """A copy with changes; NotSupported for a changed `start`, which is fixed at creation."""
        if changes.get("start", self.start) != self.start:
            raise NotSupported(
                f"start={changes['start']!r}: from where in the log a queue takes messages is decided when it is "
                f"created, here as {self.start!r}; leave start out, or create another queue"
            )
        return replace(self, **changes)


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
