"""The address of a server: host, port, TLS context and token header, parsed from its URL."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

UNIX = "http+unix:"  # followed by the folder of a store's Unix socket, where guests find the owner
_PORTS = {"http": 80, "https": 443}
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `tls` is None for plain HTTP."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    credentials: str = field(default="", repr=False)  # the Authorization header line
    share: str | None = None  # the folder of a Unix socket; host and port mean nothing then
    authority: str = field(init=False)  # value of the Host header

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "authority", f"{host}:{self.port}")


def parse(url: str, token: str | None = None, ca: str | None = None) -> Address:
    """The address of `http://host:port` or `https://host:port`; InvalidArgument if the URL has anything else.

    Without a token, $PENSTOCK_TOKEN is used.
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
    if "@" in parts.netloc:  # the URL is not shown: the error may end up in a log
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
    if not _VISIBLE.fullmatch(token):  # the error does not show it
        raise InvalidArgument("the token has characters that none has: give what `penstock token create` printed")
    return f"Authorization: Bearer {token}\r\n"


def _context(ca: str | None) -> ssl.SSLContext:
    import ssl  # late: loading takes long, and few clients use TLS

    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InvalidArgument(f"ca={ca!r} has no certificates to trust: {error}; give a PEM file") from None
