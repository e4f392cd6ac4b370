"""A batch of a streaming sink, and whether it has landed before. Pure.

Spark numbers the batches of a query one after the other, and writes only the last one again: to remember one
number of each sink is enough.
"""

from typing import NamedTuple

from penstock.errors import StreamMismatch

LONGEST = 255  # characters of a sink's name


class Landing(NamedTuple):
    """A batch of a query, and the sink that it is for."""

    sink: str
    query: str
    batch: int


def is_repeated(landing: Landing, last: Landing) -> bool:
    """Whether a batch has landed, if `last` was the last; StreamMismatch if a new query's numbers start anew."""
    if landing.batch > last.batch:
        return False
    if landing.query != last.query:
        raise StreamMismatch(
            f"batch {landing.batch} for sink {landing.sink!r} is of a new query (another checkpoint), and batch "
            f"{last.batch} of the one before has landed: give the new query a sinkId of its own, or go on with "
            "the checkpoint of the other"
        )
    return True
