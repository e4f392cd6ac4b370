"""The streams of a store that many processes have open: asked of whoever owns it, again if that has just gone."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from penstock.message import Message
from penstock.streams import Ahead, BatchPlan, StreamInfo, Streams

Result = TypeVar("Result")


class _Held(Protocol):
    def streams(self) -> Streams: ...


class SharedStreams:
    """Asks the owner. `run` does something with it, and once more if it went away."""

    def __init__(self, run: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._run = run

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""
        return self._ask(lambda streams: streams.all())

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Be the one process that reads a stream."""
        return self._ask(lambda streams: streams.begin(queue, stream, reader))

    def next(
        self, queue: str, stream: str, reader: str, start: int, rows: int, size: int, run: str | None = None
    ) -> int | None:
        """Settle a batch that was certainly read; the number of the next."""
        return self._ask(lambda streams: streams.next(queue, stream, reader, start, rows, size, run))

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are."""
        return self._ask(lambda streams: streams.read(queue, stream, batch, pins))

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """Some messages of a batch by ascending id."""
        return self._ask(lambda streams: streams.messages(queue, stream, batch, after, until, limit))

    def follow(self, queue: str, stream: str, reader: str, position: int) -> None:
        """Follow a queue under a name."""
        self._ask(lambda streams: streams.follow(queue, stream, reader, position))

    def start(self, queue: str, follower: str, starting: str | int) -> tuple[int, int]:
        """Where one begins who follows."""
        return self._ask(lambda streams: streams.start(queue, follower, starting))

    def ahead(
        self, queue: str, follower: str, after: int, gaps: int, rows: int, size: int, until: int = 0
    ) -> Ahead:
        """What has entered after a number."""
        return self._ask(lambda streams: streams.ahead(queue, follower, after, gaps, rows, size, until))

    def entered(self, queue: str, follower: str, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""
        return self._ask(lambda streams: streams.entered(queue, follower, after, until, limit))

    def leave(self, queue: str, follower: str) -> None:
        """Follow no longer."""
        self._ask(lambda streams: streams.leave(queue, follower))

    def fail(
        self, queue: str, stream: str, batch: int, ids: Sequence[str], reason: str | None, delay: float = 0
    ) -> None:
        """Let these messages fail when the batch is settled."""
        self._ask(lambda streams: streams.fail(queue, stream, batch, ids, reason, delay))

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if that was done before."""
        return self._ask(lambda streams: streams.settle(queue, stream, batch))

    def release(self, queue: str, stream: str) -> int:
        """Give back what a stream holds; how many messages."""
        return self._ask(lambda streams: streams.release(queue, stream))

    def delete(self, queue: str, stream: str) -> None:
        """Forget a stream that holds nothing."""
        self._ask(lambda streams: streams.delete(queue, stream))

    def _ask(self, operate: Callable[[Streams], Result]) -> Result:
        def asked(held: _Held) -> Result:
            return operate(held.streams())

        result: Result = self._run(asked)
        return result
