"""Loads, below /-/loads: messages that are sent in batches, by many senders, and take effect all at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import names
from penstock.aio.serving import ServedKeeper
from penstock.errors import Forbidden, InvalidArgument
from penstock.server import roles
from penstock.server.bodies import batch_type, json_answer, json_object, whole_number
from penstock.server.exchange import Answer, Problem, Request
from penstock.settings import MAX_COUNT, text, whole
from penstock.wire import frames, jsons

if TYPE_CHECKING:
    from penstock.landing import Landing
    from penstock.uploads import Sent, Uploads

Result = TypeVar("Result")


async def begin(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/loads."""
    given = json_object(request, "queues").get("queues", {})
    if not isinstance(given, dict):
        raise InvalidArgument('"queues" is an object: {"queues": {NAME: {settings}}}')
    if given and not roles.allows(request.roles, roles.ADMIN):
        raise Forbidden("a load that makes queues needs the role admin: ask for it, or create the queues before")

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
        uploads.add(load, part, at, queue, content if kind == frames.MEDIA_TYPE else _frame(content))

    await _in_thread(keeper, stage)
    return Answer(204)


async def commit(keeper: ServedKeeper, request: Request) -> Answer:
    """POST /-/loads/{load}/commit."""
    given = json_object(request, "parts", "run", "sink")
    sink = _landing(given.get("sink"))
    run = given.get("run")
    if not isinstance(run, str | None):
        raise InvalidArgument('"run" is a text')

    def let_it_count(uploads: "Uploads") -> Any:
        return uploads.commit(request.arguments[0], _sent(given.get("parts")), run, sink)

    loaded, messages = await _in_thread(keeper, let_it_count)
    return json_answer({"loaded": loaded, "messages": messages})


async def abort(keeper: ServedKeeper, request: Request) -> Answer:
    """DELETE /-/loads/{load}."""
    request.parameters()
    await _in_thread(keeper, lambda uploads: uploads.abort(request.arguments[0]))
    return Answer(204)


async def show_run(keeper: ServedKeeper, request: Request) -> Answer:
    """GET /-/runs/{run}."""
    request.parameters()
    run = request.arguments[0].encode("latin-1").decode(errors="replace")
    brought = await _in_thread(keeper, lambda uploads: uploads.run(run))
    named = ("queue", "messages", "bytes")
    return json_answer(
        {"queues": None if brought is None else [dict(zip(named, each, strict=True)) for each in brought]}
    )


async def _in_thread(keeper: ServedKeeper, call: "Callable[[Uploads], Result]") -> Result:
    def run(uploads: "Uploads") -> Result:
        from penstock.uploads import NoSuchLoad, TooManyLoads

        try:
            return call(uploads)
        except NoSuchLoad as error:
            raise Problem("LoadNotFound", str(error)) from None
        except TooManyLoads as error:
            raise Problem("Overloaded", str(error)) from None

    return await keeper.with_uploads(run)


def _frame(content: bytes) -> bytes:
    """What was sent as JSON, as all else is sent."""
    return frames.encode_entries(jsons.entries_from_json(jsons.loads_object(content)))


def _landing(given: Any) -> "Landing | None":
    from penstock.landing import LONGEST, Landing

    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidArgument('"sink" is an object: {"id": NAME, "query": ID, "batch": NUMBER}')
    jsons.check_known(given, ("id", "query", "batch"), "a sink")
    with jsons.arguments():
        members: dict[str, Any] = {"id": None, "query": None, "batch": None, **given}
        sink, query = (text(name, members[name], 1, LONGEST) for name in ("id", "query"))
        return Landing(sink, query, whole("batch", members["batch"], 0, 2**63 - 1))


def _sent(given: Any) -> "list[Sent]":
    from penstock.uploads import Sent

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
