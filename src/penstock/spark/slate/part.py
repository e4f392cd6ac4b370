"""What a task is given of a slate store."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from penstock.spark.slate.planning import Work


class SlatePart(InputPartition):
    """What one task reads."""

    def __init__(self, number: int, work: "Work") -> None:
        super().__init__(number)
        self.work = work
