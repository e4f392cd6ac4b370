"""What enters a queue, asked of a server or of whoever has a slate store open: tasks are given it in pages."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from secrets import token_hex

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import HEARTBEAT, Ahead, boot, reader_name
from penstock.contract.urls import is_slate
from penstock.errors import NotSupported, PenstockError
from penstock.spark.columns import column_of
from penstock.spark.streaming.options import StreamOptions

_PAGE = 1_000


class AskedPart(InputPartition):
    """What one task reads."""

    def __init__(self, options: StreamOptions, follower: str, number: int, after: int, until: int, messages: int):
        super().__init__(number)
        self.options = options
        self.follower = follower
        self.after = after
        self.until = until
        self.messages = messages  # that there were when the batch was planned
        self.machine = boot()


class Asked:
    """Follows by asking. What was not read yet is held there, as long as one is heard."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._store = penstock.open(options.store)
        self._streams = Streams(self._store.run)
        self._follower = token_hex(8)
        self._position: int | None = None  # that the store was told, if the follower has a name
        self._after: int | None = None  # what is held begins here
        self._lock = threading.Lock()  # so that a heartbeat is never behind
        self._closing = threading.Event()
        threading.Thread(target=self._say_so, name="penstock-heartbeat", daemon=True).start()

    def start(self, starting: str | int) -> tuple[int, int]:
        """Where to begin."""
        return self._streams.start(self._options.queue, self._follower, starting)

    def has_read(self, position: int) -> None:
        """All up to this number was read, and its batch is over."""
        with self._lock:
            if position != self._position:
                self._tell(position)
                self._position = position

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        """What has entered."""
        with self._lock:
            self._after = after
            return self._streams.ahead(self._options.queue, self._follower, after, gaps, rows, size, until)

    def parts(self, after: int, until: int, ahead: Ahead) -> Sequence[InputPartition]:
        """The parts of a batch."""
        parts = []
        for number, (last, messages) in enumerate(ahead.parts):
            parts.append(AskedPart(self._options, self._follower, number, after, last, messages))
            after = last
        return parts

    def close(self) -> None:
        """Let go of the store, and of what is held there."""
        self._closing.set()
        with suppress(PenstockError):
            self._streams.leave(self._options.queue, self._follower)
        self._store.close()

    def _tell(self, position: int) -> None:
        """Of one with a name the store remembers how far it has come."""
        if self._options.stream is not None:
            self._streams.follow(self._options.queue, self._options.stream, reader_name(), position)

    def _say_so(self) -> None:
        while not self._closing.wait(HEARTBEAT):
            with self._lock, suppress(PenstockError):  # the next batch will tell
                if self._position is not None:
                    self._tell(self._position)
                if self._after is not None:
                    self._streams.ahead(self._options.queue, self._follower, self._after, 0, 0, 1)


def read(part: AskedPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a part."""
    options, after, count = part.options, part.after, 0
    if is_slate(options.store) and part.machine != boot():  # whoever opens it here would take it from its owner
        raise NotSupported(
            f"the process that has {options.store!r} open is on another machine and cannot be asked from here: "
            "run `penstock serve` there, and give Spark its http://host:port"
        )
    with closing(penstock.open(options.store)) as store:
        streams = Streams(store.run)
        while after < part.until:
            page = streams.entered(options.queue, part.follower, after, part.until, _PAGE)
            if not page:
                break
            columns = [[getattr(message, field.name) for message in page] for field in schema]
            arrays = [column_of(values, field.type) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            after, count = int(page[-1].id), count + len(page)
    if count < part.messages and options.fail_on_data_loss:
        raise PenstockError(
            f"{part.messages - count} messages of queue {options.queue!r} have gone while they were read, between "
            f'{part.after + 1} and {part.until}: go on without them with option("failOnDataLoss", "false")'
        )
