"""What handlers read from requests, and how they answer with JSON."""

from collections.abc import Collection, Sequence
from typing import Any

from penstock.arguments import checked_ids
from penstock.errors import InvalidArgument
from penstock.message import Message
from penstock.server.exchange import JSON, Answer, Problem, Request
from penstock.settings import seconds, whole
from penstock.wire import frames, jsons

_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n".encode()
_FRAME_TYPE = frames.MEDIA_TYPE.encode()
MAX_WAIT = 60.0  # seconds of one long poll; who wants to wait longer asks again


def json_answer(value: dict[str, Any], status: int = 200) -> Answer:
    """An answer that is JSON."""
    return Answer(status, JSON, jsons.dumps(value))


def json_object(request: Request, *known: str) -> dict[str, Any]:
    """A JSON object with no other members than these."""
    if request.body and request.media_type() != "application/json":
        raise Problem("UnsupportedMediaType", "send JSON, with Content-Type: application/json")
    request.parameters()
    given = jsons.loads_object(request.body)
    jsons.check_known(given, known, "this request")
    return given


def checked_wait(wait: float) -> float:
    """The seconds that a consumer waits: those that it asked for, up to the longest."""
    return min(seconds("wait", wait), MAX_WAIT)


def batch_type(request: Request) -> str:
    """Whether a batch is JSON or a frame."""
    kind = request.media_type()
    if kind not in (frames.MEDIA_TYPE, "application/json"):
        raise Problem("UnsupportedMediaType", f"send messages as application/json or as {frames.MEDIA_TYPE}")
    return kind


def whole_number(value: str, name: str, lowest: int, highest: int) -> int:
    """An integer of the path or the query."""
    number = jsons.number(name, value)
    if not isinstance(number, int):
        raise InvalidArgument(f"{name}={value!r} is not an integer")
    with jsons.arguments():
        return whole(name, number, lowest, highest)


def batch_answer(
    request: Request, messages: Sequence[Message], wanted: Collection[str] = jsons.MESSAGE_FIELDS
) -> Answer:
    """Messages, as a frame if the client knows those."""
    if _FRAME_TYPE in request.headers.get(b"accept", b""):
        return Answer(200, _FRAME, frames.encode_messages(messages, wanted))
    return json_answer({"messages": [jsons.message_as_json(message, wanted) for message in messages]})


def texts(given: dict[str, Any], name: str) -> list[str]:
    """A member that is a list of ids or receipts."""
    texts = given.get(name)
    if not isinstance(texts, list):
        raise InvalidArgument(f'"{name}" is a list of texts: {{"{name}": [...]}}')
    with jsons.arguments():
        return checked_ids(texts)
