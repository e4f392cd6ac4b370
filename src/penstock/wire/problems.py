"""Errors over HTTP: problem details (RFC 9457), `application/problem+json`."""

from collections.abc import Mapping
from typing import Any

from penstock import errors
from penstock.errors import Advice, LeaseExpired, PenstockError, joined

MEDIA_TYPE = "application/problem+json"

STATUSES: dict[str, int] = {
    "InvalidArgument": 400,
    "InvalidName": 400,
    "InvalidPriority": 400,
    "InvalidFilter": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "QueueProtected": 403,
    "LoadNotFound": 404,
    "QueueNotFound": 404,
    "StreamNotFound": 404,
    "QueueExists": 409,
    "StreamInUse": 409,
    "StreamMismatch": 409,
    "LeaseExpired": 409,
    "PayloadTooLarge": 413,
    "StoreCorrupt": 500,
    "NotSupported": 501,
    "StoreClosed": 503,
    "StoreLocked": 503,
    "StoreUnavailable": 503,
    "StoreUnreachable": 503,
    "QueueFull": 507,
    "DiskFull": 507,
}

# The messages of these errors may name files and machines, so clients get these texts instead.
_WITHOUT_DETAILS = {
    "StoreClosed": "the server's store was closed, so the server is about to end: try again once it is back",
    "StoreCorrupt": "stored bytes are damaged: the server's log says where, `penstock doctor` what can be saved",
    "StoreLocked": "another process holds the server's store: try again later",
    "StoreUnavailable": "the server's system refuses files of its store: its log says which, and why",
    "StoreUnreachable": "the server cannot reach its store: try again later",
    "DiskFull": "the server's disk has no room for more messages: settle or remove some, which makes room",
}
_FAILED = "the server failed; its log says why"


def problem(status: int, error: str, what: str, advice: Advice | None = None, **more: object) -> dict[str, Any]:
    """The body of an error. `detail` advises HTTP clients; others find words of their own in `advice`."""
    detail = what
    if advice is not None:
        detail, more = joined(what, advice.http), {"advice": {"what": what, **advice._asdict()}, **more}
    return {
        "type": f"/-/docs#{error}", "title": error, "status": status, "detail": detail, "error": error, **more,
    }  # fmt: skip


def as_problem(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and body for an error, without details that only the server's log may have."""
    name = name_of(error)
    if name not in STATUSES:
        return 500, problem(500, "ServerError", _FAILED)
    assert isinstance(error, PenstockError)  # noqa: S101 - for the type checker
    status = STATUSES[name]
    if name in _WITHOUT_DETAILS:
        return status, problem(status, name, _WITHOUT_DETAILS[name])
    if isinstance(error, LeaseExpired) and error.advice:  # the client makes the texts of it from its members
        return status, problem(status, name, joined(error.what, error.advice.http), **members(error))
    return status, problem(status, name, error.what, error.advice)


def name_of(error: BaseException) -> str:
    """The public name of an error: a store may raise a subclass."""
    names = [kind.__name__ for kind in type(error).__mro__] if isinstance(error, PenstockError) else []
    return next((name for name in names if name in STATUSES), type(error).__name__)


def members(error: BaseException) -> dict[str, Any]:
    """What an error has beyond its text."""
    return {"queue": error.queue, "receipts": error.receipts} if isinstance(error, LeaseExpired) else {}


def as_error(problem: Mapping[str, Any]) -> PenstockError:
    """The error that a client raises; PenstockError for a name that only a newer server knows."""
    name, detail = problem.get("error"), problem.get("detail")
    detail = detail if isinstance(detail, str) else str(problem.get("title") or "the server gave no reason")
    queue, receipts = problem.get("queue"), problem.get("receipts")
    if name == "LeaseExpired" and isinstance(queue, str) and isinstance(receipts, list):
        return LeaseExpired(queue, list(map(str, receipts)))
    kind = getattr(errors, name, None) if isinstance(name, str) and name in STATUSES else None
    if kind is None or kind is LeaseExpired:
        return PenstockError(f"{detail} ({name})" if isinstance(name, str) else detail)
    told = problem.get("advice")
    names = ("what", *Advice._fields)
    if isinstance(told, dict) and all(isinstance(told.get(each), str) for each in names):
        what, *words = [told[each] for each in names]
        error = kind(what, Advice(*words))
    else:  # it needs none, or an older server sent it
        error = kind(detail)
    assert isinstance(error, PenstockError)  # noqa: S101 - for the type checker
    return error
