r"""The variables of messages in a text queue's file, and the settings in the comment at its top. Pure.

    \id=9f86d081884c7d65                     the message's id; a message without one is a person's
    \priority=5                              unless it is 0
    \encoding=base64                         if the payload is not UTF-8
    \received=2026-11-16T07:30:55.123Z       when it was put; times are UTC
    \created=..., \visible=..., \expires=... if they differ from the time of the put
    \key=order 7                             the idempotency key
    \header kind=image                       a header; JSON strings where needed: \header "a b"="c\nd"
    \attempts=0                              reserved, and filled in when the message is claimed
    \lease=                                  reserved for the end of the lease, and the secret of its receipt

`\mutex=` with room behind it, and a bare `\MUTEX`, are a person's; Penstock marks a message in flight there too.

The settings of a queue are the variables of a comment at the top of its file:

    # Penstock queue
    \max_attempts=3
    \keep_done=forever

Default settings are not written. People may edit the comment, as everything else, while no process uses the queue.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from penstock.contract.message import Entry as Draft
from penstock.contract.settings import HIGHEST_PRIORITY, LOWEST_PRIORITY, Settings
from penstock.errors import PenstockError
from penstock.stores.text.format import COMMENT, Entry, Variable, encode, parse

ATTEMPTS_ROOM = 5
LEASE_ROOM = 41
RESERVED = b"attempts=0".ljust(9 + ATTEMPTS_ROOM), b"lease=".ljust(6 + LEASE_ROOM)
TAIL = b"\n\\" + RESERVED[0] + b"\n\\" + RESERVED[1] + b"\n"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ID = re.compile(r"[0-9a-f]{16}")
_LEASE = re.compile(r"(\S+) ([0-9a-f]{16})")
_NUMBER = re.compile(r"[-+]?\d+")
_REMOVED = b"removed"
_MOST_ATTEMPTS = 1_000_000_000  # leaves room to count on
_TIMES = (b"received", b"visible", b"expires", b"created")
_OURS = ("id", "encoding", "priority", "received", "created", "visible", "expires", "key", "attempts", "lease")
_PLAIN_NAME = re.compile(r'[^\s="][^\s=]*')


class Facts(NamedTuple):
    """The values of an entry's variables, except for headers and encoding."""

    id: str | None = None
    priority: int = 0
    received_at: int | None = None
    visible_at: int | None = None
    expires_at: int | None = None
    key: str | None = None
    attempts: int = 0
    lease: tuple[int, str] | None = None
    mark: str = ""  # the value of \mutex=, if another program wrote it
    removed: bool = False  # whether Penstock has put and removed the message
    odd: tuple[tuple[int, str], ...] = ()  # offsets of values that cannot be parsed, with a warning


NO_FACTS = Facts()


def facts(entry: Entry) -> Facts:
    """Parse the variables; a value that cannot be parsed is treated as missing."""
    if not entry.variables:
        return NO_FACTS
    said: dict[bytes, str] = {}
    places: dict[bytes, int] = {}
    for variable in entry.variables:
        name, equals, value = variable.raw.partition(b"=")
        if equals and name not in said:
            said[name] = value.rstrip(b" ").decode(errors="replace")
            places[name] = variable.offset - 1
    given = said.get(b"id", "")
    lease = _LEASE.fullmatch(said.get(b"lease") or said.get(b"mutex") or "")
    until = read_time(lease[1]) if lease else None
    key = said.get(b"key")
    priority = _number(said.get(b"priority"), LOWEST_PRIORITY, HIGHEST_PRIORITY)
    attempts = _number(said.get(b"attempts"), 0, _MOST_ATTEMPTS)
    times = {name: read_time(said.get(name)) for name in _TIMES}
    wrong = [name for name, number in ((b"priority", priority), (b"attempts", attempts)) if number is None]
    wrong += [name for name, time in times.items() if time is None and said.get(name)]
    if said.get(b"lease") not in (None, "", "removed") and until is None:
        wrong.append(b"lease")
    mark = said.get(b"mutex", "") if not _LEASE.fullmatch(said.get(b"mutex", "")) else ""
    return Facts(
        given if _ID.fullmatch(given) else None,
        priority or 0,
        times[b"received"],
        times[b"visible"],
        times[b"expires"],
        None if key is None else unquoted(key),
        attempts or 0,
        (until, lease[2]) if lease and until is not None else None,
        mark,
        bool(_ID.fullmatch(given)) and said.get(b"lease") == _REMOVED.decode(),
        tuple((places[name], f"{name.decode()}={said[name][:80]!r} is not understood") for name in wrong),
    )


def oddities(entry: Entry) -> Iterator[tuple[int, str]]:
    """Offsets of variables that say less than a person may think, beyond `Facts.odd`; each with a text."""
    seen: set[str] = set()
    counted, said = facts(entry), entry.variables
    for variable in said:
        name, value, odd = variable.name, variable.value, ""
        if variable.raw.startswith(b"header "):
            odd = "" if _header(variable) else "a header needs NAME=VALUE, with JSON strings for odd names"
        elif name in seen and name in _OURS:
            odd = f"{name}= is there twice, and only the first one counts"
        elif name == "id" and value and not _ID.fullmatch(value):
            odd = f"id={value[:80]!r} is not one of Penstock's, 16 hexadecimal digits: the message has no id"
        elif name == "encoding" and value != "base64":
            odd = f"encoding={value[:80]!r} is not known: the text is the payload"
        elif name == "encoding" and not _is_base64(entry.content):
            odd = "the text is not base64, so that it is the payload as it is"
        elif name in ("priority", "attempts") and _NUMBER.fullmatch(value):
            means = counted.priority if name == "priority" else counted.attempts
            is_same = value.lstrip("-+0") == str(means).lstrip("-0")
            odd = "" if is_same else f"{name}={value[:80]} is out of range, and means {means}"
        seen.add(name)
        if odd:
            yield variable.offset - 1, odd


def _is_base64(content: bytes) -> bool:
    try:
        base64.b64decode(content, validate=True)
    except binascii.Error:
        return False
    return True


def body(entry: Entry, received_at: int) -> tuple[bytes, dict[str, str], int]:
    """The payload, the headers, and created_at."""
    payload, created_at = entry.content, received_at
    headers: dict[str, str] = {}
    for variable in entry.variables:
        if variable.raw.startswith(b"header ") and (header := _header(variable)) is not None:
            headers.setdefault(*header)
        elif variable.raw.startswith(b"created="):
            created = read_time(variable.value)
            created_at = received_at if created is None else created
        elif variable.text == "encoding=base64":
            try:
                payload = base64.b64decode(payload, validate=True)
            except binascii.Error:
                continue  # a person has edited it: the text itself is the payload
    return payload, headers, created_at


def new_entry(
    draft: Draft,
    id: str,  # noqa: A002
    received_at: int,
    visible_at: int,
    expires_at: int,
    attempts: int = 0,
) -> bytes:
    """The entry of a new message, commented out."""
    content, variables = draft.payload, [b"id=" + id.encode()]
    if not is_text(content):
        content = base64.b64encode(content)
        variables.append(b"encoding=base64")
    if draft.priority:
        variables.append(b"priority=%d" % draft.priority)
    variables.append(b"received=" + write_time(received_at).encode())
    if draft.created_at not in (None, received_at):
        variables.append(b"created=" + write_time(draft.created_at or 0).encode())
    if visible_at != received_at:
        variables.append(b"visible=" + write_time(visible_at).encode())
    if expires_at:
        variables.append(b"expires=" + write_time(expires_at).encode())
    if draft.key is not None:
        variables.append(b"key=" + quoted(draft.key).encode())
    for name, value in (draft.headers or {}).items():
        written = name if _PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        variables.append(f"header {written}={quoted(value)}".encode())
    reserved = (b"attempts=%d" % attempts).ljust(len(RESERVED[0])), RESERVED[1]
    return encode(COMMENT, content, [*variables, *reserved])


def plain_entries(payloads: list[bytes], ids: list[str], received_at: int) -> tuple[list[bytes], list[int]]:
    """The entries of new messages with nothing but a payload, commented out; and the checksums of their texts."""
    tail = b"\n\\received=" + write_time(received_at).encode() + TAIL
    entries, crcs = [], []
    for payload, each in zip(payloads, ids, strict=True):
        named = b"\n\\id=" + each.encode()
        if not is_text(payload):
            payload, named = binascii.b2a_base64(payload, newline=False), named + b"\n\\encoding=base64"
        crcs.append(crc32(payload))
        if b"\n" in payload:
            payload = payload.replace(b"\n", b"\n ")
        entries.append(b"#" + payload + named + tail)
    return entries, crcs


def is_text(payload: bytes) -> bool:
    """Whether a payload can be written as it is, because it is UTF-8."""
    if payload.isascii():
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def lease_writes(entry: Entry, attempts: int, until: int, secret: str, consumer: str) -> list[tuple[int, bytes]]:
    """Offsets and bytes that write a lease into the reserved variables, where it fits."""
    lease = f"{write_time(until)} {secret}".encode()
    return _writes(entry, attempts, lease, consumer.encode())


def release_writes(entry: Entry, attempts: int) -> list[tuple[int, bytes]]:
    """Offsets and bytes that clear the lease."""
    return _writes(entry, attempts, b"", b"")


def removal_writes(entry: Entry) -> list[tuple[int, bytes]]:
    """Offsets and bytes that mark a message as removed by Penstock, so that packing may drop the comment."""
    return _writes(entry, facts(entry).attempts, _REMOVED, b"")


def restoring_writes(entry: Entry) -> list[tuple[int, str]]:
    """Offsets and bytes that clear the mark of a removed message, which a person has uncommented."""
    return [
        (each.offset + len(b"lease="), " " * len(_REMOVED))
        for each in entry.variables
        if each.raw.rstrip(b" ") == b"lease=" + _REMOVED
    ]


def _writes(entry: Entry, attempts: int, lease: bytes, consumer: bytes) -> list[tuple[int, bytes]]:
    written = []
    for variable in entry.variables:
        name, equals, value = variable.raw.partition(b"=")
        offset, room = variable.offset + len(name) + len(equals), len(value)
        if name == b"attempts" and equals and len(b"%d" % attempts) <= room:
            written.append((offset, (b"%d" % attempts).ljust(room)))
        elif name == b"lease" and equals and len(lease) <= room:
            written.append((offset, lease.ljust(room)))
        elif name == b"mutex" and equals and room:
            said = lease if len(lease) <= room else consumer[:room].decode(errors="ignore").encode()
            written.append((offset, said.ljust(room)))
        elif variable.raw.rstrip(b" ") in (b"MUTEX", b"TAKEN"):
            written.append((variable.offset, b"TAKEN" if lease else b"MUTEX"))
    return written


def write_time(time: int) -> str:
    """Format a time for people."""
    return f"{_second(time // 1000)}.{time % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")


def read_time(text: str | None) -> int | None:
    """Parse a time; without a zone it is UTC. None if it is not a time."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    milliseconds = (time - _EPOCH) // _MILLISECOND
    return milliseconds if milliseconds >= 0 else None


def _number(text: str | None, lowest: int, highest: int) -> int | None:
    """Parse a whole number, limited to a range; None if it is not a number."""
    if not text:
        return 0
    if _NUMBER.fullmatch(text) is None:
        return None
    digits = text.lstrip("-+0")
    if len(digits) > 20:
        return lowest if text.startswith("-") else highest
    number = int(digits or "0")
    return min(max(-number if text.startswith("-") else number, lowest), highest)


def quoted(value: str) -> str:
    """A value for the end of a variable: a JSON string if it would be misread otherwise."""
    plain = "\n" not in value and not value.startswith('"') and not value.endswith(" ")
    return value if plain else json.dumps(value, ensure_ascii=False)


def unquoted(text: str) -> str:
    """The value of a text that quoted() has made."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


def _header(variable: Variable) -> tuple[str, str] | None:
    text = variable.raw.rstrip(b" ").decode(errors="replace")[len("header ") :]
    if not text.startswith('"'):
        name, equals, value = text.partition("=")
        return (name, unquoted(value)) if equals and name else None
    try:
        name, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    return (name, unquoted(text[end + 1 :])) if text[end : end + 1] == "=" and name else None


_TITLE = "Penstock queue"
_USUAL = Settings()
_NAMES = [each.name for each in fields(Settings)]
_TEXTS = ("filter", "description", "start")


def write_head(settings: Settings, name: str | None, others: Sequence[bytes] = ()) -> bytes:
    """The comment; empty for default settings. `name`: if the file has another. `others` are added."""
    said = {} if name is None else {"name": name}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(_USUAL, field.name):
            said[field.name] = _written(value)
    variables = [*(f"{k}={v}".encode() for k, v in said.items()), *others]
    return encode(COMMENT, f" {_TITLE}".encode(), variables) if variables else b""


def replace_head(data: bytes, settings: Settings, line_end: bytes) -> bytes:
    """A queue's file with other settings in its comment; a new comment goes before the first entry."""
    entries = parse(data).entries
    for head in filter(is_head, entries):
        others = [each.raw for each in head.variables if each.name not in (*_NAMES, "name")]
        written = write_head(settings, read_head([head])[1], others)
        start, end = head.offset, head.offset + head.length
        break
    else:
        written = write_head(settings, None)
        start = end = entries[0].offset if entries else len(data)
    before = data[:start]
    if before and not before.endswith(b"\n"):
        before += line_end
    return before + written.replace(b"\n", line_end) + data[end:]


def is_head(entry: Entry) -> bool:
    """Whether an entry is the comment with the settings."""
    return entry.control == COMMENT and entry.text.strip() == _TITLE


def read_head(entries: Iterable[Entry]) -> tuple[Settings, str | None, list[tuple[int, str]]]:
    """The settings, the name if the comment has one, and values that cannot be parsed: offset and warning."""
    head = next((entry for entry in entries if is_head(entry)), None)
    if head is None:
        return _USUAL, None, []
    said: dict[str, Any] = {}
    name: str | None = None
    odd: list[tuple[int, str]] = []
    for variable in head.variables:
        text = unquoted(variable.value)
        if variable.name == "name":
            name = text
            continue
        try:
            said[variable.name] = value = _read(variable.name, text)
            Settings(**{variable.name: value})
        except (KeyError, ValueError, TypeError, PenstockError) as error:
            said.pop(variable.name, None)
            odd.append((variable.offset - 1, f"{variable.text!r} is no setting: {error}"))
    return Settings(**said), name, odd


def _written(value: Any) -> str:
    if value is None:
        return "forever"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return quoted(value) if isinstance(value, str) else repr(value)


def _read(name: str, text: str) -> Any:
    if name not in _NAMES:
        raise KeyError(name)
    if name in _TEXTS:
        return text
    if name == "priorities":
        return tuple(map(int, text.split()))
    if name == "keep_done" and text == "forever":
        return None
    return float(text) if "." in text or "e" in text else int(text)
