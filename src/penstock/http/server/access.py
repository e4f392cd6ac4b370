"""Access control: bearer tokens against the roles of routes; hosts and origins where no token is asked for."""

import hmac
import logging
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

from penstock.contract import roles
from penstock.errors import Advice, InvalidArgument
from penstock.http.server import tokens
from penstock.http.server.exchange import Problem, Request, Route
from penstock.http.server.tokens import Token

_log = logging.getLogger("penstock.server")
_CHALLENGE = 'WWW-Authenticate: Bearer realm="penstock"'
_HOST = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]+)(?::[0-9]*)?")  # a name or an address, with or without a port
_AUTHORITY_END = re.compile(rb"[/?#]")
_NAME = re.compile(r"[a-z0-9_.-]+", re.IGNORECASE)
_OWN_SITES = (b"same-origin", b"none")  # none: a person typed the address


class Access:
    """The tokens of a file, reloaded when it changes. `open_monitoring`: readyz and metrics need no token."""

    def __init__(self, path: str, open_monitoring: bool = False) -> None:
        self._path = path
        self._open_monitoring = open_monitoring
        self._seen = _look(path)
        self._tokens = tokens.read(path)
        self.generation = 0  # grows with each reload: tokens found in an earlier generation are checked again

    def holder(self, authorization: bytes) -> Token | None:
        """The token in an Authorization header; None if it is not known."""
        scheme, _, secret = authorization.partition(b" ")
        return tokens.find(self._tokens, secret.strip()) if scheme.lower() == b"bearer" else None

    def needs(self, route: Route) -> int:
        """The roles of which a request needs one."""
        return roles.ANYONE if route.monitors and self._open_monitoring else route.roles

    def refresh(self) -> None:
        """Read the file again if it has changed."""
        if _look(self._path) != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file again. If that fails, the tokens read before stay good."""
        self._seen = _look(self._path)
        try:
            self._tokens = tokens.read(self._path)
        except InvalidArgument as error:
            _log.error("%s; the tokens that were read before are still good", str(error))
            return
        self.generation += 1
        _log.info("read %d tokens", len(self._tokens))


class Caller:
    """The token of a connection, cached: clients send the same one with every request."""

    def __init__(self) -> None:
        self._authorization = b""  # the header of the last request
        self._holder: Token | None = None  # its token
        self._generation = 0  # of the tokens in which it was found

    def problem(self, access: Access, request: Request) -> Problem | None:
        """Why a request is refused for its token; None if it is not."""
        needed, dialect = access.needs(request.route), request.route.dialect
        given = request.headers.get(b"authorization", b"") if dialect is None else dialect.token(request)
        if given:
            # In constant time, so that timing tells nothing of the secret.
            if self._generation != access.generation or not hmac.compare_digest(given, self._authorization):
                self._holder = access.holder(given)
                self._authorization, self._generation = given, access.generation
            if self._holder is not None:
                request.holder = self._holder
                return None if roles.allows(self._holder.roles, needed) else forbidden(self._holder, needed)
        return unauthorized(bool(given)) if needed else None


class Hosts:
    """The host names of a server without tokens. Checking them keeps web pages of other sites out.

    Browsers send requests of any page to any address. They add where the page is from (Origin, Sec-Fetch-Site) and
    the name under which it found the server (Host), which may be the page's own name, bound to this machine (DNS
    rebinding). A page can forge none of the three.
    """

    def __init__(self, allowed: Iterable[str] = (), encrypted: bool = False) -> None:
        self._names = {"localhost", *(checked_host(name) for name in allowed)}
        self._schemes = (b"https",) if encrypted else (b"https", b"http")  # a proxy may speak TLS for us
        self._knows = lru_cache(maxsize=256)(self._is_ours)  # clients send the same one again and again

    def problem(self, request: Request) -> Problem | None:
        """Why a request is refused that a web page may have sent; None if it is not."""
        headers = request.headers
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and b"," in host:
            return Problem("BadRequest", "a request needs the header Host, and only once")
        for name in (host, _named_by(request.head.target)):
            if name is not None and not self._knows(name.decode("latin-1")):  # HTTP/1.0 may do without
                return Problem(
                    "Forbidden",
                    f"Host {name.decode('latin-1')!r} is no name of this server, which asks for no tokens: use "
                    "its IP address or localhost, or start it with --allow-host NAME",
                )
        if origin is not None:
            scheme, _, authority = origin.partition(b"://")
            if scheme not in self._schemes or host is None or authority.lower() != host.lower():
                return Problem("Forbidden", "a web page of another origin may not use this server without a token")
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _OWN_SITES:
            return Problem("Forbidden", "a web page of another site may not use this server without a token")
        # Browsers request images without Origin, and from another machine without TLS also without Sec-Fetch-Site.
        takes = request.route.polls and request.route.roles & roles.CONSUME
        if takes and site is origin is None and headers.get(b"user-agent", b"")[:8] == b"Mozilla/":
            return Problem("Forbidden", "a browser that does not say for which page takes no messages: use curl")
        return None

    def _is_ours(self, host: str) -> bool:
        matched = _HOST.fullmatch(host)
        if matched is None:
            return False
        name = matched[1].lower()
        if name in self._names:
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _named_by(target: bytes) -> bytes | None:
    """The host in a target of absolute form, which overrides the header (RFC 9112)."""
    if target[:1] == b"/" or b"://" not in target:
        return None
    return _AUTHORITY_END.split(target.partition(b"://")[2], maxsplit=1)[0]


def checked_host(name: str) -> str:
    """A name for --allow-host in lower case; InvalidArgument."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"allowed host {name!r}: give a name as in queue.example, without scheme and port")
    return name.lower()


def unauthorized(given: bool) -> Problem:
    """The refusal of a request without a token, or with an unknown one."""
    if given:
        detail = "this token is not, or no longer, known: ask for a new one (`penstock token create`)"
        return Problem("Unauthorized", detail, f'{_CHALLENGE}, error="invalid_token"\r\n'.encode())
    advice = Advice(
        "give token=, or set PENSTOCK_TOKEN",
        "set PENSTOCK_TOKEN to one that `penstock token create` has printed",
        "send Authorization: Bearer TOKEN, or set PENSTOCK_TOKEN for a client",
    )
    return Problem("Unauthorized", "this server asks for a token", f"{_CHALLENGE}\r\n".encode(), advice)


def forbidden(token: Token, needed: int) -> Problem:
    """The refusal of a known token that lacks a role."""
    names = roles.names(needed)
    return Problem(
        "Forbidden",
        f"token {token.name!r} lacks the role {' or '.join(names)}: ask for one that has it "
        f"(`penstock token create NAME --role {names[0]}`)",
        f'{_CHALLENGE}, error="insufficient_scope", scope="{names[0]}"\r\n'.encode(),
    )


def _look(path: str) -> tuple[int, ...]:
    """The token file's identity: changes whenever the file is replaced or written."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
