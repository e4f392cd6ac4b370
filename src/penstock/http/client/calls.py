"""The bytes of requests and answers: operations encoded, answers parsed and decoded. Pure; nothing here waits."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import httptools

from penstock.contract.message import MAX_MESSAGES, Entry, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Messages, Publish, Put
from penstock.contract.streams import BatchPlan
from penstock.errors import InvalidArgument
from penstock.http.client.address import Address
from penstock.http.client.failures import Garbage, Lost, Refused
from penstock.wire import frames, jsons, problems

MAX_HEAD = 65_536
# The most frequent heads of Penstock's server, matched without the parser and its callbacks: the answers to a put,
# to an ack, and those with a frame or JSON.
_KNOWN = re.compile(
    rb"HTTP/1\.1 (?:201 Created\r\nDate: [ -~]+\r\nX-Message-Id: ([!-~]+)\r\nContent-Length: 0"
    rb"|(204) No Content\r\nDate: [ -~]+"
    rb"|200 OK\r\nDate: [ -~]+\r\nContent-Type: [!-~]+\r\nContent-Length: ([0-9]{1,9}))\r\n\r\n"
)
_JSON = "Content-Type: application/json\r\n"
_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n"
_WANTS_FRAME = f"Accept: {frames.MEDIA_TYPE}\r\n"
Result = TypeVar("Result")


class Answer(NamedTuple):
    """A complete answer. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool


class AnswerReader:
    """Parses the answers of one connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._head_size = 0
        self._in_head = True
        self._answer: Answer | None = None
        self._superfluous = False

    def feed(self, data: bytes) -> Answer | None:
        """The answer, once it is complete; Garbage if the bytes are no answer, or more than one."""
        if self._in_head:
            if not self._head_size and (known := _KNOWN.match(data)):
                added, nothing, length = known.groups()
                end = known.end()
                if len(data) == end + int(length or 0):
                    headers = {b"x-message-id": added} if added else {}
                    return Answer(201 if added else 204 if nothing else 200, headers, data[end:], True)
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise Garbage(f"it does not speak HTTP/1.1 ({error or type(error).__name__})") from None
        if self._in_head and self._head_size > MAX_HEAD:
            raise Garbage("its answer has endless headers")
        if self._superfluous:
            raise Garbage("it answers more than it was asked")
        answer, self._answer = self._answer, None
        return answer

    # Callbacks of httptools

    def on_message_begin(self) -> None:
        """A second answer was never asked for."""
        self._superfluous = self._answer is not None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """The answer is complete, unless it is an interim one (1xx)."""
        status = self._parser.get_status_code()
        if status >= 200:
            body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            self._answer = Answer(status, self._headers, body, self._parser.should_keep_alive())
        self._headers, self._chunks, self._head_size, self._in_head = {}, [], 0, True


class Call(NamedTuple, Generic[Result]):
    """A request and how its answer is read. `repeatable`: doing it twice is as good as doing it once."""

    name: str
    start: str  # method and path
    headers: str
    body: bytes | None
    repeatable: bool
    read: Callable[[Answer], Result]
    wait: float = 0.0  # seconds that the answer may take beyond the timeout

    def request(self, address: Address) -> bytes:
        """The bytes to send."""
        head = _head(self.start, address.authority, address.credentials, self.headers)
        if self.body is None:
            return head + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(self.body), self.body)

    def result(self, answer: Answer) -> Result:
        """The result in an answer; raises the error that the answer reports, or Garbage."""
        if not 200 <= answer.status < 300:
            raise _refusal(answer)
        try:
            return self.read(answer)
        except (LookupError, TypeError, ValueError) as error:
            raise Garbage(f"its answer to {self.name} is not Penstock's ({error!r})") from None


class _Shape(NamedTuple):
    """The parts of a request that do not depend on the values of its arguments."""

    name: str
    start: str  # method and path, with %s for a name
    path: tuple[str, ...]  # names of the arguments in the path
    fields: tuple[tuple[str, str, bool, Any, Callable[[Any], Any] | None], ...]  # name, wire, omit, default, send
    headers: str


_shapes: dict[type[Operation[Any]], _Shape] = {}


def _shape(kind: type[Operation[Any]]) -> _Shape:
    http = kind.http
    segments = ["%s" if part[:1] == "{" else part for part in http.segments]
    headers = _WANTS_FRAME if http.answer.kind is Message else ""
    if http.batch:
        headers = _FRAME
    elif not http.in_query:
        headers = _JSON + headers
    fields = tuple(
        (name, wire, each.omit, kind.default(name), each.send)
        for wire, (name, each) in kind.wires.items()
        if wire not in http.in_path
    )
    path = tuple(kind.wires[wire][0] for wire in http.in_path)
    shape = _Shape(http.said or http.name, f"{http.method} /{'/'.join(segments)}", path, fields, headers)
    return _shapes.setdefault(kind, shape)


def call_of(operation: Operation[Result]) -> Call[Result]:
    """The request for an operation."""
    if isinstance(operation, Put) and (plain := _plain_put(operation)) is not None:
        return plain
    if operation.limits:
        operation = operation.within_limits()
    http, body, sent = operation.http, None, {}
    shape = _shapes.get(type(operation)) or _shape(type(operation))
    for name, wire, omit, default, send in shape.fields:
        value = getattr(operation, name)
        if not omit or value != default:
            sent[wire] = value if send is None else send(value)
    start = shape.start % tuple([quoted(str(getattr(operation, name))) for name in shape.path])
    if http.batch:
        body = _batch(operation, sent.popitem()[1])
    if http.in_query:
        start += f"?{urlencode(sent)}" if sent else ""
        if body is None and http.method == "POST":
            body = b""
    else:
        body = jsons.dumps(sent)
    wait = http.patience or (operation.wait if http.polls else 0.0)
    return Call(shape.name, start, shape.headers, body, operation.is_repeatable(), partial(_read, operation), wait)


def _batch(operation: Operation[Any], given: Any) -> bytes:
    if isinstance(given, bytes):  # a load's batch is already a frame
        return given
    return _frame([given] if isinstance(operation, Publish) else given)


def _plain_put(operation: Put) -> "Call[Any] | None":
    """The MQ-Core request for a message with nothing but payload and priority: needs no frame; None for others."""
    if len(operation.entries) != 1:
        return None
    entry = operation.entries[0]
    further = (entry.headers, entry.retention, entry.key, entry.created_at, entry.group)
    if entry.delay is not None or further != (None, None, None, None, None):
        return None
    headers = f"X-Message-Priority: {entry.priority}\r\n" if entry.priority else ""
    return Call("put", f"POST /{quoted(operation.queue)}/messages", headers, entry.payload, False, _only_id)


def _read(operation: Operation[Any], answer: Answer) -> Any:
    """The result of an operation, decoded from the answer's body."""
    http = operation.http
    if http.answer.status == 204 or http.then is not None:
        return None
    if http.answer.kind is BatchPlan:
        from penstock.http.batches import decode_plan  # late: few clients read plans

        return decode_plan(answer.body)
    if http.answer.kind is Message:
        result: Any = frames.decode_messages(answer.body, operation.queue)
    else:
        result = jsons.decode_result(http.answer, jsons.loads(answer.body))
    if isinstance(operation, Put) and len(result) != len(operation.entries):
        raise ValueError(f"{len(operation.entries)} ids were to come")
    return result if http.pick is None else http.pick(result)


def columns_of(listing: Messages) -> "Call[tuple[dict[str, Any], list[bytes]]]":
    """The request for a page of a listing as columns and payloads. Its fields must include the id."""
    call: Call[Any] = call_of(listing)
    return call._replace(read=lambda answer: frames.decode_columns(answer.body))


def _frame(entries: Sequence[Entry]) -> bytes:
    frame = frames.encode_entries(entries)
    if len(entries) > MAX_MESSAGES or len(frame) > frames.MAX_BYTES:
        raise InvalidArgument(
            f"{len(entries):,} messages of {len(frame):,} bytes; a server takes at most {MAX_MESSAGES:,} "
            f"messages and {frames.MAX_BYTES:,} bytes in one step: put them in several"
        )
    return frame


def _only_id(answer: Answer) -> list[str]:
    return [answer.headers[b"x-message-id"].decode()]


def _refusal(answer: Answer) -> Exception:
    """The error that an answer with a status of 300 or more reports."""
    try:
        problem: Any = jsons.loads_object(answer.body)
    except InvalidArgument:
        problem = {}
    if "error" not in problem:
        if answer.status in (502, 503, 504):
            return Lost(f"what is in front of it says {answer.status}")
        return Garbage(f"it says {answer.status}, but not as Penstock would: is something else there?")
    if answer.status == 503:
        done = problem.get("error") != "Overloaded"  # an overloaded server refuses before it does anything
        return Refused(problems.as_error(problem), _retry_after(answer), done)
    return problems.as_error(problem)


def _retry_after(answer: Answer) -> float:
    value = answer.headers.get(b"retry-after", b"")
    return float(value) if value.isdigit() and len(value) < 10 else 0.0


@lru_cache(maxsize=256)
def _head(start: str, authority: str, credentials: str, headers: str) -> bytes:
    """The request line and headers, which are the same for all puts into a queue."""
    return f"{start} HTTP/1.1\r\nHost: {authority}\r\n{credentials}{headers}".encode()


@lru_cache(maxsize=1024)
def quoted(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")  # proxies resolve `..`
