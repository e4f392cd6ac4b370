"""The files of a text store: which queue each is, and which are none."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from penstock.contract import names
from penstock.stores.text.format import parse
from penstock.stores.text.variables import read_head
from penstock.system.files import Disk, status_if_there, unavailable

SUFFIX = ".tq"
_STRAY = (errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM, errno.ELOOP)  # errors of files that are no queues


def files_of_queues(folder: str, disk: Disk, skip: Callable[[str, OSError], object]) -> dict[str, str]:
    """The names of all queues, and the path of each; `skip` is told of files that are none, or may not be read."""
    found: dict[str, str] = {}
    with errors_of_the_disk(folder):
        files = sorted(disk.listdir(folder))
    for file in files:
        if not is_text_file(file) or not stem_of(file):
            continue
        path = os.path.join(folder, file)
        name = queue_of(file)
        try:
            if not has_file(path, disk):
                continue  # just removed, or a dangling link
            disk.real(path)
            if name is None:
                name = _said_name(path, disk) or stem_of(file)[:255]
        except OSError as error:
            if error.errno not in _STRAY:  # it may be a queue
                raise unavailable(path, error) from error
            skip(path, error)
            continue
        found.setdefault(name, path)
    return found


def path_of(url: str) -> str:
    """The path in a URL. `x/../jobs.tq` is jobs.tq also where there is no folder x."""
    path = url[len("text:") :] if url[:5].lower() == "text:" else url
    if os.pardir not in path.split(os.sep):
        return path
    folder, file = os.path.split(path)
    return os.path.join(os.path.realpath(folder), file)


def is_text_file(path: str) -> bool:
    """Whether a path is that of a queue's file, by its ending in either case."""
    return path.lower().endswith(SUFFIX)


def stem_of(file: str) -> str:
    """A file name without its ending."""
    return file[: -len(SUFFIX)]


def has_file(path: str, disk: Disk) -> bool:
    """Whether a path is a file, or a link to one; OSError if it is a folder, a pipe or a device."""
    there = status_if_there(disk, path)
    if there is not None and (there.is_folder or not there.is_file):
        raise OSError(errno.EISDIR if there.is_folder else errno.ENXIO, "", path)
    return there is not None


def _said_name(path: str, disk: Disk) -> str | None:
    with suppress(FileNotFoundError), disk.open(path, follow=True) as file:
        return read_head(parse(file.read(0, 100_000)).entries)[1]
    return None


def queue_of(file: str) -> str | None:
    """The queue of a file name; None if the name is in the file."""
    stem = stem_of(file)
    if names.CHOSEN in stem:
        return None
    decoded, at = "", 0
    while at < len(stem):
        digits = stem[at + 1 : at + 3]
        if stem[at] == "%" and len(digits) == 2 and all(digit in "0123456789ABCDEFabcdef" for digit in digits):
            decoded, at = decoded + chr(int(digits, 16)), at + 3
        else:
            decoded, at = decoded + stem[at], at + 1
    legal = decoded.isascii() and decoded.isprintable() and " " not in decoded and 0 < len(decoded) <= 255
    return (
        decoded if legal else "".join(each if "!" <= each <= "~" else f"%{ord(each):02X}" for each in stem)[:255]
    )


@contextmanager
def errors_of_the_disk(path: str) -> Iterator[None]:
    """Turn errors of the disk into StoreUnavailable; FileNotFoundError stays."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unavailable(path, error) from error
