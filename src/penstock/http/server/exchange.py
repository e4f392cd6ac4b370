"""What comes in and what goes out: a request as handlers see it, what is refused, and an answer as bytes."""

import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

from penstock.contract import roles
from penstock.contract.arguments import MAX_WAIT, check_known
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.names import DEFAULT
from penstock.contract.settings import seconds
from penstock.errors import InvalidArgument, PenstockError, StoreUnavailable
from penstock.http.server.tokens import Token
from penstock.wire import frames, jsons, problems

JSON = b"Content-Type: application/json\r\n"
LONG = 2048  # bytes of a path or a query that are not remembered, lest strangers fill the memory with them
_PROBLEM = f"Content-Type: {problems.MEDIA_TYPE}\r\n".encode()
STATUSES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MessageNotFound": 404,
    "MethodNotAllowed": 405,
    "RequestTimeout": 408,
    "QueueExists": 409,
    "PayloadTooLarge": 413,
    "UnsupportedMediaType": 415,
    "HeadersTooLarge": 431,
    "ServerError": 500,
    "Overloaded": 503,
    "StoreClosed": 503,
}
_RUN, _COUNT = os.urandom(4).hex(), itertools.count(1)
_AN_ID = re.compile(rb"[!-~]{1,128}")
_PHRASES = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}

_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n".encode()
_FRAME_TYPE = frames.MEDIA_TYPE.encode()
MAX_HEADERS = 32_768  # bytes
_DIGITS = 20  # of a Content-Length; zeros in front may be many, and Python reads no more than 4,300
_log = logging.getLogger("penstock.server")


class Head(NamedTuple):
    """What a request says before its body, as it was understood."""

    route: "Route"
    arguments: tuple[str, ...]  # the variable parts of the path
    query: bytes
    headers: dict[bytes, bytes]  # names in lower case
    told: bool  # it carries headers of ours
    method: bytes
    target: bytes


class Request:
    """One request, complete with its body."""

    __slots__ = (
        "_id", "arguments", "begun", "body", "connection", "head", "headers", "holder", "keep_alive", "most",
        "route",
    )  # fmt: skip
    begun: float  # when, if requests are logged

    def __init__(self, head: Head, connection: Any, body: bytes = b"") -> None:
        self.head = head
        self.route = head.route
        self.arguments = head.arguments
        self.headers = head.headers
        self.connection = connection
        self.most = head.route.most  # bytes of a body
        self.body = body
        self.keep_alive = True
        self.holder: Token | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        peer: str = self.connection.peer
        return peer

    @property
    def service(self) -> Any:
        """What all connections share."""
        return self.connection.service

    @property
    def roles(self) -> int:
        """What the client may do; everything where there are no tokens."""
        if self.service.access is None:
            return roles.ALL
        return roles.ANYONE if self.holder is None else self.holder.roles

    @property
    def id(self) -> str:
        """What log and answer call this request: as the client does, or by a name of our own."""
        if not hasattr(self, "_id"):  # few are ever asked for
            given = self.headers.get(b"x-request-id", b"")
            self._id = given.decode() if _AN_ID.fullmatch(given) else f"{_RUN}-{next(_COUNT):x}"
        return self._id

    def header(self, name: bytes) -> str | None:
        """A header's value as text."""
        value = self.headers.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"the header {name.decode()} is not UTF-8: encode it so") from None

    def parameters(self, *known: str) -> Mapping[str, str]:
        """The query's parameters, if they are known ones."""
        query = self.head.query
        if not query:
            return {}
        given = (_parameters if len(query) <= LONG else _parameters.__wrapped__)(query)
        if not given.keys() <= set(known):
            strange = ", ".join(sorted(given.keys() - set(known)))
            accepted = f"give {', '.join(known)}" if known else "this takes none"
            raise InvalidArgument(f"unknown query parameter: {strange}; {accepted}")
        return given

    def media_type(self) -> str:
        """What the body is said to be."""
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


class Answer(NamedTuple):
    """Status, further header lines, body; `close` ends the connection."""

    status: int
    headers: bytes = b""
    body: bytes = b""
    close: bool = False
    rest: Sequence[bytes] = ()  # of the body, in parts that are not copied

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return len(self.body) + sum(map(len, self.rest))


Handler: TypeAlias = Callable[[Any, Request], Awaitable[Answer]]  # called with the store's backend
# A handler without a coroutine: whether it takes the request on, and will tell the connection what to answer.
Shortcut: TypeAlias = Callable[[Any, Request], bool]


class Route(NamedTuple):
    """How a kind of request is answered."""

    handler: Handler
    roles: int  # of which one is needed, where tokens are
    most: int = 65_536  # bytes of a body
    is_payload: bool = False  # the body, so that the queue has a say in its length
    discards: bool = False  # the body
    polls: bool = False  # may wait for long, and must stop once nobody listens any more
    lists: bool = False  # answers with many bodies, so that only some do so at a time
    monitors: bool = False  # tells how the server is
    shortcut: Shortcut | None = None


@lru_cache(maxsize=1024)
def _parameters(query: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError:
        raise InvalidArgument(
            "the query cannot be read: percent-encode UTF-8, as in ?consumer=caf%C3%A9"
        ) from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidArgument("a query parameter is there twice: give each once")
    return given


class Problem(Exception):
    """An error of HTTP's own, by name."""

    def __init__(self, error: str, detail: str, headers: bytes = b"") -> None:
        super().__init__(detail)
        self.error = error
        self.headers = headers


def refusal(problem: Problem, close: bool = False) -> Answer:
    """An error of HTTP's own as problem details (RFC 9457)."""
    status = STATUSES[problem.error]
    return _refusal(status, problems.problem(status, problem.error, str(problem)), problem.headers, close)


def refusal_of(error: PenstockError) -> Answer:
    """An error of ours as problem details."""
    return _refusal(*problems.as_problem(error))


def _refusal(status: int, details: dict[str, Any], headers: bytes = b"", close: bool = False) -> Answer:
    if status in (503, 507):
        headers += b"Retry-After: 1\r\n"
    return Answer(status, headers + _PROBLEM, jsons.dumps(details), close)


def named(request: Request, answer: Answer) -> Answer:
    """The answer, with what the log calls the request."""
    return answer._replace(headers=b"%bX-Request-Id: %b\r\n" % (answer.headers, request.id.encode()))


class _Date:
    """The Date header, made once a second."""

    second, line = 0, b""

    @classmethod
    def now(cls) -> bytes:
        second = int(time.time())
        if second != cls.second:
            cls.second = second
            cls.line = time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second)).encode()
        return cls.line


def as_bytes(answer: Answer, keep_alive: bool, without_body: bool = False) -> bytes:
    """An answer as it goes over the wire, without the rest of its body."""
    status, headers, body, _, rest = answer
    closing = b"" if keep_alive else b"Connection: close\r\n"
    if status == 204:
        return b"HTTP/1.1 204 No Content\r\n%b%b%b\r\n" % (_Date.now(), headers, closing)
    return b"HTTP/1.1 %b\r\n%b%bContent-Length: %d\r\n%b\r\n%b" % (
        _PHRASES[status], _Date.now(), headers, answer.size if rest else len(body), closing,
        b"" if without_body else body,
    )  # fmt: skip


def about(request: Request) -> dict[str, Any]:
    """What a record tells of the request that it is about. The query is left out, as it may have receipts."""
    told = {
        "request": request.id,
        "peer": request.peer,
        "method": request.head.method.decode("ascii", "backslashreplace"),
        "path": request.head.target.partition(b"?")[0].decode("ascii", "backslashreplace"),
    }
    return {**told, "token": request.holder.name} if request.holder else told


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


OVERLOADED = Problem("Overloaded", "the server has too much to do: try again a little later")
GOING = Problem("StoreClosed", "the server is stopping: try again a little later")
FAILED = Problem("ServerError", "the server failed at this request; its log says why")
TOO_LONG = Problem("HeadersTooLarge", f"the request's head is longer than {MAX_HEADERS} bytes")


def of_head(request: Request, http: str) -> Problem | None:
    """What is wrong with a request by its head, in that version of HTTP."""
    headers = request.headers
    if http == "1.1" and b"," in headers.get(b"host", b","):
        return Problem("BadRequest", "a request needs the header Host, and only once")
    if (b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity") or (
        b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked"
    ):
        return Problem("UnsupportedMediaType", "send the body as it is: neither packed nor encoded")
    length = headers.get(b"content-length", b"0")
    if len(length) > _DIGITS:
        return Problem("BadRequest", f"the Content-Length has more than {_DIGITS} digits")
    if int(length) > request.most:
        return too_large(request)
    return None


def of_error(error: BaseException, request: Request) -> Answer:
    """What is said where a handler could not do it."""
    if isinstance(error, Problem):
        return refusal(error)
    answer = refusal_of(error) if isinstance(error, PenstockError) else refusal(FAILED)
    if answer.status == 500:  # damage, which is as unexpected as a bug
        _log.error("a request failed", exc_info=error, extra=about(request))
        return answer._replace(close=True)
    if isinstance(error, StoreUnavailable):  # the client is not told which file it is
        _log.warning("a request was refused: %s", error, extra=about(request))
    return answer


def too_large(request: Request) -> Problem:
    """Its body is, or will be, longer than its route takes."""
    size = request.headers.get(b"content-length", b"%d or more" % (request.most + 1)).decode()
    if request.route.is_payload:
        name = request.arguments[0] or DEFAULT
        detail = f"a payload of {size} bytes; queue {name!r} takes at most {request.most}: put its address instead"
    else:
        detail = f"a body of {size} bytes; the most that is accepted here is {request.most}: send it in parts"
    return Problem("PayloadTooLarge", detail)
