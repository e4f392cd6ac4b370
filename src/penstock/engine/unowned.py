"""Backends of stores that no process owns: text files and folders, whose operations run on the files each time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contract.message import Attempt, Message
from penstock.contract.operation import Operation
from penstock.contract.operations import AttemptPage, attempt_page
from penstock.contract.settings import QueueInfo, Settings
from penstock.errors import NotSupported

if TYPE_CHECKING:
    from penstock.contract.loads import Loads
    from penstock.engine.threaded import ThreadedBackend

Result = TypeVar("Result")


class Unowned:
    """A backend with a method for each operation; parts and attempts come from listings of its messages."""

    settings: Any
    counts: Any
    messages: Any
    attempts: Any
    close: Any

    def run(self, operation: Operation[Result]) -> Result:
        """Carry out an operation."""
        result: Result = operation.call(self)
        return result

    async def for_loop(self) -> "ThreadedBackend":
        """The same store for coroutines: each operation runs in a thread."""
        from penstock.engine.threaded import ThreadedBackend  # here, as most programs have no event loop

        return ThreadedBackend(self)

    def show(self, queue: str) -> QueueInfo:
        """A queue with its settings and counts."""
        return QueueInfo(queue, self.settings(queue), self.counts(queue))

    def all_attempts(self, queue: str, after: str, until: str) -> AttemptPage:
        """A page of the attempts at all messages."""

        def each() -> Iterator[tuple[str, list[Attempt]]]:
            for message in self.messages(queue, None, after, until):
                yield message.id, self.attempts(queue, message.id)

        return attempt_page(each())

    def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""
        ids = [message.id for message in self.messages(queue, None)]
        size = max(1, -(-len(ids) // n))
        return [*ids[size - 1 : -1 : size], ids[-1]] if ids else []

    def update(self, queue: str, changes: Mapping[str, Any]) -> Settings:
        """Change settings."""
        raise NotSupported(
            "text and folder stores cannot change settings yet: delete the queue and create it anew"
        )

    def uploads(self) -> "Loads":
        """Loads, which need a process that owns the store."""
        raise NotSupported("text and folder stores take no loads: put the messages instead")


def between(
    messages: Callable[[], Iterator[Message]], state: str | None, after: str, until: str
) -> Iterator[Message]:
    """Those of all messages of a queue that are in a state and between two, each of which may have gone."""
    found = not after
    for message in messages():
        if found and state in (None, message.state):
            yield message
        found = found or message.id == after
        if message.id == until:
            return
    if not found:  # `after` has gone meanwhile: rather twice than never
        yield from between(messages, state, "", "")


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many of these have no more bytes than that together, but one at least."""
    return max(1, sum(1 for _ in takewhile(lambda size: size <= most, accumulate(sizes))))
