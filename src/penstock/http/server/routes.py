"""Routes: from a path to its handler, from a request to its operation, from a result to an answer.

A path is split before it is decoded, so that an encoded `/` or `..` is part of a name.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from penstock.contract import loads, monitoring, operations, roles, stream_operations
from penstock.contract.arguments import arguments, checked_consumer
from penstock.contract.loads import AddToLoad, BeginLoad, TooManyLoads
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Ack, Claim, Extend, Fail, Messages, OneMessage, Peek, Pop, Release
from penstock.contract.roles import ADMIN, ANY_ROLE, ANYONE, CONSUME, READ, WRITE
from penstock.contract.streams import BatchPlan
from penstock.engine.coroutines import LocalBackend
from penstock.errors import Forbidden, InvalidArgument
from penstock.http.server import console, metrics, mqcore, page
from penstock.http.server.exchange import (
    LONG,
    Answer,
    Asking,
    Handler,
    Problem,
    Request,
    Route,
    Shortcut,
    batch_answer,
    batch_type,
    json_answer,
    json_object,
)
from penstock.http.server.sqs import endpoint as sqs
from penstock.wire import frames, jsons

_MOST = 16 << 20  # bytes of payloads that one claim gets; its first message may be larger
_PAGE = 8 << 20  # bytes of payloads at which a page of a listing ends
_BYTES = b"Content-Type: application/octet-stream\r\n"
_REMEMBERED, _SHORT = 1_024, 512  # requests of consumers that are remembered, and bytes of such a body

_QUICK = frozenset({Claim, Ack, Fail, Release, Extend})  # operations that many requests ask for, one by one

_Methods = dict[bytes, Route]
_BAD_CODE = re.compile(rb"%(?![0-9A-Fa-f]{2})[^/]{0,2}")
_OWN_ROOT = [b"-", b""]  # the console, not the queue `-`
_NAMELESS = [b"-", b"api", b"queues", b""]
_BODY = 16 * 1024 * 1024  # the largest payload
_BATCH = 64 * 1024 * 1024


async def whoami(backend: Any, request: Request) -> Answer:
    """GET /-/api/whoami."""
    request.parameters()
    name = None if request.holder is None else request.holder.name
    needs_token = request.service.access is not None
    return json_answer({"needs_token": needs_token, "name": name, "roles": roles.names(request.roles)})


# MQ-Core: the first segment of the path is a queue's name
_QUEUE: _Methods = {
    b"GET": Route(mqcore.show_queue, ANY_ROLE),
    b"PUT": Route(mqcore.create_queue, ADMIN, 1024 * 1024, discards=True),
    b"DELETE": Route(mqcore.delete_queue, ADMIN),
}
_MESSAGES: _Methods = {
    b"GET": Route(mqcore.fetch_message, CONSUME, polls=True, shortcut=mqcore.fetch_quickly),
    b"POST": Route(mqcore.add_message, WRITE, _BODY, is_payload=True, shortcut=mqcore.add_plainly),
}
_MESSAGE: _Methods = {b"DELETE": Route(mqcore.remove_message, CONSUME, shortcut=mqcore.ack_quickly)}
_START: _Methods = {b"GET": Route(page.start, ANYONE)}
_CONSOLE: _Methods = {b"GET": Route(console.page, ANYONE)}
_OWN = {
    "GET /-/console/{version}/{file}": Route(console.file, ANYONE),
    "GET /-/healthz": Route(metrics.healthz, ANYONE),
    "GET /-/readyz": Route(metrics.readyz, READ, monitors=True),
    "GET /-/metrics": Route(metrics.metrics, READ, monitors=True),
    "GET /-/openapi.json": Route(page.openapi, ANYONE),
    "GET /-/docs": Route(page.docs, ANYONE),
    "GET /-/api/whoami": Route(whoami, ANYONE),
}


def handler(kind: type[Operation[Any]]) -> Handler:
    """The handler of requests for an operation."""
    read, consumes, is_watched = reader(kind), issubclass(kind, Claim | Pop), kind.part == "watch"

    async def handle(backend: Any, request: Request) -> Answer:
        operation = read(request)
        if isinstance(operation, Peek | Messages):
            fields = operation.fields if isinstance(operation, Messages) else MESSAGE_FIELDS
            return batch_answer(request, await _page(backend.listed(operation), operation), fields)
        if isinstance(operation, AddToLoad) and batch_type(request) != frames.MEDIA_TYPE:
            operation.frame = await asyncio.to_thread(_framed, request)  # in a thread: it may have many megabytes
        if is_watched:
            return json_answer(await operation.call(request.service))
        try:
            result = await backend.run(operation)
            if consumes and (consumers := request.connection.service.consumers) is not None:
                count = len(result) if kind is Claim else result is not None
                consumers.see(operation.queue, operation.consumer, count)
            if kind.http.then is not None:
                result = await backend.run(kind.http.then(operation.queue))
        except TooManyLoads as error:
            raise Problem("Overloaded", str(error)) from None
        if kind.http.answer.kind is BatchPlan:
            return Answer(200, _BYTES, await asyncio.to_thread(_encoded, result))  # of millions of rows
        return _answered(request, operation, result)

    return handle


def shortcut(kind: type[Operation[Any]]) -> Shortcut:
    """What carries out requests for an operation without the cost of a coroutine, if that can be done at once."""
    read = reader(kind)

    def begin(backend: Any, request: Request) -> bool:
        if not isinstance(backend, LocalBackend):
            return False
        operation = read(request)

        def answer(result: Any) -> Answer:
            if kind is Claim and (consumers := request.service.consumers) is not None:
                consumers.see(operation.queue, operation.consumer, len(result))
            return _answered(request, operation, result)

        return backend.begin(operation, Asking(request, answer))

    return begin


def reader(kind: type[Operation[Any]]) -> Callable[[Request], Any]:
    """A function that makes an operation from a request; InvalidArgument, InvalidName, Forbidden and others."""
    others, in_path, in_query = kind.others, kind.http.in_path, kind.http.in_query
    [batch] = (kind.wires.keys() - {*in_path, *others}) if kind.http.batch else [""]
    numbers = _numbers(kind)
    consumes, claims, begins = issubclass(kind, Claim | Pop), kind is Claim, kind is BeginLoad

    def read(request: Request) -> Any:
        parts = dict(zip(in_path, request.arguments, strict=True))
        with arguments():
            values = kind.checked(_numbered(parts, numbers), in_path)
            if in_query:
                told: Mapping[str, Any] = _numbered(request.parameters(*others), numbers)
            else:
                told = json_object(request, *others)
            values |= kind.checked(told, others)
            if batch:
                values |= kind.checked({batch: _batch(kind, request)}, [batch])
            operation: Any = kind(**values)
            if kind.limits:
                operation = operation.within_limits()
            if consumes:
                operation.consumer = checked_consumer(
                    request.peer if operation.consumer is None else operation.consumer
                )
        if claims:
            operation.most = _MOST
        elif begins and operation.queues and not roles.allows(request.roles, roles.ADMIN):
            raise Forbidden(
                "a load that makes queues needs the role admin: ask for it, or create the queues before"
            )
        return operation

    return _remembering(read) if consumes else read


def _remembering(read: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """`read` for consumers, which ask the same thing again and again: the same bytes are read once."""
    known: dict[tuple[tuple[str, ...], bytes, str], Any] = {}

    def recall(request: Request) -> Any:
        body, head = request.body, request.head
        if head.query or len(body) > _SHORT or head.headers.get(b"content-type") != b"application/json":
            return read(request)
        key = head.arguments, body, request.connection.peer
        operation = known.get(key)
        if operation is None:
            operation = read(request)
            if getattr(operation, "ack", ()):  # never asked again
                return operation
            if len(known) >= _REMEMBERED:
                known.clear()
            known[key] = operation
        return operation

    return recall


def _numbered(given: Mapping[str, str], wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """The values of a path or a query, with numbers parsed."""
    if wanted.keys().isdisjoint(given):
        return given
    return {wire: _number(wire, text, wanted[wire]) if wire in wanted else text for wire, text in given.items()}


def _numbers(kind: type[Operation[Any]]) -> dict[str, str]:
    """The arguments that are numbers, by name, with their JSON type."""
    types = {wire: argument.schema.get("type") for wire, (_, argument) in kind.wires.items()}
    return {wire: wanted for wire, wanted in types.items() if wanted in ("integer", "number")}


def _number(name: str, text: str, wanted: str) -> Any:
    number = jsons.number(name, text)
    if wanted == "integer" and not isinstance(number, int):
        raise InvalidArgument(f"{name}={text!r} is not an integer")
    return number


def _batch(kind: type[Operation[Any]], request: Request) -> Any:
    """The messages of a body, decoded; those of a load, and of an owner's operation, stay bytes."""
    is_frame = kind.part == "owner" or batch_type(request) == frames.MEDIA_TYPE
    if kind.part:
        return request.body
    return frames.decode_entries(request.body) if is_frame else _entries(request)


def _entries(request: Request) -> Any:
    return jsons.entries_from_json(jsons.loads_object(request.body))


def _framed(request: Request) -> bytes:
    """A batch that was sent as JSON, as a frame."""
    with arguments():
        return frames.encode_entries(_entries(request))


async def _page(messages: AsyncIterator[Message], operation: Peek | Messages) -> list[Message]:
    most = operation.n if isinstance(operation, Peek) else operation.limit
    page: list[Message] = []
    size = 0
    async for message in messages:
        page.append(message)
        size += len(message.payload)
        if len(page) == most or size >= _PAGE:
            break
    return page


def _answered(request: Request, operation: Operation[Any], result: Any) -> Answer:
    answer = operation.http.answer
    if answer.status == 204:
        return Answer(204)
    if answer.kind is Message:
        if isinstance(operation, Pop | OneMessage):
            result = [] if result is None else [result]
        return batch_answer(request, result)
    return json_answer(jsons.encode_result(answer, result), answer.status)


def _encoded(plan: BatchPlan) -> bytes:
    from penstock.http.batches import encode_plan  # late: few servers are asked for plans

    return encode_plan(plan)


@dataclass
class Node:
    """A segment in the tree of routes: the segments that may follow, and the routes of paths that end here."""

    named: "dict[bytes, Node]" = field(default_factory=dict)
    variable: "Node | None" = None
    methods: _Methods = field(default_factory=dict)

    def add(self, call: str, route: Route) -> None:
        """Add a route for "METHOD /path"; a segment in braces is variable."""
        method, _, path = call.encode().partition(b" ")
        node = self
        for part in path.split(b"/")[1:]:
            if part[:1] == b"{":
                node.variable = node = node.variable or Node()
            else:
                node = node.named.setdefault(part, Node())
        node.methods[method] = route

    def find(self, parts: list[bytes]) -> tuple[_Methods, list[bytes]]:
        """The routes of a path, by method, and its variable segments. A fixed segment wins over a variable one."""
        if not parts or not parts[-1]:
            return {}, []
        return self._find(parts, 0, [])

    def _find(self, parts: list[bytes], at: int, arguments: list[bytes]) -> tuple[_Methods, list[bytes]]:
        if at == len(parts):
            return self.methods, arguments
        part = parts[at]
        named = self.named.get(part)
        found = ({}, []) if named is None else named._find(parts, at + 1, arguments)
        if found[0] or self.variable is None:
            return found
        return self.variable._find(parts, at + 1, [*arguments, part])


def tree_of(routes: Mapping[str, Route], operations: Iterable[type[Operation[Any]]] = ()) -> Node:
    """The tree of given routes and of operations' routes."""
    tree = Node()
    for call, route in routes.items():
        tree.add(call, route)
    for kind in operations:
        http = kind.http
        quick = shortcut(kind) if kind in _QUICK else None
        route = Route(handler(kind), http.role, http.limit, polls=http.polls, lists=http.lists, shortcut=quick)
        tree.add(f"{http.method} {http.path}", route)
    return tree


_TREE = tree_of(
    _OWN,
    (
        *operations.QUEUES,
        *operations.OF_MESSAGES,
        *stream_operations.OPERATIONS,
        *loads.OPERATIONS,
        *monitoring.OPERATIONS,
    ),
)


def find(method: bytes, target: bytes) -> tuple[Route, tuple[str, ...], bytes]:
    """The route, the variable segments of the path, and the query. An unknown path gets a route that refuses."""
    try:
        if target[:1] != b"/":
            target = _path_of(target)
        path, _, query = target.partition(b"?")
        if wrong := _BAD_CODE.search(path):
            raise Problem(
                "BadRequest",
                f"the path has {wrong[0].decode('latin-1')!r}, which is no percent-encoding: two hexadecimal "
                "digits follow a %, and a % itself is written as %25",
            )
        methods, arguments = _resource(_parts(path))
        if methods is _START and (method == b"POST" or b"Action=" in query):
            methods = sqs.ROUTES
        route = methods.get(b"GET" if method == b"HEAD" else method)
        if route is None or (method == b"HEAD" and route.polls):
            raise _not_allowed(methods)
    except Problem as problem:
        return Route(partial(_refuse, problem), ANY_ROLE, _BATCH, discards=True), (), b""
    decoded = _decoded if len(path) <= LONG else _decoded.__wrapped__
    return route, tuple(map(decoded, arguments)), query


async def _refuse(problem: Problem, backend: object, request: Request) -> Answer:
    raise problem


def _parts(path: bytes) -> list[bytes]:
    """The segments of a path. A slash at its end adds none; that of a name is encoded."""
    parts = path.split(b"/")[1:]
    return parts[:-1] if parts[-2:-1] not in ([], [b""]) and not parts[-1] and parts != _OWN_ROOT else parts


def _resource(parts: list[bytes]) -> tuple[_Methods, list[bytes]]:
    count = len(parts)
    if count == 2 and parts[1] == b"messages":
        return _MESSAGES, parts[:1]
    if count == 3 and parts[1] == b"messages" and parts[2]:
        return _MESSAGE, parts[::2]
    if count == 2 and parts[0] == sqs.PATH:
        return sqs.ROUTES, parts[1:]
    if count == 1:
        return (_QUEUE, parts) if parts[0] else (_START, [])
    if parts == _OWN_ROOT:
        return _CONSOLE, []
    nameless = parts[:4] == _NAMELESS  # an empty name means `default` elsewhere; here a client has lost a name
    methods, arguments = ({}, []) if nameless else _TREE.find(parts)
    if methods:
        return methods, arguments
    raise Problem(
        "NotFound",
        "there is nothing at this path: queues are at /{queue}, messages at /{queue}/messages, the rest below /-/ "
        "(see /-/docs); a / in a name is written as %2F",
    )


def _path_of(target: bytes) -> bytes:
    """Path and query of a target in absolute form, which proxies send."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise Problem("BadRequest", "the request's target is no path") from None
    path: bytes = url.path or b"/"
    if path[:1] != b"/":
        raise Problem("BadRequest", "the request's target is no path")
    return path + (b"?" + url.query if url.query else b"")


def _not_allowed(methods: _Methods) -> Problem:
    allowed = [*methods, *[b"HEAD" for route in [methods.get(b"GET")] if route is not None and not route.polls]]
    names = b", ".join(allowed)
    return Problem("MethodNotAllowed", f"this takes {names.decode()}", b"Allow: %b\r\n" % names)


@lru_cache(maxsize=4096)
def _decoded(part: bytes) -> str:
    return unquote_to_bytes(part).decode(errors="replace")  # names that are not ASCII are refused later
