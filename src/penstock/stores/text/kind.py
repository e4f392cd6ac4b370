"""The plug-in of text stores for `contract/kinds.py`: URLs, opening, tables, doctor, advice."""

import os
import shlex
from collections.abc import Iterator
from typing import Any

from penstock.contract.dumps import Piece
from penstock.contract.examination import Examination
from penstock.contract.kinds import Kind, Options, folder_has, split
from penstock.contract.tables import Tables
from penstock.engine.unowned import copied_by_hand
from penstock.stores.text.backend import TextBackend, open_text
from penstock.stores.text.catalog import is_text_file, path_of, queue_of, stem_of


class TextKind(Kind):
    """`text:DIR`, or one file `NAME.tq`."""

    name = "text"
    format_version = 1
    has_tables = True

    def open(self, url: str, options: Options) -> TextBackend:
        return open_text(url, clock=options.clock, sync=options.sync)

    def exists(self, url: str) -> bool:
        path = path_of(url)
        if is_text_file(path):
            return _may_exist(path)
        return not path or folder_has(path, lambda entry: is_text_file(entry.name) and os.path.isfile(entry.path))

    def place(self, url: str) -> str:
        place = self.absolute(url)
        return place.removeprefix("text:") if is_text_file(place) else place

    def only_queue(self, url: str) -> str | None:
        _, path = split(url)
        file = os.path.basename(path)
        return (queue_of(file) or stem_of(file)) if is_text_file(file) else None

    def tables(self, url: str) -> Tables:
        from penstock.stores.text.tables import TextTables

        return TextTables()

    def dump(self, url: str, dialect: Any) -> Iterator[Piece]:
        from penstock.stores.text.dumping import dump

        return dump(split(url)[1])

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.text.doctor import examine  # here, as opening needs none of it

        return examine(url)

    def how_to_make(self, url: str) -> str:
        _, path = split(url)
        if not is_text_file(path):
            return super().how_to_make(url)
        folder = os.path.dirname(path) or "."
        first = "" if os.path.isdir(folder) else f"mkdir -p {shlex.quote(folder)} && "
        return f"{first}touch {shlex.quote(path)}"

    def how_to_copy(self, url: str) -> str:
        _, path = split(url)
        return copied_by_hand(url, f"{url}*" if is_text_file(path) else os.path.abspath(path))


def _may_exist(path: str) -> bool:
    """Whether a path exists; True if its status cannot be read."""
    try:
        os.stat(path)
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


KIND = TextKind()
