"""What the server refuses before a handler sees it or after one has failed, and in which words."""

import logging

from penstock.contract.names import DEFAULT
from penstock.errors import PenstockError, StoreUnavailable
from penstock.http.server import logs
from penstock.http.server.exchange import Answer, Problem, Request, refusal, refusal_of

MAX_HEADERS = 32_768  # bytes
_DIGITS = 20  # of a Content-Length; zeros in front may be many, and Python reads no more than 4,300
OVERLOADED = Problem("Overloaded", "the server has too much to do: try again a little later")
GOING = Problem("StoreClosed", "the server is stopping: try again a little later")
FAILED = Problem("ServerError", "the server failed at this request; its log says why")
TOO_LONG = Problem("HeadersTooLarge", f"the request's head is longer than {MAX_HEADERS} bytes")
_log = logging.getLogger("penstock.server")


def of_head(request: Request, http: str) -> Problem | None:
    """What is wrong with a request by its head, in that version of HTTP."""
    headers = request.headers
    if http == "1.1" and b"," in headers.get(b"host", b","):
        return Problem("BadRequest", "a request needs the header Host, and only once")
    if (b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity") or (
        b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked"
    ):
        return Problem("UnsupportedMediaType", "send the body as it is: neither packed nor encoded")
    length = headers.get(b"content-length", b"0")
    if len(length) > _DIGITS:
        return Problem("BadRequest", f"the Content-Length has more than {_DIGITS} digits")
    if int(length) > request.most:
        return too_large(request)
    return None


def of_error(error: BaseException, request: Request) -> Answer:
    """What is said where a handler could not do it."""
    if isinstance(error, Problem):
        return refusal(error)
    answer = refusal_of(error) if isinstance(error, PenstockError) else refusal(FAILED)
    if answer.status == 500:  # damage, which is as unexpected as a bug
        _log.error("a request failed", exc_info=error, extra=logs.about(request))
        return answer._replace(close=True)
    if isinstance(error, StoreUnavailable):  # the client is not told which file it is
        _log.warning("a request was refused: %s", error, extra=logs.about(request))
    return answer


def too_large(request: Request) -> Problem:
    """Its body is, or will be, longer than its route takes."""
    size = request.headers.get(b"content-length", b"%d or more" % (request.most + 1)).decode()
    if request.route.is_payload:
        name = request.arguments[0] or DEFAULT
        detail = f"a payload of {size} bytes; queue {name!r} takes at most {request.most}: put its address instead"
    else:
        detail = f"a body of {size} bytes; the most that is accepted here is {request.most}: send it in parts"
    return Problem("PayloadTooLarge", detail)
