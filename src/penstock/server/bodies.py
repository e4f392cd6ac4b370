"""What handlers read from requests, and how they answer with JSON."""

from typing import Any

from penstock.errors import InvalidArgument
from penstock.server.exchange import JSON, Answer, Problem, Request
from penstock.settings import whole
from penstock.wire import frames, jsons


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
