"""The guest's side: a store that another process of this machine owns."""

from typing import Any

from penstock.errors import PenstockError, StoreUnreachable
from penstock.http.client.address import UNIX
from penstock.http.client.backend import Remote, RemoteBackend, Result
from penstock.http.client.calls import Call
from penstock.http.client.failures import Failure, NotSent
from penstock.system.clock import Clock


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


class Guest(Remote):
    """Asks the owner, once."""

    def __init__(self, folder: str, share: str, timeout: float | None, clock: Clock) -> None:
        super().__init__(f"{UNIX}{share}", timeout, clock)
        self.folder = folder

    def closed(self) -> Exception:
        return NotSent("it has ended")  # another thread or coroutine has found that the owner has gone

    async def again(self, call: Call[Result], failure: Failure, tries: int = 0) -> Result:
        raise judged(failure, call, self.folder) from failure


class GuestBackend(Guest, RemoteBackend):
    """The same for threads."""
