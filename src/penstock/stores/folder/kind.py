"""The plug-in of folder stores for `contract/kinds.py`: URLs, opening, tables, doctor, advice."""

import os
from contextlib import AbstractContextManager
from typing import Any

from penstock.contract.examination import Examination
from penstock.contract.kinds import Kind, Options, folder_has, split
from penstock.contract.tables import Tables
from penstock.engine.unowned import copied_by_hand
from penstock.stores.folder.backend import FolderBackend, open_folder


class FolderKind(Kind):
    """`folder:DIR`."""

    name = "folder"
    format_version = 1
    has_tables = True

    def check(self, url: str, options: Options) -> None:
        """Every option is allowed, `peers` too."""

    def open(self, url: str, options: Options) -> FolderBackend:
        return open_folder(split(url)[1], clock=options.clock, sync=options.sync, peers=options.peers)

    def exists(self, url: str) -> bool:
        _, folder = split(url)
        return not folder or folder_has(folder, lambda entry: entry.name in ("queues", "new") and entry.is_dir())

    def tended(self, backend: Any) -> AbstractContextManager[None]:
        from penstock.stores.folder.daemons import tended

        return tended(backend)

    def tables(self, url: str) -> Tables:
        from penstock.stores.unowned import UnownedTables

        return UnownedTables()

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.folder.doctor import examine  # here, as opening needs none of it

        return examine(split(url)[1])

    def how_to_copy(self, url: str) -> str:
        return copied_by_hand(url, os.path.abspath(split(url)[1]))


KIND = FolderKind()
