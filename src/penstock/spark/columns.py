"""Values of messages as Arrow columns, where they come one by one and not from files."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.contract.message import LATEST, Message


def column_of(values: Any, kind: pa.DataType) -> pa.Array:
    """A list or an array of values as Penstock has them, as Spark wants them."""
    if pa.types.is_timestamp(kind):
        milliseconds = pc.min_element_wise(pa.array(values, pa.int64()), LATEST, skip_nulls=False)
        return pc.multiply(milliseconds, 1000).cast(kind)
    if pa.types.is_map(kind):
        values = [list((each or {}).items()) for each in values]
    return pa.array(values, kind)


def messages_as_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """Messages as Arrow columns."""
    arrays = [column_of([getattr(each, field.name) for each in messages], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
