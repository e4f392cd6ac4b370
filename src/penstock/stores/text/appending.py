"""How entries come to the end of a file so that nobody, at no moment and after no crash, sees half of one."""

from collections.abc import Sequence
from itertools import accumulate

from penstock.stores.text.format import QUEUED
from penstock.system.files import File

BORN = QUEUED.encode()


def append_unborn(
    file: File, entries: Sequence[bytes], sync: bool = True, end: int | None = None, newline: bytes = b"\n"
) -> list[int]:
    """Durably add entries that are commented out; where each starts. Until they are born they are comments.

    `end` is where the file ended, if that is known, and known to be after a newline. Other programs may append at
    any moment, so the first entry may start further on. `newline` is what lines of the file end with.
    """
    if end is None and (size := file.size()) and file.read(size - 1, 1) != b"\n":
        # Synced before anything else is written: a torn write must not lengthen a message that lacks its newline.
        file.append(newline, sync=sync)
    data = b"".join(entries)
    start = file.append(data, sync=sync)
    if start not in (0, end) and file.read(start - 1, 1) != b"\n":
        # Another program has just added a line that lacks its newline: end that line, and begin again after it.
        file.write_through(start, (newline + b"#").ljust(len(data) - len(newline), b"#") + newline)
        return append_unborn(file, entries, sync, newline=newline)
    return list(accumulate(map(len, entries[:-1]), initial=start))


def bear(file: File, offsets: Sequence[int], sync: bool = True, controls: str = "") -> None:
    """Durably uncomment entries, or give them other control characters: one byte each."""
    if sync and len(offsets) == 1:
        file.write_through(offsets[0], controls.encode() or BORN)
        return
    for offset, control in zip(offsets, controls or QUEUED * len(offsets), strict=True):
        file.write(offset, control.encode())
    if sync:
        file.sync()
