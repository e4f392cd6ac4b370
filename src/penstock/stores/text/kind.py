"""Text stores for the rest of the program."""

import os
import shlex

from penstock.contract.kinds import Kind, Options, folder_has, split
from penstock.stores.text.backend import SUFFIX, TextBackend, open_text


class TextKind(Kind):
    """`text:DIR`, or one file `NAME.tq`."""

    name = "text"

    def open(self, url: str, options: Options) -> TextBackend:
        return open_text(url, clock=options.clock, sync=options.sync)

    def exists(self, url: str) -> bool:
        _, path = split(url)
        if path.endswith(SUFFIX):
            return _leads_somewhere(path)
        return not path or folder_has(
            path, lambda entry: entry.name.endswith(SUFFIX) and os.path.isfile(entry.path)
        )

    def how_to_make(self, url: str) -> str:
        _, path = split(url)
        if not path.endswith(SUFFIX):
            return super().how_to_make(url)
        folder = os.path.dirname(path) or "."
        first = "" if os.path.isdir(folder) else f"mkdir -p {shlex.quote(folder)} && "
        return f"{first}touch {shlex.quote(path)}"

    def how_to_copy(self, url: str) -> str:
        _, path = split(url)
        return copied_by_hand(url, f"{url}*" if path.endswith(SUFFIX) else os.path.abspath(path))


def copied_by_hand(url: str, files: str) -> str:
    """How a person copies a store that no process owns."""
    return (
        f"store {url!r} has no journals: its files are copied while nobody uses it. Stop those who do, "
        f"then `cp -a {files} DEST` (which keeps extended attributes and times; rsync needs -aX)"
    )


def _leads_somewhere(path: str) -> bool:
    """Whether there is a file, or a link to one; what cannot be looked at may be there."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


KIND = TextKind()
