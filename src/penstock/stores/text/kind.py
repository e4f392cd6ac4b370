"""The plug-in of text stores for `contract/kinds.py`: URLs, opening, tables, doctor, advice."""

import os
import shlex
from typing import Any

from penstock.contract.examination import Examination
from penstock.contract.kinds import Kind, Options, folder_has, split
from penstock.contract.tables import Tables
from penstock.engine.unowned import copied_by_hand
from penstock.stores.text.backend import TextBackend, open_text
from penstock.stores.text.catalog import SUFFIX, queue_of


class TextKind(Kind):
    """`text:DIR`, or one file `NAME.tq`."""

    name = "text"
    format_version = 1
    has_tables = True

    def open(self, url: str, options: Options) -> TextBackend:
        return open_text(url, clock=options.clock, sync=options.sync)

    def exists(self, url: str) -> bool:
        _, path = split(url)
        if path.endswith(SUFFIX):
            return _may_exist(path)
        return not path or folder_has(
            path, lambda entry: entry.name.endswith(SUFFIX) and os.path.isfile(entry.path)
        )

    def place(self, url: str) -> str:
        place = self.absolute(url)
        return place.removeprefix("text:") if place.endswith(SUFFIX) else place

    def only_queue(self, url: str) -> str | None:
        _, path = split(url)
        file = os.path.basename(path)
        return (queue_of(file) or file.removesuffix(SUFFIX)) if file.endswith(SUFFIX) else None

    def tables(self, url: str) -> Tables:
        from penstock.stores.text.tables import TextTables

        return TextTables()

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.text.doctor import examine  # here, as opening needs none of it

        return examine(url)

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


def _may_exist(path: str) -> bool:
    """Whether a path exists; True if its status cannot be read."""
    try:
        os.stat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


KIND = TextKind()
