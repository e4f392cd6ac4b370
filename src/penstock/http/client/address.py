"""Where a server is: from a URL to what connects to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

UNIX = "http+unix:"  # and the folder of a store's socket: how the processes that share a store find its owner
_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address; `tls` is there if it is to be spoken to in secret."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    credentials: str = field(default="", repr=False)  # the header that says who asks
    share: str | None = None  # the folder of a Unix socket, which then is all that counts
    authority: str = field(init=False)  # what the Host header says

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "authority", f"{host}:{self.port}")


def parse(url: str, token: str | None = None, ca: str | None = None) -> Address:
    """The address of `http://host:port` or `https://host:port`; InvalidArgument says what else is in the URL.

    Without a token that of $PENSTOCK_TOKEN is used, if there is one.
    """
    if url.startswith(UNIX):
        return Address(url, "localhost", 0, share=url[len(UNIX) :])
    shown = f"the address {url!r}"
    if not _VISIBLE.fullmatch(url):
        raise InvalidArgument(f"{shown} has spaces or letters that no URL has; give http://host:port")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"{shown} cannot be read: {error}; give http://host:port") from None
    if "@" in parts.netloc:  # and the URL is not shown, as it may end up in a log
        raise InvalidArgument(
            f"an address with a user name or a password; a server asks for tokens: give {parts.scheme}://{host} "
            "and token=, or set PENSTOCK_TOKEN"
        )
    if not host:
        raise InvalidArgument(f"{shown} names no host; give http://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidArgument(
            f"{shown} goes on after host and port; a server has the whole of them: give {parts.scheme}://"
            f"{parts.netloc}"
        )
    return Address(
        f"{parts.scheme}://{parts.netloc}",
        host,
        _PORTS[parts.scheme] if port is None else port,
        _context(ca) if parts.scheme == "https" else None,
        _credentials(os.environ.get("PENSTOCK_TOKEN", "") if token is None else token),
    )


def _credentials(token: str) -> str:
    if not token:
        return ""
    if not _VISIBLE.fullmatch(token):  # and it is not shown
        raise InvalidArgument("the token has characters that none has: give what `penstock token create` printed")
    return f"Authorization: Bearer {token}\r\n"


def _context(ca: str | None) -> ssl.SSLContext:
    import ssl  # here, because it takes long and few need it

    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:  # of which SSLError is one
        raise InvalidArgument(f"ca={ca!r} has no certificates to trust: {error}; give a PEM file") from None
