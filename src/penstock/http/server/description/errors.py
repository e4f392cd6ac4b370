"""Every error that an answer can name: its status and what it means. The tables say which there are."""

from typing import NamedTuple

from penstock import errors
from penstock.http.server import exchange
from penstock.wire import problems

# HTTP's own errors, and those that mean something else here than in Python.
_MEANINGS = {
    "BadRequest": "What came is no HTTP/1.1 request: its head cannot be read, or it ended too early.",
    "Unauthorized": "The server asks for a token that it knows: `Authorization: Bearer TOKEN`.",
    "Forbidden": (
        "The token lacks the role that this needs, which the answer names; or the server asks for no tokens, and "
        "the request may be that of a web page: its `Host` is no name of the server, or its `Origin` another."
    ),
    "NotFound": "There is nothing at this path. A `/` in a name is written as `%2F`.",
    "MessageNotFound": "The queue has no such message (any more).",
    "LoadNotFound": (
        "No such load is open: it was aborted, not touched for a day, or the server has started anew since. "
        "Nothing of it is there; begin again."
    ),
    "MethodNotAllowed": "This path does not take this method; `Allow` names those that it takes.",
    "RequestTimeout": "The request took too long to arrive.",
    "QueueExists": "There is a queue of that name already, or one with other settings than were asked for.",
    "PayloadTooLarge": (
        "The body is larger than this path takes, or a payload is larger than the queue's `max_payload`; store it "
        "elsewhere and queue its address."
    ),
    "UnsupportedMediaType": (
        "The body is of a type that is not taken here, or has a `Content-Encoding`; send it as the table says."
    ),
    "HeadersTooLarge": "The request's line and headers together are too long.",
    "ServerError": "The server failed at this request; its log says why.",
    "Overloaded": (
        "The server has too many connections or open loads, or too much is arriving; try again a little later."
    ),
    "StoreClosed": "The server is stopping; try again once it is back.",
    "StoreCorrupt": "Stored bytes are damaged: the server's log says where, `penstock doctor` what can be saved.",
    "StoreLocked": "Another process holds the server's store; try again later.",
    "StoreUnavailable": "The system refuses a file of the store; the server's log says which, and why.",
    "StoreUnreachable": "The server cannot reach its store; try again later.",
    "LeaseExpired": (
        "Receipts no longer hold their message: its lease ended, or it was settled or removed. `receipts` names "
        "them; the others of the request were settled. Drop that work: another consumer may have the message."
    ),
}


class Failure(NamedTuple):
    """An error by its name."""

    name: str
    status: int
    meaning: str


def _failure(name: str, status: int) -> Failure:
    return Failure(name, status, _MEANINGS.get(name) or (getattr(errors, name).__doc__ or "").partition("\n")[0])


STATUSES = problems.STATUSES | exchange.STATUSES
FAILURES = {name: _failure(name, status) for name, status in sorted(STATUSES.items(), key=lambda each: each[::-1])}

# What any request can meet that needs a role, where there are tokens.
GUARDED = ("Unauthorized",)
# What any request can meet, whatever it asks for.
COMMON = (
    "BadRequest", "InvalidArgument", "Forbidden", "RequestTimeout", "PayloadTooLarge", "UnsupportedMediaType",
    "HeadersTooLarge", "ServerError", "Overloaded", "StoreClosed",
)  # fmt: skip
