"""readStream with mode "follow": what enters a queue, in order, and nothing is taken from it.

An offset is the number of a message: {"after": 1200, "from": 0, "gaps": 1}. It says where its batch began, as
Spark asks for that again when it repeats the first, and below which number messages were missing from the start.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
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

from penstock.errors import NotSupported, PenstockError
from penstock.journal.following import Follower
from penstock.opening import is_remote, is_slate, journal_folder
from penstock.spark import plans
from penstock.spark.errors import in_one_line
from penstock.spark.planning import ends_of_parts, sources_of
from penstock.spark.plans import driver
from penstock.spark.rows import rows_of
from penstock.spark.scan import read_plan
from penstock.spark.streaming.following_named import Named
from penstock.spark.streaming.options import StreamOptions

_BEGINNING: dict[str, Any] = {"after": None}
_ALL = 2**40


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(number)
        self.path = path
        self.number = number


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what enters a queue."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        if is_remote(options.store) or is_slate(options.store):
            raise NotSupported(
                f"store {options.store!r}: who follows reads the files of journals: give the folder, or use mode "
                '"consume"'
            )
        self._options = options
        self._schema = schema
        self._follower: Follower | None = None
        self._named: Named | None = None
        self._began: dict[str, Any] = {}
        self._stop_at: int | None = None  # the last message of an availableNow run
        self._plans: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_follower": None, "_named": None, "_plans": []}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Wherever it was that the query began: the first batch says it."""
        return dict(_BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What the option says."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What has entered by now, and no more."""
        with in_one_line(), closing(self._new()) as follower:
            self._stop_at = follower.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as a batch may go that begins after what Spark has committed."""
        with in_one_line():
            for path in self._plans:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            self._plans.clear()
            first = start["after"] is None
            began = self._resolved() if first else start
            follower = self._following(began)
            follower.forget(began["after"])
            if self._named is not None:
                self._named.has_read(began["after"])
            everything = isinstance(limit, ReadAllAvailable)
            follower.fill(_ALL if everything else self._options.rows)
            until = self._until(follower, began["after"], everything)
            self._check(follower, began, until)
            if until == began["after"] and not first:
                return start
            return {"after": until, "from": began["after"], "gaps": began["gaps"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of what entered in between."""
        with in_one_line():
            after, until = end["from"] if start["after"] is None else start["after"], end["after"]
            if after == until:
                return []
            follower = self._following({"after": after, "gaps": end["gaps"]})
            follower.fill(0, until)
            self._check(follower, {"after": after, "gaps": end["gaps"]}, until)
            return self._parts(follower, after, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one part."""
        with in_one_line():
            if isinstance(partition, Part):
                yield from read_plan(partition.path, partition.number, self._arrow())

    def commit(self, end: dict[str, Any]) -> None:
        """Not every commit is told: latestOffset() lets go of what was read."""

    def stop(self) -> None:
        """Let go of the files."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if self._named is not None:
            self._named.close()
            self._named = None

    def _resolved(self) -> dict[str, Any]:
        """Where the query begins: decided once."""
        if not self._began:
            with closing(self._new()) as follower:
                starting = self._options.starting
                if isinstance(starting, int):
                    after, gaps = follower.entered_before(starting)
                else:
                    after, gaps = follower.earliest()
                    after = follower.latest() if starting == "latest" else after
            self._began = {"after": after, "gaps": max(gaps, after + 1)}
        return self._began

    def _new(self) -> Follower:
        return Follower(journal_folder(self._options.store) or "", self._options.queue, driver())

    def _following(self, began: dict[str, Any]) -> Follower:
        """The follower, from after a number on."""
        if self._named is None and self._options.stream is not None:
            self._named = Named(self._options)
        follower = self._follower
        if follower is not None and began["after"] < follower.begin:
            follower.close()
            follower = None
        if follower is None:
            follower = self._follower = self._new()
            follower.start(began["after"])
        return follower

    def _until(self, follower: Follower, after: int, everything: bool) -> int:
        """The last message of a batch, within the limits."""
        seqs, sizes = follower.entries.seq, follower.entries.size
        if not seqs:
            return max(after, min(follower.last, self._stop_at or follower.last))
        count = len(seqs) if everything else min(len(seqs), self._options.rows)
        fitting = int(np.searchsorted(np.cumsum(sizes[:count], dtype=np.int64), self._options.size, side="right"))
        until = seqs[max(1, count if everything else min(count, fitting)) - 1]
        return until if self._stop_at is None else max(after, min(until, self._stop_at))

    def _check(self, follower: Follower, began: dict[str, Any], until: int) -> None:
        """Say what is lost, if that is an error."""
        if not self._options.fail_on_data_loss:
            return
        lower = max(began["after"] + 1, began["gaps"])
        lost = [(max(first, lower), min(last, until)) for first, last in follower.lost]
        missing = [(first, last) for first, last in lost if first <= last]
        if missing:
            count = sum(last - first + 1 for first, last in missing)
            raise PenstockError(
                f"{count} messages of queue {self._options.queue!r} were settled and packed away before they were "
                f"read, from {missing[0][0]} to {missing[-1][1]}: go on without them with "
                'option("failOnDataLoss", "false"), and name the stream, so that packing waits for it'
            )

    def _parts(self, follower: Follower, after: int, until: int) -> list[Part]:
        pages = follower.entries.pages(after, until)
        if not pages:
            return []
        schema = self._arrow()
        wanted = list(dict.fromkeys(["seq", *sources_of([*schema.names, "payload"])]))
        files = follower.names()
        rows = rows_of(pages, sorted(files), 0, 0, wanted)
        ends = ends_of_parts(rows, bodies=True)
        parts = [rows.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        names = {"queues": [self._options.queue], "files": [files[number] for number in sorted(files)]}
        path = plans.write_to(follower.pins.folder, parts, json.dumps(names).encode(), f"{after}-{until}.arrow")
        self._plans.append(path)
        return [Part(path, number) for number in range(len(parts))]

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")
