"""The rest of the contract, below /-/api/."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from penstock import names
from penstock.aio.serving import ServedKeeper
from penstock.arguments import checked_consumer, checked_lease, checked_reason, checked_state
from penstock.errors import InvalidArgument
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message, check_limits
from penstock.server.bodies import batch_answer, batch_type, checked_wait, texts
from penstock.server.bodies import json_answer as _json
from penstock.server.bodies import json_object as _object
from penstock.server.bodies import whole_number as _whole
from penstock.server.exchange import JSON, Answer, Request
from penstock.settings import MAX_COUNT, seconds, whole
from penstock.wire import frames, jsons

_MOST = 16 << 20  # bytes of payloads that one answer has, beyond its first message
_PAGE = 8 << 20
_LIMIT = 1_000  # messages of a page
_LOOKED_AT = 10_000  # messages for a page of attempts, which few of them have
_MOST_PARTS = 10_000
_BODY = frozenset(("payload", "headers", "created_at", "received_at"))  # what is not in memory


async def list_queues(keeper: ServedKeeper, request: Request) -> Answer:
    """GET /-/api/queues."""
    request.parameters()
    return _json({"queues": [jsons.queue_as_json(info) for info in await keeper.queues()]})


async def create_queue(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/api/queues."""
    given = _object(request, "name", "settings")
    if not isinstance(given.get("name"), str):
        raise InvalidArgument('the queue needs a "name"')
    name = names.checked(given["name"])
    settings = jsons.settings_from_json(given.get("settings", {}))
    await keeper.create(name, settings)
    info = QueueInfo(name, settings, await keeper.counts(name), await keeper.lag(name))
    return Answer(201, JSON, jsons.dumps(jsons.queue_as_json(info)))


async def show_queue(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q."""
    request.parameters()
    name = _queue(request)
    info = QueueInfo(name, await keeper.settings(name), await keeper.counts(name), await keeper.lag(name))
    return _json(jsons.queue_as_json(info))


async def put(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/put."""
    name, entries = _queue(request), _entries(request)
    return _json({"ids": await keeper.put(name, entries)})


async def publish(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/api/publish."""
    entries = _entries(request)
    if len(entries) != 1:
        raise InvalidArgument(f"a batch of {len(entries)} messages: publish one at a time")
    if entries[0].key is not None:
        raise InvalidArgument("a published message has no key")
    check_limits(entries[0])
    return _json({"id": await keeper.publish(entries[0])})


async def claim(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/claim."""
    name, given = _queue(request), _object(request, "n", "lease", "wait", "consumer")
    with jsons.arguments():
        n = whole("n", given.get("n", 1), 1, MAX_COUNT)
        lease = checked_lease(given.get("lease", 30))
        wait = checked_wait(given.get("wait", 0))
        consumer = checked_consumer(_consumer(given, request))
    claimed = await keeper.claim(name, min(n, jsons.MAX_MESSAGES), lease, wait, consumer, _MOST)
    return batch_answer(request, claimed)


async def pop(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/pop."""
    name, given = _queue(request), _object(request, "wait", "consumer")
    with jsons.arguments():
        wait = checked_wait(given.get("wait", 0))
        consumer = checked_consumer(_consumer(given, request))
    popped = await keeper.pop(name, wait, consumer)
    return batch_answer(request, [] if popped is None else [popped])


async def ack(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/ack."""
    name, given = _queue(request), _object(request, "receipts")
    await keeper.ack(name, texts(given, "receipts"))
    return Answer(204)


async def fail(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/fail."""
    name, given = _queue(request), _object(request, "receipts", "delay", "reason")
    with jsons.arguments():
        delay, reason = seconds("delay", given.get("delay", 0)), given.get("reason")
        if not isinstance(reason, str | None):
            raise TypeError(f"reason is a str, not {type(reason).__name__}")
    await keeper.fail(name, texts(given, "receipts"), delay, checked_reason(reason))
    return Answer(204)


async def release(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/release."""
    name, given = _queue(request), _object(request, "receipts")
    await keeper.release(name, texts(given, "receipts"))
    return Answer(204)


async def extend(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/extend."""
    name, given = _queue(request), _object(request, "receipts", "lease")
    with jsons.arguments():
        lease = checked_lease(given.get("lease", 30))
    until, lost = await keeper.extend(name, texts(given, "receipts"), lease)
    return _json({"lease_until": until, "lost": lost})


async def remove(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/remove."""
    name, given = _queue(request), _object(request, "ids")
    return _json({"count": await keeper.remove(name, texts(given, "ids"))})


async def redrive(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/redrive."""
    name, given = _queue(request), _object(request, "ids")
    ids = texts(given, "ids") if "ids" in given else None
    return _json({"count": await keeper.redrive(name, ids)})


async def purge(keeper: ServedKeeper, request: Request) -> Answer:
    """POST Q/purge."""
    name = _queue(request)
    _object(request)
    return _json({"count": await keeper.purge(name)})


async def peek(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q/peek."""
    name, given = _queue(request), request.parameters("n", "skip")
    n = _whole(given.get("n", "1"), "n", 1, MAX_COUNT)
    skip = _whole(given.get("skip", "0"), "skip", 0, MAX_COUNT)
    n = min(n, _LIMIT)
    return batch_answer(request, await _page(keeper.peek(name, n, skip), n))


async def browse(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q/messages."""
    name, given = _queue(request), request.parameters("state", "after", "until", "limit", "fields")
    limit = _whole(given.get("limit", "100"), "limit", 1, MAX_COUNT)
    state = checked_state(given.get("state"))
    wanted = given["fields"].split(",") if "fields" in given else jsons.MESSAGE_FIELDS
    jsons.check_known(wanted, jsons.MESSAGE_FIELDS, "a message")
    bodies = not _BODY.isdisjoint(wanted)
    messages = keeper.messages(name, state, given.get("after", ""), given.get("until", ""), bodies)
    return batch_answer(request, await _page(messages, min(limit, _LIMIT)), wanted)


async def all_attempts(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q/attempts."""
    name, given = _queue(request), request.parameters("after", "until")
    found: list[dict[str, Any]] = []
    seen, last = 0, None
    async for last, made in keeper.all_attempts(name, given.get("after", ""), given.get("until", "")):
        found += [{"id": last, **jsons.attempt_as_json(each)} for each in made]
        seen += 1
        if len(found) >= _LIMIT or seen == _LOOKED_AT:
            break
    else:
        last = None
    return _json({"attempts": found, "next": last})


async def parts(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q/parts."""
    name, given = _queue(request), request.parameters("n")
    return _json({"until": await keeper.parts(name, _whole(given.get("n", "1"), "n", 1, _MOST_PARTS))})


async def attempts(keeper: ServedKeeper, request: Request) -> Answer:
    """GET Q/messages/{id}/attempts."""
    request.parameters()
    made = await keeper.attempts(_queue(request), request.arguments[1])
    return _json({"attempts": [jsons.attempt_as_json(each) for each in made]})


async def _page(messages: AsyncIterator[Message], most: int) -> list[Message]:
    page: list[Message] = []
    size = 0
    async for message in messages:
        page.append(message)
        size += len(message.payload)
        if len(page) == most or size > _PAGE:
            break
    return page


def _consumer(given: dict[str, Any], request: Request) -> Any:
    consumer = given.get("consumer")
    return request.peer if consumer is None else consumer


def _queue(request: Request) -> str:
    return names.checked(request.arguments[0])


def _entries(request: Request) -> Sequence[Entry]:
    request.parameters()
    if batch_type(request) == frames.MEDIA_TYPE:
        return frames.decode_entries(request.body)
    return jsons.entries_from_json(jsons.loads_object(request.body))
