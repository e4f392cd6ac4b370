"""JSON encodings of drafts, messages, queues, settings, attempts, and results of operations.

Requests are read strictly: unknown members and wrong types are InvalidArgument. Answers are read leniently:
members that a newer server has added are skipped.
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, NoReturn

from penstock.contract import message
from penstock.contract.arguments import SETTINGS, arguments, check_known, kind_of, settings_from_json
from penstock.contract.message import MAX_MESSAGES, MESSAGE_FIELDS, Attempt, Draft, Entry, Message
from penstock.contract.operation import Answer
from penstock.contract.operations import AttemptPage, Figures
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.streams import Ahead, Lost
from penstock.errors import InvalidArgument

_DRAFT_FIELDS = frozenset(field.name for field in fields(Draft)) | {"payload_base64"}
_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NULLABLE = ("keep_done", "filter", "priorities", "backoff", "dead_letter", "labels")
_TEXTS = ("filter", "description", "dead_letter")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_no_constant).decode


def dumps(value: object) -> bytes:
    """Compact JSON."""
    return _encode(value).encode()


def loads(body: bytes) -> Any:
    """The value of a JSON document in UTF-8; InvalidArgument."""
    try:
        return _decode(str(body, "utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError also for invalid UTF-8
        raise InvalidArgument(f"not a JSON document in UTF-8: {error}") from None


def loads_object(body: bytes) -> dict[str, Any]:
    """The members of a JSON object; none for an empty body."""
    value = loads(body) if body else {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"a JSON object is wanted, not {kind_of(value)}")
    return value


def entry_from_json(draft: Mapping[str, Any], restored: bool = False) -> Entry:
    """A checked draft; `restored`: it was a message of another store."""
    if not isinstance(draft, dict):
        raise InvalidArgument(f"a message is a JSON object, not {kind_of(draft)}")
    check_known(draft, _DRAFT_FIELDS, "a message to be put")
    rest = {name: value for name, value in draft.items() if not name.startswith("payload")}
    with arguments():
        return message.checked(Draft(_payload(draft), **rest), restored)


def entries_from_json(batch: Mapping[str, Any]) -> list[Entry]:
    """The checked drafts of a batch; an error names the wrong one."""
    check_known(batch, ("messages",), "a batch")
    drafts = batch.get("messages")
    if not isinstance(drafts, list):
        raise InvalidArgument('a batch is {"messages": [...]}, with a list of messages')
    if len(drafts) > MAX_MESSAGES:
        raise too_many(len(drafts))
    entries = []
    for number, draft in enumerate(drafts):
        with arguments(f"message {number} of the batch: "):
            entries.append(entry_from_json(draft))
    return entries


def too_many(count: int) -> InvalidArgument:
    """The error for a batch of more than MAX_MESSAGES messages."""
    return InvalidArgument(f"a batch of {count} messages; the most is {MAX_MESSAGES}: send it in parts")


def message_as_json(message: Message, wanted: Collection[str] = MESSAGE_FIELDS) -> dict[str, Any]:
    """A message's fields; the payload as text (null if it is not UTF-8) and as payload_base64."""
    result = {name: getattr(message, name) for name in MESSAGE_FIELDS if name in wanted}
    if "payload" not in result:
        return result
    try:
        result["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        result["payload"] = None
    result["payload_base64"] = base64.b64encode(message.payload).decode()
    return result


def queue_as_json(info: QueueInfo) -> dict[str, Any]:
    """A queue's name, settings and counts, and its lag if it has one."""
    lag = {} if info.lag is None else {"lag": info.lag}
    return {"name": info.name, "settings": dict(info.settings), "counts": info.counts, **lag}


def queue_from_json(queue: Mapping[str, Any]) -> QueueInfo:
    """A queue from a server's answer."""
    with arguments():
        try:
            counts = dict(queue["counts"])
            return QueueInfo(queue["name"], settings_as_told(queue["settings"]), counts, queue.get("lag"))
        except (KeyError, ValueError) as error:
            raise InvalidArgument(f"not a description of a queue: {error}") from None


def settings_as_told(settings: Mapping[str, Any]) -> Settings:
    """Settings from a server's answer; unknown ones are skipped."""
    return Settings(**{name: settings[name] for name in SETTINGS if name in settings})


def settings_from_query(query: Iterable[tuple[str, str]]) -> Settings:
    """A queue's checked settings from the query of a URL."""
    settings: dict[str, Any] = {}
    for name, value in query:
        if name in settings:
            raise InvalidArgument(f"{name} is given twice")
        check_known([name], SETTINGS, "a queue")
        settings[name] = _setting(name, value)
    return settings_from_json(settings)


def attempt_from_json(attempt: Mapping[str, Any]) -> Attempt:
    """An attempt from a server's answer."""
    try:
        return Attempt(**{name: attempt[name] for name in Attempt._fields if name in attempt})
    except TypeError as error:
        raise InvalidArgument(f"not a description of an attempt: {error}") from None


def _payload(draft: Mapping[str, Any]) -> bytes | str:
    payload, encoded = draft.get("payload"), draft.get("payload_base64")
    if (payload is None) == (encoded is None):
        raise InvalidArgument('a message has a "payload" (text) or a "payload_base64": give one of them')
    if payload is not None:
        if not isinstance(payload, str):
            raise InvalidArgument(f"payload is text, not {kind_of(payload)}: give other bytes as payload_base64")
        return payload
    if not isinstance(encoded, str):
        raise InvalidArgument(f"payload_base64 is no base64, but {kind_of(encoded)}")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidArgument(f"payload_base64 is no base64: {error}") from None


def _setting(name: str, value: str) -> object:
    if name in _NULLABLE and value == "none":
        return None
    if name in _TEXTS:
        return value
    if name == "labels":
        return loads(value.encode())
    if name in ("priorities", "backoff"):
        return [number(name, part) for part in value.split(",")]
    if name == "start" and not _WHOLE.fullmatch(value):
        return value
    return number(name, value)


def number(name: str, value: str) -> float:
    """The number in a query or a header, as an int where possible."""
    if _WHOLE.fullmatch(value):
        return int(value)
    try:
        if value.isascii() and "_" not in value:  # float() takes 1_0 and the digits of every script
            return float(value)
        raise ValueError
    except ValueError:
        raise InvalidArgument(f"{name}={value!r} is not a number") from None


class _Form(NamedTuple):
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode_result(answer: Answer, result: Any) -> Any:
    """A result as JSON."""
    form = _form(answer.kind)
    value = result
    if result is not None and form is not None:
        value = [form.write(each) for each in result] if answer.many else form.write(result)
    return {answer.member: value} if answer.member else value


def decode_result(answer: Answer, value: Any) -> Any:
    """A result from JSON; LookupError, TypeError or ValueError if the JSON does not fit."""
    if answer.member:
        value = value[answer.member]
    if value is None and "null" in answer.schema.get("type", ()):
        return None
    if answer.many and not isinstance(value, list):
        raise TypeError(f"{answer.member} is {value!r}")
    form = _form(answer.kind)
    if form is not None:
        return [form.read(each) for each in value] if answer.many else form.read(value)
    if answer.many and {*map(type, value)} <= {answer.kind}:  # ids: one check for all
        return value
    return [_plain(answer.kind, each) for each in value] if answer.many else _plain(answer.kind, value)


def _form(kind: Any) -> _Form | None:
    """How results of a kind are written and read; None: unchanged."""
    if kind in _FORMS:
        return _FORMS[kind]
    return _Form(kind._asdict, partial(_record, kind)) if hasattr(kind, "_fields") else None


def _record(kind: Any, value: Any) -> Any:
    """A NamedTuple from JSON, with the types of its fields checked."""
    types = kind.__annotations__
    return kind(*(_plain(types[name], value[name]) for name in kind._fields))


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _write_attempts(page: AttemptPage) -> dict[str, Any]:
    made = [{"id": id_, **attempt._asdict()} for id_, attempt in page.attempts]
    return {"attempts": made, "next": page.next}


def _read_attempts(value: Any) -> AttemptPage:
    made = [(str(each["id"]), attempt_from_json(each)) for each in value["attempts"]]
    return AttemptPage(made, value["next"])


def _write_ahead(ahead: Ahead) -> dict[str, Any]:
    parts = [{"until": last, "messages": count} for last, count in ahead.parts]
    return {"until": ahead.until, "parts": parts, "lost": None if ahead.lost is None else ahead.lost._asdict()}


def _read_ahead(value: Any) -> Ahead:
    lost = value["lost"]
    return Ahead(
        int(value["until"]),
        [(int(each["until"]), int(each["messages"])) for each in value["parts"]],
        None if lost is None else Lost(int(lost["first"]), int(lost["last"]), lost["messages"]),
    )


_FORMS = {
    Settings: _Form(dict, settings_as_told),
    QueueInfo: _Form(queue_as_json, queue_from_json),
    Figures: _Form(Figures._asdict, lambda value: Figures(*(value[name] for name in Figures._fields))),
    Attempt: _Form(Attempt._asdict, attempt_from_json),
    AttemptPage: _Form(_write_attempts, _read_attempts),
    Ahead: _Form(_write_ahead, _read_ahead),
}
