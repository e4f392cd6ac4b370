"""Store and Queue: the contract that users program against, the same for every kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

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
from penstock.contract.message import Draft, Entry, Message, Payload
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
from penstock.contract.settings import MAX_COUNT, QueueInfo, Settings, seconds, whole
from penstock.errors import LeaseExpired, QueueExists, StoreClosed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa

    from penstock.contract.backend import Backend
    from penstock.contract.message import Attempt, State
    from penstock.contract.operation import Operation, Runner
    from penstock.contract.operations import Figures
    from penstock.contract.settings import Changes

Result = TypeVar("Result")


class Store:
    """A set of queues. Use it as a context manager, or close() it; threads may share it.

    Examples:
        >>> with penstock.open("memory:") as store:
        ...     jobs = store.create("jobs", max_attempts=3)
        ...     jobs.put(b"resize cat.jpg")
    """

    def __init__(self, url: str, backend: Backend) -> None:
        self.url = url
        self._open_backend: Backend | None = backend
        # Runs an operation with checked arguments: every call passes through it.
        self.run: Runner = tracing.traced(url, backend.run)

    def create(self, name: str, *, exist_ok: bool = False, **settings: Unpack[Changes]) -> Queue:
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
            self.run(Create(name, Settings(**wanted)))
        except QueueExists:
            if not exist_ok:
                raise
            check_same(name, wanted, self.run(Lookup(name)))
        return Queue(self, name)

    def queue(self, name: str = "") -> Queue:
        """The queue of that name; without one, the queue `default`.

        Raises:
            QueueNotFound: there is no queue of that name
        """
        name = names.meant(name, self.backend)
        self.run(Lookup(name))
        return Queue(self, name)

    def delete(self, name: str) -> None:
        """Remove a queue and all its messages, for good.

        Raises:
            QueueProtected: the queue `default` stays; purge() empties it
        """
        self.run(Delete(names.deletable(name)))

    def queues(self) -> list[QueueInfo]:
        """Every queue with its settings and its counts by state, by name."""
        return self.run(Queues())

    def figures(self) -> list[Figures]:
        """Every queue's figures for monitoring, by name: counts, the longest wait, counters of what happened."""
        return self.run(AllFigures())

    def publish(
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
        return self.run(Publish(entry))

    def is_served(self) -> bool:
        """Whether a server in this process can serve the store; a remote store has its own server."""
        return hasattr(self.backend, "for_loop")

    async def for_loop(self) -> Any:
        """The AsyncBackend of the store, for an event loop such as a server's."""
        return await self.backend.for_loop()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the store. Closing twice does no harm."""
        backend, self._open_backend = self._open_backend, None
        self.run = self._refuse
        if backend is not None:
            backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Store {self.url!r}{'' if self._open_backend else ' (closed)'}>"

    def _repr_html_(self) -> str:
        from penstock.contract.notebook import table_of  # here, so that import penstock stays quick

        return table_of(self, self.queues)

    def _refuse(self, operation: Operation[Result]) -> Result:
        return self.backend.run(operation)  # raises StoreClosed

    @property
    def backend(self) -> Backend:
        """The backend, for the rest of Penstock; StoreClosed after close()."""
        if self._open_backend is None:
            raise StoreClosed(f"the store {self.url!r} was closed: open it again with penstock.open()")
        return self._open_backend


class Queue:
    """A handle on one queue of a store. It costs nothing to make and may be shared by threads."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._store.run(Lookup(self.name))

    def update(self, **changes: Unpack[Changes]) -> Settings:
        """Change settings, by the keywords of `store.create`; the others stay. Returns all settings.

        Changes are durable and apply at once, also to stored messages: "What a queue promises" explains each.

        Raises:
            NotSupported: `start` cannot be changed

        Examples:
            >>> jobs.update(max_attempts=10, keep_done=86_400)
        """
        return self._store.run(Update(self.name, checked_changes(changes)))

    def put(
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
        """Add a message; returns its id once the message is on stable storage.

        Args:
            payload: bytes, or text, which is stored as UTF-8
            priority: lower numbers are claimed first
            headers: texts by name, for consumers and filters
            delay: seconds until the message is available; None = the queue's setting
            retention: seconds until it expires; None = the queue's setting, 0 = never
            key: makes the put safe to repeat: for five minutes a put with the same key returns the first id and
                adds nothing
            created_at: when the message was made, in milliseconds since the epoch; None = now
            group: messages of one group are handed out one at a time, in the order in which they were put

        Raises:
            QueueFull: the queue holds `max_size` messages, or the disk is full (DiskFull)
            PayloadTooLarge: the payload is larger than the queue's `max_payload`
            InvalidPriority: the priority is outside the queue's `priorities`
        """
        plain = headers is None and delay is None and retention is None and key is None and created_at is None
        if plain and group is None and type(payload) is bytes and type(priority) is int:
            entry = Entry(payload, priority)  # the usual case: nothing to check
        else:
            entry = message.checked(Draft(payload, priority, headers, delay, retention, key, created_at, group))
        return self._store.run(Put(self.name, [entry]))[0]

    def put_many(self, items: Iterable[Draft | Payload]) -> list[str]:
        """Add many messages in one durable step, all of them or none; returns their ids."""
        return self._store.run(Put(self.name, message.checked_many(items)))

    def claim(
        self,
        n: int = 1,
        lease: float | None = None,
        wait: float = 0.0,
        consumer: str | None = None,
        ack: Message | str | Iterable[Message | str] = (),
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
        claimed: list[Message] = []
        if receipts:  # without waiting, so that a long wait never repeats the acks
            claimed = self._store.run(claim.changed(wait=0, ack=receipts))
        if not receipts or (not claimed and claim.wait > 0):
            claimed = self._store.run(claim)
        for each in claimed:
            each._handle = self
        return claimed

    def pop(self, wait: float = 0.0) -> Message | None:
        """Take the next message for good: claim and ack in one step. None if there is none in time."""
        return self._store.run(Pop(self.name, seconds("wait", wait), checked_consumer(None)))

    def ack(self, *messages: Message | str) -> None:
        """The work is done. Takes messages or receipts; repeating it does no harm.

        Raises:
            LeaseExpired: names the leases that were lost; the other messages are settled all the same
        """
        self._store.run(Ack(self.name, receipts_of(messages, self.name)))

    def fail(self, *messages: Message | str, delay: float | None = None, reason: str | None = None) -> None:
        """The work failed: available again after `delay` seconds, or failed after the last attempt.

        Without a delay the queue's `backoff` decides.
        """
        receipts = receipts_of(messages, self.name)
        self._store.run(Fail(self.name, receipts, checked_delay(delay), checked_reason(reason)))

    def release(self, *messages: Message | str) -> None:
        """Give messages back unworked: available at once, at their old place; the attempt stays counted."""
        self._store.run(Release(self.name, receipts_of(messages, self.name)))

    def extend(self, *messages: Message | str, lease: float | None = None) -> None:
        """Hold messages for `lease` seconds from now (None: the queue's own)."""
        receipts = receipts_of(messages, self.name)
        held = self._store.run(Extend(self.name, receipts, checked_lease(lease)))
        for each in messages:
            if isinstance(each, Message) and each.receipt not in held.lost:
                each.lease_until = held.lease_until
        if held.lost:
            raise LeaseExpired(self.name, held.lost)

    def remove(self, *ids: str) -> int:
        """Remove messages in any state, and count those that existed."""
        return self._store.run(Remove(self.name, checked_ids(ids)))

    def revoke(self, *ids: str) -> int:
        """End the leases of messages in flight, as if their consumers had released them, and count them.

        For operators, where a consumer died with a long lease. Its receipts are refused from then on. Messages
        that a stream holds stay with it.
        """
        return self._store.run(Revoke(self.name, checked_ids(ids)))

    def redrive(self, *ids: str) -> int:
        """Make failed messages available again with attempts 0, and count them; without ids, all failed ones."""
        return self._store.run(Redrive(self.name, checked_ids(ids) if ids else None))

    def move(self, target: str, *ids: str) -> int:
        """Move messages that wait or have failed to another queue of the store; without ids, all failed ones.

        Returns how many. They start there with attempts 0 under new ids. Each message is in exactly one of the two
        queues, also after a crash.
        """
        return self._store.run(Move(self.name, names.checked(target), checked_ids(ids) if ids else None))

    def purge(self) -> int:
        """Remove all messages but those in flight, and count them."""
        return self._store.run(Purge(self.name))

    def peek(self, n: int = 1) -> Iterator[Message]:
        """The next n messages that claim() would give, left where they are."""
        n = whole("n", n, 1, MAX_COUNT)
        self._store.run(Lookup(self.name))  # an error now, not at the first next()
        return self._store.run(Peek(self.name, n))

    def messages(self, state: State | None = None) -> Iterator[Message]:
        """All messages in a state (None: in any), in the order in which they were put, left where they are."""
        checked_state(state)
        self._store.run(Lookup(self.name))  # an error now, not at the first next()
        return self._store.run(Messages(self.name, limit=PAGE, state=state))

    def message(self, id: str) -> Message | None:  # noqa: A002 - the contract's word
        """A message in any state, left where it is; None if the queue has no such message."""
        return self._store.run(OneMessage(self.name, checked_ids([id])[0]))

    def to_arrow(self, state: State | None = None) -> pa.Table:
        """All messages in a state (None: in any) as a pyarrow.Table, with the columns of Spark's table `messages`.

        The table holds all payloads in memory.

        Raises:
            NotSupported: pyarrow is not installed

        Examples:
            >>> jobs.to_arrow("failed").group_by("reason").aggregate([([], "count_all")])
        """
        rows = message.table_builder()
        for each in self.messages(state):
            rows.add(each)
        return rows.table()

    def attempts(self, id: str) -> list[Attempt]:  # noqa: A002 - the contract's word
        """The attempts at a message, oldest first: who claimed it, from when to when, and how it ended."""
        return self._store.run(Attempts(self.name, checked_ids([id])[0]))

    def count(self) -> int:
        """How many messages wait: available and delayed."""
        counts = self.counts()
        return counts["available"] + counts["delayed"]

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True  # not empty() of the queue: a handle is always true

    def counts(self) -> dict[str, int]:
        """How many messages are in each state."""
        return self._store.run(Counts(self.name))

    def __repr__(self) -> str:
        return f"<penstock.Queue {self.name!r} of {self._store.url!r}>"

    def _repr_html_(self) -> str:
        from penstock.contract.notebook import table_of

        return table_of(self, lambda: [QueueInfo(self.name, self.settings, self.counts())])
