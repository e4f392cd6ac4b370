"""Loads that clients send to a slate store (engine/loads.py): frames beside the database, taken in by the owner.

One whose record could not be written in time may count. It stays open, so that committing it again finishes it;
what is staged of it stays until then, or until the store is opened.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from penstock.contract.landing import Landing
from penstock.contract.loads import Brought
from penstock.contract.settings import Settings
from penstock.engine.loads import StagedPart, Taken, began_at
from penstock.rules.ledger import Ledger
from penstock.stores.slate.format import RUN, VERSION
from penstock.stores.slate.intake import Frame, Load, is_done
from penstock.stores.slate.lately import NotedReceipts
from penstock.stores.slate.loading import new_ledger
from penstock.stores.slate.primitives import unterminated
from penstock.stores.slate.staging import Staging

if TYPE_CHECKING:
    from penstock.stores.slate.store import SlateBackend
    from penstock.wire.frames import Staged


class SlatePart:
    """What one sender has sent, a file or an object for each batch: one that could not be kept is sent again."""

    is_broken = False

    def __init__(self, backend: "SlateBackend", staging: Staging, load: str, name: str) -> None:
        self._backend = backend
        self._staging = staging
        self._load = load
        self._name = name
        self.frames: list[Frame] = []

    @property
    def messages(self) -> int:
        """How many messages it has."""
        return sum(frame.messages for frame in self.frames)

    def add(self, queue: str, settings: Settings, staged: "Staged", frame: bytes, now: int) -> None:
        """Keep a batch, on stable storage."""
        from penstock.wire.frames import with_times

        self._backend._writer.check_space(staged.entries)
        name = f"{self._name}-{len(self.frames)}"
        self._staging.put(self._load, name, with_times(frame, now))
        size = sum(len(entry.payload) for entry in staged.entries)
        done = staged.restored is not None and is_done(staged.restored.state)
        self.frames.append(Frame(queue, name, len(staged.entries), size, done))


class SlateDepot:
    """Loads that are staged beside the database."""

    def __init__(self, backend: "SlateBackend", staging: Staging) -> None:
        self._backend = backend
        self._staging = staging

    def settings(self, queue: str) -> Settings:
        """What a queue was created with; QueueNotFound."""
        return self._backend.settings(queue)

    def ledger(self, queue: str, settings: Settings) -> Ledger:
        """The rules of a queue."""
        return new_ledger(queue, settings, NotedReceipts())

    def check_settings(self, settings: Settings) -> None:
        """Refuse a queue that cannot be made."""
        self._backend._check_settings(settings)

    def begin(self, load: str, forget_before: int) -> None:
        """Forget what was remembered for long enough; a place is made with the first batch."""
        first = bytes((VERSION, RUN))
        gone = []
        for key, _ in self._backend._database.scan(first + b"0-0-", first + b"0-1"):  # as such loads are named
            began = began_at(unterminated(key, 2)[0].decode())
            if began is not None and began < forget_before:
                gone.append(key)
        if gone:
            self._backend._remove([(key, None) for key in gone])

    def new_part(self, load: str, part: str) -> SlatePart:
        """Room for what one sender sends."""
        return SlatePart(self._backend, self._staging, load, part)

    def take_in(
        self,
        load: str,
        parts: Sequence[StagedPart],
        queues: Mapping[str, Settings],
        run: str | None,
        sink: Landing | None,
    ) -> bool:
        """Let these parts take effect."""
        frames = [frame for part in parts for frame in cast("SlatePart", part).frames]
        return self._backend.intake.take_in(Load(load, frames, queues, run, sink))

    def counts(self, load: str) -> bool:
        """No: what counts can be committed again here, which finishes it."""
        return False

    def has_landed(self, sink: Landing) -> bool:
        """Whether a batch of a stream has taken effect."""
        return self._backend.intake.has_landed(sink)

    def taken(self, run: str) -> Taken | None:
        """What has taken effect under a name."""
        taken = self._backend.intake.taken(run)
        return None if taken is None else Taken(taken["load"], [Brought(*each) for each in taken["brought"]])

    def drop(self, load: str) -> None:
        """Remove what was sent, unless it counts, or may."""
        if not self._backend.intake.may_count(load):
            self._staging.remove(load)
