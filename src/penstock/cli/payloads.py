"""Where a payload on the command line comes from: the argument itself, a file (@file), or stdin (-)."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from penstock.contract.settings import MAX_PAYLOAD


def read_payload(argument: str | None) -> bytes:
    """The payload that an argument means; without one, what is piped in.

    Nothing piped in is a mistake, as of a cron job: who wants an empty payload gives '' or -.
    """
    if argument is None:
        payload = b"" if sys.stdin is None or sys.stdin.isatty() else _read_stdin()
        if not payload:
            raise click.UsageError("no payload: give it as an argument ('' is empty), as @FILE, or pipe it in")
        return payload
    if argument == "-":
        return _read_stdin()
    if argument.startswith("@"):
        with _open(argument) as file:
            return file.read(MAX_PAYLOAD + 1)
    return os.fsencode(argument)  # the very bytes that were typed


def read_lines(argument: str | None) -> Iterator[bytes]:
    """The lines of a file (@file) or of stdin, each without its newline."""
    if argument not in (None, "-") and not argument.startswith("@"):
        raise click.UsageError("--lines reads a file (@FILE) or stdin (-), not the payload argument")
    if argument in (None, "-"):
        check_stdin()
        yield from (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        return
    with _open(argument) as file:
        yield from (line.removesuffix(b"\n") for line in file)


def check_stdin() -> None:
    """Refuse to read from a stdin that the caller has closed."""
    if sys.stdin is None:
        raise click.UsageError("stdin is closed: pipe something in, or give it as an argument")


def _read_stdin() -> bytes:
    check_stdin()
    return sys.stdin.buffer.read(MAX_PAYLOAD + 1)  # enough to be refused


def _open(argument: str) -> BinaryIO:
    try:
        return Path(argument[1:]).open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {argument[1:]!r}: {error.strerror}") from error
