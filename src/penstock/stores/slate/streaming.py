"""The streams of a slate store. Bodies are in the database, which its owner alone may read while it goes on."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.contract.streams import BatchPlan
from penstock.engine.streaming import LiveStreams
from penstock.rules.index.rows import Rows
from penstock.stores.slate.bodies import Wanted
from penstock.stores.slate.routing import since_of
from penstock.stores.slate.storage import SlateStorage

if TYPE_CHECKING:
    from penstock.stores.slate.feeding import SlateFeed
    from penstock.stores.slate.store import SlateBackend


class SlateStreams(LiveStreams[SlateStorage]):
    """The streams of one store."""

    def __init__(self, backend: "SlateBackend") -> None:
        super().__init__(backend._clock, backend._known, lambda: list(backend._queues))
        self._backend = backend

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Which messages a batch has; there are no files to pin, so that whoever reads it asks for the bodies."""
        return BatchPlan(self._reading(queue, stream, batch, lambda storage: None)[0], [])

    def _feed(self, queue: str) -> "SlateFeed":
        from penstock.stores.slate.feeding import SlateFeed  # here, as few need it

        backend = self._backend
        backend.look_after_followers()
        since, wanted = since_of(backend.find(queue).settings.start), backend._filters.get(queue)
        find, reach = partial(backend._known, queue), partial(self._reach, queue)
        return SlateFeed(find, reach, wanted, since, backend._log, backend._bodies)

    def _reach(self, queue: str) -> int:
        """The number up to which nothing enters a queue any more, and what has is on stable storage."""
        backend, known = self._backend, self._backend._known(queue)

        def look(now: int) -> int:
            position, held = known.storage.position or (0, False)
            if held:
                return position - 1
            if backend._deferred and queue in backend._filters:
                return max(position, backend._log.position, known.ledger.next_seq) - 1
            return max(known.ledger.next_seq, backend._log.opened_at) - 1

        with backend._log.lock:  # so that all that was published was offered
            reached, written = known.live.run(look)
        known.live.commit(written)
        return reached

    def _bodies(self, storage: SlateStorage, seqs: Sequence[int], rows: Rows) -> Wanted:
        return storage.find(seqs)
