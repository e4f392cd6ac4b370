"""What a dump of a store's file is made of (`penstock dump`)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidArgument, PenstockError

if TYPE_CHECKING:
    from penstock.system.files import File

_SHOWN = 3  # names of files in an error


@dataclass(frozen=True)
class Piece:
    """A piece of a file in its order: an entry, a group of entries, a record inside of an entry, or damage."""

    name: str  # DAMAGED, or the format's word for it
    fields: Mapping[str, Any] = field(default_factory=dict)
    offset: int | None = None  # in the file; None: the piece has no bytes of its own
    depth: int = 0  # how many pieces it is inside of
    state: str | None = None  # of the message that it is, or "comment" and the like


DAMAGED = "damaged"
TIMES = frozenset(  # fields that are milliseconds since the epoch, 0 for none
    ("added", "at", "claimed_at", "created_at", "expires_at", "expiry", "lease_until", "received_at", "settled_at",
     "visible_at")
)  # fmt: skip


def damaged(offset: int | None, reason: str, size: int | None = None, depth: int = 0) -> Piece:
    """Bytes that cannot be read, and why."""
    sized = {} if size is None else {"size": size}
    return Piece(DAMAGED, {"reason": reason, **sized}, offset, depth)


@contextmanager
def reading(path: str) -> "Iterator[File]":
    """The file at a path, opened for reading; an error names what the path is instead."""
    from penstock.system.files import ReadingDisk, unavailable  # here, so that the command line starts quickly

    disk = ReadingDisk()
    try:
        if disk.is_folder(path):
            there = ", ".join(os.path.join(path, name) for name in sorted(disk.listfiles(path))[:_SHOWN])
            example = f", as {there}" if there else f", or slate:{path} if it is a slate store"
            raise InvalidArgument(f"{path!r} is a folder: give one of its files{example}")
        with disk.open(path, follow=True) as file:
            yield file
    except FileNotFoundError:
        raise PenstockError(f"there is no file {path!r}: check the name") from None
    except OSError as error:
        raise unavailable(path, error) from error
