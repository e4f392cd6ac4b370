"""Loads, below /-/loads: messages that are sent in batches, by many senders, and take effect all at once."""

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import names
from penstock.aio.serving import ServedKeeper
from penstock.errors import InvalidArgument
from penstock.message import Entry
from penstock.server.bodies import batch_type, json_answer, json_object, whole_number
from penstock.server.exchange import Answer, Problem, Request
from penstock.settings import MAX_COUNT, whole
from penstock.wire import frames, jsons

if TYPE_CHECKING:
    from penstock.journal.uploads import Sent, Uploads

Result = TypeVar("Result")


async def begin(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/loads."""
    given = json_object(request, "queues").get("queues", {})
    if not isinstance(given, dict):
        raise InvalidArgument('"queues" is an object: {"queues": {NAME: {settings}}}')

    def start(uploads: "Uploads") -> str:
        return uploads.begin(
            {names.checked(name): jsons.settings_from_json(settings) for name, settings in given.items()}
        )

    return json_answer({"load": await _in_thread(keeper, start)}, 201)


async def add(keeper: ServedKeeper, request: Request) -> Answer:
    """PUT /-/loads/{load}/{part}/{number}."""
    load, part, number = request.arguments
    queue = names.checked(request.parameters("queue").get("queue", ""))
    at = whole_number(number, "number", 0, MAX_COUNT)
    kind, content = batch_type(request), request.body

    def stage(uploads: "Uploads") -> None:
        from penstock.journal.uploads import Batch

        known_by = (queue, len(content), zlib.crc32(content))
        uploads.add(load, part, at, queue, Batch(*_decoded(kind, content)), known_by)

    await _in_thread(keeper, stage)
    return Answer(204)


async def commit(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/loads/{load}/commit."""
    given = json_object(request, "parts", "run")
    run = given.get("run")
    if not isinstance(run, str | None):
        raise InvalidArgument('"run" is a text')

    def let_it_count(uploads: "Uploads") -> Any:
        return uploads.commit(request.arguments[0], _sent(given.get("parts")), run)

    loaded, messages = await _in_thread(keeper, let_it_count)
    return json_answer({"loaded": loaded, "messages": messages})


async def abort(keeper: ServedKeeper, request: Request) -> Answer:
    """DELETE /-/loads/{load}."""
    request.parameters()
    await _in_thread(keeper, lambda uploads: uploads.abort(request.arguments[0]))
    return Answer(204)


async def _in_thread(keeper: ServedKeeper, call: "Callable[[Uploads], Result]") -> Result:
    def run(uploads: "Uploads") -> Result:
        from penstock.journal.uploads import NoSuchLoad, TooManyLoads

        try:
            return call(uploads)
        except NoSuchLoad as error:
            raise Problem("LoadNotFound", str(error)) from None
        except TooManyLoads as error:
            raise Problem("Overloaded", str(error)) from None

    return await keeper.with_uploads(run)


def _decoded(kind: str, content: bytes) -> tuple[Sequence[Entry], Any, Any]:
    if kind == frames.MEDIA_TYPE:
        entries, (visible_at, expires_at) = frames.decode_staged(content)
        return entries, visible_at, expires_at
    return jsons.entries_from_json(jsons.loads_object(content)), None, None


def _sent(given: Any) -> "list[Sent]":
    from penstock.journal.uploads import Sent

    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise InvalidArgument('"parts" is a list: {"parts": [{"part": NAME, "batches": COUNT}]}')
    sent = []
    for each in given:
        jsons.check_known(each, Sent._fields, "a part")
        part, batches = each.get("part"), each.get("batches")
        if not isinstance(part, str):
            raise InvalidArgument('a part has its name as "part", and how many "batches" it has')
        with jsons.arguments():
            sent.append(Sent(part, whole("batches", batches, 0, MAX_COUNT)))
    return sent
