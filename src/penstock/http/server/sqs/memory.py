"""What a server remembers for SQS while it runs. No message depends on it."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.contract.message import Message
from penstock.contract.operations import Release
from penstock.contract.settings import FIVE_MINUTES
from penstock.http.server.sqs.moving import MoveTasks

_MOST = 1_000  # receives that are remembered


class Received(NamedTuple):
    """A message that was received."""

    id: str
    receipt: str


class Memory:
    """Receives by their attempt ids, running purges and move tasks."""

    def __init__(self, backend: Any) -> None:
        self.changing = asyncio.Lock()  # labels are read and written as a whole
        self.purging: set[str] = set()
        self.tasks = MoveTasks(backend)
        self._backend = backend
        self._received: OrderedDict[tuple[str, str], tuple[float, list[Received]]] = OrderedDict()
        self._releasing: set[asyncio.Future[None]] = set()

    def remember(self, queue: str, attempt: str, taken: Sequence[Message]) -> None:
        """Remember the messages of a receive for five minutes."""
        received = [Received(message.id, message.receipt or "") for message in taken]
        self._received.pop((queue, attempt), None)
        self._received[queue, attempt] = time.monotonic() + FIVE_MINUTES / 1000, received
        if len(self._received) > _MOST:
            self._received.popitem(last=False)

    def recall(self, queue: str, attempt: str) -> list[Received] | None:
        """The messages of an earlier receive."""
        until, received = self._received.get((queue, attempt), (0.0, None))
        return received if until > time.monotonic() else None

    def give_back(self, release: Release) -> None:
        """Release messages that did not reach their consumer."""
        task = asyncio.ensure_future(self._backend.run(release))
        self._releasing.add(task)
        task.add_done_callback(self._released)

    def _released(self, task: "asyncio.Future[None]") -> None:
        self._releasing.discard(task)
        if not task.cancelled():
            task.exception()  # their leases are over, or the queue was deleted
