"""The server explains itself: a document for programs, a page for people, both from the same tables."""

import re
from functools import cache
from typing import Any

from penstock.http.server.description.openapi import document
from penstock.http.server.description.page import HOST, policy, render
from penstock.http.server.exchange import JSON, Answer, Request
from penstock.wire import jsons

_HTML = (
    "Content-Type: text/html; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
)
_PLAIN_HOST = re.compile(rb"[0-9A-Za-z.\-]{1,253}(:[0-9]{1,5})?|\[[0-9a-f:]{2,45}\](:[0-9]{1,5})?")


async def openapi(backend: Any, request: Request) -> Answer:
    """GET /-/openapi.json."""
    request.parameters()
    return Answer(200, JSON, _document())


async def docs(backend: Any, request: Request) -> Answer:
    """GET /-/docs. Its examples name this server, as the client calls it, so that they can be pasted."""
    request.parameters()
    headers, body = _page()
    host = request.headers.get(b"host", b"")
    if _PLAIN_HOST.fullmatch(host):  # and nothing that a browser could take for more than a name
        body = body.replace(HOST.encode(), host)
    return Answer(200, headers, body)


async def start(backend: Any, request: Request) -> Answer:
    """GET /: to the docs."""
    request.parameters()
    return Answer(303, b"Location: /-/docs\r\n")


@cache
def _document() -> bytes:
    return jsons.dumps(document())


@cache
def _page() -> tuple[bytes, bytes]:
    return f"{_HTML}Content-Security-Policy: {policy()}\r\n".encode(), render(document()).encode()
