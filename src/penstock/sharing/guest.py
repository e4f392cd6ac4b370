"""The guest's side: a store that another process of this machine owns."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from penstock.client import calls
from penstock.client.address import UNIX
from penstock.client.answers import Answer
from penstock.client.calls import Call
from penstock.client.failures import TRIES, Failure, NotSent
from penstock.client.keeper import RemoteKeeper, Result
from penstock.clock import Clock
from penstock.errors import PenstockError, StoreClosed, StoreUnreachable
from penstock.journal.intake import Load
from penstock.message import Message
from penstock.wire import jsons

_JSON = "Content-Type: application/json\r\n"
_LONG = 3_600.0  # seconds that packing and loading may take beyond the usual


class Gone(Exception):
    """The owner did not answer, and asking again, whoever has the store then, does no harm."""

    def __init__(self, failure: Failure, call: Call[Any]) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.name = call.name
        self.repeatable = call.repeatable

    def error(self, folder: str, maybe_done: bool) -> PenstockError:
        """What the caller is told when nobody could be asked."""
        return unanswered(self.failure, folder, self.name, self.repeatable, maybe_done)


def unanswered(failure: Failure, folder: str, name: str, repeatable: bool, maybe_done: bool) -> PenstockError:
    """The error that a store elsewhere gives."""
    if not maybe_done:
        return StoreUnreachable(
            f"the process that has the store {folder!r} open cannot be reached: {failure}. Nothing was done: look "
            "whether that process is stuck, and try again"
        )
    harmless = "trying again does no harm" if repeatable else "look before you try again"
    return StoreUnreachable(
        f"the process that had the store {folder!r} open did not answer: {failure}. The {name} may have happened: "
        f"{harmless}"
    )


def judged(failure: Failure, call: Call[Any], folder: str) -> Exception:
    """Gone if it may be asked again, else what the caller is told."""
    if failure.passing and (call.repeatable or not failure.done):
        return Gone(failure, call)
    return unanswered(failure, folder, call.name, call.repeatable, failure.done)


class GuestKeeper(RemoteKeeper):
    """Asks the owner, once."""

    def __init__(self, folder: str, share: str, timeout: float | None, clock: Clock) -> None:
        super().__init__(f"{UNIX}{share}", timeout, clock)
        self._folder = folder

    def pack(self, queue: str) -> int:
        """Have a queue's journal packed; how many bytes that freed."""
        return self._run(pack(queue))

    def stored(self, queue: str) -> int:
        """Bytes of a queue's journal."""
        return self._run(stored(queue))

    def instance(self) -> str | None:
        """The instance of a slate store; None if its owner does not say, as an earlier version."""

        def read(answer: Answer) -> str | None:
            found: str | None = jsons.loads(answer.body).get("instance")
            return found

        return self._run(Call("look at the instance", "GET /-/share/position", "", None, True, read))

    def load(self, load: Load) -> bool:
        """Have a load that was staged in the folder take effect."""
        return self._run(take_in(load))

    def messages_after(self, queue: str, state: str | None, after: str) -> Iterator[Message]:
        """The messages in that state that were put after one of them."""
        while page := self._run(calls.messages(queue, state, after)):
            yield from page
            after = page[-1].id

    def peek_after(self, queue: str, n: int, skip: int) -> Iterator[Message]:
        """What claim would give after some."""
        while n > 0 and (page := self._run(calls.peek(queue, n, skip))):
            yield from page
            n, skip = n - len(page), skip + len(page)

    def _run(self, call: Call[Result], tries: int = TRIES) -> Result:
        request = call.request(self._address.authority)
        try:
            return call.result(self._pool.ask(request, self._timeout + call.wait))
        except StoreClosed:  # said by the pool: another thread found that the owner has gone
            raise Gone(NotSent("it has ended"), call) from None
        except Failure as failure:
            raise judged(failure, call, self._folder) from failure


def pack(queue: str) -> Call[int]:
    """Pack a queue's journal; what it freed is said wrongly if it is done twice, and nothing else is wrong."""

    def read(answer: Answer) -> int:
        return int(jsons.loads(answer.body)["freed"])

    path = f"/-/share/pack?queue={quote(queue, safe='')}"
    return Call("packing", f"POST {path}", "", b"", True, read, _LONG)


def stored(queue: str) -> Call[int]:
    """The bytes of a queue's journal."""

    def read(answer: Answer) -> int:
        return int(jsons.loads(answer.body)["bytes"])

    path = f"/-/share/stored?queue={quote(queue, safe='')}"
    return Call("look at the queue", f"GET {path}", "", None, True, read)


def take_in(load: Load) -> Call[bool]:
    """Let a load take effect. Repeatable, as what was staged goes when it has."""

    def read(answer: Answer) -> bool:
        return bool(jsons.loads(answer.body)["loaded"])

    body = jsons.dumps(
        {
            "name": load.name,
            "pieces": [list(piece) for piece in load.pieces],
            "queues": {name: asdict(settings) for name, settings in load.queues.items()},
            "run": load.run,
            "sink": load.sink,
        }
    )
    return Call("load", "POST /-/share/load", _JSON, body, True, read, _LONG)
