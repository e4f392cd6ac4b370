"""From a request's method and target to who answers it.

Names and ids are taken from the raw path, so that `/`, `..` and everything else that is encoded is just a name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from penstock.contract import loads, operations, stream_operations
from penstock.contract.operation import Operation
from penstock.contract.roles import ADMIN, ANY_ROLE, ANYONE, CONSUME, READ, WRITE
from penstock.http.server import description, monitoring, mqcore
from penstock.http.server.exchange import LONG, Answer, Problem, Request, Route
from penstock.http.server.operations import handler

_Methods = dict[bytes, Route]
_NAMELESS = [b"-", b"api", b"queues", b""]
_BODY = 16 * 1024 * 1024  # the largest payload
_BATCH = 64 * 1024 * 1024

# MQ-Core's, where a queue's name is the first part of the path
_QUEUE: _Methods = {
    b"GET": Route(mqcore.show_queue, ANY_ROLE),
    b"PUT": Route(mqcore.create_queue, ADMIN, 1024 * 1024, discards=True),
    b"DELETE": Route(mqcore.delete_queue, ADMIN),
}
_MESSAGES: _Methods = {
    b"GET": Route(mqcore.fetch_message, CONSUME, polls=True),
    b"POST": Route(mqcore.add_message, WRITE, _BODY, is_payload=True, shortcut=mqcore.add_plainly),
}
_MESSAGE: _Methods = {b"DELETE": Route(mqcore.remove_message, CONSUME)}
_START: _Methods = {b"GET": Route(description.start, ANYONE)}

_OWN = {
    "GET /-/healthz": Route(monitoring.healthz, ANYONE),
    "GET /-/readyz": Route(monitoring.readyz, READ, monitors=True),
    "GET /-/metrics": Route(monitoring.metrics, READ, monitors=True),
    "GET /-/openapi.json": Route(description.openapi, ANYONE),
    "GET /-/docs": Route(description.docs, ANYONE),
}


def route_of(kind: type[Operation[Any]], role: int | None = None) -> Route:
    """What answers requests for an operation."""
    http = kind.http
    return Route(
        handler(kind), http.role if role is None else role, http.limit, polls=http.polls, lists=http.lists
    )


@dataclass
class Node:
    """A part of paths: what follows it, by name or whatever stands there, and what answers if it is the last."""

    named: "dict[bytes, Node]" = field(default_factory=dict)
    variable: "Node | None" = None
    methods: _Methods = field(default_factory=dict)

    def add(self, call: str, route: Route) -> None:
        """Answer a method of a path below this part."""
        method, _, path = call.encode().partition(b" ")
        node = self
        for part in path.split(b"/")[1:]:
            if part[:1] == b"{":
                node.variable = node = node.variable or Node()
            else:
                node = node.named.setdefault(part, Node())
        node.methods[method] = route

    def find(self, parts: list[bytes]) -> tuple[_Methods, list[bytes]]:
        """What answers at a path, and its variable parts: one of them may be called as what has a name there."""
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
    """Routes by the parts of their paths: of their own, and those of operations."""
    tree = Node()
    for call, route in routes.items():
        tree.add(call, route)
    for kind in operations:
        tree.add(f"{kind.http.method} {kind.http.path}", route_of(kind))
    return tree


_TREE = tree_of(
    _OWN, (*operations.QUEUES, *operations.OF_MESSAGES, *stream_operations.OPERATIONS, *loads.OPERATIONS)
)


def find(method: bytes, target: bytes) -> tuple[Route, tuple[str, ...], bytes]:
    """The route, the variable parts of the path, and the query. Where nothing is, the route says so."""
    try:
        if target[:1] != b"/":
            target = _path_of(target)
        path, _, query = target.partition(b"?")
        methods, arguments = _resource(path.split(b"/")[1:])
        route = methods.get(b"GET" if method == b"HEAD" else method)
        if route is None or (method == b"HEAD" and route.polls):
            raise _not_allowed(methods)
    except Problem as problem:
        return Route(partial(_refuse, problem), ANY_ROLE, _BATCH, discards=True), (), b""
    decoded = _decoded if len(path) <= LONG else _decoded.__wrapped__
    return route, tuple(map(decoded, arguments)), query


async def _refuse(problem: Problem, backend: object, request: Request) -> Answer:
    raise problem


def _resource(parts: list[bytes]) -> tuple[_Methods, list[bytes]]:
    count = len(parts)
    if count == 2 and parts[1] == b"messages":
        return _MESSAGES, parts[:1]
    if count == 3 and parts[1] == b"messages" and parts[2]:
        return _MESSAGE, parts[::2]
    if count == 1:
        return (_QUEUE, parts) if parts[0] else (_START, [])
    nameless = parts[:4] == _NAMELESS  # not `default`: who wrote that has lost a name
    methods, arguments = ({}, []) if nameless else _TREE.find(parts)
    if methods:
        return methods, arguments
    raise Problem(
        "NotFound",
        "there is nothing at this path: queues are at /{queue}, messages at /{queue}/messages, the rest below /-/ "
        "(see /-/docs); a / in a name is written as %2F",
    )


def _path_of(target: bytes) -> bytes:
    """Of a target in absolute form, as proxies get it."""
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
    return unquote_to_bytes(part).decode("latin-1")  # what is not ASCII is refused as a name
