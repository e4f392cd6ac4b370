"""The server explains itself: a document for programs, a page for people."""

from typing import Any

from penstock.server.exchange import JSON, Answer, Request
from penstock.wire import jsons


async def openapi(keeper: Any, request: Request) -> Answer:
    """GET /-/openapi.json."""
    return Answer(200, JSON, jsons.dumps({"openapi": "3.1.0"}))


async def docs(keeper: Any, request: Request) -> Answer:
    """GET /-/docs."""
    return Answer(200, b"Content-Type: text/html; charset=utf-8\r\n", b"<h1>Penstock</h1>")


async def start(keeper: Any, request: Request) -> Answer:
    """GET /: to the docs."""
    return Answer(303, b"Location: /-/docs\r\n")
