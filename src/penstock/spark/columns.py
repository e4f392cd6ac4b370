"""Values of messages as Arrow columns, where they come one by one and not from files."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.message import LATEST


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as Penstock has them, as Spark wants them."""
    if pa.types.is_timestamp(kind):
        milliseconds = pc.min_element_wise(pa.array(values, pa.int64()), LATEST, skip_nulls=False)
        return pc.multiply(milliseconds, 1000).cast(kind)
    if pa.types.is_map(kind):
        values = [list((each or {}).items()) for each in values]
    return pa.array(values, kind)
