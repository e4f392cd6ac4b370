"""Requests as operations, and their results as answers: what the declarations say, carried out for every route."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
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

    read = reader(kind)

    async def handle(backend: Any, request: Request) -> Answer:
        operation = read(request)
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


def reader(kind: type[Operation[Any]]) -> Callable[[Request], Any]:
    """A function from a request to the operation that it asks for; InvalidArgument and the like."""
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

    return read


def _numbered(given: Mapping[str, str], wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """Texts of a path or a query, as numbers where numbers are wanted."""
    if wanted.keys().isdisjoint(given):
        return given
    return {wire: _number(wire, text, wanted[wire]) if wire in wanted else text for wire, text in given.items()}


def _numbers(kind: type[Operation[Any]]) -> dict[str, str]:
    """The arguments that are numbers, with their type."""
    types = {wire: argument.schema.get("type") for wire, (_, argument) in kind.wires.items()}
    return {wire: wanted for wire, wanted in types.items() if wanted in ("integer", "number")}


def _number(name: str, text: str, wanted: str) -> Any:
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
