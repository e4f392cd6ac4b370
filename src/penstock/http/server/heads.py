"""Heads of requests that a server knows by heart.

Clients say the same heads again and again, and the parser calls back for every part of one. What it has understood
once it would understand again: the same bytes, from the same start.
"""

from typing import NamedTuple

from penstock.http.server.exchange import LONG, Head, Request

_MOST = 1_024  # that are known; then all are forgotten
_END = b"\r\n\r\n"
# Only the parser finds the end of such a body; more is said than the answer; and this is never the same again.
_FOREIGN = frozenset({b"transfer-encoding", b"expect", b"x-request-id"})


class Known(NamedTuple):
    """A head, and how many bytes it and a whole request with it have."""

    head: Head
    start: int
    size: int


class Heads:
    """Of the requests of one server."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def find(self, data: bytes) -> Known | None:
        """The head, if the bytes are one whole request that begins with a known one."""
        known = self._known.get(data[: data.find(_END) + 4])
        return known if known is not None and known.size == len(data) else None

    def learn(self, data: bytes, request: Request) -> None:
        """Remember a head, if the request that the parser found is all that is in the bytes."""
        start = data.find(_END) + 4
        headers = request.headers
        length = int(headers.get(b"content-length", b"0"))
        if (
            len(data) == start + length
            and start <= LONG
            and request.keep_alive
            and not request.route.discards
            and _FOREIGN.isdisjoint(headers)
        ):
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[data[:start]] = Known(request.head, start, len(data))
