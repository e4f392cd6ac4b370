"""From a request's method and target to who answers it.

Names and ids are taken from the raw path, so that `/`, `..` and everything else that is encoded is just a name.
"""

from functools import lru_cache, partial
from urllib.parse import unquote_to_bytes

import httptools

from penstock.server import api, description, following, loads, monitoring, mqcore, streams
from penstock.server.exchange import LONG, Answer, Problem, Request, Route
from penstock.server.roles import ADMIN, ANY_ROLE, ANYONE, CONSUME, READ, WRITE

_Methods = dict[bytes, Route]

_BODY = 16 * 1024 * 1024  # the largest payload
_BATCH = 64 * 1024 * 1024
_LIST = 8 * 1024 * 1024  # of receipts or ids

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

# Whoever settles may remove, as MQ-Core's consumers do. Loads that make queues need admin as well.
_OWN: dict[tuple[bytes, ...], _Methods] = {
    (b"healthz",): {b"GET": Route(monitoring.healthz, ANYONE)},
    (b"readyz",): {b"GET": Route(monitoring.readyz, READ, monitors=True)},
    (b"metrics",): {b"GET": Route(monitoring.metrics, READ, monitors=True)},
    (b"openapi.json",): {b"GET": Route(description.openapi, ANYONE)},
    (b"docs",): {b"GET": Route(description.docs, ANYONE)},
    (b"api", b"queues"): {b"GET": Route(api.list_queues, READ), b"POST": Route(api.create_queue, ADMIN)},
    (b"api", b"publish"): {b"POST": Route(api.publish, WRITE, _BATCH)},
    (b"loads",): {b"POST": Route(loads.begin, WRITE, _LIST)},
    (b"streams",): {b"GET": Route(streams.list_streams, READ)},
}
_OF_QUEUE: dict[tuple[bytes, ...], _Methods] = {
    (): {b"GET": Route(api.show_queue, ANY_ROLE), b"DELETE": Route(mqcore.delete_queue, ADMIN)},
    (b"put",): {b"POST": Route(api.put, WRITE, _BATCH)},
    (b"claim",): {b"POST": Route(api.claim, CONSUME, polls=True)},
    (b"pop",): {b"POST": Route(api.pop, CONSUME, polls=True)},
    (b"ack",): {b"POST": Route(api.ack, CONSUME, _LIST)},
    (b"fail",): {b"POST": Route(api.fail, CONSUME, _LIST)},
    (b"release",): {b"POST": Route(api.release, CONSUME, _LIST)},
    (b"extend",): {b"POST": Route(api.extend, CONSUME, _LIST)},
    (b"remove",): {b"POST": Route(api.remove, CONSUME, _LIST)},
    (b"redrive",): {b"POST": Route(api.redrive, ADMIN, _LIST)},
    (b"purge",): {b"POST": Route(api.purge, ADMIN)},
    (b"peek",): {b"GET": Route(api.peek, READ, lists=True)},
    (b"messages",): {b"GET": Route(api.browse, READ, lists=True)},
    (b"attempts",): {b"GET": Route(api.all_attempts, READ, lists=True)},
    (b"parts",): {b"GET": Route(api.parts, READ)},
}
_ATTEMPTS: _Methods = {b"GET": Route(api.attempts, READ)}
_LOAD: _Methods = {b"DELETE": Route(loads.abort, WRITE)}
_COMMIT: _Methods = {b"POST": Route(loads.commit, WRITE, _LIST)}
_STAGED: _Methods = {b"PUT": Route(loads.add, WRITE, _BATCH)}
_RUN: _Methods = {b"GET": Route(loads.show_run, READ | WRITE)}
# Whoever consumes may say which batches were read; what is held is given back by who answers for the queue.
_STREAM: dict[tuple[bytes, ...], _Methods] = {
    (): {b"DELETE": Route(streams.delete, ADMIN)},
    (b"begin",): {b"POST": Route(streams.begin, CONSUME)},
    (b"next",): {b"POST": Route(streams.go_on, CONSUME)},
    (b"follow",): {b"POST": Route(streams.follow, CONSUME)},
    (b"release",): {b"POST": Route(streams.release, ADMIN)},
}
# Who follows takes nothing; under a name (S/follow) what was settled is kept for it, for as long as it likes.
_FOLLOWER: dict[tuple[bytes, ...], _Methods] = {
    (): {b"DELETE": Route(following.leave, READ)},
    (b"start",): {b"GET": Route(following.start, READ)},
    (b"ahead",): {b"GET": Route(following.ahead, READ)},
    (b"messages",): {b"GET": Route(following.messages, READ, lists=True)},
}
_OF_BATCH: dict[bytes, _Methods] = {
    b"read": {b"POST": Route(streams.read, CONSUME)},
    b"messages": {b"GET": Route(streams.messages, CONSUME, lists=True)},
    b"fail": {b"POST": Route(streams.fail, CONSUME, _LIST)},
    b"settle": {b"POST": Route(streams.settle, CONSUME)},
}
_START: _Methods = {b"GET": Route(description.start, ANYONE)}


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


async def _refuse(problem: Problem, keeper: object, request: Request) -> Answer:
    raise problem


def _resource(parts: list[bytes]) -> tuple[_Methods, list[bytes]]:
    count = len(parts)
    if count == 2 and parts[1] == b"messages":
        return _MESSAGES, parts[:1]
    if count == 3 and parts[1] == b"messages" and parts[2]:
        return _MESSAGE, parts[::2]
    if count == 1:
        return (_QUEUE, parts) if parts[0] else (_START, [])
    if parts[0] == b"-":
        own = _OWN.get(tuple(parts[1:]))
        if own is not None:
            return own, []
        if parts[1:3] == [b"api", b"queues"] and parts[3]:
            if count == 7 and parts[4::2] == [b"messages", b"attempts"]:
                return _ATTEMPTS, parts[3:6:2]
            of_queue = _OF_QUEUE.get(tuple(parts[4:]))
            if of_queue is not None:
                return of_queue, parts[3:4]
        if parts[1] == b"runs" and count == 3 and parts[2]:
            return _RUN, parts[2:]
        if parts[1] == b"streams" and count > 3:
            of_stream = _STREAM.get(tuple(parts[4:]))
            if of_stream is not None:
                return of_stream, parts[2:4]
            if count == 6 and parts[5] in _OF_BATCH:
                return _OF_BATCH[parts[5]], parts[2:5]
        if parts[1] == b"followers" and count > 3:
            of_follower = _FOLLOWER.get(tuple(parts[4:]))
            if of_follower is not None:
                return of_follower, parts[2:4]
        if parts[1] == b"loads":
            if count == 3:
                return _LOAD, parts[2:]
            if count == 4 and parts[3] == b"commit":
                return _COMMIT, parts[2:3]
            if count == 5:
                return _STAGED, parts[2:]
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
