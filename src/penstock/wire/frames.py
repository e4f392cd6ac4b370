"""Frames: a binary encoding of many messages, with any payloads, in few bytes and little time.

    u32 big-endian   length of the head
    head             a JSON object in UTF-8: "sizes", the length of each payload, and columns
    payloads         one right after the other

A column has the name of a field, and either a list with a value for each message, or one value (never a list) that
holds for all. A missing column has the default (drafts) or null (messages). There is no column `queue`: the
request names it. To add a field, add a column: readers of messages skip unknown columns, but a server refuses
those of drafts, because it must not drop what a producer asked for.
"""

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple

from penstock.contract import message
from penstock.contract.arguments import check_known
from penstock.contract.message import LATEST, MAX_MESSAGES, Draft, Entry, Message, Plain
from penstock.errors import InvalidArgument
from penstock.system.clock import at_least_one
from penstock.wire import jsons, restored

MEDIA_TYPE = "application/vnd.penstock.batch"
MAX_BYTES = 64 * 1024 * 1024
MAX_HEAD = 16 * 1024 * 1024  # of drafts: parsing a head takes many times its size in memory
_LARGE = 65_536  # payloads from this size on are not copied
_LENGTH = struct.Struct(">I")
_SIZES = "sizes"

_ENTRY_DEFAULTS = {field.name: field.default for field in fields(Entry) if field.name != "payload"}
_entry_values = attrgetter(*_ENTRY_DEFAULTS)

_TEXT, _TEXT_OR_NONE = (str,), (str, type(None))
_WHOLE, _WHOLE_OR_NONE = (int,), (int, type(None))
_MESSAGE_TYPES: dict[str, tuple[type, ...]] = {
    "id": _TEXT,
    "headers": (dict, type(None)),
    "priority": _WHOLE,
    "created_at": _WHOLE,
    "received_at": _WHOLE,
    "visible_at": _WHOLE,
    "expires_at": _WHOLE_OR_NONE,
    "attempts": _WHOLE,
    "state": _TEXT,
    "receipt": _TEXT_OR_NONE,
    "claimed_at": _WHOLE_OR_NONE,
    "lease_until": _WHOLE_OR_NONE,
    "consumer": _TEXT_OR_NONE,
    "settled_at": _WHOLE_OR_NONE,
    "reason": _TEXT_OR_NONE,
    "group": _TEXT_OR_NONE,
}
_message_values, _payload = attrgetter(*_MESSAGE_TYPES), attrgetter("payload")


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """A frame of drafts."""
    if isinstance(entries, Plain):
        return _join({}, entries.payloads)
    columns = {}
    for (name, default), column in zip(
        _ENTRY_DEFAULTS.items(), zip(*map(_entry_values, entries), strict=True), strict=False
    ):
        if column.count(default) != len(column):
            columns[name] = _column(column)
    return _join(columns, [entry.payload for entry in entries])


def decode_entries(body: bytes) -> Sequence[Entry]:
    """The checked drafts of a frame; InvalidArgument for a malformed one."""
    return _entries(*_split(body, MAX_HEAD))


class Staged(NamedTuple):
    """Drafts of a load, with the columns that only loads may have."""

    entries: Sequence[Entry]
    visible_at: list[int | None] | None
    expires_at: list[int | None] | None
    restored: restored.Columns | None


def decode_staged(body: bytes) -> Staged:
    """The checked drafts of a load's frame; InvalidArgument for a malformed one."""
    columns, payloads = _split(body, MAX_HEAD)
    for name, other in (("visible_at", "delay"), ("expires_at", "retention")):
        if name in columns and other in columns:
            raise InvalidArgument(f"a frame has the columns {name!r} and {other!r}: give one of them")
    visible_at, expires_at = (_times(name, columns, len(payloads)) for name in ("visible_at", "expires_at"))
    became = restored.take(columns, len(payloads))
    return Staged(_entries(columns, payloads, became is not None), visible_at, expires_at, became)


def with_times(body: bytes, now: int) -> bytes:
    """A valid frame with delays and retentions replaced by times, counted from now."""
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    head = body[_LENGTH.size : start]
    if b'"delay"' not in head and b'"retention"' not in head:
        return body
    columns = jsons.loads(head)
    for time, duration in (("visible_at", "delay"), ("expires_at", "retention")):
        if duration in columns:
            given = columns.pop(duration)
            column = given if isinstance(given, list) else [given] * len(columns[_SIZES])
            columns[time] = [_time_after(each, now, time == "expires_at") for each in column]
    return encode_columns(columns, columns.pop(_SIZES), [body[start:]])


def _time_after(seconds: float | None, now: int, never: bool) -> int | None:
    """When a duration ends; 0 seconds are 0 (never) where `never` is a value, else None."""
    if seconds:
        return now + at_least_one(seconds)
    return 0 if never and seconds is not None else None


def encode_columns(columns: dict[str, Any], sizes: list[int], payloads: Iterable[bytes | memoryview]) -> bytes:
    """A frame of valid columns and consecutive payloads."""
    return b"".join([_head(columns, sizes), *payloads])


def _head(columns: dict[str, Any], sizes: list[int]) -> bytes:
    head = jsons.dumps({_SIZES: sizes, **columns})
    return _LENGTH.pack(len(head)) + head


def _entries(columns: dict[str, Any], payloads: list[bytes], restored: bool = False) -> Sequence[Entry]:
    if not columns:
        return Plain(payloads) if payloads else []
    check_known(columns, _ENTRY_DEFAULTS, "a draft")
    values = [_values(name, columns, len(payloads), default) for name, default in _ENTRY_DEFAULTS.items()]
    entries: list[Entry] = []
    try:
        entries.extend(map(message.checked, map(Draft, payloads, *values), repeat(restored)))
    except (TypeError, InvalidArgument) as error:
        raise InvalidArgument(f"message {len(entries)} of the batch: {error}") from None
    return entries


def message_parts(messages: Sequence[Message], wanted: Collection[str] | None = None) -> list[bytes]:
    """A frame of messages, or of `wanted` fields, in parts: large payloads are not copied.

    Without the field payload, the payloads are empty.
    """
    columns: dict[str, Any] = {}
    for name, column in zip(_MESSAGE_TYPES, zip(*map(_message_values, messages), strict=True), strict=False):
        first = column[0]
        alike = column.count(first) == len(column)
        if not (alike and first is None) and (wanted is None or name in wanted):
            columns[name] = first if alike else column
    if wanted is not None and "payload" not in wanted:
        return [_head(columns, [0] * len(messages))]
    payloads = list(map(_payload, messages))
    parts, small = [], [_head(columns, list(map(len, payloads)))]
    for payload in payloads:
        if len(payload) < _LARGE:
            small.append(payload)
        else:
            parts += [b"".join(small), payload]
            small = []
    return [*parts, b"".join(small)] if small else parts


def decode_columns(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The columns and payloads of a frame of messages. Columns that are lists have a value for each message."""
    columns, payloads = _split(body, len(body))
    for name, column in columns.items():
        if type(column) is list:
            _check_length(name, column, len(payloads))
    return columns, payloads


def decode_messages(body: bytes, queue: str) -> list[Message]:
    """The messages of a frame; InvalidArgument for a malformed one."""
    columns, payloads = _split(body, len(body))
    if not payloads:
        return []
    values: list[Iterable[Any]] = []
    for name, allowed in _MESSAGE_TYPES.items():
        column = columns.get(name)
        if type(column) is not list:
            right = type(column) in allowed
            values.append(repeat(column))
        else:
            _check_length(name, column, len(payloads))
            right = set(map(type, column)).issubset(allowed)
            values.append(column)
        if not right:
            raise InvalidArgument(f"column {name!r} of a frame has values of a wrong type, or none")
    return [
        Message(each, queue, payload, dict(headers) if headers else {}, *rest)
        for payload, each, headers, *rest in zip(payloads, *values, strict=False)
    ]


def _column(values: tuple[Any, ...]) -> Any:
    return values[0] if values.count(values[0]) == len(values) else values


def _values(name: str, columns: dict[str, Any], count: int, default: object) -> Iterable[Any]:
    column = columns.get(name, default)
    if not isinstance(column, list):
        return repeat(column, count)
    _check_length(name, column, count)
    return column


def _check_length(name: str, column: list[Any], count: int) -> None:
    if len(column) != count:
        raise InvalidArgument(f"column {name!r} of a frame has {len(column)} values for {count} messages")


def _times(name: str, columns: dict[str, Any], count: int) -> list[int | None] | None:
    """Remove a column of times from a frame's columns, and check it."""
    column = columns.pop(name, None)
    if column is None:
        return None
    times: list[int | None] = column if isinstance(column, list) else [column] * count
    _check_length(name, times, count)
    given = [each for each in times if each is not None]
    if not set(map(type, given)) <= {int} or not 0 <= min(given, default=0) <= max(given, default=0) <= LATEST:
        raise InvalidArgument(f"column {name!r} of a frame has other things than times from 0 to {LATEST}")
    return times


def _join(columns: dict[str, Any], payloads: list[bytes]) -> bytes:
    return encode_columns(columns, list(map(len, payloads)), payloads)


def _split(body: bytes, longest: int) -> tuple[dict[str, Any], list[bytes]]:
    """A frame's columns and payloads; InvalidArgument for a head over `longest` bytes."""
    if len(body) < _LENGTH.size:
        raise InvalidArgument(f"a frame of {len(body)} bytes; it starts with the length of its head in 4 bytes")
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    if start > len(body):
        raise InvalidArgument(
            f"the head of a frame has {start - _LENGTH.size} bytes, but only {len(body) - _LENGTH.size} follow"
        )
    if start - _LENGTH.size > longest:
        raise InvalidArgument(f"the head of a frame has {start - _LENGTH.size} bytes; the most is {longest}")
    columns = jsons.loads(body[_LENGTH.size : start])
    if not isinstance(columns, dict):
        raise InvalidArgument("the head of a frame is a JSON object")
    sizes = columns.pop(_SIZES, None)
    if not isinstance(sizes, list) or not set(map(type, sizes)) <= {int} or min(sizes, default=0) < 0:
        raise InvalidArgument(f"{_SIZES!r} in the head of a frame is a list with the length of each payload")
    if len(sizes) > MAX_MESSAGES:
        raise jsons.too_many(len(sizes))
    ends = list(accumulate(sizes, initial=start))
    if ends[-1] != len(body):
        raise InvalidArgument(
            f"the payloads of a frame have {ends[-1] - start} bytes by their sizes, but {len(body) - start} follow"
        )
    return columns, [body[a:b] for a, b in pairwise(ends)]
