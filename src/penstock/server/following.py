"""What enters a queue, in order, below /-/followers: read page by page, and nothing is taken."""

from penstock import names
from penstock.aio.serving import ServedKeeper
from penstock.errors import InvalidArgument
from penstock.server.bodies import batch_answer, json_answer, whole_number
from penstock.server.exchange import Answer, Request
from penstock.streams import checked_stream

MAX_NUMBER = 2**63 - 1
MAX_ROWS = 2**40
PAGE = 1_000
_POSITIONS = ("after", "gaps", "until")
_NAMED = ("earliest", "latest")


async def start(keeper: ServedKeeper, request: Request) -> Answer:
    """GET F/start."""
    queue, follower = _follower(request)
    at = request.parameters("at").get("at", "earliest")
    if at not in _NAMED and not (at.isascii() and at.isdigit() and len(at) < 20 and int(at) <= MAX_NUMBER):
        raise InvalidArgument(f"at={at!r}: give earliest, latest, or milliseconds since the epoch")
    starting = at if at in _NAMED else int(at)
    after, gaps = await keeper.with_streams(lambda streams: streams.start(queue, follower, starting))
    return json_answer({"after": after, "gaps": gaps})


async def ahead(keeper: ServedKeeper, request: Request) -> Answer:
    """GET F/ahead."""
    queue, follower = _follower(request)
    given = request.parameters("after", "gaps", "rows", "bytes", "until")
    after, gaps, until = [whole_number(given.get(name, "0"), name, 0, MAX_NUMBER) for name in _POSITIONS]
    rows = whole_number(given.get("rows", str(PAGE)), "rows", 0, MAX_ROWS)
    size = whole_number(given.get("bytes", str(MAX_NUMBER)), "bytes", 1, MAX_NUMBER)
    found = await keeper.with_streams(
        lambda streams: streams.ahead(queue, follower, after, gaps, rows, size, until)
    )
    lost = None if found.lost is None else found.lost._asdict()
    parts = [{"until": last, "messages": count} for last, count in found.parts]
    return json_answer({"until": found.until, "parts": parts, "lost": lost})


async def messages(keeper: ServedKeeper, request: Request) -> Answer:
    """GET F/messages."""
    queue, follower = _follower(request)
    given = request.parameters("after", "until", "limit")
    after, until = [whole_number(given.get(name, "0"), name, 0, MAX_NUMBER) for name in ("after", "until")]
    limit = min(whole_number(given.get("limit", "100"), "limit", 1, MAX_ROWS), PAGE)
    found = await keeper.with_streams(lambda streams: streams.entered(queue, follower, after, until, limit))
    return batch_answer(request, found)


async def leave(keeper: ServedKeeper, request: Request) -> Answer:
    """DELETE F."""
    queue, follower = _follower(request)
    request.parameters()
    await keeper.with_streams(lambda streams: streams.leave(queue, follower))
    return Answer(204)


def _follower(request: Request) -> tuple[str, str]:
    return names.checked(request.arguments[0]), checked_stream(request.arguments[1])
