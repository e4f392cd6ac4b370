"""Loads that clients send to a journal store (engine/loads.py): where they wait, and how they take effect."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from penstock.contract.landing import Landing
from penstock.contract.loads import Brought
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.engine.backend import check_start
from penstock.engine.loads import StagedPart, Taken, full
from penstock.engine.queue import LiveQueue
from penstock.engine.restored import Restored
from penstock.rules.ledger import Ledger
from penstock.stores.journal import staging
from penstock.stores.journal.ballast import Ballast
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.intake import Load, forget_runs, make_folder, read_run
from penstock.stores.journal.landings import has_landed
from penstock.stores.journal.staging import MANIFEST, Part
from penstock.system.files import Disk

if TYPE_CHECKING:
    from penstock.wire.frames import Staged
    from penstock.wire.restored import Columns


class Store(Protocol):
    """What loads are for."""

    def find(self, queue: str) -> LiveQueue:
        """A queue at work; QueueNotFound."""

    def load(self, load: Load) -> bool:
        """Let a load take effect."""


class JournalPart:
    """What one sender has sent: a file of groups."""

    def __init__(self, file: Part, ballast: Ballast) -> None:
        self.file = file
        self.is_broken = False
        self._ballast = ballast

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return sum(piece.messages for piece in self.file.pieces)

    def add(self, queue: str, settings: Settings, staged: "Staged", frame: bytes, now: int) -> None:
        """Keep a batch, on stable storage."""
        if self._ballast.short:
            raise full()
        restored = None if staged.restored is None else _restored(staged.restored, now)
        try:
            times = (staged.visible_at, staged.expires_at)
            self.file.add_entries(queue, staged.entries, settings.retention, now, *times, restored)
            self.file.close()
        except BaseException:
            self.is_broken = True
            self.file.discard()
            raise


class JournalDepot:
    """Loads that are staged beside the journals."""

    def __init__(self, store: Store, catalog: Catalog, disk: Disk, ballast: Ballast) -> None:
        self._store = store
        self._catalog = catalog
        self._disk = disk
        self._ballast = ballast

    def settings(self, queue: str) -> Settings:
        """What a queue was created with; QueueNotFound."""
        return self._store.find(queue).settings

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        """The rules of a queue."""
        return Ledger(queue, settings)

    def check_settings(self, settings: Settings) -> None:
        """Refuse a queue that cannot be made."""
        check_start(settings)

    def begin(self, load: str, forget_before: int) -> None:
        """Make a folder for a load."""
        forget_runs(self._disk, self._catalog, forget_before)
        make_folder(self._disk, self._catalog.folder, load)

    def new_part(self, load: str, part: str) -> JournalPart:
        """A file in that folder, which is made when there is something for it."""
        return JournalPart(Part(self._disk, self._folder(load), load, f"part-{part}"), self._ballast)

    def take_in(
        self,
        load: str,
        parts: Sequence[StagedPart],
        queues: Mapping[str, Settings],
        run: str | None,
        sink: Landing | None,
    ) -> bool:
        """Let these parts take effect."""
        pieces = [piece for part in parts for piece in cast("JournalPart", part).file.pieces]
        return self._store.load(Load(load, pieces, dict(queues), run, sink))

    def counts(self, load: str) -> bool:
        """Whether opening the store will finish it."""
        return self._disk.exists(os.path.join(self._folder(load), MANIFEST))

    def has_landed(self, sink: Landing) -> bool:
        """Whether a batch of a stream has taken effect."""
        return has_landed(self._disk, self._catalog, sink)

    def taken(self, run: str) -> Taken | None:
        """What has taken effect under a name."""
        taken = read_run(self._disk, self._catalog, run)
        if taken is None:
            return None
        brought = [
            Brought(queue, sum(piece.messages for piece in pieces), sum(piece.payloads for piece in pieces))
            for queue, pieces in sorted(taken.by_queue().items())
        ]
        return Taken(taken.name, brought)

    def drop(self, load: str) -> None:
        """Remove what was sent."""
        staging.remove_folder(self._disk, self._folder(load))

    def _folder(self, load: str) -> str:
        return staging.folder_of(self._catalog.folder, load)


def _restored(columns: "Columns", now: int) -> Restored:
    return Restored(
        [now if each is None else each for each in columns.received_at],
        [STATES.index(state) + 1 for state in columns.state],
        columns.attempts,
        [each or 0 for each in columns.claimed_at],
        [each or 0 for each in columns.settled_at],
        columns.consumer,
        columns.reason,
        columns.history,
    )
