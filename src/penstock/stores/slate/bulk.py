"""Routing in bulk: others read the log and find out who wants what (spark/slate/routing.py), the owner delivers.

How far the queues are, is what the store says and nobody else. Whatever is handed over twice, or was delivered by
the router in the meantime, is left out; what was left out before is looked up in the log. Matches are

    u32 big-endian   length of the head
    head             JSON: the part of the log, from `start` to before `end`, and each queue with how many it wants
    columns          i64 little-endian, queue after queue, in the order of the log: sequence, priority, visible at,
                     received at, expires at (0 = never, -1 = as the queue says), size
"""

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.contract.message import Entry
from penstock.engine.queue import LiveQueue
from penstock.errors import InvalidArgument
from penstock.stores.slate.format import instance_of
from penstock.stores.slate.routing import Matches, Router, Wanted
from penstock.system.garbage import without_collection

if TYPE_CHECKING:
    from penstock.stores.slate.store import SlateBackend

COLUMNS = ("sequence", "priority", "visible_at", "received_at", "expires_at", "size")
_LENGTH = struct.Struct(">I")


def encoded(matches: Matches) -> bytes:
    """Matches as bytes."""
    rows = [row for wanted in matches.queues.values() for row in wanted]
    columns = [array("q", column) for column in zip(*rows, strict=True)] if rows else []
    queues = [(name, len(wanted)) for name, wanted in matches.queues.items()]
    return encode(matches.start, matches.end, queues, columns)


def encode(start: int, end: int, queues: Sequence[tuple[str, int]], columns: Sequence["array[int]"]) -> bytes:
    """Matches as bytes; each column has the rows of one queue after those of another."""
    head = json.dumps({"start": start, "end": end, "queues": queues}).encode()
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return b"".join([_LENGTH.pack(len(head)), head, *(column.tobytes() for column in columns)])


def decode(data: bytes) -> Matches:
    """Matches of bytes; InvalidArgument."""
    try:
        (size,) = _LENGTH.unpack_from(data)
        head = json.loads(data[4 : 4 + size])
        content = array("q", data[4 + size :])
        if sys.byteorder == "big":
            content.byteswap()
        total = sum(count for _, count in head["queues"])
        if len(content) != len(COLUMNS) * total:
            raise ValueError("it ends too early, or goes on too long")
        columns = [content[at * total : (at + 1) * total] for at in range(len(COLUMNS))]
        rows: list[Wanted] = list(zip(*columns, strict=True))
        queues, at = {}, 0
        for name, count in head["queues"]:
            queues[str(name)] = rows[at : at + count]
            at += count
        return Matches(int(head["start"]), int(head["end"]), queues)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise InvalidArgument(f"these are no matches: {error}") from error


class RoutedQueue(LiveQueue):
    """A queue into which nothing is put before what was published earlier, also if that waits to be routed."""

    router: Router | None = None

    def put(self, entries: Sequence[Entry]) -> tuple[list[str], int]:
        """Take in all entries or none; their ids."""
        if self.router is None or not self.router.deferred:
            return super().put(entries)
        with self.router.in_order(self.name):
            return super().put(entries)


class BulkOwner:
    """What the owner of a slate store does for those who work with it in bulk."""

    def __init__(self, backend: "SlateBackend") -> None:
        self._backend = backend
        self.take_in = backend.intake.take_in
        self.run = backend.intake.run

    def tidy(self) -> bool:
        """Let time take what it may, and remove files that nobody needs."""
        self._backend.tend()
        self._backend._writer.lead(self._backend._writer.commits.flush)
        self._backend.collect()
        return True

    def where(self) -> dict[str, Any]:
        """The number of the log up to which all queues but those that are held are, and the store's instance."""
        return {"position": self._backend._log.position, "instance": instance_of(self._backend._log_key)}

    def route(self, matches: Matches) -> dict[str, int]:
        """Deliver; how many messages were, by queue."""
        with without_collection():
            routed = self._backend._router.route(matches)
            self._backend._commit()
        for queue in self._backend._router.behind():
            self._backend.catch_up(queue)
        self._backend._commit()
        return routed
