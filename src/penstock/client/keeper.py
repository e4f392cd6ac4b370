"""The keeper of a store that is somewhere else."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from penstock.client import address, calls
from penstock.client.calls import Call
from penstock.client.failures import TRIES, Failure, Patience, Turns
from penstock.client.pool import Pool
from penstock.client.streams import RemoteStreams
from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidArgument
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message
from penstock.names import DEFAULT
from penstock.settings import Settings, seconds

TIMEOUT = 60.0
Result = TypeVar("Result")


class RemoteKeeper:
    """Asks a server to keep queues. What fails on the way is tried again for a while, where that does no harm."""

    def __init__(
        self,
        url: str,
        timeout: float | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        ca: str | None = None,
    ) -> None:
        self._address = address.parse(url, token, ca)
        self._timeout = checked_timeout(timeout)
        self._clock = clock or SystemClock()
        self._pool = Pool(self._address)
        self._closing = threading.Event()

    def connect(self) -> None:
        """Find out whether the server is there, at once."""
        self._run(calls.queue(DEFAULT), tries=1)

    def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        self._run(calls.create(queue, settings))

    def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        self._run(calls.delete(queue))

    def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return self._run(calls.queues())

    def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return self._run(calls.queue(queue)).settings

    def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return self._run(calls.queue(queue)).counts

    def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches."""
        return self._run(calls.publish(entry))

    def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        return self._run(calls.put(queue, entries))

    def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""
        turns = Turns(wait, self._clock)
        while True:
            claimed = self._run(calls.claim(queue, n, lease, turns.next(), consumer))
            if claimed or turns.over():
                return claimed

    def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        turns = Turns(wait, self._clock)
        while True:
            popped = self._run(calls.pop(queue, turns.next(), consumer))
            if popped or turns.over():
                return popped[0] if popped else None

    def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        self._run(calls.ack(queue, receipts))

    def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        self._run(calls.fail(queue, receipts, delay, reason))

    def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        self._run(calls.release(queue, receipts))

    def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        return self._run(calls.extend(queue, receipts, lease))

    def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        return self._run(calls.remove(queue, ids))

    def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return self._run(calls.redrive(queue, ids))

    def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return self._run(calls.purge(queue))

    def peek(self, queue: str, n: int) -> Iterator[Message]:
        """What claim would give, page by page."""
        seen = 0
        while seen < n and (page := self._run(calls.peek(queue, n - seen, seen))):
            yield from page
            seen += len(page)

    def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return self._run(calls.attempts(queue, id))

    def messages(self, queue: str, state: str | None) -> Iterator[Message]:
        """The messages in that state, in the order in which they were put, page by page."""
        after = ""
        while page := self._run(calls.messages(queue, state, after)):
            yield from page
            after = page[-1].id

    def streams(self) -> RemoteStreams:
        """The streams that read queues of the store."""
        return RemoteStreams(self._run)

    def close(self) -> None:
        """Leave the server alone; threads that wait get StoreClosed."""
        self._closing.set()
        self._pool.close()

    def ask(self, call: Call[Result]) -> Result:
        """Carry out a request that is no part of the contract."""
        return self._run(call)

    def _run(self, call: Call[Result], tries: int = TRIES) -> Result:
        request = call.request(self._address.authority, self._address.credentials)
        patience: Patience | None = None
        while True:
            try:
                return call.result(self._pool.ask(request, self._timeout + call.wait))
            except Failure as failure:
                self._pool.check_open()
                if patience is None:
                    patience = self._patience(call, tries)
                pause = patience.pause(failure)
            if self._clock.wait(self._closing, pause):
                self._pool.check_open()

    def _patience(self, call: Call[Any], tries: int) -> Patience:
        return Patience(self._address.url, call.name, call.repeatable, self._clock, tries)


def checked_timeout(timeout: float | None) -> float:
    """How long an answer may take."""
    if timeout is None:
        return TIMEOUT
    if seconds("timeout", timeout) == 0:
        raise InvalidArgument("timeout=0 leaves no time for an answer; give the seconds that one may take")
    return timeout


def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteKeeper:
    """The keeper of the store of a server that is there; StoreUnreachable if it is not."""
    keeper = RemoteKeeper(url, timeout, clock, token, ca)
    try:
        keeper.connect()
    except BaseException:
        keeper.close()
        raise
    return keeper
