"""Store, Queue and Message for coroutines: the contract of `store.py`, method by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from penstock.contract import message, names, tracing
from penstock.contract.arguments import (
    check_same,
    checked_changes,
    checked_consumer,
    checked_delay,
    checked_ids,
    checked_lease,
    checked_reason,
    checked_state,
    receipts_in,
    receipts_of,
)
from penstock.contract.message import Draft, Payload
from penstock.contract.operations import (
    PAGE,
    Ack,
    AllFigures,
    Attempts,
    Claim,
    Counts,
    Create,
    Delete,
    Extend,
    Fail,
    Lookup,
    Messages,
    Move,
    OneMessage,
    Peek,
    Pop,
    Publish,
    Purge,
    Put,
    Queues,
    Redrive,
    Release,
    Remove,
    Revoke,
    Update,
)
from penstock.contract.settings import MAX_COUNT, Settings, seconds, whole
from penstock.errors import LeaseExpired, QueueExists, StoreClosed
from penstock.system import processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
    from types import TracebackType

    import pyarrow as pa

    from penstock.contract.backend import AsyncBackend
    from penstock.contract.message import Attempt, State
    from penstock.contract.operation import AsyncRunner, Operation
    from penstock.contract.operations import Figures
    from penstock.contract.settings import Changes, QueueInfo

Result = TypeVar("Result")
_parents: list[AsyncBackend] = []


class Message(message.Message):
    """A message at the time it was read, with coroutines as methods."""

    __slots__ = ()

    async def ack(self) -> None:  # type: ignore[override]
        """The work is done: settle the message for good."""
        await self._queue().ack(self)

    async def fail(self, delay: float | None = None, reason: str | None = None) -> None:  # type: ignore[override]
        """The work failed: try again after `delay` seconds (None: the queue's backoff), or end as failed."""
        await self._queue().fail(self, delay=delay, reason=reason)

    async def release(self) -> None:  # type: ignore[override]
        """Give the message back unworked; another consumer gets it at once."""
        await self._queue().release(self)

    async def extend(self, lease: float | None = None) -> None:  # type: ignore[override]
        """Hold the message for `lease` seconds from now (None: the queue's own)."""
        await self._queue().extend(self, lease=lease)

    def _queue(self) -> Queue:
        return cast("Queue", self._claimed_from())


class Store:
    """A set of queues, for the coroutines of one event loop. Use it with `async with`, or close() it."""

    def __init__(self, url: str, backend: AsyncBackend) -> None:
        self.url = url
        self._open_backend: AsyncBackend | None = backend
        self._is_forked = False
        # Runs an operation with checked arguments: every call that lists no messages passes through it.
        self.run: AsyncRunner = tracing.traced_in_loop(url, backend.run)
        processes.watch_forks(self)

    def forked(self) -> None:
        """In a forked child: event loop, threads and connections belong to the parent."""
        if self._open_backend is not None:
            _parents.append(self._open_backend)  # referenced for ever: cleanup would close what is the parent's
            self._open_backend, self._is_forked, self.run = None, True, self._refuse

    async def create(self, name: str, *, exist_ok: bool = False, **settings: Unpack[Changes]) -> Queue:
        """Make a queue; `penstock.Settings` explains each setting.

        Args:
            name: the queue's name
            exist_ok: return a queue of that name as it is, unless settings that are given here differ
            settings: the fields of `penstock.Settings`, by name

        Raises:
            QueueExists: the name is taken
        """
        name, wanted = names.checked(name), checked_changes(settings)
        try:
            await self.run(Create(name, Settings(**wanted)))
        except QueueExists:
            if not exist_ok:
                raise
            check_same(name, wanted, await self.run(Lookup(name)))
        return Queue(self, name)

    async def queue(self, name: str = "") -> Queue:
        """The queue of that name; without one, the queue `default`.

        Raises:
            QueueNotFound: there is no queue of that name
        """
        name = names.meant(name, self._backend)
        await self.run(Lookup(name))
        return Queue(self, name)

    async def delete(self, name: str) -> None:
        """Remove a queue and all its messages, for good.

        Raises:
            QueueProtected: the queue `default` stays; purge() empties it
        """
        await self.run(Delete(names.deletable(name)))

    async def queues(self) -> list[QueueInfo]:
        """Every queue with its settings and its counts by state, by name."""
        return await self.run(Queues())

    async def figures(self) -> list[Figures]:
        """Every queue's figures for monitoring, by name: counts, the longest wait, counters of what happened."""
        return await self.run(AllFigures())

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

        Returns:
            the id, which travels with each copy in the header `penstock.publish`
        """
        entry = message.checked(Draft(payload, priority, headers, delay, retention, None, created_at))
        message.check_limits(entry)  # without a matching queue nothing else checks them
        return await self.run(Publish(entry))

    async def close(self) -> None:
        """Close the store. Closing twice does no harm."""
        backend, self._open_backend = self._open_backend, None
        self.run = self._refuse
        if backend is not None:
            await backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<penstock.aio.Store {self.url!r}{'' if self._open_backend else ' (closed)'}>"

    def _refuse(self, operation: Operation[Result]) -> Awaitable[Result]:
        return self._backend.run(operation)  # raises StoreClosed

    @property
    def _backend(self) -> AsyncBackend:
        if self._is_forked:
            raise StoreClosed(
                f"this process was forked from the one that has the store {self.url!r} open, whose event loop it "
                "does not have: open the store here"
            )
        if self._open_backend is None:
            raise StoreClosed(f"the store {self.url!r} was closed: open it again with penstock.aio.open()")
        return self._open_backend


class Queue:
    """A handle on one queue of a store. It costs nothing to make."""

    def __init__(self, owner: Store, name: str) -> None:
        self._store = owner
        self.name = name

    async def settings(self) -> Settings:
        """The current settings."""
        return await self._store.run(Lookup(self.name))

    async def update(self, **changes: Unpack[Changes]) -> Settings:
        """Change settings; those that are left out stay. `penstock.Queue.update` says more."""
        return await self._store.run(Update(self.name, checked_changes(changes)))

    async def put(
        self,
        payload: Payload,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        delay: float | None = None,
        retention: float | None = None,
        key: str | None = None,
        created_at: int | None = None,
        group: str | None = None,
    ) -> str:
        """Add a message; returns its id once the message is on stable storage. `penstock.Queue.put` says more."""
        entry = message.checked(Draft(payload, priority, headers, delay, retention, key, created_at, group))
        return (await self._store.run(Put(self.name, [entry])))[0]

    async def put_many(self, items: Iterable[Draft | Payload]) -> list[str]:
        """Add many messages in one durable step, all of them or none; returns their ids."""
        return await self._store.run(Put(self.name, message.checked_many(items)))

    async def claim(
        self,
        n: int = 1,
        lease: float | None = None,
        wait: float = 0.0,
        consumer: str | None = None,
        ack: message.Message | str | Iterable[message.Message | str] = (),
    ) -> list[Message]:
        """Take up to n messages on a lease.

        Settle each message with ack(), fail() or release() before its lease ends, or extend() it; after that
        another consumer gets it. Consumers that wait are served in turn.

        Args:
            n: the most messages to take
            lease: seconds that the work may take; None = the queue's `lease`; its `max_lease` at most
            wait: seconds to wait for the first message
            consumer: the consumer's name, for people; default: host and process id
            ack: messages of earlier claims, or their receipts, that are done: acknowledged first, in the same
                durable step

        Returns:
            the messages; none if none was available in time

        Raises:
            LeaseExpired: names the leases in `ack` that were lost; the others are settled, and nothing is claimed
        """
        n, receipts = whole("n", n, 1, MAX_COUNT), receipts_in(ack, self.name)
        claim = Claim(self.name, n, checked_lease(lease), seconds("wait", wait), checked_consumer(consumer))
        claimed: list[message.Message] = []
        if receipts:  # without waiting, so that a long wait never repeats the acks
            claimed = await self._store.run(claim.changed(wait=0, ack=receipts))
        if not receipts or (not claimed and claim.wait > 0):
            claimed = await self._store.run(claim)
        for each in claimed:
            each._handle = cast("Any", self)
        return [_ours(each) for each in claimed]

    async def pop(self, wait: float = 0.0) -> Message | None:
        """Take the next message for good: claim and ack in one step. None if there is none in time."""
        popped = await self._store.run(Pop(self.name, seconds("wait", wait), checked_consumer(None)))
        return None if popped is None else _ours(popped)

    async def ack(self, *messages: message.Message | str) -> None:
        """The work is done. Takes messages or receipts; repeating it does no harm.

        Raises:
            LeaseExpired: names the leases that were lost; the other messages are settled all the same
        """
        await self._store.run(Ack(self.name, receipts_of(messages, self.name)))

    async def fail(
        self, *messages: message.Message | str, delay: float | None = None, reason: str | None = None
    ) -> None:
        """The work failed: available again after `delay` seconds, or failed after the last attempt.

        Without a delay the queue's `backoff` decides.
        """
        receipts = receipts_of(messages, self.name)
        await self._store.run(Fail(self.name, receipts, checked_delay(delay), checked_reason(reason)))

    async def release(self, *messages: message.Message | str) -> None:
        """Give messages back unworked: available at once, at their old place; the attempt stays counted."""
        await self._store.run(Release(self.name, receipts_of(messages, self.name)))

    async def extend(self, *messages: message.Message | str, lease: float | None = None) -> None:
        """Hold messages for `lease` seconds from now (None: the queue's own)."""
        receipts = receipts_of(messages, self.name)
        held = await self._store.run(Extend(self.name, receipts, checked_lease(lease)))
        for each in messages:
            if isinstance(each, message.Message) and each.receipt not in held.lost:
                each.lease_until = held.lease_until
        if held.lost:
            raise LeaseExpired(self.name, held.lost)

    async def remove(self, *ids: str) -> int:
        """Remove messages in any state, and count those that existed."""
        return await self._store.run(Remove(self.name, checked_ids(ids)))

    async def revoke(self, *ids: str) -> int:
        """End the leases of messages in flight, as if their consumers had released them, and count them.

        For operators, where a consumer died with a long lease. Its receipts are refused from then on. Messages
        that a stream holds stay with it.
        """
        return await self._store.run(Revoke(self.name, checked_ids(ids)))

    async def redrive(self, *ids: str) -> int:
        """Make failed messages available again with attempts 0, and count them; without ids, all failed ones."""
        return await self._store.run(Redrive(self.name, checked_ids(ids) if ids else None))

    async def move(self, target: str, *ids: str) -> int:
        """Move messages that wait or have failed to another queue of the store; without ids, all failed ones.

        Returns how many. They start there with attempts 0 under new ids. Each message is in exactly one of the two
        queues, also after a crash.
        """
        return await self._store.run(Move(self.name, names.checked(target), checked_ids(ids) if ids else None))

    async def purge(self) -> int:
        """Remove all messages but those in flight, and count them."""
        return await self._store.run(Purge(self.name))

    def peek(self, n: int = 1) -> AsyncIterator[Message]:
        """The next n messages that claim() would give, left where they are."""
        return _all_ours(self._backend.listed(Peek(self.name, whole("n", n, 1, MAX_COUNT))))

    def messages(self, state: State | None = None) -> AsyncIterator[Message]:
        """All messages in a state (None: in any), in the order in which they were put, left where they are."""
        return _all_ours(self._backend.listed(Messages(self.name, limit=PAGE, state=checked_state(state))))

    async def message(self, id: str) -> Message | None:  # noqa: A002 - the contract's word
        """A message in any state, left where it is; None if the queue has no such message."""
        found = await self._store.run(OneMessage(self.name, checked_ids([id])[0]))
        return None if found is None else _ours(found)

    async def to_arrow(self, state: State | None = None) -> pa.Table:
        """All messages in a state (None: in any) as a pyarrow.Table. `penstock.Queue.to_arrow` says more."""
        rows = message.table_builder()
        async for each in self.messages(state):
            rows.add(each)
        return rows.table()

    async def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message, oldest first: who claimed it, from when to when, and how it ended."""
        return await self._store.run(Attempts(self.name, checked_ids([id])[0]))

    async def count(self) -> int:
        """How many messages wait: available and delayed."""
        counts = await self.counts()
        return counts["available"] + counts["delayed"]

    async def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return await self._store.run(Counts(self.name))

    def __repr__(self) -> str:
        return f"<penstock.aio.Queue {self.name!r} of {self._store.url!r}>"

    @property
    def _backend(self) -> AsyncBackend:
        return self._store._backend


def _ours(given: message.Message) -> Message:
    """Turn a message into one with coroutines as methods, in place: no one else has it yet."""
    given.__class__ = Message
    return cast("Message", given)


async def _all_ours(messages: AsyncIterator[message.Message]) -> AsyncIterator[Message]:
    async for each in messages:
        yield _ours(each)
