"""Streams, below /-/streams: batches of a queue that are read exactly once."""

from typing import Any

from penstock import names
from penstock.aio.serving import ServedKeeper
from penstock.arguments import checked_reason
from penstock.errors import InvalidArgument
from penstock.server.bodies import batch_answer, json_answer, json_object, texts, whole_number
from penstock.server.exchange import Answer, Request
from penstock.settings import seconds, text, whole
from penstock.streams import checked_stream
from penstock.wire import jsons

MAX_BATCH = 2**63 - 1
MAX_ROWS = 100_000_000
MAX_READER = 512
MAX_RUN = 64
_LIMIT = 1_000
_BYTES = b"Content-Type: application/octet-stream\r\n"


async def list_streams(keeper: ServedKeeper, request: Request) -> Answer:
    """GET /-/streams."""
    request.parameters()
    found = await keeper.with_streams(lambda streams: streams.all())
    return json_answer({"streams": [each._asdict() for each in found]})


async def begin(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/begin."""
    queue, stream = _stream(request)
    reader = _reader(json_object(request, "reader"))
    info = await keeper.with_streams(lambda streams: streams.begin(queue, stream, reader))
    return json_answer(info._asdict())


async def go_on(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/next."""
    queue, stream = _stream(request)
    given = json_object(request, "reader", "start", "rows", "bytes", "run")
    reader, run = _reader(given), given.get("run")
    with jsons.arguments():
        start = whole("start", given.get("start", 0), 0, MAX_BATCH)
        rows = whole("rows", given.get("rows", _LIMIT), 0, MAX_ROWS)
        size = whole("bytes", given.get("bytes", MAX_BATCH), 1, MAX_BATCH)
        if run is not None:
            run = text("run", run, 1, MAX_RUN)
    batch = await keeper.with_streams(lambda streams: streams.next(queue, stream, reader, start, rows, size, run))
    return json_answer({"batch": batch})


async def follow(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/follow."""
    queue, stream = _stream(request)
    given = json_object(request, "reader", "after")
    reader = _reader(given)
    with jsons.arguments():
        position = whole("after", given.get("after", 0), 0, MAX_BATCH)
    await keeper.with_streams(lambda streams: streams.follow(queue, stream, reader, position))
    return Answer(204)


async def read(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/{batch}/read."""
    queue, stream = _stream(request)
    batch, pins = _batch(request), json_object(request, "pins").get("pins")
    if not isinstance(pins, str | None):
        raise InvalidArgument('"pins" is a text, or null')

    def plan(streams: Any) -> bytes:
        from penstock.wire.batches import encode_plan

        return encode_plan(streams.read(queue, stream, batch, pins))

    return Answer(200, _BYTES, await keeper.with_streams(plan))


async def messages(keeper: ServedKeeper, request: Request) -> Answer:
    """GET S/{batch}/messages."""
    queue, stream = _stream(request)
    batch, given = _batch(request), request.parameters("after", "until", "limit")
    limit = min(whole_number(given.get("limit", "100"), "limit", 1, MAX_ROWS), _LIMIT)
    after, until = given.get("after", ""), given.get("until", "")
    found = await keeper.with_streams(lambda streams: streams.messages(queue, stream, batch, after, until, limit))
    return batch_answer(request, found)


async def fail(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/{batch}/fail."""
    queue, stream = _stream(request)
    batch, given = _batch(request), json_object(request, "ids", "reason", "delay")
    with jsons.arguments():
        delay, reason = seconds("delay", given.get("delay", 0)), given.get("reason")
    if not isinstance(reason, str | None):
        raise InvalidArgument('"reason" is a text, or null')
    ids, reason = texts(given, "ids"), checked_reason(reason)
    await keeper.with_streams(lambda streams: streams.fail(queue, stream, batch, ids, reason, delay))
    return Answer(204)


async def settle(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/{batch}/settle."""
    queue, stream = _stream(request)
    batch = _batch(request)
    json_object(request)
    settled = await keeper.with_streams(lambda streams: streams.settle(queue, stream, batch))
    return json_answer({"settled": settled})


async def release(keeper: ServedKeeper, request: Request) -> Answer:
    """POST S/release."""
    queue, stream = _stream(request)
    json_object(request)
    return json_answer({"count": await keeper.with_streams(lambda streams: streams.release(queue, stream))})


async def delete(keeper: ServedKeeper, request: Request) -> Answer:
    """DELETE S."""
    queue, stream = _stream(request)
    request.parameters()
    await keeper.with_streams(lambda streams: streams.delete(queue, stream))
    return Answer(204)


def _stream(request: Request) -> tuple[str, str]:
    return names.checked(request.arguments[0]), checked_stream(request.arguments[1])


def _batch(request: Request) -> int:
    return whole_number(request.arguments[2], "batch", 0, MAX_BATCH)


def _reader(given: dict[str, Any]) -> str:
    reader = given.get("reader")
    if not isinstance(reader, str) or not 1 <= len(reader.encode(errors="replace")) <= MAX_READER:
        raise InvalidArgument(f'"reader" is the name of the process that reads, of 1 to {MAX_READER} bytes')
    return reader
