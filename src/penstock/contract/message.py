"""Messages: Draft goes into a queue, Message comes out of it; checks of payloads, headers and times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, cast, get_args, overload

from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, MAX_PAYLOAD, index, seconds, text, utf8
from penstock.errors import InvalidArgument, InvalidPriority, NotSupported, PayloadTooLarge

if TYPE_CHECKING:
    from penstock.contract.arrow import TableBuilder
    from penstock.contract.store import Queue

State: TypeAlias = Literal["delayed", "available", "in_flight", "done", "failed"]
"""The state of a message."""
STATES = get_args(State)
OUTCOMES = ("acked", "failed", "released")
MAX_HEADERS = 255
MAX_HEADER_BYTES = 65_535
MAX_KEY = 255
MAX_GROUP = 255  # bytes
MAX_MESSAGES = 100_000  # of a batch that travels
LATEST = 253_402_300_799_999  # the last millisecond of the year 9999: what every reader of timestamps can show
PUBLISH_HEADER = "penstock.publish"
SQS_HEADER = "penstock.sqs"  # what a message of SQS has beyond headers (http/server/sqs/messages.py)
ORIGIN_HEADER, REASON_HEADER = "penstock.origin", "penstock.reason"  # of dead letters
_RESERVED = "penstock."
_OWN_BYTES = {PUBLISH_HEADER: 64, ORIGIN_HEADER: 512, REASON_HEADER: 4_096}  # name and value, at most
_SHOWN, _SHOWN_HEADERS = 60, 5  # bytes or characters of a value, and headers, in a repr
Payload: TypeAlias = bytes | str | bytearray | memoryview


class Attempt(NamedTuple):
    """One claim of a message; the last may still be running. Times are milliseconds since the epoch.

    Attributes:
        attempt: its number, from 1
        consumer: who claimed the message
        claimed_at: when it was claimed
        ended_at: when it was settled or its lease ended; None = it is running
        outcome: "acked", "failed" or "released"; None = it is running
        reason: why it failed
    """

    attempt: int
    consumer: str | None
    claimed_at: int
    ended_at: int | None = None
    outcome: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class Draft:
    """A message to put, with the arguments of `Queue.put`."""

    payload: Payload
    priority: int = 0
    headers: Mapping[str, str] | None = None
    delay: float | None = None
    retention: float | None = None
    key: str | None = None
    created_at: int | None = None
    group: str | None = None


@dataclass(slots=True)
class Entry:
    """A checked draft, as backends get it."""

    payload: bytes
    priority: int = 0
    headers: dict[str, str] | None = None
    delay: float | None = None  # None: the queue's; retention likewise
    retention: float | None = None
    key: str | None = None
    created_at: int | None = None
    group: str | None = None


@dataclass(slots=True)
class Moved(Entry):
    """A message from another store, with its state and attempts there; in_flight ones become available."""

    received_at: int | None = None  # None = now
    visible_at: int | None = None  # None = when it was received
    expires_at: int | None = None  # None = never
    state: str = "available"
    attempts: int = 0
    claimed_at: int | None = None
    settled_at: int | None = None
    consumer: str | None = None
    reason: str | None = None
    history: Sequence[Attempt] = ()

    @property
    def waits(self) -> bool:
        """Whether it is neither done nor failed."""
        return self.state not in ("done", "failed")


class Plain(Sequence[Entry]):
    """Many entries with only a payload, without an object for each."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> Plain: ...
    def __getitem__(self, at: int | slice) -> Entry | Plain:
        return Plain(self.payloads[at]) if isinstance(at, slice) else Entry(self.payloads[at])


def groups_of(entries: Sequence[Entry]) -> Sequence[str | None]:
    """The group of each entry, or None; empty if no entry has one."""
    groups = [] if isinstance(entries, Plain) else [entry.group for entry in entries]
    return groups if any(groups) else ()


@dataclass(slots=True)
class Message:
    """A message at the time it was read. Times are milliseconds since the epoch; None = does not apply.

    Attributes:
        id: its name in the store, an opaque text
        queue: the queue's name
        payload: the bytes that were put
        headers: texts by name
        priority: lower comes first
        created_at: when the producer made it
        received_at: when the store took it
        visible_at: when it becomes, or became, available
        expires_at: when it is dropped; None = never
        attempts: how often it was claimed
        state: "delayed", "available", "in_flight", "done" or "failed"
        receipt: what settles it, new with each claim
        claimed_at: when it was last claimed
        lease_until: when the lease ends and another consumer gets it
        consumer: who last claimed it
        settled_at: when it was done, or failed for good
        reason: why it last failed
    """

    id: str
    queue: str
    payload: bytes
    headers: dict[str, str]
    priority: int
    created_at: int
    received_at: int
    visible_at: int
    expires_at: int | None
    attempts: int
    state: State
    receipt: str | None = None
    claimed_at: int | None = None
    lease_until: int | None = None
    consumer: str | None = None
    settled_at: int | None = None
    reason: str | None = None
    group: str | None = None
    _handle: Queue | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """The work is done: settle the message for good."""
        self._claimed_from().ack(self)

    def fail(self, delay: float | None = None, reason: str | None = None) -> None:
        """The work failed: try again after `delay` seconds (None: the queue's backoff), or end as failed."""
        self._claimed_from().fail(self, delay=delay, reason=reason)

    def release(self) -> None:
        """Give the message back unworked; another consumer gets it at once."""
        self._claimed_from().release(self)

    def extend(self, lease: float | None = None) -> None:
        """Hold the message for `lease` seconds from now (None: the queue's own)."""
        self._claimed_from().extend(self, lease=lease)

    def json(self) -> Any:
        """The payload, parsed as JSON. InvalidArgument, which is a ValueError, if it is none."""
        try:
            return json.loads(self.payload)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"the payload of message {self.id} of queue {self.queue!r} is not JSON: {error}"
            ) from error

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in MESSAGE_FIELDS)
        shown = [f"{name}={_short(value)}" for name, value in values if value is not None]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[partial[Self], tuple[()]]:
        # Without the queue: another process does not have this one's store open.
        return partial(type(self), **{name: getattr(self, name) for name in MESSAGE_FIELDS}), ()

    def __copy__(self) -> Self:
        return replace(self)

    def _claimed_from(self) -> Queue:
        if self.receipt is None:
            raise InvalidArgument(
                f"message {self.id} of queue {self.queue!r} was not claimed, so it cannot be settled: use claim()"
            )
        if self._handle is None:
            raise InvalidArgument(
                f"message {self.id} of queue {self.queue!r} was unpickled, and does not know its store: open the "
                f"store, and call the queue's method, as in store.queue({self.queue!r}).ack(message.receipt)"
            )
        return self._handle


def checked(item: Draft | Payload, restored: bool = False) -> Entry:
    """The draft as a checked Entry; TypeError, InvalidArgument. `restored`: it was a message of another store."""
    if type(item) is bytes:
        return Entry(item)
    if not isinstance(item, Draft):
        return Entry(_payload(item))
    return Entry(
        _payload(item.payload),
        _priority(item.priority),
        None if item.headers is None else checked_headers(item.headers, restored),
        None if item.delay is None else seconds("delay", item.delay),
        None if item.retention is None else seconds("retention", item.retention),
        None if item.key is None else text("key", item.key, 1, MAX_KEY),
        None if item.created_at is None else _time(item.created_at),
        None if item.group is None else text("group", item.group, 1, MAX_GROUP),
    )


def checked_many(items: Iterable[Draft | Payload]) -> Sequence[Entry]:
    """The arguments of put_many as checked entries; an error names the wrong item."""
    if isinstance(items, str | bytes | bytearray | memoryview | Draft):
        raise TypeError(f"put_many takes several messages, not one {type(items).__name__}: use put()")
    items = list(items)
    if len(items) > 1 and set(map(type, items)) == {bytes}:
        return Plain(cast("list[bytes]", items))
    entries = []
    for number, item in enumerate(items):
        try:
            entries.append(checked(item))
        except (TypeError, InvalidArgument) as error:
            error.add_note(f"in item {number} of put_many; nothing was put")
            raise
    return entries


MESSAGE_FIELDS = tuple(field.name for field in fields(Message) if not field.name.startswith("_"))


def _short(value: object) -> str:
    """A value in a repr. Only what is shown is made readable: a payload has up to 16 MB."""
    if isinstance(value, dict):
        first = [f"{_short(name)}: {_short(each)}" for name, each in islice(value.items(), _SHOWN_HEADERS)]
        return "{" + ", ".join(first) + ("}" if len(value) <= _SHOWN_HEADERS else f", ...}} ({len(value)})")
    if not isinstance(value, bytes | str) or len(value) <= _SHOWN:
        return repr(value)
    return f"{value[:_SHOWN]!r}... ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})"


def _payload(payload: object) -> bytes:
    if isinstance(payload, str):
        return utf8("payload", payload)
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(
        f"a payload is bytes or str, not {type(payload).__name__}: encode it first, as in json.dumps(payload)"
    )


def _priority(priority: int) -> int:
    try:
        return index(priority)
    except TypeError:
        raise TypeError(
            f"priority is an integer from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, not {type(priority).__name__}"
        ) from None


def checked_headers(headers: Mapping[str, str], restored: bool = False) -> dict[str, str]:
    """A checked copy of headers; TypeError, InvalidArgument. `restored`: those of dead letters are allowed."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers are a dict of str: str, not {type(headers).__name__}")
    copy = dict(headers)
    own = (_OWN_BYTES.keys() if restored else {PUBLISH_HEADER}) & copy.keys()  # Penstock's own, not counted
    if len(copy) - len(own) > MAX_HEADERS:
        raise InvalidArgument(
            f"{len(copy) - len(own)} headers; a message has at most {MAX_HEADERS}: put the rest into the payload"
        )
    size = 0
    for name, value in copy.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"headers are str: str, not {name!r}: {value!r}: convert the value with str()")
        if not name:
            raise InvalidArgument("a header without a name: name it")
        if name.startswith(_RESERVED) and name not in (*own, SQS_HEADER):
            raise InvalidArgument(f"header {name!r}: names that start with {_RESERVED!r} are Penstock's own")
        taken = len(utf8("header", name)) + len(utf8("header", value))
        size += 0 if name in own and taken <= _OWN_BYTES[name] else taken
    if size > MAX_HEADER_BYTES:
        raise InvalidArgument(
            f"headers of {size} bytes; the most is {MAX_HEADER_BYTES} altogether: put the rest into the payload"
        )
    return copy


def _time(created_at: int) -> int:
    try:
        time = index(created_at)
    except TypeError:
        raise TypeError(
            f"created_at is integer milliseconds since the epoch, not {type(created_at).__name__}"
        ) from None
    if not 0 <= time <= LATEST:
        raise InvalidArgument(
            f"created_at={time} is not a time from 1970 to 9999; give milliseconds since the epoch"
        )
    return time


def check_limits(entry: Entry) -> None:
    """Refuse a payload or priority that is beyond the limits of every queue."""
    if len(entry.payload) > MAX_PAYLOAD:
        raise PayloadTooLarge(
            f"a payload of {len(entry.payload)} bytes; the most is {MAX_PAYLOAD}: store it elsewhere and send its "
            "address"
        )
    if not LOWEST_PRIORITY <= entry.priority <= HIGHEST_PRIORITY:
        raise InvalidPriority(f"priority {entry.priority}; give {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")


def table_builder() -> TableBuilder:
    """Collects messages as an Arrow table; NotSupported without pyarrow."""
    try:
        from penstock.contract.arrow import TableBuilder  # here, because pyarrow is optional, and slow to import
    except ImportError as error:
        raise NotSupported(f"to_arrow() needs pyarrow ({error}): `pip install pyarrow`") from error
    return TableBuilder()
