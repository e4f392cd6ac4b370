"""Requests as operations, and their results as answers: what the declarations say, carried out for every route."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from penstock.contract import roles
from penstock.contract.arguments import arguments, checked_consumer
from penstock.contract.loads import AddToLoad, BeginLoad, TooManyLoads
from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Messages, Peek, Pop
from penstock.contract.streams import BatchPlan
from penstock.errors import Forbidden, InvalidArgument
from penstock.http.server.bodies import batch_answer, batch_type, json_answer, json_object
from penstock.http.server.exchange import Answer, Handler, Problem, Request
from penstock.wire import frames, jsons, results

_MOST = 16 << 20  # bytes of payloads that one claim is given, beyond its first message
_PAGE = 8 << 20  # of those that a listing has
_BYTES = b"Content-Type: application/octet-stream\r\n"


def handler(kind: type[Operation[Any]]) -> Handler:
    """What answers requests for an operation."""

    async def handle(backend: Any, request: Request) -> Answer:
        operation = read(kind, request)
        if isinstance(operation, Peek | Messages):
            return _listed(request, operation, await _page(backend.listed(operation), operation))
        if isinstance(operation, AddToLoad) and batch_type(request) != frames.MEDIA_TYPE:
            operation.frame = await asyncio.to_thread(_framed, request)  # of many megabytes
        try:
            result = await backend.run(operation)
            if kind.http.then is not None:
                result = await backend.run(kind.http.then(operation.queue))  # type: ignore[call-arg]
        except TooManyLoads as error:
            raise Problem("Overloaded", str(error)) from None
        if kind.http.answer.kind is BatchPlan:
            return Answer(200, _BYTES, await asyncio.to_thread(_encoded, result))  # of millions of messages
        return _answered(request, operation, result)

    return handle


def read(kind: type[Operation[Any]], request: Request) -> Any:
    """The operation that a request asks for; InvalidArgument and the like."""
    http = kind.http
    given = {wire: _number(kind, wire, part) for wire, part in zip(http.in_path, request.arguments, strict=True)}
    with arguments():
        values = kind.checked(given, http.in_path)
        if http.in_query:
            query = request.parameters(*kind.others)
            told: Mapping[str, Any] = {wire: _number(kind, wire, text) for wire, text in query.items()}
        else:
            told = json_object(request, *kind.others)
        values |= kind.checked(told, kind.others)
        if http.batch:
            [batch] = kind.wires.keys() - {*http.in_path, *kind.others}
            values |= kind.checked({batch: _batch(kind, request)}, [batch])
    operation = kind(**values).within_limits()
    if isinstance(operation, Claim | Pop):
        consumer = request.peer if operation.consumer is None else operation.consumer
        with arguments():
            operation.consumer = checked_consumer(consumer)
    if isinstance(operation, Claim):
        operation.most = _MOST
    if isinstance(operation, BeginLoad) and operation.queues and not roles.allows(request.roles, roles.ADMIN):
        raise Forbidden("a load that makes queues needs the role admin: ask for it, or create the queues before")
    return operation


def _number(kind: type[Operation[Any]], name: str, text: str) -> Any:
    """What a path or a query says: a number, where one is wanted."""
    wanted = kind.wires[name][1].schema.get("type")
    if wanted not in ("integer", "number"):
        return text
    number = jsons.number(name, text)
    if wanted == "integer" and not isinstance(number, int):
        raise InvalidArgument(f"{name}={text!r} is not an integer")
    return number


def _batch(kind: type[Operation[Any]], request: Request) -> Any:
    """The messages of a body; a load keeps them as they came."""
    if kind.part == "owner":
        return request.body
    is_frame = batch_type(request) == frames.MEDIA_TYPE
    if kind.part:
        return request.body
    return frames.decode_entries(request.body) if is_frame else _entries(request)


def _entries(request: Request) -> Any:
    return jsons.entries_from_json(jsons.loads_object(request.body))


def _framed(request: Request) -> bytes:
    """What was sent as JSON, as all else is sent."""
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


def _listed(request: Request, operation: Peek | Messages, page: list[Message]) -> Answer:
    return batch_answer(request, page, operation.fields if isinstance(operation, Messages) else MESSAGE_FIELDS)


def _answered(request: Request, operation: Operation[Any], result: Any) -> Answer:
    answer = operation.http.answer
    if answer.status == 204:
        return Answer(204)
    if answer.kind is Message:
        if isinstance(operation, Pop):
            result = [] if result is None else [result]
        return batch_answer(request, result)
    return json_answer(results.encode(answer, result), answer.status)


def _encoded(plan: BatchPlan) -> bytes:
    from penstock.http.batches import encode_plan  # here, as most servers are never asked

    return encode_plan(plan)
