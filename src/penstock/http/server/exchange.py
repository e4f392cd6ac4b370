"""Requests as handlers see them, answers as bytes, and refusals as problem details (RFC 9457)."""

import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl

from penstock.contract import roles
from penstock.contract.arguments import MAX_WAIT, check_known
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.names import DEFAULT
from penstock.contract.settings import seconds
from penstock.errors import Advice, InvalidArgument, PenstockError, StoreUnavailable
from penstock.http.server.tokens import Token
from penstock.wire import frames, jsons, problems

JSON = b"Content-Type: application/json\r\n"
LONG = 2048  # bytes; longer heads, paths and queries are not cached, lest strangers fill the memory
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
_ONE_PARAMETER = re.compile(rb"([a-z_]+)=([A-Za-z0-9._-]*)")
_DIGITS = 20  # of a Content-Length: int() refuses more than 4,300
_log = logging.getLogger("penstock.server")


class Head(NamedTuple):
    """The parsed head of a request."""

    route: "Route"
    arguments: tuple[str, ...]  # the variable parts of the path
    query: bytes
    headers: dict[bytes, bytes]  # names in lower case
    told: bool  # it has X-Message headers
    method: bytes
    target: bytes


class Request:
    """One request, complete with its body."""

    __slots__ = (
        "_id", "arguments", "begun", "body", "connection", "head", "headers", "holder", "keep_alive", "most",
        "route",
    )  # fmt: skip
    begun: float  # when it came; only set if requests are logged

    def __init__(self, head: Head, connection: Any, body: bytes = b"") -> None:
        self.head = head
        self.route = head.route
        self.arguments = head.arguments
        self.headers = head.headers
        self.connection = connection
        self.most = head.route.most  # bytes of its body
        self.body = body
        self.keep_alive = True
        self.holder: Token | None = None  # the token that it came with

    @property
    def peer(self) -> str:
        """The client's address."""
        peer: str = self.connection.peer
        return peer

    @property
    def service(self) -> Any:
        """The state that all connections share."""
        return self.connection.service

    @property
    def roles(self) -> int:
        """The client's roles; all of them where no token is asked for."""
        if self.service.access is None:
            return roles.ALL
        return roles.ANYONE if self.holder is None else self.holder.roles

    @property
    def id(self) -> str:
        """The request's name in log and answer: the client's X-Request-Id, or one of the server's."""
        if not hasattr(self, "_id"):  # few requests need one
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
        """The query's parameters; InvalidArgument if one is not known."""
        query = self.head.query
        if not query:
            return {}
        matched = _ONE_PARAMETER.fullmatch(query)
        if matched is not None and (name := matched[1].decode()) in known:  # as in every ack
            return {name: matched[2].decode()}
        given = (_parameters if len(query) <= LONG else _parameters.__wrapped__)(query)
        if not given.keys() <= set(known):
            strange = ", ".join(sorted(given.keys() - set(known)))
            accepted = f"give {', '.join(known)}" if known else "this takes none"
            raise InvalidArgument(f"unknown query parameter: {strange}; {accepted}")
        return given

    def media_type(self) -> str:
        """The Content-Type, without its parameters."""
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


class Answer(NamedTuple):
    """An answer: status, header lines, body. `close` ends the connection."""

    status: int
    headers: bytes = b""
    body: bytes = b""
    close: bool = False
    rest: Sequence[bytes] = ()  # further parts of the body, which are not copied

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return len(self.body) + sum(map(len, self.rest))


class Dialect(Protocol):
    """How the requests of another protocol carry their token, and how they are refused."""

    @staticmethod
    def token(request: Request) -> bytes:
        """The token, as in the header Authorization; empty if there is none."""

    @staticmethod
    def refuse(request: Request, error: BaseException) -> Answer:
        """The answer for an error of HTTP or of Penstock, or for any other failure."""


class Asking:
    """Answers a request with its operation's result: stands in for the future that a coroutine would await."""

    __slots__ = ("_answer", "_request")

    def __init__(self, request: Request, answer: Callable[[Any], Answer]) -> None:
        self._request = request
        self._answer = answer

    def done(self) -> bool:
        """Whether the messages of a claim have no taker: its client has gone. A put or an ack goes on."""
        return self._request.route.polls and bool(self._request.connection.has_gone())

    def set_result(self, result: Any, /) -> None:
        connection = self._request.connection
        try:
            answer = self._answer(result)
        except Exception as error:
            connection.fail(self._request, error)
        else:
            connection.answer(self._request, answer)

    def set_exception(self, error: BaseException, /) -> None:
        self._request.connection.fail(self._request, error)


Handler: TypeAlias = Callable[[Any, Request], Awaitable[Answer]]  # called with the store's backend
# A handler without a coroutine. True: it takes the request, and calls the connection's answer() or fail() later.
Shortcut: TypeAlias = Callable[[Any, Request], bool]


class Route(NamedTuple):
    """The handler of a method and path, and the limits of its requests."""

    handler: Handler
    roles: int  # one of these is needed, where there are tokens
    most: int = 65_536  # bytes of a body
    is_payload: bool = False  # the body is one payload: the queue's max_payload limits it
    discards: bool = False  # the body is not kept
    polls: bool = False  # a long poll: it is cancelled when the client has gone
    lists: bool = False  # the answer has many payloads: few such requests run at the same time
    monitors: bool = False  # needs no token if monitoring is open to all
    shortcut: Shortcut | None = None
    dialect: type[Dialect] | None = None


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
    """An error of HTTP itself, not of the contract: its name is a key of STATUSES."""

    def __init__(self, error: str, what: str, headers: bytes = b"", advice: Advice | None = None) -> None:
        super().__init__(what)
        self.error = error
        self.headers = headers
        self.advice = advice


def refusal(problem: Problem, close: bool = False, request: Request | None = None) -> Answer:
    """The answer for an error of HTTP, in the protocol of the request."""
    if request is not None and request.route.dialect is not None:
        return request.route.dialect.refuse(request, problem)._replace(close=close)
    status = STATUSES[problem.error]
    details = problems.problem(status, problem.error, str(problem), problem.advice)
    return _refusal(status, details, problem.headers, close)


def _refusal(status: int, details: dict[str, Any], headers: bytes = b"", close: bool = False) -> Answer:
    if status in (503, 507):
        headers += b"Retry-After: 1\r\n"
    return Answer(status, headers + _PROBLEM, jsons.dumps(details), close)


def named(request: Request, answer: Answer) -> Answer:
    """The answer with the request's id as a header."""
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
    """The bytes of an answer, without `rest`."""
    status, headers, body, _, rest = answer
    closing = b"" if keep_alive else b"Connection: close\r\n"
    if status == 204:
        return b"HTTP/1.1 204 No Content\r\n%b%b%b\r\n" % (_Date.now(), headers, closing)
    return b"HTTP/1.1 %b\r\n%b%bContent-Length: %d\r\n%b\r\n%b" % (
        _PHRASES[status], _Date.now(), headers, answer.size if rest else len(body), closing,
        b"" if without_body else body,
    )  # fmt: skip


def about(request: Request) -> dict[str, Any]:
    """The fields of a log record that describe a request. The query is left out: it may have a receipt."""
    told = {
        "request": request.id,
        "peer": request.peer,
        "method": request.head.method.decode("ascii", "backslashreplace"),
        "path": request.head.target.partition(b"?")[0].decode("ascii", "backslashreplace"),
    }
    action = request.headers.get(b"x-amz-target", b"").rpartition(b".")[2]  # of SQS, whose requests have one path
    if _AN_ID.fullmatch(action):
        told["action"] = action.decode()
    return {**told, "token": request.holder.name} if request.holder else told


def json_answer(value: dict[str, Any], status: int = 200) -> Answer:
    """An answer with a JSON body."""
    return Answer(status, JSON, jsons.dumps(value))


def json_object(request: Request, *known: str) -> dict[str, Any]:
    """The body as a JSON object with no other members than these."""
    if request.body and request.media_type() != "application/json":
        raise Problem("UnsupportedMediaType", "send JSON, with Content-Type: application/json")
    request.parameters()
    given = jsons.loads_object(request.body)
    check_known(given, known, "this request")
    return given


def checked_wait(wait: float) -> float:
    """The seconds that a consumer waits: what it asked for, at most MAX_WAIT."""
    return min(seconds("wait", wait), MAX_WAIT)


def batch_type(request: Request) -> str:
    """The media type of a batch in a request: JSON or a frame."""
    kind = request.media_type()
    if kind not in (frames.MEDIA_TYPE, "application/json"):
        raise Problem("UnsupportedMediaType", f"send messages as application/json or as {frames.MEDIA_TYPE}")
    return kind


def batch_answer(
    request: Request, messages: Sequence[Message], wanted: Collection[str] = MESSAGE_FIELDS
) -> Answer:
    """An answer with messages: a frame if the client accepts frames, else JSON."""
    if _FRAME_TYPE in request.headers.get(b"accept", b""):
        first, *rest = frames.message_parts(messages, wanted)
        return Answer(200, _FRAME, first, rest=rest)
    return json_answer({"messages": [jsons.message_as_json(message, wanted) for message in messages]})


OVERLOADED = Problem("Overloaded", "the server has too much to do: try again a little later")
GOING = Problem("StoreClosed", "the server is stopping: try again a little later")
FAILED = Problem("ServerError", "the server failed at this request; its log says why")
TOO_LONG = Problem("HeadersTooLarge", f"the request's head is longer than {MAX_HEADERS} bytes")


def of_head(request: Request, http: str) -> Problem | None:
    """Why a request is refused by its head; None if it is not."""
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
    """The answer for an error of a handler."""
    if isinstance(error, Problem):
        return refusal(error, request=request)
    if request.route.dialect is not None:
        answer = request.route.dialect.refuse(request, error)
    elif isinstance(error, PenstockError):
        answer = _refusal(*problems.as_problem(error))
    else:
        answer = refusal(FAILED)
    if answer.status == 500:  # damage or a bug
        _log.error("a request failed", exc_info=error, extra=about(request))
        return answer._replace(close=True)
    if isinstance(error, StoreUnavailable):  # only the log names the file
        _log.warning("a request was refused: %s", error, extra=about(request))
    return answer


def too_large(request: Request) -> Problem:
    """The refusal of a body that is, or is announced to be, longer than its route takes."""
    size = request.headers.get(b"content-length", b"%d or more" % (request.most + 1)).decode()
    if request.route.is_payload:
        name = request.arguments[0] or DEFAULT
        detail = f"a payload of {size} bytes; queue {name!r} takes at most {request.most}: put its address instead"
    else:
        detail = f"a body of {size} bytes; the most that is accepted here is {request.most}: send it in parts"
    return Problem("PayloadTooLarge", detail)
