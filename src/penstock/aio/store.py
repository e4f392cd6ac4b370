"""Store, Queue and Message for coroutines: the contract of `penstock.store`, method by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

from penstock import message, names
from penstock.arguments import (
    checked_consumer,
    checked_ids,
    checked_lease,
    checked_reason,
    checked_settings,
    checked_state,
    receipts_of,
)
from penstock.errors import LeaseExpired, StoreClosed
from penstock.message import Draft, Payload
from penstock.settings import MAX_COUNT, MAX_PAYLOAD, Settings, seconds, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType

    from penstock.aio.keeper import AsyncKeeper
    from penstock.index.history import Attempt
    from penstock.keeper import QueueInfo


class Message(message.Message):
    """A message as it was when it was read, whose methods are coroutines."""

    __slots__ = ()

    async def ack(self) -> None:  # type: ignore[override]
        """The work is done: settle the message for good."""
        await self._queue().ack(self)

    async def fail(self, delay: float = 0.0, reason: str | None = None) -> None:  # type: ignore[override]
        """The work failed: try again after `delay` seconds, or end as failed after the last attempt."""
        await self._queue().fail(self, delay=delay, reason=reason)

    async def release(self) -> None:  # type: ignore[override]
        """Give the message back unworked; another consumer gets it at once."""
        await self._queue().release(self)

    async def extend(self, lease: float = 30.0) -> None:  # type: ignore[override]
        """Hold the message for `lease` seconds from now."""
        await self._queue().extend(self, lease=lease)

    def _queue(self) -> Queue:
        return cast("Queue", self._claimed_from())


class Store:
    """A set of queues, for the coroutines of one event loop. Use it with `async with`, or close() it."""

    def __init__(self, url: str, keeper: AsyncKeeper) -> None:
        self.url = url
        self._open_keeper: AsyncKeeper | None = keeper

    async def create(
        self,
        name: str,
        max_size: int = 0,
        max_attempts: int = 5,
        keep_done: float | None = 0,
        filter: str | None = None,  # noqa: A002 - the contract's word
        start: str | int = "now",
        max_payload: int = MAX_PAYLOAD,
        priorities: tuple[int, int] | None = None,
        max_lease: float = 43_200,
        retention: float = 0,
        description: str = "",
    ) -> Queue:
        """Make a queue; `penstock.Settings` explains each setting. QueueExists if the name is taken."""
        name = names.checked(name)
        settings = Settings(
            max_size=max_size,
            max_attempts=max_attempts,
            keep_done=keep_done,
            filter=filter,
            start=start,
            max_payload=max_payload,
            priorities=priorities,
            max_lease=max_lease,
            retention=retention,
            description=description,
        )
        await self._keeper.create(name, checked_settings(settings))
        return Queue(self, name)

    async def queue(self, name: str = "") -> Queue:
        """The queue of that name; without one, the queue `default`. QueueNotFound if there is none."""
        name = names.meant(name, self._keeper)
        await self._keeper.settings(name)
        return Queue(self, name)

    async def delete(self, name: str) -> None:
        """Remove a queue and all its messages, for good. The queue `default` stays (QueueProtected)."""
        await self._keeper.delete(names.deletable(name))

    async def queues(self) -> list[QueueInfo]:
        """Every queue with its settings and its counts by state, by name."""
        return await self._keeper.queues()

    async def publish(
        self,
        payload: Payload,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        delay: float = 0,
        retention: float | None = None,
        created_at: int | None = None,
    ) -> str:
        """Put a copy into every queue whose filter matches; if one of them refuses it, into none.

        The id that is returned travels with each copy in the header `penstock.publish`.
        """
        entry = message.checked(Draft(payload, priority, headers, delay, retention, None, created_at))
        message.check_limits(entry)  # those of the queues do not apply if none wants it
        return await self._keeper.publish(entry)

    async def close(self) -> None:
        """Let go of the store. Closing twice does no harm."""
        keeper, self._open_keeper = self._open_keeper, None
        if keeper is not None:
            await keeper.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<penstock.aio.Store {self.url!r}{'' if self._open_keeper else ' (closed)'}>"

    @property
    def _keeper(self) -> AsyncKeeper:
        if self._open_keeper is None:
            raise StoreClosed(f"the store {self.url!r} was closed: open it again with penstock.aio.open()")
        return self._open_keeper


class Queue:
    """A handle on one queue of a store. It costs nothing to make."""

    def __init__(self, owner: Store, name: str) -> None:
        self._store = owner
        self.name = name

    async def settings(self) -> Settings:
        """What the queue was created with."""
        return await self._keeper.settings(self.name)

    async def put(
        self,
        payload: Payload,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        delay: float = 0,
        retention: float | None = None,
        key: str | None = None,
        created_at: int | None = None,
    ) -> str:
        """Add a message; returns its id once the message is on stable storage. `penstock.Queue.put` says more."""
        entry = message.checked(Draft(payload, priority, headers, delay, retention, key, created_at))
        return (await self._keeper.put(self.name, [entry]))[0]

    async def put_many(self, items: Iterable[Draft | Payload]) -> list[str]:
        """Add many messages in one durable step, all of them or none; returns their ids."""
        return await self._keeper.put(self.name, message.checked_many(items))

    async def claim(
        self, n: int = 1, lease: float = 30.0, wait: float = 0.0, consumer: str | None = None
    ) -> list[Message]:
        """Take up to n messages on a lease of so many seconds (at most the queue's max_lease).

        Waits up to `wait` seconds for the first one; consumers that wait are served in turn. Settle each message
        with ack(), fail() or release() before its lease ends, or extend() it; after that it goes to another.
        """
        n = whole("n", n, 1, MAX_COUNT)
        claimed = await self._keeper.claim(
            self.name, n, checked_lease(lease), seconds("wait", wait), checked_consumer(consumer)
        )
        for each in claimed:
            each._handle = cast("Any", self)
        return [_ours(each) for each in claimed]

    async def pop(self, wait: float = 0.0) -> Message | None:
        """Take the next message for good: claim and ack in one step. None if there is none in time."""
        popped = await self._keeper.pop(self.name, seconds("wait", wait), checked_consumer(None))
        return None if popped is None else _ours(popped)

    async def ack(self, *messages: message.Message | str) -> None:
        """The work is done. Takes messages or receipts; repeating it does no harm.

        If some leases were lost the others are settled all the same, and LeaseExpired names the lost ones.
        """
        await self._keeper.ack(self.name, receipts_of(messages, self.name))

    async def fail(self, *messages: message.Message | str, delay: float = 0.0, reason: str | None = None) -> None:
        """The work failed: available again after `delay` seconds, or failed after the last attempt."""
        receipts = receipts_of(messages, self.name)
        await self._keeper.fail(self.name, receipts, seconds("delay", delay), checked_reason(reason))

    async def release(self, *messages: message.Message | str) -> None:
        """Give messages back unworked: available at once, at their old place; the attempt stays counted."""
        await self._keeper.release(self.name, receipts_of(messages, self.name))

    async def extend(self, *messages: message.Message | str, lease: float = 30.0) -> None:
        """Hold messages for `lease` seconds from now."""
        receipts = receipts_of(messages, self.name)
        until, lost = await self._keeper.extend(self.name, receipts, checked_lease(lease))
        for each in messages:
            if isinstance(each, message.Message) and each.receipt not in lost:
                each.lease_until = until
        if lost:
            raise LeaseExpired(self.name, lost)

    async def remove(self, *ids: str) -> int:
        """Take messages out, whatever their state; how many were there."""
        return await self._keeper.remove(self.name, checked_ids(ids))

    async def redrive(self, *ids: str) -> int:
        """Make failed messages available again with attempts 0; without ids, all of them. How many."""
        return await self._keeper.redrive(self.name, checked_ids(ids) if ids else None)

    async def purge(self) -> int:
        """Take out everything but what consumers hold; how many."""
        return await self._keeper.purge(self.name)

    def peek(self, n: int = 1) -> AsyncIterator[Message]:
        """The next n messages that claim() would give, left where they are."""
        return _all_ours(self._keeper.peek(self.name, whole("n", n, 1, MAX_COUNT)))

    def messages(self, state: str | None = None) -> AsyncIterator[Message]:
        """All messages in a state (None: in any), in the order in which they were put, left where they are."""
        return _all_ours(self._keeper.messages(self.name, checked_state(state)))

    async def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message, oldest first: who claimed it, from when to when, and how it ended."""
        return await self._keeper.attempts(self.name, checked_ids([id])[0])

    async def count(self) -> int:
        """How many messages wait: available and delayed."""
        counts = await self.counts()
        return counts["available"] + counts["delayed"]

    async def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return await self._keeper.counts(self.name)

    def __repr__(self) -> str:
        return f"<penstock.aio.Queue {self.name!r} of {self._store.url!r}>"

    @property
    def _keeper(self) -> AsyncKeeper:
        return self._store._keeper


def _ours(given: message.Message) -> Message:
    """The same message with methods for coroutines; it has the same fields, and nobody else has it yet."""
    given.__class__ = Message
    return cast("Message", given)


async def _all_ours(messages: AsyncIterator[message.Message]) -> AsyncIterator[Message]:
    async for each in messages:
        yield _ours(each)
