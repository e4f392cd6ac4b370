"""A server on a folder that another process owns: what it is asked it asks the owner, until it is the owner."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar, cast

from penstock.aio.local import COMMIT_RECORDS, COMMIT_SECONDS, LocalKeeper
from penstock.aio.shared import GuestKeeper, Held, SharedKeeper, page_of
from penstock.client import calls
from penstock.histogram import Histogram
from penstock.index.history import Attempt
from penstock.live.figures import Figures
from penstock.message import Message
from penstock.names import DEFAULT
from penstock.settings import MAX_PAYLOAD
from penstock.sharing import guest as guests

if TYPE_CHECKING:
    from penstock.store import Store
    from penstock.streams import Streams
    from penstock.uploads import Uploads

Result = TypeVar("Result")


class ForwardingKeeper(SharedKeeper):
    """What `aio.local.LocalKeeper` has beyond the contract, for stores of other processes."""

    commit_seconds, commit_records = Histogram(COMMIT_SECONDS), Histogram(COMMIT_RECORDS)  # its owner commits

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store; of an owner elsewhere nothing is known but its answers."""
        return self._keeper.failure if isinstance(self._keeper, LocalKeeper) else None

    def is_open(self) -> bool:
        """Whether operations are carried out."""
        return not self._closed and (isinstance(self._keeper, GuestKeeper) or self._keeper.is_open())

    async def check(self) -> None:
        """Raise what is wrong with the store, as its owner says."""
        await self.settings(DEFAULT)

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running, as far as this process knows."""
        return self._keeper.longest_commit() if isinstance(self._keeper, LocalKeeper) else 0.0

    def tend(self) -> "asyncio.Future[None]":
        """Let time have passed in queues where nobody comes by: the owner does that for itself."""
        if isinstance(self._keeper, LocalKeeper):
            return self._keeper.tend()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def figures(self) -> list[Figures]:
        """How every queue is, as far as this process knows."""
        if isinstance(self._keeper, LocalKeeper):
            return await self._keeper.figures()
        return [Figures(each.name, True, each.counts, 0, 0, {}, 0, 0, 0) for each in await self.queues()]

    async def lag(self, queue: str) -> int | None:
        """How far a queue is behind the log."""
        return next((info.lag for info in await self.queues() if info.name == queue), None)

    def max_payload(self, queue: str) -> int:
        """The largest payload of any queue: the owner knows better."""
        return MAX_PAYLOAD

    async def claim(
        self, queue: str, n: int, lease: float, wait: float, consumer: str, most: int | None = None
    ) -> list[Message]:
        """Lease up to n messages; an owner elsewhere gives no more bytes than a server does."""
        left = self._left(wait)

        async def claim(keeper: Held) -> list[Message]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.claim(queue, n, lease, left(), consumer)
            return await keeper.claim(queue, n, lease, left(), consumer, most)

        return await self._run(claim)

    async def peek(self, queue: str, n: int, skip: int = 0) -> AsyncIterator[Message]:
        """What claim would give, after some that are skipped."""

        async def page(keeper: Held) -> list[Message]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.ask(calls.peek(queue, n, skip))
            return await page_of(keeper.peek(queue, n, skip))

        for message in await self._run(page):
            yield message

    async def messages(
        self, queue: str, state: str | None, after: str = "", until: str = "", bodies: bool = True
    ) -> AsyncIterator[Message]:
        """The messages in that state, in the order in which they were put, from after one on until another."""

        async def page(keeper: Held) -> list[Message]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.ask(calls.messages(queue, state, after, until))
            return await page_of(keeper.messages(queue, state, after, until, bodies))

        while listed := await self._run(page):
            for message in listed:
                yield message
            after = listed[-1].id

    async def all_attempts(self, queue: str, after: str, until: str) -> AsyncIterator[tuple[str, list[Attempt]]]:
        """The attempts at each message that has some."""
        next_one: str | None = after

        async def page(keeper: Held) -> tuple[list[tuple[str, list[Attempt]]], str | None]:
            if not isinstance(keeper, GuestKeeper):
                return [each async for each in keeper.all_attempts(queue, next_one or "", until)], None
            found, following = await keeper.ask(calls.all_attempts(queue, next_one or "", until))
            grouped = groupby(found, key=lambda each: str(each.pop("id")))
            return [(id_, [Attempt(**each) for each in made]) for id_, made in grouped], following

        while next_one is not None:
            made, next_one = await self._run(page)
            for each in made:
                yield each

    async def parts(self, queue: str, n: int) -> list[str]:
        """Ids that end parts of about the same size."""

        async def ask(keeper: Held) -> list[str]:
            if isinstance(keeper, GuestKeeper):
                return await keeper.ask(calls.parts(queue, n))
            return await keeper.parts(queue, n)

        return await self._run(ask)

    async def with_streams(self, call: Callable[["Streams"], Result]) -> Result:
        """Do something with the streams that read queues, in a thread."""

        def of_owner() -> Result:
            guest = guests.GuestKeeper(self._folder.path, self._folder.share, None, self._folder.clock)
            try:
                return call(guest.streams())
            finally:
                guest.close()

        async def ask(keeper: Held) -> Result:
            if isinstance(keeper, GuestKeeper):
                return await asyncio.to_thread(of_owner)
            return await keeper.with_streams(call)

        return await self._run(ask)

    async def with_uploads(self, call: Callable[["Uploads"], Result]) -> Result:
        """Do something with the loads that clients send, which wait where the owner is: they end with it."""

        def of_owner() -> Result:
            from penstock.sharing.uploads import GuestUploads  # here, as few need it

            guest = GuestUploads(self._folder.path, self._folder.share, None, self._folder.clock)
            try:
                return call(guest)
            finally:
                guest.close()

        async def ask(keeper: Held) -> Result:
            if isinstance(keeper, GuestKeeper):
                return await asyncio.to_thread(of_owner)
            return await keeper.with_uploads(call)

        return await self._run(ask)

    async def detach(self) -> None:
        """Leave the store."""
        await self.close()


async def forwarding(store: "Store") -> ForwardingKeeper:
    """What serves a store that this process has open as a guest."""
    from penstock.sharing.keeper import SharedKeeper as Shared

    shared = cast("Shared", store._keeper)
    keeper = ForwardingKeeper(shared.folder, None)
    await keeper.open()
    return keeper
