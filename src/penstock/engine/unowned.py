"""Base classes of text and folder stores, which no process owns: many processes use the files at the same time.

The backend finds the queue of an operation by its name and runs it there. Parts and pages of attempts are made
from listings of messages. A published message is copied into every queue whose filter matches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from penstock.contract.message import Attempt, Entry, Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import AttemptPage, Figures, Show, attempt_page
from penstock.contract.settings import QueueInfo, Settings
from penstock.contract.streams import not_supported
from penstock.engine.backend import published_copy
from penstock.errors import NotSupported, QueueNotFound, StoreClosed, StoreCorrupt
from penstock.system.clock import Clock
from penstock.system.files import refusal

if TYPE_CHECKING:
    from penstock.contract.loads import Loads
    from penstock.contract.stream_operations import Streams
    from penstock.engine.threaded import ThreadedBackend
    from penstock.filters import Filter, Subject

Result = TypeVar("Result")


class UnownedQueue:
    """Operations on a queue that need only its settings, its counts and listings of its messages."""

    name: str
    settings: Any
    counts: Any
    messages: Any
    attempts: Any

    def show(self) -> QueueInfo:
        return QueueInfo(self.name, self.settings, self.counts())

    def waiting_since(self) -> int | None:
        """When the first available message became so; None if there is none, or it cannot be read."""
        try:
            first: Message | None = next(self.messages("available"), None)
        except StoreCorrupt:
            return None
        return None if first is None else first.visible_at

    def all_attempts(self, after: str, until: str) -> AttemptPage:
        """A page of the attempts at all messages."""

        def each() -> Iterator[tuple[str, list[Attempt]]]:
            for message in self.messages(None, after, until):
                yield message.id, self.attempts(message.id)

        return attempt_page(each())

    def parts(self, n: int) -> list[str]:
        """The last ids of about n parts of the same size."""
        ids = [message.id for message in self.messages(None)]
        size = max(1, -(-len(ids) // n))
        return [*ids[size - 1 : -1 : size], ids[-1]] if ids else []


class Unowned:
    """A backend that no process owns. An operation without a method here runs on the queue that it names."""

    kind: ClassVar[str]
    part = 20_000  # about what one task of Spark reads, in the unit of sizes()
    only = DEFAULT  # the queue that `default` means
    clock: Clock
    failure: Any  # the error that stopped the store in this process, or None
    find: Any
    close: Any
    move: Any
    check: Any  # raises if the store cannot be read or written
    queues: Any
    restore: Any  # adds messages of another store to a queue with their states, all or none

    def __init__(self) -> None:
        self._filters: dict[str, Filter] = {}  # by their text

    def run(self, operation: Operation[Result]) -> Result:
        """Run an operation."""
        if operation.on_queue is None or hasattr(self, operation.runs):
            result: Result = operation.call(self)
        else:
            result = operation.on_queue(self.find(operation.queue))
        return result

    async def for_loop(self) -> "ThreadedBackend":
        """A backend of this store for coroutines: each operation runs in a thread."""
        from penstock.engine.threaded import ThreadedBackend  # here, as most programs have no event loop

        return ThreadedBackend(self)

    def settings(self, queue: str) -> Settings:
        settings: Settings = self.find(queue).settings
        return settings

    def publish(self, entry: Entry) -> str:
        """Put a copy into every queue whose filter matches, or into none if one of them refuses it."""
        published, copy = published_copy(entry)
        self._publish(entry, copy)
        return published

    def figures(self) -> list[Figures]:
        """Figures of every queue. A store that many processes change has no counters."""
        infos = self.queues()
        waits = self.waits(info.name for info in infos)
        return [
            Figures(info.name, True, info.counts, waits[info.name], 0, {}, 0, 0, 0)
            for info in infos
            if info.name in waits
        ]

    def waits(self, queues: Iterable[str]) -> dict[str, float]:
        """The longest wait of an available message, by queue."""
        found, now = {}, self.clock.now()
        for name in queues:
            with suppress(QueueNotFound):  # it was deleted meanwhile
                since = self.find(name).waiting_since()
                found[name] = 0 if since is None else max(now - since, 0) / 1000
        return found

    def _publish(self, entry: Entry, copy: Entry) -> None:
        raise NotImplementedError

    def _matches(self, text: str | None, subject: "Subject") -> bool:
        """Whether a filter matches; a queue without one gets no published messages."""
        if text is None:
            return False
        if text not in self._filters:
            from penstock import filters  # here, because most processes need none

            self._filters[text] = filters.parse(text)
        return self._filters[text].matches(subject)

    def sizes(self, queue: str | None) -> dict[str, int]:
        """The number of messages of one queue, or of each."""
        infos = self.queues() if queue is None else [self.run(Show(queue))]
        return {info.name: sum(info.counts.values()) for info in infos}

    def streams(self) -> "Streams":
        """Streams, which need a process that owns the store."""
        raise not_supported(self.kind)

    def uploads(self) -> "Loads":
        """Loads, which need a process that owns the store."""
        raise NotSupported("text and folder stores take no loads: put the messages instead")


def between(
    messages: Callable[[], Iterator[Message]], state: str | None, after: str, until: str
) -> Iterator[Message]:
    """The messages in a state between two ids, whose messages may have gone."""
    found = not after
    for message in messages():
        if found and state in (None, message.state):
            yield message
        found = found or message.id == after
        if message.id == until:
            return
    if not found:  # `after` has gone meanwhile: list messages twice rather than never
        yield from between(messages, state, "", "")


def fitting(sizes: Iterable[int], most: int) -> int:
    """How many items, at least one, have together no more than `most` bytes."""
    return max(1, sum(1 for _ in takewhile(lambda size: size <= most, accumulate(sizes))))


def stopped(folder: str, path: str, error: OSError) -> Callable[[], StoreClosed]:
    """Makes the error of all operations on a store that an error of the disk has stopped in this process."""
    why = refusal(error.filename or path, error)
    return lambda: StoreClosed(
        f"the store in {folder!r} was stopped in this process, as nobody knows what is on the disk after {why}; "
        "then open the store again, which checks and completes what was begun"
    )


def copied_by_hand(url: str, files: str) -> str:
    """Advice for a person how to copy a store that no process owns."""
    return (
        f"store {url!r} has no journals: its files are copied while nobody uses it. Stop those who do, "
        f"then `cp -a {files} DEST` (which keeps extended attributes and times; rsync needs -aX)"
    )
