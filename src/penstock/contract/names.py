"""Queue names: checks, and file names made from them."""

import re
from collections.abc import Iterable

from penstock.contract.refusals import protected
from penstock.errors import InvalidName

DEFAULT = "default"
CHOSEN = "%_"  # marks a shortened file name; an encoded name has two digits after each %
_LEGAL = re.compile(r"[!-~]{1,255}")


def checked(name: str) -> str:
    """The name, or `default` for the empty name; InvalidName for an illegal name."""
    if not isinstance(name, str):
        raise TypeError(f"a queue name is a str, not {type(name).__name__}")
    if name == "":
        return DEFAULT
    if _LEGAL.fullmatch(name):
        return name
    if len(name) > 255:
        raise InvalidName(f"queue name {name[:20]!r}... has {len(name)} characters; the most is 255")
    at, letter = next((at, letter) for at, letter in enumerate(name) if not "!" <= letter <= "~")
    raise InvalidName(
        f"queue name {name!r} has {letter!r} at position {at}; names are 1 to 255 visible ASCII "
        "characters (codes 33 to 126), without spaces"
    )


def is_legal(name: str) -> bool:
    """Whether a queue can have that name."""
    return _LEGAL.fullmatch(name) is not None


def meant(name: str, backend: object) -> str:
    """The queue that a name means in a store: in a store with one queue, `default` is that queue."""
    name = checked(name)
    return str(getattr(backend, "only", name)) if name == DEFAULT else name


def deletable(name: str) -> str:
    """The checked name of a queue to delete; QueueProtected for `default`."""
    name = checked(name)
    if name == DEFAULT:
        raise protected(name)
    return name


def file_name(name: str) -> str:
    """A queue's name as a file name, percent-encoded except for letters, digits, `_` and `-`."""
    return "".join(letter if letter.isalnum() or letter in "_-" else f"%{ord(letter):02X}" for letter in name)


def new_file(name: str, taken: Iterable[str], longest: int, first: int, suffix: str = "") -> str:
    """A file name for a new queue, distinct from those taken even if case is ignored.

    A name that is too long or taken is shortened and numbered, from `first` on.
    """
    folded = {file.casefold() for file in taken}
    encoded = file_name(name)
    if len(encoded) <= longest and (encoded + suffix).casefold() not in folded:
        return encoded + suffix
    number = first
    while (short := f"{encoded[:150]}{CHOSEN}{number}{suffix}").casefold() in folded:
        number += 1
    return short
