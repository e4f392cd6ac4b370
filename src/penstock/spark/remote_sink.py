"""df.write.format("penstock") into a server's queues: tasks send their rows, and one commit makes all visible."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.contract.loads import Sent
from penstock.contract.operations import Lookup, Queues
from penstock.http.client.backend import RemoteLoads
from penstock.spark.errors import in_one_line
from penstock.spark.sending import Sender
from penstock.spark.sink import Target, check_columns, task


@dataclass
class SentPart(WriterCommitMessage):
    """What one task has sent."""

    part: str
    batches: int


class RemoteWriter(DataSourceArrowWriter):
    """Writes into the queues of a server."""

    def __init__(self, target: Target, schema: StructType) -> None:
        check_columns(schema, target)
        self._target = target
        with closing(RemoteLoads(target.store)) as loads:
            loads.backend.connect()
            self._queues = {**target.create, **{info.name: info.settings for info in loads.backend.run(Queues())}}
            if target.queue is not None and target.queue not in self._queues:
                loads.backend.run(Lookup(target.queue))  # says that there is none
            self._repeated = target.run is not None and loads.run(target.run) is not None
            self._load = "" if self._repeated else loads.begin(target.create)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentPart:
        """Send the rows of one task."""
        partition, attempt = task()
        target, part = self._target, f"{partition:05}-{attempt}"
        if self._repeated:
            return SentPart(part, 0)
        with in_one_line(), closing(RemoteLoads(target.store)) as loads:
            sender = Sender(loads, self._load, part, self._queues, target.queue, partition, target.restore)
            for batch in iterator:
                sender.add(batch)
            return SentPart(*sender.finish())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make everything visible that the tasks have sent."""
        if self._repeated:
            return
        sent = [Sent(each.part, each.batches) for each in messages if isinstance(each, SentPart) and each.batches]
        with in_one_line(), closing(RemoteLoads(self._target.store)) as loads:
            loads.commit(self._load, sent, self._target.run)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave nothing."""
        if self._repeated:
            return
        with in_one_line(), closing(RemoteLoads(self._target.store)) as loads:
            loads.abort(self._load)
