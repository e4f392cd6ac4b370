"""readStream with mode "follow": what enters a queue, in order, and nothing is taken from it.

An offset is the number of a message: {"after": 1200, "from": 0, "gaps": 1}. It says where its batch began, as
Spark asks for that again when it repeats the first, and below which number messages were missing from the start.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.contract.streams import Ahead, Lost
from penstock.contract.urls import is_remote, is_slate
from penstock.errors import PenstockError
from penstock.spark.errors import in_one_line
from penstock.spark.streaming import following_asked, following_files
from penstock.spark.streaming.following_asked import Asked, AskedPart
from penstock.spark.streaming.following_files import FilePart, FromFiles
from penstock.spark.streaming.options import StreamOptions

_BEGINNING: dict[str, Any] = {"after": None}
_ALL = 2**40
_ANY_SIZE = 2**63 - 1


class _Entering(Protocol):
    """What enters a queue, wherever it is."""

    def start(self, starting: str | int) -> tuple[int, int]: ...
    def has_read(self, position: int) -> None: ...
    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead: ...
    def parts(self, after: int, until: int, ahead: Ahead) -> Sequence[InputPartition]: ...
    def close(self) -> None: ...


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what enters a queue."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._open: _Entering | None = None
        self._began: dict[str, Any] = {}
        self._stop_at: int | None = None  # the last message of an availableNow run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Wherever it was that the query began: the first batch says it."""
        return dict(_BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the option says."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What has entered by now, and no more."""
        with in_one_line():
            self._stop_at = self._entering().start("latest")[0]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as a batch may go that begins after what Spark has committed."""
        with in_one_line():
            first = start["after"] is None
            began = self._resolved() if first else start
            after, gaps = began["after"], began["gaps"]
            entering = self._entering()
            entering.has_read(after)
            everything = isinstance(limit, ReadAllAvailable)
            ahead = entering.ahead(
                after, gaps, *((_ALL, _ANY_SIZE) if everything else (self._options.rows, self._options.size))
            )
            self._check(ahead.lost)
            until = ahead.until if self._stop_at is None else max(after, min(ahead.until, self._stop_at))
            if until == after and not first:
                return start
            return {"after": until, "from": after, "gaps": gaps}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of what entered in between."""
        with in_one_line():
            after, until = end["from"] if start["after"] is None else start["after"], end["after"]
            if after == until:
                return []
            ahead = self._entering().ahead(after, end["gaps"], 0, 1, until)
            self._check(ahead.lost)
            return self._entering().parts(after, until, ahead)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        with in_one_line():
            if isinstance(partition, FilePart):
                yield from following_files.read(partition, self._arrow())
            elif isinstance(partition, AskedPart):
                yield from following_asked.read(partition, self._arrow())

    def commit(self, end: dict[str, Any]) -> None:
        """Not every commit is told: latestOffset() lets go of what was read."""

    def stop(self) -> None:
        """Let go of the store."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _entering(self) -> _Entering:
        if self._open is None:
            asks = is_remote(self._options.store) or is_slate(self._options.store)
            self._open = Asked(self._options) if asks else FromFiles(self._options, self._arrow())
        return self._open

    def _resolved(self) -> dict[str, Any]:
        """Where the query begins: decided once."""
        if not self._began:
            after, gaps = self._entering().start(self._options.starting)
            self._began = {"after": after, "gaps": gaps}
        return self._began

    def _check(self, lost: Lost | None) -> None:
        """Say what is lost, if that is an error."""
        if lost is None or not self._options.fail_on_data_loss:
            return
        many, how = ("some", "removed") if lost.messages is None else (lost.messages, "packed away")
        raise PenstockError(
            f"{many} messages of queue {self._options.queue!r} were settled and {how} before they were read, "
            f"from {lost.first} to {lost.last}: go on without them with "
            'option("failOnDataLoss", "false"), and name the stream, so that the store waits for it'
        )

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")
