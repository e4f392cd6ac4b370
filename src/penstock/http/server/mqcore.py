"""The handlers of MQ-Core's six endpoints. Arguments that MQ-Core lacks are query parameters and headers."""

import re
from functools import partial

from penstock.contract import names
from penstock.contract.arguments import SETTINGS, arguments, checked_consumer, checked_lease
from penstock.contract.backend import Served
from penstock.contract.message import Draft, Entry, Message, checked
from penstock.contract.operations import Ack, Claim, Create, Delete, Lookup, Put, Remove, Show
from penstock.engine.coroutines import LocalBackend
from penstock.errors import InvalidArgument, QueueExists
from penstock.http.server.exchange import JSON, Answer, Asking, Problem, Request, checked_wait
from penstock.wire import jsons

_MAX_HEADERS = 16_384  # bytes of X-Message-Headers in an answer: clients read no longer ones
_NO_HEADER = re.compile("[\\x00-\\x1f\\x7f]|^ | $")  # a line of a head cannot carry such a group unchanged
_TOLD = {
    b"x-message-priority": "priority",
    b"x-message-delay": "delay",
    b"x-message-retention": "retention",
    b"x-message-created-at": "created_at",
}


async def show_queue(backend: Served, request: Request) -> Answer:
    """GET /{queue}."""
    request.parameters()
    name = names.checked(request.arguments[0])
    accepted = request.headers.get(b"accept", b"")
    if b"application/json" not in accepted and b"*/*" not in accepted:
        await backend.run(Lookup(name))
        return Answer(200)
    return Answer(200, JSON, jsons.dumps(jsons.queue_as_json(await backend.run(Show(name)))))


async def create_queue(backend: Served, request: Request) -> Answer:
    """PUT /{queue}. MQ-Core knows no limit of attempts, so max_attempts is 0 unless the query has one."""
    name = names.checked(request.arguments[0])
    asked = request.parameters(*SETTINGS)
    wanted = jsons.settings_from_query({"max_attempts": "0", **asked}.items())
    try:
        await backend.run(Create(name, wanted))
        return Answer(201)
    except QueueExists:
        there = await backend.run(Lookup(name))
    differing = [setting for setting in asked if there[setting] != wanted[setting]]
    if differing:
        raise Problem("QueueExists", f"queue {name!r} exists with another {', '.join(differing)}")
    return Answer(204)


async def delete_queue(backend: Served, request: Request) -> Answer:
    """DELETE /{queue}."""
    request.parameters()
    await backend.run(Delete(names.deletable(request.arguments[0])))
    return Answer(204)


async def fetch_message(backend: Served, request: Request) -> Answer:
    """GET /{queue}/messages: claim a message."""
    claim = _claim(request)
    return _fetched(request, claim, await backend.run(claim))


def fetch_quickly(backend: Served, request: Request) -> bool:
    """GET /{queue}/messages without the cost of a coroutine, if there is a message; else False."""
    if not isinstance(backend, LocalBackend):
        return False
    claim = _claim(request)
    return backend.begin(claim, Asking(request, partial(_fetched, request, claim)))


def _claim(request: Request) -> Claim:
    name = names.checked(request.arguments[0])
    given = request.parameters("lease", "wait", "consumer")
    lease = checked_lease(jsons.number("lease", given["lease"])) if "lease" in given else None
    wait = checked_wait(jsons.number("wait", given.get("wait", "0")))
    return Claim(name, 1, lease, wait, checked_consumer(given.get("consumer", request.peer)))


def _fetched(request: Request, claim: Claim, claimed: list[Message]) -> Answer:
    if (consumers := request.connection.service.consumers) is not None:
        consumers.see(claim.queue, claim.consumer, len(claimed))
    if not claimed:
        return Answer(204)
    message = claimed[0]
    return Answer(200, _as_headers(message), message.payload)


def _as_headers(message: Message) -> bytes:
    lines = (
        f"Content-Type: application/octet-stream\r\nX-Message-Id: {message.id}\r\n"
        f"X-Message-Receipt: {message.receipt}\r\nX-Message-Priority: {message.priority}\r\n"
        f"X-Message-Attempts: {message.attempts}\r\nX-Message-Created-At: {message.created_at}\r\n"
        f"X-Message-Received-At: {message.received_at}\r\nX-Message-Lease-Until: {message.lease_until}\r\n"
    ).encode()
    if message.group is not None and not _NO_HEADER.search(message.group):
        lines += b"X-Message-Group: %b\r\n" % message.group.encode()
    if message.headers:
        headers = jsons.dumps(message.headers)
        if len(headers) <= _MAX_HEADERS:
            lines += b"X-Message-Headers: %b\r\n" % headers
    return lines


async def add_message(backend: Served, request: Request) -> Answer:
    """POST /{queue}/messages."""
    name = names.checked(request.arguments[0])
    request.parameters()
    entry = _told(request) if request.head.told else Entry(request.body)
    [id] = await backend.run(Put(name, [entry]))  # noqa: A001 - the contract's word
    return _added(id)


def add_plainly(backend: Served, request: Request) -> bool:
    """POST /{queue}/messages with nothing but a payload, without the cost of a coroutine; else False."""
    head = request.head
    if head.told or head.query or not isinstance(backend, LocalBackend):
        return False
    backend.put_plainly(names.checked(head.arguments[0]), request.body, Asking(request, _added))
    return True


def _added(id: str) -> Answer:  # noqa: A002 - the contract's word
    return Answer(201, f"X-Message-Id: {id}\r\n".encode())


def _told(request: Request) -> Entry:
    """A message with the priority, delay and other arguments from the request's headers."""
    draft = Draft(request.body)
    for name, argument in _TOLD.items():
        value = request.header(name)
        if value is not None:
            setattr(draft, argument, jsons.number(name.decode(), value))
    draft.key = request.header(b"x-message-key" if b"x-message-key" in request.headers else b"idempotency-key")
    draft.group = request.header(b"x-message-group")
    headers = request.header(b"x-message-headers")
    if headers is not None:
        draft.headers = jsons.loads_object(headers.encode())
    with arguments():
        return checked(draft)


async def remove_message(backend: Served, request: Request) -> Answer:
    """DELETE /{queue}/messages/{id}: remove a message; with its receipt, acknowledge it."""
    operation = _removal(request)
    if isinstance(operation, Ack):
        await backend.run(operation)
    elif not await backend.run(operation):
        [id], queue = operation.ids, operation.queue  # noqa: A001 - the contract's word
        raise Problem("MessageNotFound", f"there is no message {id!r} in queue {queue!r} (any more)")
    return Answer(204)


def ack_quickly(backend: Served, request: Request) -> bool:
    """DELETE /{queue}/messages/{id} with a receipt, without the cost of a coroutine; else False."""
    if not isinstance(backend, LocalBackend) or not request.head.query:
        return False
    return backend.begin(_removal(request), Asking(request, _settled))


def _removal(request: Request) -> Ack | Remove:
    name, id = names.checked(request.arguments[0]), request.arguments[1]  # noqa: A001 - the contract's word
    receipt = request.parameters("receipt").get("receipt")
    if receipt is None:
        return Remove(name, [id])
    if receipt.rpartition(".")[0] != id:
        raise InvalidArgument(f"receipt {receipt!r} is not one of message {id!r}: give X-Message-Receipt")
    return Ack(name, [receipt])


def _settled(result: None) -> Answer:
    return Answer(204)
