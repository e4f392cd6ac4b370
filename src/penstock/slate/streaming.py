"""The streams of a slate store. Bodies are in the database, which its owner alone may read while it goes on."""

from collections.abc import Sequence

from penstock.index.rows import Rows
from penstock.live.streaming import LiveStreams
from penstock.slate.bodies import Wanted
from penstock.slate.shelf import SlateShelf
from penstock.streams import BatchPlan


class SlateStreams(LiveStreams[SlateShelf]):
    """The streams of one store."""

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Which messages a batch has; there are no files to pin, so that whoever reads it asks for the bodies."""
        return BatchPlan(self._reading(queue, stream, batch, lambda shelf: None)[0], [])

    def _bodies(self, shelf: SlateShelf, seqs: Sequence[int], rows: Rows) -> Wanted:
        return shelf.find(seqs)
