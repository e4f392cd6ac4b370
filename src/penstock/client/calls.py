"""What each operation asks of a server, and how its answer is read. Pure: nothing here knows how bytes travel."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from penstock.client.answers import Answer
from penstock.client.failures import Garbage, Lost, Refused
from penstock.errors import InvalidArgument
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message
from penstock.settings import Settings
from penstock.wire import frames, jsons, problems

PAGE = 1_000  # messages that are listed at once
_JSON = "Content-Type: application/json\r\n"
_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n"
_WANTS_FRAME = f"Accept: {frames.MEDIA_TYPE}\r\n"
Result = TypeVar("Result")


class Call(NamedTuple, Generic[Result]):
    """One request. `repeatable`: doing it twice is as good as doing it once."""

    name: str
    start: str  # method and path
    headers: str
    body: bytes | None
    repeatable: bool
    read: Callable[[Answer], Result]
    wait: float = 0.0  # seconds for which the server may hold the answer back

    def request(self, authority: str, credentials: str = "") -> bytes:
        """The bytes to send."""
        head = _head(self.start, authority, credentials, self.headers)
        if self.body is None:
            return head + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(self.body), self.body)

    def result(self, answer: Answer) -> Result:
        """What the answer says, or the error that it tells of."""
        if not 200 <= answer.status < 300:
            raise _refusal(answer)
        try:
            return self.read(answer)
        except (LookupError, TypeError, ValueError) as error:
            raise Garbage(f"its answer to {self.name} is not Penstock's ({error!r})") from None


def create(queue: str, settings: Settings) -> Call[None]:
    """Make a queue."""
    body = jsons.dumps({"name": queue, "settings": dict(settings)})
    return Call("create", "POST /-/api/queues", _JSON, body, False, _nothing)


def delete(queue: str) -> Call[None]:
    """Remove a queue."""
    return Call("delete", f"DELETE {_path(queue)}", "", None, False, _nothing)


def queues() -> Call[list[QueueInfo]]:
    """List the queues."""

    def read(answer: Answer) -> list[QueueInfo]:
        return [jsons.queue_from_json(each) for each in jsons.loads(answer.body)["queues"]]

    return Call("listing of queues", "GET /-/api/queues", "", None, True, read)


def queue(name: str) -> Call[QueueInfo]:
    """Describe one queue."""

    def read(answer: Answer) -> QueueInfo:
        return jsons.queue_from_json(jsons.loads(answer.body))

    return Call("look at the queue", f"GET {_path(name)}", "", None, True, read)


def publish(entry: Entry) -> Call[str]:
    """Put into every queue that wants it."""
    return Call("publish", "POST /-/api/publish", _FRAME, _frame([entry]), False, partial(_field, "id", str))


def put(queue: str, entries: Sequence[Entry]) -> Call[list[str]]:
    """Add messages; one that has nothing but a payload and a priority goes the short way."""
    if len(entries) == 1:
        entry = entries[0]
        further = (entry.headers, entry.retention, entry.key, entry.created_at)
        if not entry.delay and further == (None, None, None, None):
            headers = f"X-Message-Priority: {entry.priority}\r\n" if entry.priority else ""
            return Call("put", f"POST /{quoted(queue)}/messages", headers, entry.payload, False, _only_id)
    repeatable = all(entry.key is not None for entry in entries)
    read = partial(_ids, len(entries))
    return Call("put", f"POST {_path(queue)}/put", _FRAME, _frame(entries), repeatable, read)


def claim(queue: str, n: int, lease: float, wait: float, consumer: str) -> Call[list[Message]]:
    """Lease messages. Repeatable, as what an answer that was lost has claimed comes back when its lease ends."""
    body = jsons.dumps({"n": min(n, jsons.MAX_MESSAGES), "lease": lease, "wait": wait, "consumer": consumer})
    return Call(
        "claim", f"POST {_path(queue)}/claim", _JSON + _WANTS_FRAME, body, True, partial(_messages, queue), wait
    )


def pop(queue: str, wait: float, consumer: str) -> Call[list[Message]]:
    """Take a message for good."""
    body = jsons.dumps({"wait": wait, "consumer": consumer})
    return Call(
        "pop", f"POST {_path(queue)}/pop", _JSON + _WANTS_FRAME, body, False, partial(_messages, queue), wait
    )


def ack(queue: str, receipts: Sequence[str]) -> Call[None]:
    """Settle for good."""
    return _settle("ack", queue, {"receipts": receipts}, _nothing)


def fail(queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> Call[None]:
    """End the attempts."""
    return _settle("fail", queue, {"receipts": receipts, "delay": delay, "reason": reason}, _nothing)


def release(queue: str, receipts: Sequence[str]) -> Call[None]:
    """Give back."""
    return _settle("release", queue, {"receipts": receipts}, _nothing)


def extend(queue: str, receipts: Sequence[str], lease: float) -> Call[tuple[int, list[str]]]:
    """Hold from now on."""

    def read(answer: Answer) -> tuple[int, list[str]]:
        held = jsons.loads(answer.body)
        return int(held["lease_until"]), list(map(str, held["lost"]))

    return _settle("extend", queue, {"receipts": receipts, "lease": lease}, read)


def remove(queue: str, ids: Sequence[str]) -> Call[int]:
    """Take messages out."""
    return _change("remove", queue, {"ids": ids})


def redrive(queue: str, ids: Sequence[str] | None) -> Call[int]:
    """Start over with failed messages."""
    return _change("redrive", queue, {} if ids is None else {"ids": ids})


def purge(queue: str) -> Call[int]:
    """Empty a queue."""
    return _change("purge", queue, {})


def peek(queue: str, n: int, skip: int) -> Call[list[Message]]:
    """A page of what claim would give."""
    return _page("peek", queue, f"peek?n={min(n, PAGE)}&skip={skip}")


def messages(queue: str, state: str | None, after: str, until: str = "") -> Call[list[Message]]:
    """A page of what is there."""
    given = {"limit": PAGE, "state": state, "after": after, "until": until}
    return _page(
        "listing", queue, f"messages?{urlencode({name: value for name, value in given.items() if value})}"
    )


def listing(
    queue: str, state: str | None, after: str, until: str, fields: Sequence[str]
) -> Call[tuple[dict[str, Any], list[bytes]]]:
    """A page of some fields of what is there, as columns and payloads; the fields must have the id."""
    given = {"limit": PAGE, "fields": ",".join(fields), "state": state, "after": after, "until": until}
    path = f"{_path(queue)}/messages?{urlencode({name: value for name, value in given.items() if value})}"

    def read(answer: Answer) -> tuple[dict[str, Any], list[bytes]]:
        return frames.decode_columns(answer.body)

    return Call("listing", f"GET {path}", _WANTS_FRAME, None, True, read)


def all_attempts(queue: str, after: str, until: str) -> Call[tuple[list[dict[str, Any]], str | None]]:
    """A page of the attempts at all messages, each with the message's id, and after which id to go on."""
    given = {name: value for name, value in {"after": after, "until": until}.items() if value}

    def read(answer: Answer) -> tuple[list[dict[str, Any]], str | None]:
        page = jsons.loads(answer.body)
        found = [{"id": each["id"], **jsons.attempt_from_json(each)._asdict()} for each in page["attempts"]]
        return found, page["next"]

    return Call("look at the attempts", f"GET {_path(queue)}/attempts?{urlencode(given)}", "", None, True, read)


def parts(queue: str, n: int) -> Call[list[str]]:
    """Where to divide a queue among readers."""

    def read(answer: Answer) -> list[str]:
        return [str(each) for each in jsons.loads(answer.body)["until"]]

    return Call("look at the queue", f"GET {_path(queue)}/parts?n={n}", "", None, True, read)


def attempts(queue: str, id: str) -> Call[list[Attempt]]:  # noqa: A002 - the contract's word
    """The attempts at a message."""

    def read(answer: Answer) -> list[Attempt]:
        return [jsons.attempt_from_json(each) for each in jsons.loads(answer.body)["attempts"]]

    path = f"{_path(queue)}/messages/{quoted(id)}/attempts"
    return Call("look at the attempts", f"GET {path}", "", None, True, read)


def _settle(name: str, queue: str, body: object, read: Callable[[Answer], Result]) -> Call[Result]:
    return Call(name, f"POST {_path(queue)}/{name}", _JSON, jsons.dumps(body), True, read)


def _change(name: str, queue: str, body: object) -> Call[int]:
    """Not repeatable: the count of the second time would be wrong."""
    read = partial(_field, "count", int)
    return Call(name, f"POST {_path(queue)}/{name}", _JSON, jsons.dumps(body), False, read)


def _page(name: str, queue: str, path: str) -> Call[list[Message]]:
    return Call(name, f"GET {_path(queue)}/{path}", _WANTS_FRAME, None, True, partial(_messages, queue))


def _frame(entries: Sequence[Entry]) -> bytes:
    frame = frames.encode_entries(entries)
    if len(entries) > jsons.MAX_MESSAGES or len(frame) > frames.MAX_BYTES:
        raise InvalidArgument(
            f"{len(entries):,} messages of {len(frame):,} bytes; a server takes at most {jsons.MAX_MESSAGES:,} "
            f"messages and {frames.MAX_BYTES:,} bytes in one step: put them in several"
        )
    return frame


def _nothing(answer: Answer) -> None:
    """That it went well says it all."""


def _only_id(answer: Answer) -> list[str]:
    return [answer.headers[b"x-message-id"].decode()]


def _ids(count: int, answer: Answer) -> list[str]:
    ids = jsons.loads(answer.body)["ids"]
    if not isinstance(ids, list) or len(ids) != count or not set(map(type, ids)) <= {str}:
        raise ValueError(f"{count} ids were to come")
    return ids


def _field(name: str, kind: type[Result], answer: Answer) -> Result:
    value = jsons.loads(answer.body)[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}")
    return value


def _messages(queue: str, answer: Answer) -> list[Message]:
    return frames.decode_messages(answer.body, queue)


def _refusal(answer: Answer) -> Exception:
    """The error that an answer tells of."""
    try:
        problem: Any = jsons.loads_object(answer.body)
    except InvalidArgument:
        problem = {}
    if "error" not in problem:
        if answer.status in (502, 503, 504):
            return Lost(f"what is in front of it says {answer.status}")
        return Garbage(f"it says {answer.status}, but not as Penstock would: is something else there?")
    if answer.status == 503:
        done = problem.get("error") != "Overloaded"  # is said before anything is done
        return Refused(problems.as_error(problem), _retry_after(answer), done)
    return problems.as_error(problem)


def _retry_after(answer: Answer) -> float:
    value = answer.headers.get(b"retry-after", b"")
    return float(value) if value.isdigit() and len(value) < 10 else 0.0


@lru_cache(maxsize=256)
def _head(start: str, authority: str, credentials: str, headers: str) -> bytes:
    """What a request begins with: of all that put into a queue, the same."""
    return f"{start} HTTP/1.1\r\nHost: {authority}\r\n{credentials}{headers}".encode()


def _path(queue: str) -> str:
    return f"/-/api/queues/{quoted(queue)}"


@lru_cache(maxsize=1024)
def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="", errors="surrogatepass").replace(".", "%2E")  # else `..` would leave the folder
