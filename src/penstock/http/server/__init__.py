"""The HTTP server: serves a store that this process has open."""

from penstock.http.server.access import Access
from penstock.http.server.server import Limits, RunningServer, Server, listen, serve_in_thread, url_of

__all__ = ["Access", "Limits", "RunningServer", "Server", "listen", "serve_in_thread", "url_of"]
