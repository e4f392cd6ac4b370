"""The token file: a line for each token, `NAME ROLE,ROLE sha256:HEX`.

A secret is 256 random bits, so a plain hash of it can be neither guessed nor inverted; the file never holds the
secret. Only its owner may read or write the file: anyone who can write it can add a token.
"""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from penstock.contract import roles
from penstock.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(r"(\S+) (\S+) sha256:([0-9a-f]{64})")
_PREFIX = "pst_"  # people, and programs that scan for leaked secrets, recognise it
_HEAD = "# Tokens of Penstock: name, roles, hash of the secret. `penstock token --help` explains.\n"
_OURS = 0o600


class Token(NamedTuple):
    """A token: its name, its roles, the SHA-256 of its secret."""

    name: str
    roles: int
    digest: bytes


def read(path: str) -> list[Token]:
    """The tokens of a file; InvalidArgument if it is damaged or others may read or write it."""
    with _opened(path, os.O_RDONLY) as file:
        return _parse(path, file.read())


def find(tokens: Sequence[Token], secret: bytes) -> Token | None:
    """The token with that secret. All are compared, in constant time: timing tells nothing of the secrets."""
    digest, found = hashlib.sha256(secret).digest(), None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def create(path: str, name: str, held: int) -> str:
    """Add a token to a file, which is made if it is missing. Returns the secret, which is stored nowhere."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"token name {name!r}: give 1 to 64 letters, digits, dots, dashes and underscores")
    if not held:
        raise InvalidArgument(f"a token without a role allows nothing: give some of {', '.join(roles.ROLES)}")
    with _locked(path, os.O_RDWR | os.O_CREAT) as file:
        content = file.read()
        if any(token.name == name for token in _parse(path, content)):
            raise InvalidArgument(f"there is a token {name!r} in {path} already: revoke it, or use another name")
        secret = _PREFIX + secrets.token_urlsafe(32)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        lines = "" if content else _HEAD
        lines += "\n" if content and not content.endswith(b"\n") else ""
        file.write(f"{lines}{name} {','.join(roles.names(held))} sha256:{digest}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    return secret


def revoke(path: str, name: str) -> bool:
    """Remove a token from a file; False if it has no such token."""
    with _locked(path, os.O_RDWR) as file:
        content = file.read()
        _parse(path, content)
        lines = content.decode().splitlines(keepends=True)
        kept = [line for line in lines if line.startswith("#") or line.split(" ")[0] != name]
        if kept == lines:
            return False
        # A new file replaces the old one, so that a server never reads half of it.
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".tokens-")
        try:
            with os.fdopen(handle, "wb") as new:  # mkstemp makes it with mode 600
                new.write("".join(kept).encode())
                new.flush()
                os.fsync(new.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return True


def _parse(path: str, content: bytes) -> list[Token]:
    tokens: dict[str, Token] = {}
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidArgument(f"the token file {path} is no text: make one with `penstock token create`") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line.rstrip())
        given = matched[2].split(",") if matched else []
        if not matched or not _NAME.fullmatch(matched[1]) or not set(given) <= roles.ROLES.keys():
            raise InvalidArgument(
                f"line {number} of the token file {path} is no token: remove it, and make one with "
                "`penstock token create`"
            )
        if matched[1] in tokens:
            raise InvalidArgument(f"token {matched[1]!r} is in the token file {path} twice: remove one of them")
        held = sum({roles.ROLES[role] for role in given})
        tokens[matched[1]] = Token(matched[1], held, bytes.fromhex(matched[3]))
    return list(tokens.values())


@contextmanager
def _opened(path: str, flags: int) -> Iterator[BinaryIO]:
    try:
        handle = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, _OURS)
    except OSError as error:
        raise InvalidArgument(
            f"cannot open the token file {path}: {error.strerror}; `penstock token create` makes one"
        ) from None
    with os.fdopen(handle, "rb" if flags == os.O_RDONLY else "r+b", buffering=-1) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidArgument(f"the token file {path} is no file")
        if found.st_mode & 0o077:
            raise InvalidArgument(
                f"others may read or write the token file {path}: run `chmod 600 {path}`, and if others have been "
                "able to write it, look at what is in it"
            )
        if found.st_uid not in (os.geteuid(), 0):
            raise InvalidArgument(f"the token file {path} belongs to somebody else: make it yours with chown")
        yield file


@contextmanager
def _locked(path: str, flags: int) -> Iterator[BinaryIO]:
    """The file, locked for one writer at a time."""
    while True:
        with _opened(path, flags) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with _opened(path, os.O_RDONLY) as now:
                if not os.path.sameopenfile(file.fileno(), now.fileno()):
                    continue  # revoke() replaced the file during the wait for the lock
            yield file
            return
