"""What handlers read from requests, and how they answer with JSON."""

from collections.abc import Collection, Sequence
from typing import Any

from penstock.contract.arguments import MAX_WAIT, check_known
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.settings import seconds
from penstock.http.server.exchange import JSON, Answer, Problem, Request
from penstock.wire import frames, jsons

_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n".encode()
_FRAME_TYPE = frames.MEDIA_TYPE.encode()


def json_answer(value: dict[str, Any], status: int = 200) -> Answer:
    """An answer that is JSON."""
    return Answer(status, JSON, jsons.dumps(value))


def json_object(request: Request, *known: str) -> dict[str, Any]:
    """A JSON object with no other members than these."""
    if request.body and request.media_type() != "application/json":
        raise Problem("UnsupportedMediaType", "send JSON, with Content-Type: application/json")
    request.parameters()
    given = jsons.loads_object(request.body)
    check_known(given, known, "this request")
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


def batch_answer(
    request: Request, messages: Sequence[Message], wanted: Collection[str] = MESSAGE_FIELDS
) -> Answer:
    """Messages, as a frame if the client knows those."""
    if _FRAME_TYPE in request.headers.get(b"accept", b""):
        first, *rest = frames.message_parts(messages, wanted)
        return Answer(200, _FRAME, first, rest=rest)
    return json_answer({"messages": [jsons.message_as_json(message, wanted) for message in messages]})
