"""The columns of the files that a load reads, looked up without Spark: a wrong name costs no start of Spark.

Only what is certain is said. Where Spark could find other columns than this module (its own options, partitions in
folders' names, files beyond the first bytes), the answer is None, and Spark decides.
"""

import csv
import glob
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidArgument

_MOST = 8 << 20  # bytes of JSON that are read
_FILES = 100
_CSV = {"header", "sep", "inferschema"}  # options that are understood here
_COMPRESSED = (".bz2", ".zst", ".snappy", ".lz4", ".deflate")  # not read here
_UNSURE = "{}\\^"  # of a pattern: Hadoop's patterns and Python's differ in these


def columns_of(source: str, kind: str, options: Mapping[str, str]) -> list[str] | None:
    """The columns that Spark will find in the files of a source; None if that is not certain.

    InvalidArgument if there are no files.
    """
    files = _files(source)
    given = {name.lower(): value for name, value in options.items()}
    if not files or len(files) > _FILES or (given and not (kind == "csv" and given.keys() <= _CSV)):
        return None
    try:
        if kind == "json":
            return _json(files)
        found = [_columns(each, kind, given) for each in files if each.stat().st_size]
    except (OSError, ValueError):  # damaged, or not of this format: Spark says so
        return None
    return found[0] if found and all(each == found[0] for each in found) else None


def _files(source: str) -> list[Path] | None:
    """The files of this machine that a source names; None if other places or folders in folders are meant."""
    parts = urlsplit(source)
    if "://" in source or parts.scheme == "file":
        if parts.scheme != "file":
            return None
        source = unquote(parts.path)
    if any(letter in source for letter in _UNSURE):
        return None
    named = [Path(each) for each in sorted(glob.glob(source))]
    if not named:
        raise InvalidArgument(f"there is no file {source!r}")
    found = []
    for each in named:
        inside = sorted(each.iterdir()) if each.is_dir() else [each]
        shown = [path for path in inside if path is each or not path.name.startswith(("_", "."))]
        if any(path.is_dir() for path in shown):
            return None
        found += shown
    if not found:
        raise InvalidArgument(f"there are no files in {source!r}")
    return found


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    if path.suffix in _COMPRESSED:
        raise ValueError(path)
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _columns(path: Path, kind: str, options: Mapping[str, str]) -> list[str] | None:
    if kind == "text":
        return ["value"]
    if kind == "parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_schema(path).names)
    if kind == "orc":
        import pyarrow.orc

        return list(pyarrow.orc.ORCFile(path).schema.names)
    return _csv(path, options) if kind == "csv" else None


def _csv(path: Path, options: Mapping[str, str]) -> list[str] | None:
    separator = options.get("sep", ",")
    if options.get("header", "").lower() != "true" or len(separator) != 1:
        return None
    with _opened(path) as file:
        first = next((line for line in file if line.strip()), b"").decode("utf-8-sig").rstrip("\r\n")
    if first.count('"') % 2:
        return None
    names = next(csv.reader([first], delimiter=separator), [])
    sure = all(names) and len({name.lower() for name in names}) == len(names)
    return names if sure else None  # Spark gives names of its own otherwise


def _json(files: Sequence[Path]) -> list[str] | None:
    """The names in all lines, as Spark infers them; None if that is too much to read."""
    names: dict[str, Any] = {}
    left = _MOST
    for path in files:
        with _opened(path) as file:
            for line in file:
                left -= len(line)
                row = json.loads(line) if line.strip() else {}
                if left < 0 or not isinstance(row, dict):
                    return None
                names.update(row)
    return sorted(names) if names else None
