"""The store kind `journal:DIR`: how to open, read, pack, examine and back up a journal store."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from penstock.contract.dumps import Piece
from penstock.contract.examination import Examination
from penstock.contract.kinds import Copy, Kind, Options, folder_has, names_in, split
from penstock.contract.tables import Packer, Tables
from penstock.errors import InvalidArgument, StoreLocked
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.format import check_dialect
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.journal.strays import USUAL
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk


class JournalKind(Kind):
    """`journal:DIR`, or a plain path."""

    name = "journal"
    format_version = 1
    owned = True
    has_tables = True
    has_streams = True

    def check(self, url: str, options: Options) -> None:
        super().check(url, options)
        check_dialect(options.dialect)

    def open(self, url: str, options: Options) -> JournalBackend:
        return self._open(folder_of(url), options, lambda: None)

    def open_owned(self, url: str, options: Options, locked: Callable[[], None]) -> JournalBackend:
        backend = self._open(self.meeting_folder(url), options, locked)
        backend.keep_indexes()  # or owners that are killed one after the other replay more and more
        return backend

    def meeting_folder(self, url: str) -> str:
        return os.path.abspath(folder_of(url))

    def is_held(self, url: str) -> bool:
        catalog = Catalog(folder_of(url), SystemDisk())
        try:
            catalog.open()
        except StoreLocked:
            return True
        catalog.close()
        return False

    def exists(self, url: str) -> bool:
        _, folder = split(url)
        return not folder or folder_has(folder, _is_of_store)

    def absolute(self, url: str) -> str:
        return os.path.abspath(folder_of(url))

    def tables(self, url: str) -> Tables:
        from penstock.stores.journal.tables import JournalTables

        return JournalTables()

    def packer(self, url: str) -> Packer:
        from penstock.stores.journal.packer import JournalPacker

        return JournalPacker()

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.journal.doctor import examine

        return examine(split(url)[1])

    def dump(self, url: str, dialect: Any) -> Iterator[Piece]:
        from penstock.stores.journal.dumping import dump

        return dump(split(url)[1], dialect)

    def backup(self, url: str, dest: str, verify: bool, progress: Callable[[int, int], object] | None) -> Copy:
        from penstock.stores.journal.backup import backup

        made = backup(url, dest, verify=verify, progress=progress)
        return Copy(sum(each.bytes for each in made), [asdict(each) for each in made])

    def _open(self, folder: str, options: Options, locked: Callable[[], None]) -> JournalBackend:
        return open_journal(
            folder,
            clock=options.clock or SystemClock(),
            sync=options.sync,
            dialect=options.dialect,
            locked=locked,
        )


def folder_of(url: str) -> str:
    """The folder in the URL of a journal store."""
    _, folder = split(url)
    if not folder:
        raise InvalidArgument("journal: without a folder; give journal:DIR, or just the folder")
    return folder


def _is_of_store(entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder belongs to a journal store."""
    if entry.name == ".penstock":
        return "queues" in names_in(entry.path)
    # It may be a journal of Kestrel: opening the store decides.
    return entry.name not in USUAL and os.path.isfile(entry.path) and os.path.getsize(entry.path) > 0


KIND = JournalKind()
