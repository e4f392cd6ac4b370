"""Where a live queue keeps its records and the bodies of its messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.message import Entry
from penstock.records import Record


class Body(NamedTuple):
    """What a message consists of and no rule depends on."""

    payload: bytes
    headers: Mapping[str, str]
    created_at: int
    received_at: int


class Shelf(Protocol):
    """One queue's records and bodies. All but commit() is called under the queue's lock."""

    @property
    def written(self) -> int:
        """How many records were written so far."""

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        """Take a record and, if it is a put, the new messages."""

    def commit(self, written: int) -> None:
        """Return once that many records are on stable storage."""

    def read(self, seq: int) -> Body:
        """The body of a message that is there."""

    def drop(self, seqs: Iterable[int]) -> None:
        """These messages are gone."""
