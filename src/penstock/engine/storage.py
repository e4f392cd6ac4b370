"""The storage of a live queue: where its records and message bodies go."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.errors import StoreClosed
from penstock.rules.records import Record

# The part of a message that no rule depends on: payload, headers, created_at, received_at.
Body: TypeAlias = tuple[bytes, Mapping[str, str], int, int]


class Storage(Protocol):
    """One queue's records and bodies. All but commit() and read() is called under the queue's lock."""

    @property
    def written(self) -> int:
        """How many records were written so far."""

    @property
    def durable(self) -> int:
        """How many of them are on stable storage."""

    def make_room(self, entries: Sequence[Entry] = (), claims: int = 0, settings: Settings | None = None) -> None:
        """Make sure that new messages, that many claims, or settings can be written; DiskFull changes nothing."""

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Add a record and, for a put, the new messages."""

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        """A change was interrupted, and state and records disagree: every later write fails with this error."""

    def commit(self, written: int) -> None:
        """Return once that many records are on stable storage."""

    def find(self, seqs: Sequence[int]) -> Any:
        """Places of bodies, which read() can read even after the messages are dropped."""

    def sizes(self, seqs: Sequence[int]) -> Sequence[int]:
        """The approximate sizes of bodies in bytes."""

    def at_hand(self, places: Any) -> Any | None:
        """The same places with their bytes in memory; None if read() has to wait for the disk."""

    def read(self, places: Any) -> list[Body]:
        """The bodies at the places that find() returned."""

    def drop(self, seqs: Sequence[int]) -> None:
        """Forget the bodies of messages that no longer exist."""
