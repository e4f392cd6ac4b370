"""Where a live queue keeps its records and the bodies of its messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.errors import StoreClosed
from penstock.rules.records import Record

# What a message consists of and no rule depends on: payload, headers, created_at, received_at.
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
        """Take a record and, if it is a put, the new messages."""

    def refuse(self, failure: Callable[[], StoreClosed]) -> None:
        """A change was interrupted, and state and records do not agree: write nothing any more, and say why."""

    def commit(self, written: int) -> None:
        """Return once that many records are on stable storage."""

    def find(self, seqs: Sequence[int]) -> Any:
        """Where the bodies of messages are that are there: what read() can read even when they are gone."""

    def sizes(self, seqs: Sequence[int]) -> Sequence[int]:
        """How long the bodies of messages are, more or less."""

    def at_hand(self, places: Any) -> Any | None:
        """Places that read() needs no disk for, with the same bodies; None if that takes longer."""

    def read(self, places: Any) -> list[Body]:
        """The bodies that find() found."""

    def drop(self, seqs: Sequence[int]) -> None:
        """These messages are gone."""
