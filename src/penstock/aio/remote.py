"""The keeper, for coroutines, of a store that is somewhere else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.aio.pool import Pool
from penstock.client import address, calls
from penstock.client.calls import Call
from penstock.client.failures import TRIES, Failure, Patience, Turns
from penstock.client.keeper import checked_timeout
from penstock.clock import Clock, SystemClock, pause
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message
from penstock.names import DEFAULT
from penstock.settings import Settings

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
        self._closing = asyncio.Event()

    async def connect(self) -> None:
        """Find out whether the server is there, at once."""
        await self._run(calls.queue(DEFAULT), tries=1)

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        await self._run(calls.create(queue, settings))

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._run(calls.delete(queue))

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return await self._run(calls.queues())

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return (await self._run(calls.queue(queue))).settings

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return (await self._run(calls.queue(queue))).counts

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches."""
        return await self._run(calls.publish(entry))

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        return await self._run(calls.put(queue, entries))

    async def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""
        turns = Turns(wait, self._clock)
        while True:
            claimed = await self._run(calls.claim(queue, n, lease, turns.next(), consumer))
            if claimed or turns.over():
                return claimed

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        turns = Turns(wait, self._clock)
        while True:
            popped = await self._run(calls.pop(queue, turns.next(), consumer))
            if popped or turns.over():
                return popped[0] if popped else None

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        await self._run(calls.ack(queue, receipts))

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        await self._run(calls.fail(queue, receipts, delay, reason))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        await self._run(calls.release(queue, receipts))

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        return await self._run(calls.extend(queue, receipts, lease))

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        return await self._run(calls.remove(queue, ids))

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return await self._run(calls.redrive(queue, ids))

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return await self._run(calls.purge(queue))

    async def peek(self, queue: str, n: int) -> AsyncIterator[Message]:
        """What claim would give, page by page."""
        seen = 0
        while seen < n and (page := await self._run(calls.peek(queue, n - seen, seen))):
            for message in page:
                yield message
            seen += len(page)

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return await self._run(calls.attempts(queue, id))

    async def messages(self, queue: str, state: str | None) -> AsyncIterator[Message]:
        """The messages in that state, in the order in which they were put, page by page."""
        after = ""
        while page := await self._run(calls.messages(queue, state, after)):
            for message in page:
                yield message
            after = page[-1].id

    async def close(self) -> None:
        """Leave the server alone; who waits gets StoreClosed."""
        self._closing.set()
        await self._pool.close()

    async def _run(self, call: Call[Result], tries: int = TRIES) -> Result:
        request = call.request(self._address.authority, self._address.credentials)
        patience: Patience | None = None
        while True:
            try:
                return call.result(await self._pool.ask(request, self._timeout + call.wait))
            except Failure as failure:
                self._pool.check_open()
                if patience is None:
                    patience = Patience(self._address.url, call.name, call.repeatable, self._clock, tries)
                seconds = patience.pause(failure)
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        end = self._clock.monotonic() + seconds
        while (left := end - self._clock.monotonic()) > 0:
            self._pool.check_open()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause(self._clock, left))


async def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteKeeper:
    """The keeper of the store of a server that is there; StoreUnreachable if it is not."""
    keeper = RemoteKeeper(url, timeout, clock, token, ca)
    try:
        await keeper.connect()
    except BaseException:
        await keeper.close()
        raise
    return keeper
