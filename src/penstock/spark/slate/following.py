"""readStream on the log of a slate store: all that was committed, in the order of its numbers, each entry once.

An offset is a number: everything before it was read. Numbers are given before they are committed, and not always
committed in order; so a batch ends where the store has written that nothing lower will come (extensions.py).
"""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.spark.errors import in_one_line
from penstock.spark.plans import driver
from penstock.spark.slate import scan
from penstock.spark.slate.options import LogOptions
from penstock.spark.slate.part import SlatePart
from penstock.spark.slate.planning import log_cuts, log_end, log_work
from penstock.spark.slate.routing import filters_in
from penstock.stores.slate import recovery, snapshot
from penstock.stores.slate.format import key_u64, log_prefix
from penstock.stores.slate.place import parse
from penstock.stores.slate.view import Snapshot, View

_SEQUENCE = "sequence"
_LOOKED_AT = 10_000  # entries


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a log."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._log = parse(options.read.store).log
        self._moment: Snapshot | None = None  # the latest, which batches are read from
        self._view: View | None = None  # of it
        self._end = 0  # of the log in it
        self._filters: tuple[tuple[str, str], ...] | None = None  # in it, for those who route
        self._until: int | None = None  # where an availableNow run ends

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moment": None, "_view": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the option says."""
        with in_one_line():
            starting = self._options.starting
            return {_SEQUENCE: self._look() if starting is None else starting}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the option says."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Up to where the log is complete now."""
        with in_one_line():
            self._until = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        with in_one_line():
            before = int(start[_SEQUENCE])
            end = self._look() if self._until is None else self._until
            if isinstance(limit, ReadMaxRows):
                end = min(end, self._reach(before, end, limit.max_rows))
            return {_SEQUENCE: max(before, end)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, which may have been read before."""
        first, last = int(start[_SEQUENCE]), int(end[_SEQUENCE])
        if first >= last:
            return []
        with in_one_line():
            if self._moment is None or self._end < last:
                self._look()
            moment = self._moment
            if moment is None:
                return []
            parts = [log_work(moment, self._log, *cut, self._filters) for cut in _cuts(first, last)]
            return [SlatePart(number, work) for number, work in enumerate(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one part."""
        with in_one_line():
            if isinstance(partition, SlatePart):
                yield from scan.read(partition.work, to_arrow_schema(self._schema, timezone="UTC"))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is held back for those who read on."""

    def stop(self) -> None:
        """Let go of the files."""
        if self._view is not None:
            self._view.close()
            self._view = None
        if self._moment is not None:
            snapshot.drop(self._moment)
            self._moment = None

    def _look(self) -> int:
        """Where the log ends now; all batches that were read from an earlier moment are done."""
        url = self._options.read.store
        if self._moment is not None and snapshot.tail(url) == self._moment.tail:
            return self._end
        self.stop()
        moment = snapshot.take(url, driver(), objects=bool({"payload", "size"}.intersection(self._schema.names)))
        self._moment = moment  # which is dropped, whatever happens
        self._moment, view = snapshot.opened_for(moment, self._log)
        recovery.check_instance(view, self._log)
        self._view, self._end = view, log_end(view, self._log)
        if self._options.route:
            self._filters = filters_in(view)
        return self._end

    def _reach(self, start: int, end: int, rows: int) -> int:
        """A number after so many entries at most; those that are missing make no batch of their own."""
        if self._view is None or start >= end:
            return start
        prefix = log_prefix(self._log)
        keys = (key for key, _ in self._view.scan(prefix + key_u64(start), prefix + key_u64(end)))
        first = next(keys, None)
        if first is None:
            return end
        reached = int.from_bytes(first[-8:]) + rows
        if reached < end:  # the numbers may lie far apart, as another program's
            last = max(islice(keys, min(rows, _LOOKED_AT) - 1), default=first)
            reached = max(reached, int.from_bytes(last[-8:]) + 1)
        return reached


def _cuts(first: int, last: int) -> Iterator[tuple[int, int]]:
    return pairwise(log_cuts(first, last))
