"""What enters a queue of a journal folder, for those who see its files: tasks read bodies straight from them."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.contract.streams import Ahead
from penstock.contract.urls import journal_folder
from penstock.spark import plans
from penstock.spark.planning import ends_of_parts, sources_of
from penstock.spark.plans import driver
from penstock.spark.rows import rows_of
from penstock.spark.scan import read_plan
from penstock.spark.streaming.following_named import Named
from penstock.spark.streaming.options import StreamOptions
from penstock.stores.journal.follow import Follower


class FilePart(InputPartition):
    """What one task reads."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(number)
        self.path = path
        self.number = number


class FromFiles:
    """Follows the files, which are held for the driver."""

    def __init__(self, options: StreamOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._feed: Follower | None = None
        self._named = Named(options) if options.stream is not None else None
        self._plans: list[str] = []

    def start(self, starting: str | int) -> tuple[int, int]:
        """Where to begin."""
        with closing(self._new()) as feed:
            return feed.start(starting)

    def has_read(self, position: int) -> None:
        """All up to this number was read, and its batch is over."""
        while self._plans:
            with suppress(FileNotFoundError):
                os.unlink(self._plans.pop())
        if self._named is not None:
            self._named.has_read(position)

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int = 0) -> Ahead:
        """What has entered."""
        return self._following(after).ahead(after, gaps, rows, size, until)

    def parts(self, after: int, until: int, ahead: Ahead) -> Sequence[InputPartition]:
        """The parts of a batch."""
        follower = self._following(after)
        pages = follower.entries.pages(after, until)
        if not pages:
            return []
        wanted = list(dict.fromkeys(["seq", *sources_of([*self._schema.names, "payload"])]))
        files = follower.names()
        rows = rows_of(pages, sorted(files), 0, 0, wanted)
        ends = ends_of_parts(rows, bodies=True)
        parts = [rows.slice(start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        names = {"queues": [self._options.queue], "files": [files[number] for number in sorted(files)]}
        path = plans.write_to(follower.pins.folder, parts, json.dumps(names).encode(), f"{after}-{until}.arrow")
        self._plans.append(path)
        return [FilePart(path, number) for number in range(len(parts))]

    def close(self) -> None:
        """Let go of the files."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        if self._named is not None:
            self._named.close()
            self._named = None

    def _following(self, after: int) -> Follower:
        feed = self._feed
        if feed is not None and after < feed.begin:
            feed.close()
            feed = None
        if feed is None:
            feed = self._feed = self._new()
            feed.follow(after)
        return feed

    def _new(self) -> Follower:
        return Follower(journal_folder(self._options.store) or "", self._options.queue, driver())


def read(part: FilePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of a part."""
    return read_plan(part.path, part.number, schema)
