"""Messages of SQS and of Penstock: attributes and headers, checksums, receipt handles. Pure functions.

An attribute of type String is the header of the same name. All else that has no header rides in one reserved
header, `penstock.sqs`, as compact JSON with what is needed of these members:

    a    other attributes: {name: [type, text or base64]}
    t    the system attribute AWSTraceHeader: [type, text or base64]
    d    MessageDeduplicationId
    g    MessageGroupId of a queue that is not FIFO, where it orders nothing

A payload that is no text of SQS is given as base64, with the attribute `penstock.encoding` = `base64`.
"""

import base64
import re
from binascii import crc32
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import md5, sha256
from itertools import chain
from typing import Any, NamedTuple

from penstock.contract.message import MAX_HEADER_BYTES, ORIGIN_HEADER, SQS_HEADER, Message
from penstock.errors import InvalidArgument
from penstock.http.server.sqs.actions import LONGEST, SENT_SYSTEM_ATTRIBUTES, SYSTEM
from penstock.http.server.sqs.errors import SqsError
from penstock.http.server.sqs.shapes import is_plain
from penstock.wire import jsons

FIFO = ".fifo"
ENCODING = "penstock.encoding"
_OWN = "penstock."
_MOST_ATTRIBUTES = 10
_NAME = re.compile(r"(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_KEPT = re.compile(r"(aws|amazon)\.", re.IGNORECASE)
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_HANDLE = re.compile(r"([0-9a-f]{8})-([0-9]{1,10})-([0-9A-Za-z-]{1,64}\.[0-9a-f]{16})")
_UNORDERED = re.compile(r"[0-9a-f]{16}")  # ids of text stores

Typed = tuple[str, str | bytes]  # an attribute: its type and value


class Handle(NamedTuple):
    """A receipt handle: the receipt, and of which attempt."""

    receipt: str
    attempt: int

    @property
    def id(self) -> str:
        """The message's id."""
        return self.receipt.rpartition(".")[0]


# Sending


class Sent(NamedTuple):
    """What of a message is sent beside its payload: headers, bytes that count, and checksums for the answer."""

    headers: dict[str, str] | None
    size: int
    sums: dict[str, str]


_PLAIN = Sent(None, 0, {})


def sent(given: Mapping[str, Any], is_fifo: bool) -> Sent:
    """The headers of a message, from the checked members of a request; SqsError."""
    attributes, system = given.get("MessageAttributes"), given.get("MessageSystemAttributes")
    packed: dict[str, Any] = {}
    if is_fifo and "MessageDeduplicationId" in given:
        packed["d"] = given["MessageDeduplicationId"]
    if not is_fifo and "MessageGroupId" in given:
        packed["g"] = given["MessageGroupId"]
    if not attributes and not system and not packed:
        return _PLAIN
    headers: dict[str, str] = {}
    sums: dict[str, str] = {}
    size = 0
    if attributes:
        typed = {name: _typed(name, value) for name, value in attributes.items()}
        if len(typed) > _MOST_ATTRIBUTES:
            raise _refused(
                f"Number of message attributes [{len(typed)}] exceeds the allowed maximum [{_MOST_ATTRIBUTES}]."
            )
        for name, (kind, value) in typed.items():
            _check_name(name)
            size += len(name) + len(kind) + len(value if isinstance(value, bytes) else value.encode())
            if kind == "String" and isinstance(value, str) and not name.startswith(_OWN):
                headers[name] = value
            else:
                packed.setdefault("a", {})[name] = _packed(kind, value)
        sums["MD5OfMessageAttributes"] = checksum(typed)
    if system:
        typed = {name: _typed(name, value) for name, value in system.items()}
        for name, (kind, value) in typed.items():
            if name not in SENT_SYSTEM_ATTRIBUTES:
                raise _refused(f"Message system attribute name '{name}' is invalid.")
            if kind != "String":
                raise _refused(f"Message system attribute '{name}' must be of type String.")
            packed["t"] = _packed(kind, value)
        sums["MD5OfMessageSystemAttributes"] = checksum(typed)
    if packed:
        headers[SQS_HEADER] = jsons.dumps(packed).decode()
    taken = sum(len(name) + len(value.encode()) for name, value in headers.items())
    if taken > MAX_HEADER_BYTES:
        raise _refused(
            f"Message attributes take {taken} bytes as headers; the most here is {MAX_HEADER_BYTES}: put the rest "
            "into the body."
        )
    return Sent(headers, size, sums)


def payload_of(body: str) -> bytes:
    """The payload of a body; SqsError unless SQS carries it."""
    try:
        payload = body.encode()
    except UnicodeEncodeError:
        payload = b""
    if not payload or not is_plain(body):
        raise SqsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA "
            "| #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
    return payload


def check_size(size: int, most: int) -> None:
    """Refuse a message that is beyond the limit of SQS, or of its queue."""
    if size > min(LONGEST, most):
        raise _refused(
            f"One or more parameters are invalid. Reason: Message must be shorter than {min(LONGEST, most)} bytes."
        )


def check_key(given: Mapping[str, Any], by_content: bool) -> None:
    """Refuse a message of a FIFO queue for which there is no idempotency key."""
    if not by_content and "MessageDeduplicationId" not in given:
        raise _refused(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly"
        )


def key_of(given: Mapping[str, Any], payload: bytes, by_content: bool, by_group: bool) -> str:
    """The idempotency key of a message of a FIFO queue; SqsError without one."""
    check_key(given, by_content)
    key: str = given.get("MessageDeduplicationId") or sha256(payload).hexdigest()
    if not by_group:
        return key
    return sha256(f"{given['MessageGroupId']}\n{key}".encode()).hexdigest()


def _typed(name: str, value: Mapping[str, Any]) -> Typed:
    """An attribute's type and value."""
    kind: str = value["DataType"]
    matched = _TYPE.fullmatch(kind)
    if matched is None or len(kind) > 256 or not is_plain(kind):
        raise _refused(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise SqsError("UnsupportedOperation", f"Message attribute list values are not supported: '{name}'.")
    member = "BinaryValue" if matched[1] == "Binary" else "StringValue"
    content = value.get(member)
    if not content:
        raise _refused(
            f"The message attribute '{name}' must contain a non-empty value of type '{matched[1]}': give {member}."
        )
    if isinstance(content, str) and not is_plain(content):
        raise _refused(f"Message attribute '{name}' has a character that is not valid.")
    if matched[1] == "Number" and not _NUMBER.fullmatch(content):
        raise _refused(f"Can't cast the value of message attribute '{name}' to a number.")
    return kind, content


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or _KEPT.match(name):
        raise _refused(
            f"Message attribute name '{name[:80]}' is invalid: it has 1 to 256 letters, digits, _, - and single "
            "dots inside, and does not start with AWS. or Amazon."
        )


def _packed(kind: str, value: str | bytes) -> list[str]:
    return [kind, value if isinstance(value, str) else base64.b64encode(value).decode()]


def _refused(message: str) -> SqsError:
    return SqsError("InvalidParameterValueException", message)


def checksum(attributes: Mapping[str, Typed]) -> str:
    """The MD5 of attributes, as SDKs compute it."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        kind, value = attributes[name]
        content = value if isinstance(value, bytes) else value.encode()
        for part in (name.encode(), kind.encode()):
            digest.update(len(part).to_bytes(4) + part)
        digest.update((b"\2" if kind.startswith("Binary") else b"\1") + len(content).to_bytes(4) + content)
    return digest.hexdigest()


def md5_of(payload: bytes) -> str:
    """The MD5 of a body."""
    return md5(payload, usedforsecurity=False).hexdigest()


# Receiving


class Wanted(NamedTuple):
    """The attributes that a request asks for."""

    system: Collection[str]
    names: Collection[str]
    prefixes: tuple[str, ...]  # the empty one: all of them

    def has(self, name: str) -> bool:
        """Whether a message attribute is asked for."""
        return name in self.names or name.startswith(self.prefixes)


def wanted(system: Iterable[str], names: Sequence[str]) -> Wanted:
    """The selected attributes; SqsError for an unknown one."""
    chosen = set(system)
    if unknown := chosen - {*SYSTEM, "All"}:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)}.")
    # `or.*` selects all that start with `or`
    prefixes = [
        "" if name in ("All", "*") else name[:-2] for name in names if name in ("All", "*") or name[-2:] == ".*"
    ]
    return Wanted(frozenset(SYSTEM if "All" in chosen else chosen), frozenset(names), tuple(prefixes))


def as_sqs(message: Message, wanted: Wanted, arn: str, first_claimed: int | None) -> dict[str, Any]:
    """A claimed message. `arn` is that of its queue, and `first_claimed` the time of its first claim."""
    payload = message.payload
    try:
        body = payload.decode()
        encoded = not is_plain(body)
    except UnicodeDecodeError:
        body, encoded = "", True
    if encoded:
        payload = base64.b64encode(payload)
        body = payload.decode()
    result: dict[str, Any] = {
        "MessageId": message.id,
        "ReceiptHandle": handle(message),
        "MD5OfBody": md5_of(payload),
        "Body": body,
    }
    headers = message.headers
    packed = _unpacked(headers.get(SQS_HEADER)) if SQS_HEADER in headers else {}
    if wanted.system:
        told = _system(message, packed, arn, first_claimed)
        if chosen := {name: told[name] for name in SYSTEM if name in wanted.system and name in told}:
            result["Attributes"] = chosen
    attributes: dict[str, Typed] = {}
    if headers and (wanted.names or wanted.prefixes):
        plain = [(name, ("String", value)) for name, value in headers.items() if not name.startswith(_OWN)]
        others = _attributes(packed.get("a"))
        attributes |= {name: typed for name, typed in chain(plain, others) if wanted.has(name)}
    if encoded:
        attributes[ENCODING] = "String", "base64"
    if attributes:
        result["MessageAttributes"] = {name: _value(*typed) for name, typed in attributes.items()}
        result["MD5OfMessageAttributes"] = checksum(attributes)
    return result


def handle(message: Message) -> str:
    """The receipt handle of a claimed message. It names its queue by a checksum, so that no other takes it."""
    return f"{_mark(message.queue)}-{message.attempts}-{message.receipt}"


@lru_cache(maxsize=1024)
def _mark(queue: str) -> str:
    return f"{crc32(queue.encode()):08x}"


def parsed(handle: str, queue: str) -> Handle:
    """The parts of a receipt handle of a queue; SqsError."""
    matched = _HANDLE.fullmatch(handle)
    if matched is None or matched[1] != _mark(queue):
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{handle[:100]}" is not a valid receipt handle.'
        )
    return Handle(matched[3], int(matched[2]))


def sequence(id: str, received_at: int) -> str:  # noqa: A002 - the contract's word
    """A number of 20 digits that grows with each message of a queue; in text stores, with each millisecond."""
    if id.isdigit() and len(id) != 16:
        return id.zfill(20)
    if id.count("-") == 4:  # a UUID of version 1: 100 ns since 1582
        low, middle, high = id.split("-")[:3]
        return str(int(high[1:] + middle + low, 16)).zfill(20)
    return str(received_at).zfill(20)


def is_ordered(id: str) -> bool:  # noqa: A002 - the contract's word
    """Whether an id alone tells the order of messages."""
    return _UNORDERED.fullmatch(id) is None


def _system(message: Message, packed: Mapping[str, Any], arn: str, first_claimed: int | None) -> dict[str, str]:
    *_, account, queue = arn.split(":", 5)
    told = {
        "SenderId": account,
        "SentTimestamp": str(message.created_at),
        "ApproximateReceiveCount": str(message.attempts),
        "ApproximateFirstReceiveTimestamp": str(first_claimed or message.claimed_at),
    }
    trace = packed.get("t")
    if isinstance(trace, list) and len(trace) == 2 and isinstance(trace[1], str):
        told["AWSTraceHeader"] = trace[1]
    if queue.endswith(FIFO):
        given = packed.get("d")
        told["SequenceNumber"] = sequence(message.id, message.received_at)
        told["MessageDeduplicationId"] = given if isinstance(given, str) else sha256(message.payload).hexdigest()
        if message.group is not None:
            told["MessageGroupId"] = message.group
    else:
        group = packed.get("g", message.group)
        if isinstance(group, str):
            told["MessageGroupId"] = group
    if ORIGIN_HEADER in message.headers:
        told["DeadLetterQueueSourceArn"] = arn[: len(arn) - len(queue)] + message.headers[ORIGIN_HEADER]
    return told


def _unpacked(text: str | None) -> dict[str, Any]:
    """The members of the reserved header; none if it is not as written by sent()."""
    try:
        return jsons.loads_object((text or "").encode())
    except (InvalidArgument, UnicodeEncodeError):
        return {}


def _attributes(packed: object) -> Iterable[tuple[str, Typed]]:
    for name, typed in packed.items() if isinstance(packed, dict) else ():
        match typed:
            case [str(kind), str(value)] if _TYPE.fullmatch(kind):
                try:
                    content = base64.b64decode(value, validate=True) if kind.startswith("Binary") else value
                except ValueError:
                    continue
                yield name, (kind, content)


def _value(kind: str, value: str | bytes) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"BinaryValue": base64.b64encode(value).decode(), "DataType": kind}
    return {"StringValue": value, "DataType": kind}
