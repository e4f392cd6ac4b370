"""The streams of a journal store: where the bodies of a batch are, in files that are pinned for who reads them."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.contract.streams import BatchPlan, boot
from penstock.engine.queue import LiveQueue
from penstock.engine.streams import Known, LiveStreams
from penstock.errors import PenstockError
from penstock.rules.index.rows import Rows
from penstock.stores.journal.files import PLACE_BITS, Segment
from penstock.stores.journal.pins import Pins
from penstock.stores.journal.places import Found
from penstock.stores.journal.storage import JournalStorage
from penstock.stores.journal.upkeep import Upkeep
from penstock.system.clock import Clock, rest
from penstock.system.processes import is_gone

if TYPE_CHECKING:
    from penstock.stores.journal.feeding import JournalFeed

_TRIES = 100
_PAUSE = 0.01  # seconds between two tries to see files that are just being renamed


class JournalStreams(LiveStreams[JournalStorage]):
    """The streams of one store."""

    def __init__(
        self, folder: str, clock: Clock, find: Callable[[str], LiveQueue], upkeep: Mapping[str, Upkeep]
    ) -> None:
        def known(queue: str) -> Known[JournalStorage]:
            live, kept = find(queue), upkeep[queue]
            return Known(live, kept.journal.ledger, kept.storage)

        super().__init__(clock, known, lambda: list(upkeep))
        self._folder = folder

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are, with files pinned for a process."""
        for _ in range(_TRIES):
            pages, segments = self._reading(queue, stream, batch, lambda storage: storage.segments)
            used = sorted({place >> PLACE_BITS for _, page in pages for place in page.place if place})
            files = self._pin([segments[number] for number in used if number in segments], pins)
            if files is not None:
                return BatchPlan(pages, files)
            rest(_PAUSE)
        raise PenstockError(f"the files of queue {queue!r} change faster than they can be pinned: try again")

    def _pin(self, segments: Sequence[Segment], process: str | None) -> list[tuple[int, str, str]] | None:
        """Pin files; None if one of them has another name by now."""
        name, _, machine = (process or "").partition("@")
        if machine != boot() or is_gone(name):
            return []  # who is elsewhere could not say when it ends
        pins = Pins(self._folder, name)
        try:
            return [(each.number, each.name, pins.pin(os.path.join(self._folder, each.name))) for each in segments]
        except FileNotFoundError:
            pins.drop()
            return None

    def before_packing(self, queue: str) -> None:
        """A queue's files are about to be packed: those who follow it hold them."""
        self._feeds.look(queue)

    def _feed(self, queue: str) -> "JournalFeed":
        from penstock.stores.journal.feeding import JournalFeed  # here, as few need it

        return JournalFeed(self._folder, queue, os.getpid())

    def _bodies(self, storage: JournalStorage, seqs: Sequence[int], rows: Rows) -> list[Found]:
        return storage.find(seqs, rows)
