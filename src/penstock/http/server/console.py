"""The console at /-/: files of the package, without data. Their scripts ask the API, with the person's token."""

import hashlib
from functools import cache
from importlib.resources import files

from penstock.http.server.exchange import Answer, Problem, Request

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PAGE = "index.html"
# Texts of messages never become markup or scripts, even if a script of ours had such a mistake.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_GUARDS = (
    f"Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
)


@cache
def contents() -> dict[str, bytes]:
    """The files of the console, by name."""
    folder = files("penstock.http").joinpath("console")
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}


@cache
def version() -> str:
    """A name for these files: browsers keep them under it, and ask for others after an upgrade."""
    digest = hashlib.sha256()
    for name, content in sorted(contents().items()):
        digest.update(b"%b %d\n%b" % (name.encode(), len(content), content))
    return digest.hexdigest()[:16]


async def page(backend: object, request: Request) -> Answer:
    """GET /-/: the console."""
    request.parameters()
    return Answer(200, _headers(_PAGE, "no-store"), contents()[_PAGE].replace(b"VERSION", version().encode()))


async def file(backend: object, request: Request) -> Answer:
    """GET /-/console/{version}/{file}: a script, a style sheet or a picture of the console."""
    request.parameters()
    wanted, name = request.arguments
    if wanted != version() or name == _PAGE or name not in contents():
        raise Problem("NotFound", "the console has no such file: load /-/ again")
    return Answer(200, _headers(name, "max-age=31536000, immutable"), contents()[name])


def _headers(name: str, cache: str) -> bytes:
    kind = _TYPES[name.rpartition(".")[2]]
    return f"Content-Type: {kind}\r\nCache-Control: {cache}\r\n{_GUARDS}".encode()
