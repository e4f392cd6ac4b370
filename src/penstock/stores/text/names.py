"""Queue names and the files they are kept in. Pure.

A file is named after its queue, percent-encoded. A name that is too long for that, or that some file system would
take for another's, gets a name of its own with `%_` in it, and the file itself says which queue it is.
"""

from collections.abc import Iterable

from penstock.contract import names

SUFFIX = ".tq"
_LONGEST = 200
CHOSEN = "%_"  # no encoded name has a % that no two digits follow


def file_for(queue: str, taken: Iterable[str]) -> str:
    """A file name for a new queue, on any file system unlike those that are taken."""
    folded = {file.casefold() for file in taken}
    encoded = names.file_name(queue)
    if len(encoded) <= _LONGEST and (encoded + SUFFIX).casefold() not in folded:
        return encoded + SUFFIX
    number = 2
    while (short := f"{encoded[:150]}{CHOSEN}{number}{SUFFIX}").casefold() in folded:
        number += 1
    return short


def queue_of(file: str) -> str | None:
    """The queue that a file is named after; None if it was named otherwise."""
    stem = file.removesuffix(SUFFIX)
    if CHOSEN in stem:
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
