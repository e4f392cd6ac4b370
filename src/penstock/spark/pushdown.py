"""Filters that Spark pushes down, done on Arrow columns. What cannot be done here Spark does itself."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_COMPARE: dict[type[Filter], Callable[[pa.Array, Any], pa.Array]] = {
    EqualTo: pc.equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
}


class Condition:
    """One filter: a column, and which of its values are wanted."""

    def __init__(self, column: str, wanted: Callable[[pa.Array], pa.Array]) -> None:
        self.column = column
        self._wanted = wanted

    def holds(self, values: pa.Array) -> pa.Array:
        """For which values it holds; for NULL it never does."""
        return pc.fill_null(self._wanted(values), False)


def condition(pushed: Filter, schema: pa.Schema) -> Condition | None:
    """What a filter on these columns wants; None if that is not for us to say."""
    column: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(column) != 1 or column[0] not in schema.names:
        return None
    kind = schema.field(column[0]).type
    if isinstance(pushed, IsNotNull):
        return Condition(column[0], pc.is_valid)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind):
        return None
    try:
        if isinstance(pushed, In):
            wanted = pa.array(list(pushed.value), kind)
            if wanted.null_count:
                return None
            return Condition(column[0], lambda values: pc.is_in(values, value_set=wanted))
        compare = _COMPARE.get(type(pushed))
        if compare is None or pushed.value is None:  # type: ignore[attr-defined]
            return None
        scalar = pa.scalar(pushed.value, kind)  # type: ignore[attr-defined]
        return Condition(column[0], lambda values: compare(values, scalar))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def kept(conditions: Sequence[Condition], column: Callable[[str], pa.Array], count: int) -> pa.Array | None:
    """Which of so many rows all conditions hold for; None: for all of them."""
    mask = None
    for each in conditions:
        holds = each.holds(column(each.column))
        mask = holds if mask is None else pc.and_(mask, holds)
    return None if mask is None or (count and pc.all(mask).as_py()) else mask
