"""Where a server is: from a URL to what connects to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    share: str | None = None  # the folder of a Unix socket, which then is all that counts

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(url: str) -> Address:
    """The address of `http://host:port` or `https://host:port`; InvalidArgument says what else is in the URL."""
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
            f"an address with a user name or a password; a server asks for none: give {parts.scheme}://{host}"
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
        _context() if parts.scheme == "https" else None,
    )


def _context() -> ssl.SSLContext:
    import ssl  # here, because it takes long and few need it

    return ssl.create_default_context()
