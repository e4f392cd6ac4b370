"""What a checkpoint of Spark says, on a disk that this process sees.

metadata      {"id": the query's}
offsets/N     of batch N: a version, a line of JSON about it, and for each source a line with its end
commits/N     batch N is done
"""

import json
import os
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidArgument, NotSupported
from penstock.spark.streaming.offsets import BatchName, batch_of


def folder_of(checkpoint: str | os.PathLike[str]) -> str:
    """The folder of a checkpoint; NotSupported if it is elsewhere."""
    text = os.fspath(checkpoint)
    parts = urlsplit(text)
    if parts.scheme in ("", "file"):
        return unquote(parts.path) if parts.scheme else text
    raise NotSupported(
        f"checkpoint {text!r} is not on a disk of this machine: only such a one can be looked into. The next "
        "start of the query settles what it has committed"
    )


def query_id(checkpoint: str | os.PathLike[str]) -> str:
    """The id of the query whose checkpoint this is."""
    path = os.path.join(folder_of(checkpoint), "metadata")
    try:
        with open(path) as file:
            return str(json.load(file)["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidArgument(f"there is no query in checkpoint {os.fspath(checkpoint)!r}: {error}") from None


def committed(checkpoint: str | os.PathLike[str]) -> list[BatchName]:
    """The batches of streams up to which a query has committed, one of each source that consumes."""
    folder = folder_of(checkpoint)
    if not os.path.isdir(os.path.join(folder, "offsets")):
        raise InvalidArgument(f"{os.fspath(checkpoint)!r} is no checkpoint of a query: it has no offsets")
    done = _numbers(os.path.join(folder, "commits"))
    if not done:
        return []
    path = os.path.join(folder, "offsets", str(max(done)))
    try:
        with open(path) as file:
            lines = file.read().splitlines()[1:]
    except FileNotFoundError:
        raise InvalidArgument(
            f"{path!r} is missing, of a batch that was committed: is that a checkpoint?"
        ) from None
    found: list[BatchName] = []
    for line in lines:
        with suppress(ValueError):  # of another kind of source
            found += _batches(json.loads(line))
    return list(dict.fromkeys(found))


def _batches(value: Any) -> list[BatchName]:
    """The batches in a line, in which offsets may be texts or be named."""
    if isinstance(value, str):
        try:
            return _batches(json.loads(value)) if value.startswith("{") else []
        except ValueError:
            return []
    if not isinstance(value, dict):
        return []
    if (batch := batch_of(value)) is not None:
        return [batch]
    return [batch for each in value.values() for batch in _batches(each)]


def _numbers(folder: str) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(name) for name in os.listdir(folder) if name.isascii() and name.isdigit()]
    return []
