"""How the server is: healthz for who restarts it, readyz for who sends it work, metrics for who watches."""

import asyncio
import logging
from itertools import chain
from typing import Any

from penstock.errors import PenstockError
from penstock.http.server import exposition
from penstock.http.server.bodies import json_answer
from penstock.http.server.exchange import Answer, Problem, Request

_STUCK = 10.0  # seconds after which a commit that still runs means a disk that hangs
_log = logging.getLogger("penstock.server")
_TEXT = f"Content-Type: {exposition.MEDIA_TYPE}\r\n".encode()


async def healthz(backend: Any, request: Request) -> Answer:
    """GET /-/healthz: the process is alive, whatever its store is."""
    request.parameters()
    return json_answer({"status": "ok"})


async def readyz(backend: Any, request: Request) -> Answer:
    """GET /-/readyz: the store takes messages, and gives them."""
    request.parameters()
    if not backend.is_open() or request.service.stopping:
        raise Problem("StoreClosed", "the server is stopping, or its store has failed: send work elsewhere")
    try:
        await asyncio.wait_for(backend.check(), _STUCK)
    except TimeoutError:
        _log.warning("the store has not answered for %.0f s: look at its disk", _STUCK)
        raise Problem("Overloaded", f"the store has not answered for {_STUCK:.0f} s: look at its disk") from None
    except PenstockError as error:
        _log.warning("the store cannot work: %s", error)
        raise Problem("StoreClosed", "the store cannot work; the log says why: send work elsewhere") from None
    if backend.longest_commit() > _STUCK:
        _log.warning("a commit has been running for %.0f s or more: look at the disk", _STUCK)
        raise Problem("Overloaded", f"a commit has been running for {_STUCK:.0f} s or more: look at the disk")
    return json_answer({"status": "ready"})


async def metrics(backend: Any, request: Request) -> Answer:
    """GET /-/metrics."""
    request.parameters()
    service, figures = request.service, await backend.figures()

    def render() -> bytes:  # in a thread, as there may be very many queues
        parts = chain(
            exposition.queues(figures),
            exposition.commits(backend.commit_seconds, backend.commit_records),
            exposition.server(backend.is_open(), service.connections, service.buffered, dict(service.answers)),
            exposition.process(),
        )
        return "".join(parts).encode()

    return Answer(200, _TEXT, await service.loop.run_in_executor(None, render))
