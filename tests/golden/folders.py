"""Folders of stores: readable dumps of their files, and archives."""

import asyncio
import os
import re
import shutil
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.golden.expectations import compare
from tests.golden.normaliser import Normaliser

_XATTR = "SCHILY.xattr."  # as GNU tar has them
_CHANGED = "PENSTOCK.mtime_ns"
_UNSTABLE = [
    (re.compile(r"\(\d+ bytes\)\npid \d+\n"), "\npid <number>\n"),
    (re.compile(r"(?m)^(penstock mutex 1) \d{20} (\d{20}) \d{20}$"), r"\1 <inode> \2 <changed>"),
    (re.compile(r'(?m)^[0-9a-f]{8} ({"at":\d+,"keys")'), r"<sum> \1"),  # of ids that have the process in them
]


def compare_files(name: str, folder: Path) -> None:
    """Compare the files of a store with what is expected; of a slate store, its rows and large payloads."""
    store = folder / "store"
    if not (store / "db").exists():
        compare_lines(name, dump(store), folder)
        return
    copied = folder / "copy"  # SlateDB writes to the folder when it reads it
    shutil.copytree(store, copied)
    compare_lines(name, [*rows(copied), "", "== objects", *dump(store / "objects")], folder)


def compare_lines(name: str, lines: list[str], folder: Path) -> None:
    """Compare lines about a store in a folder with what is expected."""
    text = "\n".join(lines).lstrip("\n") + "\n"
    for pattern, stable in _UNSTABLE:
        text = pattern.sub(stable, text)
    compare(name, Normaliser(folder=str(folder))(text))


def dump(folder: Path) -> list[str]:
    """Every file with its extended attributes: text as it is, other bytes in hexadecimal."""
    lines: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            lines += ["", f"== {path.relative_to(folder)}/"] if not any(path.iterdir()) else []
            continue
        content = path.read_bytes()
        lines += ["", f"== {path.relative_to(folder)} ({len(content)} bytes)"]
        lines += [f"@ {name} {os.getxattr(path, name).decode()}" for name in sorted(os.listxattr(path))]
        lines += _shown(content)
    return lines


def _shown(content: bytes) -> list[str]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(each.isprintable() or each == "\n" for each in text):
        lines = text.split("\n")
        shown = [line if len(line) <= 2000 else f"{line[:60]}... ({len(line)} characters)" for line in lines]
        return [*shown[:-1], *([f"{shown[-1]} (no newline)"] if shown[-1] else [])]
    return hexadecimal(content)


def hexadecimal(content: bytes) -> list[str]:
    """A dump of sixteen bytes a line; * stands for lines that repeat the line three before them."""
    lines: list[str] = []
    rows = [content[at : at + 16] for at in range(0, len(content), 16)]
    for number, row in enumerate(rows):
        if number > 3 and row == rows[number - 3] and number + 1 < len(rows):
            lines += ["*"] if lines[-1] != "*" else []
            continue
        text = "".join(chr(each) if 32 <= each <= 126 else "." for each in row)
        lines.append(f"{number * 16:06x}  {row.hex(' '):47}  {text}")
    return lines


def rows(folder: Path) -> list[str]:
    """The rows of a slate store, read by SlateDB alone."""
    from slatedb.uniffi._slatedb_uniffi import slatedb

    async def read() -> list[Any]:
        builder = slatedb.ObjectStoreBuilder(slatedb.ObjectStoreType.LOCAL)
        builder.with_config("local_path", str(folder))
        reader = await slatedb.DbReaderBuilder("db", builder.build()).build()
        everything = slatedb.KeyRange(start=b"\x00", start_inclusive=True, end=b"\xff", end_inclusive=True)
        iterator, found = await reader.scan(everything), []
        while batch := await iterator.next_batch(1000):
            found += [(row.key, row.value) for row in batch]
        await reader.shutdown()
        return found

    lines = []
    for key, value in asyncio.run(read()):
        lines += [f"{_readable(key)}", f"    {_readable(value)}".rstrip()]
    return lines


def _readable(data: bytes) -> str:
    parts = re.split(rb"([ -~]{4,})", data)
    shown = (f"'{part.decode()}'" if at % 2 else part.hex(" ") for at, part in enumerate(parts))
    return " ".join(filter(None, shown))


def pack(folder: Path) -> bytes:
    """A folder as one file, with attributes and times."""
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if not (path.is_file() or path.is_dir()):
                continue  # a socket
            member = archive.gettarinfo(path, str(path.relative_to(folder)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(member.mtime)
            values = ((name, os.getxattr(path, name).decode()) for name in os.listxattr(path))
            member.pax_headers = {_XATTR + name: value.replace(str(folder), "/data") for name, value in values}
            member.pax_headers[_CHANGED] = str(path.stat().st_mtime_ns)
            archive.addfile(member, BytesIO(path.read_bytes()) if path.is_file() else None)
    return made.getvalue()


def unpack(packed: Path, folder: Path) -> None:
    """Extract an archive of pack() into a new folder."""
    folder.mkdir()
    with tarfile.open(packed) as archive:
        members = archive.getmembers()
        archive.extractall(folder, filter="tar")
    for member in members:
        path = folder / member.name
        for name, value in member.pax_headers.items():
            if name.startswith(_XATTR):
                os.setxattr(path, name.removeprefix(_XATTR), value.encode())
        changed = int(member.pax_headers[_CHANGED])
        os.utime(path, ns=(changed, changed))
