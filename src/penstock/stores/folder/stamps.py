"""What a message's extended attributes say, and how it is put into them. Pure functions.

    penstock.order        the place in the order of arrival: 100 ns since 1582, as in the id
    penstock.priority     if it is not 0
    penstock.headers      JSON
    penstock.created_at, received_at, visible_at, expires_at    milliseconds; left out if the order says it
    penstock.attempts     how many attempts have ended
    penstock.reason       why the last one failed; JSON
    penstock.history      the attempts that have ended; JSON
    penstock.receipt      who holds the message, or held it last; JSON, complete in itself
    penstock.settled_at   when it was done; counts only in done/
    penstock.ended        the secret of the last receipt that no longer holds
    penstock.sum          CRC-32 of the content, and of the attributes that never change; older versions wrote none
    penstock.counted      CRC-32 of attempts, reason and history; counts if the message is not in flight

The bytes of a JSON value that are too many for an attribute lie in a file of `long/`; the attribute is then `@`
and the file's name. A message is in flight if it lies in delay/ and its receipt has not ended. As long as it is
in flight only the receipt counts: the process that ends an attempt writes attempts, reason and history one after
the other, and may die in between.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.contract.message import Attempt, Message
from penstock.stores.folder import layout

PREFIX = "penstock."
LONGEST = 600  # bytes of a value: three of them and all the small ones fit into the 4 KiB that ext4 has
_MOST = 100  # attempts that are kept
_HOLDER = (str, int, int, str, str | None)
_ENTRY = (int, str | None, int, int | None, str | None, str | None, bool, str)  # of a history; see with_attempt()
_FIXED = ("created_at", "expires_at", "headers", "order", "priority", "received_at")


@dataclass(slots=True)
class Holder:
    """A claim: the holder of the message, since when, by which secret; and the message's state before."""

    secret: str
    attempts: int
    claimed_at: int
    consumer: str
    reason: str | None = None  # as in its attribute

    def to_bytes(self) -> bytes:
        """As it is stamped, with a checksum behind it."""
        values = [self.secret, self.attempts, self.claimed_at, self.consumer, self.reason]
        return _json([*values, zlib.crc32(_json(values))])


@dataclass(slots=True)
class Stamp:
    """What is known of a message beside its payload. Values that may be long are as in their attributes."""

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
    stamped: bool = True  # whether it was put by us
    sound: bool = True  # whether the attributes that never change are as they were stamped
    found: Mapping[str, bytes] = field(default_factory=dict, compare=False)  # the attributes as they are

    @property
    def is_held(self) -> bool:
        """Whether the message is in flight, if it lies in delay/."""
        return self.holder is not None and self.holder.secret != self.ended

    @property
    def received(self) -> int:
        """When the message came."""
        return layout.time_of(self.order) if self.received_at is None else self.received_at

    @property
    def visible(self) -> int:
        """When it became available, or will."""
        return self.received if self.visible_at is None else self.visible_at

    def to_attributes(self) -> dict[str, bytes]:
        """What a new message is stamped with."""
        numbers = {"order": self.order, "created_at": self.created_at, "expires_at": self.expires_at}
        numbers |= {
            "priority": self.priority or None,
            "received_at": self.received_at,
            "visible_at": self.visible_at,
        }
        values = {name: str(value).encode() for name, value in numbers.items() if value is not None}
        if self.headers is not None:
            values["headers"] = self.headers.encode()
        return values | self._past()

    def _past(self) -> dict[str, bytes]:
        """What one is stamped with that was in another store before."""
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
    """What attributes say; those that make no sense, as someone changed them by hand, are as if they were not."""
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
        number("expires_at") if sound else None,  # nothing is dropped on the word of what was changed
        number("attempts") or 0,
        text("headers"),
        text("reason"),
        text("history"),
        _holder(found.get("receipt")),
        text("ended"),
        number("settled_at"),
        order is not None,
        sound,
        found,
    )


def _holder(value: bytes | None) -> Holder | None:
    try:
        secret, attempts, claimed_at, consumer, reason, *rest = found = json.loads(value or b"")
    except (ValueError, TypeError):
        return None
    if rest and rest != [zlib.crc32(_json(found[:5]))]:
        return None  # nobody holds it by that: it comes back when its time in delay/ is over
    values = (secret, attempts, claimed_at, consumer, reason)
    fits = all(isinstance(value, kind) for value, kind in zip(values, _HOLDER, strict=True))
    return Holder(*values) if fits else None


def checksum(payload: bytes, values: Mapping[str, bytes]) -> bytes:
    """Of a message's content, and of those of its attributes that never change."""
    return b"%08x %08x" % (zlib.crc32(payload), _fixed_sum(values))


def _fixed_sum(values: Mapping[str, bytes]) -> int:
    return zlib.crc32(b"".join(b"%b=%b\n" % (name.encode(), values[name]) for name in _FIXED if name in values))


def counted(attempts: int, reason: str | None, history: str | None) -> bytes:
    """The checksum of what attempts have left."""
    return b"%08x" % zlib.crc32(f"{attempts}\n{reason or ''}\n{history or ''}".encode())


def damage(stamp: Stamp, payload: bytes) -> str | None:
    """What is wrong with a message, by its checksums; None: nothing, or it has none."""
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
    """The long values of a message, read."""

    headers: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    history: list[list[Any]] = field(default_factory=list)


def message(
    uid: str, queue: str, payload: bytes, stamp: Stamp, details: Details, state: str, until: int
) -> Message:
    """The message as anyone may see it; `until` is when its time in delay/ ends, or when it was settled."""
    received = stamp.received
    seen = Message(
        uid, queue, payload, details.headers, stamp.priority,
        received if stamp.created_at is None else stamp.created_at,
        received, stamp.visible, stamp.expires_at, stamp.attempts, state, reason=details.reason,
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
            seen.attempts = max(seen.attempts, 1)  # where nothing can be stamped, it is at least this one
        else:
            seen.settled_at = until
    return seen


def attempts_of(stamp: Stamp, details: Details, state: str, until: int) -> list[Attempt]:
    """The attempts at a message, the one that runs or that succeeded included."""
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
    """The history once the holder's attempt has ended; `settled` by the holder, not by time."""
    past = [entry for entry in history if entry[-1] != holder.secret]
    entry = [holder.attempts, holder.consumer, holder.claimed_at, at, outcome, reason, settled, holder.secret]
    return [*past, entry][-_MOST:]


def sound_history(found: list[Any]) -> list[list[Any]]:
    """The entries of a history that say something; others were written by nobody of us."""
    return [
        each
        for each in found
        if isinstance(each, list) and len(each) == len(_ENTRY) and all(map(isinstance, each, _ENTRY))
    ]


def outcome_of(history: list[list[Any]], secret: str, since: int) -> str | None:
    """How the attempt with that secret was settled, if it was not longer ago."""
    return next((entry[4] for entry in history if entry[-1] == secret and entry[6] and entry[3] >= since), None)


def to_json(value: object) -> str:
    """A value as it is stamped."""
    return _json(value).decode()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
