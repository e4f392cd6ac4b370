"""A store that many processes have open, for coroutines: as sharing/keeper.py, without blocking."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from penstock.aio.local import LocalKeeper
from penstock.aio.remote import RemoteKeeper
from penstock.client import calls
from penstock.client.address import UNIX
from penstock.client.calls import Call
from penstock.client.failures import TRIES, Failure, NotSent
from penstock.clock import Clock
from penstock.errors import StoreClosed, StoreUnreachable
from penstock.index.history import Attempt
from penstock.keeper import QueueInfo
from penstock.message import Entry, Message
from penstock.settings import Settings
from penstock.sharing.guest import Gone, judged
from penstock.sharing.host import SETTLED, prepare
from penstock.sharing.ownership import LONGEST_PAUSE, PATIENCE, PAUSE, Folder, Owner, become_owner, locked

Result = TypeVar("Result")


class GuestKeeper(RemoteKeeper):
    """Asks the owner, once."""

    def __init__(self, folder: str, share: str, timeout: float | None, clock: Clock) -> None:
        super().__init__(f"{UNIX}{share}", timeout, clock)
        self._folder = folder

    async def ask(self, call: Call[Result]) -> Result:
        """Carry out a request that is no part of the contract, as a part of a listing."""
        return await self._run(call)

    async def _run(self, call: Call[Result], tries: int = TRIES) -> Result:
        request = call.request(self._address.authority)
        try:
            return call.result(await self._pool.ask(request, self._timeout + call.wait))
        except StoreClosed:  # said by the pool
            raise Gone(NotSent("it has ended"), call) from None
        except Failure as failure:
            raise judged(failure, call, self._folder) from failure


Held: TypeAlias = LocalKeeper | GuestKeeper


class SharedKeeper:
    """Keeps queues of a folder that other processes may have open, too."""

    def __init__(self, folder: Folder, timeout: float | None) -> None:
        self._folder = folder
        self._patience = PATIENCE if timeout is None else timeout
        self._loop = asyncio.get_running_loop()
        self._moving = asyncio.Lock()
        self._closed = False
        self._owner: Owner | None = None
        self._preparing: asyncio.TimerHandle | None = None
        self._keeper: Held = GuestKeeper(folder.path, folder.share, timeout, folder.clock)

    async def open(self) -> None:
        """Own the store, or find who does."""
        guest = self._keeper
        try:
            owner = await self._become_owner()
            if owner is not None:
                await self._take_over(guest, owner)
            else:
                await self._find_owner(guest, self._loop.time() + self._patience)
                self._preparing = self._loop.call_later(SETTLED, self._prepare)
        except (Gone, StoreUnreachable) as error:
            await self.close()
            raise locked(self._folder.path, error) from error
        except BaseException:
            await self.close()
            raise

    def _prepare(self) -> None:
        self._loop.run_in_executor(None, prepare)

    async def create(self, queue: str, settings: Settings) -> None:
        """Make a queue."""
        await self._run(lambda keeper: keeper.create(queue, settings))

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        await self._run(lambda keeper: keeper.delete(queue))

    async def queues(self) -> list[QueueInfo]:
        """Every queue, by name."""
        return await self._run(lambda keeper: keeper.queues())

    async def settings(self, queue: str) -> Settings:
        """What the queue was created with."""
        return await self._run(lambda keeper: keeper.settings(queue))

    async def counts(self, queue: str) -> dict[str, int]:
        """How many messages are in each state."""
        return await self._run(lambda keeper: keeper.counts(queue))

    async def publish(self, entry: Entry) -> str:
        """Put into every queue whose filter matches."""
        return await self._run(lambda keeper: keeper.publish(entry))

    async def put(self, queue: str, entries: Sequence[Entry]) -> list[str]:
        """Take in all entries or none."""
        return await self._run(lambda keeper: keeper.put(queue, entries))

    async def claim(self, queue: str, n: int, lease: float, wait: float, consumer: str) -> list[Message]:
        """Lease up to n messages."""
        left = self._left(wait)
        return await self._run(lambda keeper: keeper.claim(queue, n, lease, left(), consumer))

    async def pop(self, queue: str, wait: float, consumer: str) -> Message | None:
        """Claim and acknowledge one message."""
        left = self._left(wait)
        return await self._run(lambda keeper: keeper.pop(queue, left(), consumer))

    async def ack(self, queue: str, receipts: Sequence[str]) -> None:
        """Settle for good."""
        await self._run(lambda keeper: keeper.ack(queue, receipts))

    async def fail(self, queue: str, receipts: Sequence[str], delay: float, reason: str | None) -> None:
        """End the attempts."""
        await self._run(lambda keeper: keeper.fail(queue, receipts, delay, reason))

    async def release(self, queue: str, receipts: Sequence[str]) -> None:
        """Give back."""
        await self._run(lambda keeper: keeper.release(queue, receipts))

    async def extend(self, queue: str, receipts: Sequence[str], lease: float) -> tuple[int, list[str]]:
        """Hold from now on."""
        return await self._run(lambda keeper: keeper.extend(queue, receipts, lease))

    async def remove(self, queue: str, ids: Sequence[str]) -> int:
        """Take messages out in any state."""
        return await self._run(lambda keeper: keeper.remove(queue, ids))

    async def redrive(self, queue: str, ids: Sequence[str] | None) -> int:
        """Start over with failed messages."""
        return await self._run(lambda keeper: keeper.redrive(queue, ids))

    async def purge(self, queue: str) -> int:
        """Take out everything but what is in flight."""
        return await self._run(lambda keeper: keeper.purge(queue))

    async def attempts(self, queue: str, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message."""
        return await self._run(lambda keeper: keeper.attempts(queue, id))

    async def peek(self, queue: str, n: int) -> AsyncIterator[Message]:
        """What claim would give, page by page."""
        seen = 0

        async def rest(keeper: Held) -> list[Message]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.ask(calls.peek(queue, n - seen, seen))
            return await page_of(keeper.peek(queue, min(n - seen, calls.PAGE), seen))

        while seen < n and (page := await self._run(rest)):
            for message in page:
                yield message
            seen += len(page)

    async def messages(self, queue: str, state: str | None) -> AsyncIterator[Message]:
        """The messages in that state, in the order in which they were put, page by page."""
        after = ""

        async def rest(keeper: Held) -> list[Message]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.ask(calls.messages(queue, state, after))
            return await page_of(keeper.messages(queue, state, after))

        while page := await self._run(rest):
            for message in page:
                yield message
            after = page[-1].id

    async def close(self) -> None:
        """Let go of the store; if this process owns it, the next may have it."""
        self._closed = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self._owner is None:
            await self._keeper.close()
        async with self._moving:
            owner, self._owner = self._owner, None
            if owner is not None:
                await asyncio.get_running_loop().run_in_executor(None, owner.close)
                await self._keeper.close()

    def _left(self, wait: float) -> Callable[[], float]:
        """How much of a wait is left."""
        clock = self._folder.clock
        end = clock.monotonic() + wait
        return lambda: max(end - clock.monotonic(), 0.0)

    async def _run(self, operate: Callable[[Held], Awaitable[Result]]) -> Result:
        left = self._keeper
        try:
            return await operate(left)
        except Gone as failed:
            gone = failed
        maybe_done, pause = False, PAUSE
        deadline = self._loop.time() + self._patience
        while True:
            maybe_done |= gone.failure.done
            try:
                if isinstance(left, GuestKeeper):
                    await self._find_owner(left, deadline)
                left = self._keeper
                return await operate(left)
            except Gone as again:
                self._check_open()
                gone = again
            if self._loop.time() > deadline:
                raise gone.error(self._folder.path, maybe_done) from gone.failure
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _find_owner(self, left: Held, deadline: float) -> None:
        """Return once there is someone to ask, be it this process; Gone if nobody answers in time."""
        async with self._moving:
            while self._keeper is left and isinstance(left, GuestKeeper):
                self._check_open()
                try:
                    await left.connect()
                    return
                except Gone as gone:
                    owner = await self._become_owner()
                    if owner is not None:
                        await self._take_over(left, owner)
                        return
                    if self._loop.time() > deadline:
                        raise gone from None
                await asyncio.sleep(PAUSE)

    async def _become_owner(self) -> Owner | None:
        """Opens in a thread, as there may be much to read."""
        opened = asyncio.get_running_loop().run_in_executor(None, become_owner, self._folder)
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_close)  # else nobody would
            raise

    async def _take_over(self, left: Held, owner: Owner) -> None:
        self._owner, self._keeper = owner, LocalKeeper(owner.keeper)
        await left.close()  # whom it asked has ended; who still waits for an answer is told

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(
                f"the store {self._folder.path!r} was closed: open it again with penstock.aio.open()"
            )


async def page_of(messages: AsyncIterator[Message]) -> list[Message]:
    """The first of many messages."""
    page = []
    async for message in messages:
        page.append(message)
        if len(page) == calls.PAGE:
            break
    return page


def _close(opened: "asyncio.Future[Owner | None]") -> None:
    if not opened.cancelled() and opened.exception() is None and (owner := opened.result()) is not None:
        owner.close()


async def open_shared(folder: Folder, timeout: float | None) -> SharedKeeper:
    """Open the store in a folder, whoever else has it open."""
    keeper = SharedKeeper(folder, timeout)
    await keeper.open()
    return keeper
