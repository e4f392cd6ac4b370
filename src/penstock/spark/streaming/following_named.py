"""A follower with a name: the store remembers how far it has come, and packing waits for it, up to a limit."""

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.spark.streaming.options import StreamOptions


class Named:
    """Tells the store how far a follower has come."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._store = penstock.open(options.store)
        self._last: int | None = None

    def has_read(self, position: int) -> None:
        """All up to this number was read."""
        if position != self._last:
            queue, stream = self._options.queue, self._options.stream or ""
            Streams(self._store.run).follow(queue, stream, reader_name(), position)
            self._last = position

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()
