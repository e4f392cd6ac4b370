"""How entries come to the end of a file so that nobody, at no moment and after no crash, sees half of one."""

from collections.abc import Sequence

from penstock.files import File
from penstock.text.format import COMMENT, QUEUED

UNBORN, BORN = COMMENT.encode(), QUEUED.encode()


def append_unborn(file: File, entries: Sequence[bytes], sync: bool = True, end: int | None = None) -> list[int]:
    """Durably add entries that are commented out; where each starts. Until they are born they are comments.

    `end` is where the file ends, if that is known, and known to be after a newline.
    """
    size = file.size() if end is None else end
    if end is None and size and file.read(size - 1, 1) != b"\n":
        # Synced before anything else is written: a torn write must not lengthen a message that lacks its newline.
        file.write(size, b"\n")
        if sync:
            file.sync()
        size += 1
    offsets, end = [], size
    for entry in entries:
        offsets.append(end)
        end += len(entry)
    (file.write_through if sync else file.write)(size, b"".join(entries))
    return offsets


def bear(file: File, offsets: Sequence[int], sync: bool = True) -> None:
    """Durably uncomment entries: one byte each."""
    if sync and len(offsets) == 1:
        file.write_through(offsets[0], BORN)
        return
    for offset in offsets:
        file.write(offset, BORN)
    if sync:
        file.sync()
