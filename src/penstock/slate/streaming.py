"""The streams of a slate store. Bodies are in the database, which its owner alone may read while it goes on."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.index.rows import Rows
from penstock.live.streaming import LiveStreams
from penstock.slate.bodies import Wanted
from penstock.slate.routing import since_of
from penstock.slate.shelf import SlateShelf
from penstock.streams import BatchPlan

if TYPE_CHECKING:
    from penstock.slate.feeding import SlateFeed
    from penstock.slate.store import SlateKeeper


class SlateStreams(LiveStreams[SlateShelf]):
    """The streams of one store."""

    def __init__(self, keeper: "SlateKeeper") -> None:
        super().__init__(keeper._clock, keeper._known, lambda: list(keeper._queues))
        self._keeper = keeper

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Which messages a batch has; there are no files to pin, so that whoever reads it asks for the bodies."""
        return BatchPlan(self._reading(queue, stream, batch, lambda shelf: None)[0], [])

    def _feed(self, queue: str) -> "SlateFeed":
        from penstock.slate.feeding import SlateFeed  # here, as few need it

        keeper = self._keeper
        keeper.look_after_followers()
        since, wanted = since_of(keeper.find(queue).settings.start), keeper._filters.get(queue)
        find, reach = partial(keeper._known, queue), partial(self._reach, queue)
        return SlateFeed(find, reach, wanted, since, keeper._log, keeper._bodies)

    def _reach(self, queue: str) -> int:
        """The number up to which nothing enters a queue any more, and what has is on stable storage."""
        keeper, known = self._keeper, self._keeper._known(queue)

        def look(now: int) -> int:
            position, held = known.shelf.position or (0, False)
            if held:
                return position - 1
            if keeper._deferred and queue in keeper._filters:
                return max(position, keeper._log.position, known.ledger.next_seq) - 1
            return max(known.ledger.next_seq, keeper._log.opened_at) - 1

        with keeper._log.lock:  # so that all that was published was offered
            reached, written = known.live.run(look)
        known.live.commit(written)
        return reached

    def _bodies(self, shelf: SlateShelf, seqs: Sequence[int], rows: Rows) -> Wanted:
        return shelf.find(seqs)
