"""The extended attributes of a message in a folder store: parsing, checksums, attempts. Pure functions.

    penstock.order        the position in the order of arrival: 100 ns since 1582, as in the id
    penstock.priority     if it is not 0
    penstock.group        if it has one
    penstock.headers      JSON
    penstock.created_at, received_at, visible_at, expires_at    milliseconds; left out if equal to the order's time
    penstock.attempts     how many attempts have ended
    penstock.reason       why the last one failed; JSON
    penstock.history      the attempts that have ended; JSON
    penstock.receipt      the current or last lease: secret, attempts, time, consumer, reason before it; JSON
    penstock.settled_at   when it was done; valid only in done/
    penstock.ended        the secret of the last lease that has ended
    penstock.sum          CRC-32 of the content, and of the attributes that never change; older versions wrote none
    penstock.counted      CRC-32 of attempts, reason and history; valid unless the message is in flight
    penstock.move         queue, id and attributes in another queue; valid under a private name that says so; JSON

A JSON value that is too long for an attribute is in a file of `long/`; the attribute is then `@` and the file's
name. A message is in flight if it is in delay/ and its lease has not ended. While it is in flight only the receipt
is valid: the process that ends an attempt writes attempts, reason and history one after the other, and may die in
between.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from penstock.contract.message import Attempt, Message, State
from penstock.stores.folder import layout
from penstock.stores.folder.layout import DELAY, QUEUES

PREFIX = "penstock."
LONGEST = 600  # bytes of a value: three of them and all the small ones fit into the 4 KiB that ext4 has
_MOST = 100  # attempts that are kept
_HOLDER = (str, int, int, str, str | None)
_ENTRY = (int, str | None, int, int | None, str | None, str | None, bool, str)  # of a history; see with_attempt()
_FIXED = ("created_at", "expires_at", "group", "headers", "order", "priority", "received_at")


@dataclass(slots=True)
class Holder:
    """A lease, and the attempts and the reason of the message with it."""

    secret: str
    attempts: int
    claimed_at: int
    consumer: str
    reason: str | None = None  # of the attempt before; JSON or the name of a long value

    def to_bytes(self) -> bytes:
        """The attribute `receipt`: JSON that ends with a checksum."""
        values = [self.secret, self.attempts, self.claimed_at, self.consumer, self.reason]
        return _json([*values, zlib.crc32(_json(values))])


@dataclass(slots=True)
class Stamp:
    """The parsed attributes of a message. Headers, reason and history are JSON, or the name of a long value."""

    order: int
    priority: int = 0
    created_at: int | None = None
    received_at: int | None = None
    visible_at: int | None = None
    expires_at: int | None = None
    attempts: int = 0
    headers: str | None = None
    reason: str | None = None
    history: str | None = None
    holder: Holder | None = None
    ended: str | None = None
    settled_at: int | None = None
    stamped: bool = True  # False: a file of a person or another program
    group: str | None = None
    sound: bool = True  # whether the checksum of the attributes that never change is right
    found: Mapping[str, bytes] = field(default_factory=dict, compare=False)  # the raw attributes

    @property
    def is_held(self) -> bool:
        """Whether the message is in flight, if it is in delay/."""
        return self.holder is not None and self.holder.secret != self.ended

    @property
    def received(self) -> int:
        """When the message was put."""
        return layout.time_of(self.order) if self.received_at is None else self.received_at

    @property
    def visible(self) -> int:
        """When it became or becomes available."""
        return self.received if self.visible_at is None else self.visible_at

    def to_attributes(self) -> dict[str, bytes]:
        """The attributes of a new message."""
        numbers = {"order": self.order, "created_at": self.created_at, "expires_at": self.expires_at}
        numbers |= {
            "priority": self.priority or None,
            "received_at": self.received_at,
            "visible_at": self.visible_at,
        }
        values = {name: str(value).encode() for name, value in numbers.items() if value is not None}
        if self.headers is not None:
            values["headers"] = self.headers.encode()
        if self.group is not None:
            values["group"] = self.group.encode()
        return values | self._past()

    def _past(self) -> dict[str, bytes]:
        """The attributes that only a message restored from another store has."""
        texts = {"reason": self.reason, "history": self.history, "ended": self.ended}
        values = {name: value.encode() for name, value in texts.items() if value is not None}
        if self.holder is not None:
            values["receipt"] = self.holder.to_bytes()
        if self.settled_at is not None:
            values["settled_at"] = b"%d" % self.settled_at
        if self.attempts or values:
            values["attempts"] = b"%d" % self.attempts
            values["counted"] = counted(self.attempts, self.reason, self.history)
        return values


def parse(uid: str, attributes: Mapping[str, bytes]) -> Stamp:
    """Parse attributes; a value that cannot be parsed, as after a change by hand, is treated as missing."""
    if not attributes:
        return Stamp(layout.order_of(uid), stamped=False)
    found = {name[len(PREFIX) :]: value for name, value in attributes.items() if name.startswith(PREFIX)}

    def number(name: str) -> int | None:
        try:
            return int(found[name])
        except (KeyError, ValueError):
            return None

    def text(name: str) -> str | None:
        return found[name].decode(errors="replace") if found.get(name) else None

    order = number("order")
    sound = "sum" not in found or found["sum"][9:] == b"%08x" % _fixed_sum(found)
    return Stamp(
        layout.order_of(uid) if order is None else order,
        number("priority") or 0,
        number("created_at"),
        number("received_at"),
        number("visible_at"),
        number("expires_at") if sound else None,  # a changed attribute must not expire a message
        number("attempts") or 0,
        text("headers"),
        text("reason"),
        text("history"),
        _holder(found.get("receipt")),
        text("ended"),
        number("settled_at"),
        order is not None,
        text("group"),
        sound,
        found,
    )


def _holder(value: bytes | None) -> Holder | None:
    try:
        secret, attempts, claimed_at, consumer, reason, *rest = found = json.loads(value or b"")
    except (ValueError, TypeError):
        return None
    if rest and rest != [zlib.crc32(_json(found[:5]))]:
        return None  # damaged: the message comes back when its time in delay/ is over
    values = (secret, attempts, claimed_at, consumer, reason)
    fits = all(isinstance(value, kind) for value, kind in zip(values, _HOLDER, strict=True))
    return Holder(*values) if fits else None


def checksum(payload: bytes, values: Mapping[str, bytes]) -> bytes:
    """The attribute `sum`, of a message's content and of the attributes that never change."""
    return b"%08x %08x" % (zlib.crc32(payload), _fixed_sum(values))


def _fixed_sum(values: Mapping[str, bytes]) -> int:
    return zlib.crc32(b"".join(b"%b=%b\n" % (name.encode(), values[name]) for name in _FIXED if name in values))


def counted(attempts: int, reason: str | None, history: str | None) -> bytes:
    """The attribute `counted`."""
    return b"%08x" % zlib.crc32(f"{attempts}\n{reason or ''}\n{history or ''}".encode())


@dataclass(frozen=True)
class Move:
    """The attribute `move`: what a message is in the queue that it goes to."""

    queue: str  # the queue's file name
    uid: str
    at: int  # when it moves
    until: int  # the end of its delay; 0: it is available
    created_at: int
    headers: str | None  # their attribute; None: it stays as it is

    @property
    def folder(self) -> str:
        """The folder that it goes to."""
        return DELAY if self.until else QUEUES

    def to_bytes(self) -> bytes:
        """The attribute: JSON that ends with a checksum."""
        values = [self.queue, self.uid, self.at, self.until, self.created_at, self.headers]
        return _json([*values, zlib.crc32(_json(values))])

    def attributes(self, found: Mapping[str, bytes], payload: bytes) -> dict[str, bytes]:
        """The message's attributes in that queue, where it starts over.

        They do not depend on those that they replace, so that any process may write them again.
        """
        order = layout.order_of(self.uid)
        times = [] if layout.time_of(order) == self.at else ["received_at"]
        times += ["visible_at"] if times or self.until else []
        numbers = {"order": order, "created_at": self.created_at, "attempts": 0}
        numbers |= {name: self.until or self.at if name == "visible_at" else self.at for name in times}
        empty = ("received_at", "visible_at", "receipt", "ended", "reason", "history", "settled_at")
        values = dict.fromkeys(empty, b"") | {name: b"%d" % value for name, value in numbers.items()}
        if self.headers is not None:
            values["headers"] = self.headers.encode()
        return {
            **values,
            "sum": checksum(payload, {**found, **values}),
            "counted": counted(0, None, None),
        }


def move_of(found: Mapping[str, bytes]) -> Move | None:
    """The parsed attribute `move`; None if there is none, or it is damaged."""
    try:
        *values, crc = json.loads(found.get("move") or b"")
    except (ValueError, TypeError):
        return None
    if crc != zlib.crc32(_json(values)) or len(values) != len(fields(Move)):
        return None
    move = Move(*values)
    return move if layout.is_id(move.uid) and "/" not in move.queue else None


def damage(stamp: Stamp, payload: bytes) -> str | None:
    """How a message differs from its checksums; None if it does not, or has none."""
    found = stamp.found
    if not stamp.sound:
        return "its attributes are not what was put"
    if "sum" in found and found["sum"][:8] != b"%08x" % zlib.crc32(payload):
        return "its content is not what was put"
    counts = counted(stamp.attempts, stamp.reason, stamp.history)
    if found.get("counted") not in (None, counts) and not stamp.is_held:
        return "its attributes `attempts`, `reason` or `history` were changed"
    return None


@dataclass(slots=True)
class Details:
    """The headers, the reason and the history of a message, parsed."""

    headers: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    history: list[list[Any]] = field(default_factory=list)


def message(
    uid: str, queue: str, payload: bytes, stamp: Stamp, details: Details, state: str, until: int
) -> Message:
    """The message for callers; `until` is the end of its delay or lease, or when it was settled."""
    received = stamp.received
    seen = Message(
        uid, queue, payload, details.headers, stamp.priority,
        received if stamp.created_at is None else stamp.created_at,
        received, stamp.visible, stamp.expires_at, stamp.attempts, cast("State", state), reason=details.reason,
        group=stamp.group,
    )  # fmt: skip
    if state == "delayed":
        seen.visible_at = until
    elif state in ("in_flight", "done", "failed"):
        if stamp.holder is not None:
            seen.claimed_at, seen.consumer = stamp.holder.claimed_at or None, stamp.holder.consumer or None
            if state != "failed":
                seen.attempts = stamp.holder.attempts
        if state == "in_flight":
            seen.lease_until = until
            seen.attempts = max(seen.attempts, 1)  # without attributes nothing counts them
        else:
            seen.settled_at = until
    return seen


def attempts_of(stamp: Stamp, details: Details, state: str, until: int) -> list[Attempt]:
    """The attempts at a message, including the running or acknowledged one."""
    running = stamp.holder if state in ("in_flight", "done") else None
    past = [entry for entry in details.history if running is None or entry[-1] != running.secret]
    attempts = [Attempt(*entry[:6]) for entry in past]
    if running is not None:
        ended = (until, "acked") if state == "done" else (None, None)
        attempts.append(Attempt(running.attempts, running.consumer, running.claimed_at, *ended))
    return attempts


def with_attempt(
    history: list[list[Any]], holder: Holder, at: int, outcome: str, reason: str | None, settled: bool
) -> list[list[Any]]:
    """The history with the attempt of a lease that has ended; `settled`: by its consumer, not by time."""
    past = [entry for entry in history if entry[-1] != holder.secret]
    entry = [holder.attempts, holder.consumer, holder.claimed_at, at, outcome, reason, settled, holder.secret]
    return [*past, entry][-_MOST:]


def sound_history(found: list[Any]) -> list[list[Any]]:
    """The entries of a history that have the right types; others are dropped."""
    return [
        each
        for each in found
        if isinstance(each, list) and len(each) == len(_ENTRY) and all(map(isinstance, each, _ENTRY))
    ]


def outcome_of(history: list[list[Any]], secret: str, since: int) -> str | None:
    """How the attempt with a secret was settled since a time; None if it was not."""
    return next((entry[4] for entry in history if entry[-1] == secret and entry[6] and entry[3] >= since), None)


def to_json(value: object) -> str:
    """The JSON of a value, as attributes hold it."""
    return _json(value).decode()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
