"""What operations answer, as JSON: the forms of each kind of result, for servers to write and clients to read."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.contract.message import Attempt
from penstock.contract.operation import Answer
from penstock.contract.operations import AttemptPage
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.streams import Ahead, Lost
from penstock.wire import jsons


class _Form(NamedTuple):
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def encode(answer: Answer, result: Any) -> Any:
    """A result as JSON."""
    form = _form(answer.kind)
    value = result
    if result is not None and form is not None:
        value = [form.write(each) for each in result] if answer.many else form.write(result)
    return {answer.member: value} if answer.member else value


def decode(answer: Answer, value: Any) -> Any:
    """The result that JSON tells of; LookupError, TypeError and ValueError if it tells of none."""
    if answer.member:
        value = value[answer.member]
    if value is None and "null" in answer.schema.get("type", ()):
        return None
    if answer.many and not isinstance(value, list):
        raise TypeError(f"{answer.member} is {value!r}")
    form = _form(answer.kind)
    if form is not None:
        return [form.read(each) for each in value] if answer.many else form.read(value)
    if answer.many and {*map(type, value)} <= {answer.kind}:  # ids, of which there may be many
        return value
    return [_plain(answer.kind, each) for each in value] if answer.many else _plain(answer.kind, value)


def _form(kind: Any) -> _Form | None:
    """How results of a kind are written and read; None: as they are."""
    if kind in _FORMS:
        return _FORMS[kind]
    return _Form(kind._asdict, partial(_record, kind)) if hasattr(kind, "_fields") else None


def _record(kind: Any, value: Any) -> Any:
    """A NamedTuple; numbers and texts of it must be such."""
    types = kind.__annotations__
    return kind(*(_plain(types[name], value[name]) for name in kind._fields))


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _write_attempts(page: AttemptPage) -> dict[str, Any]:
    made = [{"id": id_, **jsons.attempt_as_json(attempt)} for id_, attempt in page.attempts]
    return {"attempts": made, "next": page.next}


def _read_attempts(value: Any) -> AttemptPage:
    made = [(str(each["id"]), jsons.attempt_from_json(each)) for each in value["attempts"]]
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
    Settings: _Form(dict, jsons.settings_as_told),
    QueueInfo: _Form(jsons.queue_as_json, jsons.queue_from_json),
    Attempt: _Form(jsons.attempt_as_json, jsons.attempt_from_json),
    AttemptPage: _Form(_write_attempts, _read_attempts),
    Ahead: _Form(_write_ahead, _read_ahead),
}
