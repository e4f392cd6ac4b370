"""The store kind `journal:DIR`: how to open, read, pack, examine and back up a journal store."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from penstock.contract.dumps import Piece
from penstock.contract.examination import Examination
from penstock.contract.kinds import Copy, Kind, Options, folder_has, names_in, split
from penstock.contract.tables import Packer, Tables
from penstock.errors import InvalidArgument, StoreLocked
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.format import Dialect, check_dialect
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.journal.strays import USUAL
from penstock.system.clock import SystemClock
from penstock.system.files import SystemDisk

_OPTION = re.compile(r"(.*)\?([a-z]+)=([^/?]*)", re.DOTALL)


class Address(NamedTuple):
    """The parsed URL of a journal store."""

    folder: str
    dialect: Dialect | None  # None: the URL does not say


def parse(url: str) -> Address:
    """Parse a path or `journal:DIR`, perhaps with `?dialect=2.x`."""
    _, folder = split(url)
    dialect = None
    matched = _OPTION.fullmatch(folder)
    if matched is not None and matched[2] == "dialect":
        folder, dialect = matched[1], check_dialect(matched[3])
    elif matched is not None and folder != url:  # a plain path is a name of the file system
        raise InvalidArgument(
            f"store {url!r}: there is no option {matched[2]!r}, only dialect, as in journal:DIR?dialect=2.x (a "
            "folder of that name can be written as a plain path)"
        )
    if not folder:
        raise InvalidArgument("journal: without a folder; give journal:DIR, or just the folder")
    return Address(folder, dialect)


def folder_of(url: str) -> str:
    """The folder in the URL of a journal store."""
    return parse(url).folder


def dialect_of(url: str) -> Dialect:
    """The dialect of a journal store that is read without being opened."""
    return parse(url).dialect or "doc"


class JournalKind(Kind):
    """`journal:DIR`, or a plain path."""

    name = "journal"
    format_version = 1
    owned = True
    has_tables = True
    has_streams = True

    def check(self, url: str, options: Options) -> None:
        super().check(url, options)
        given, named = check_dialect(options.dialect), parse(url).dialect
        if named is not None and given not in ("doc", named):
            raise InvalidArgument(f"store {url!r}: its dialect is {named!r}, and dialect={given!r}: leave one out")

    def open(self, url: str, options: Options) -> JournalBackend:
        return self._open(url, options, lambda: None)

    def open_owned(self, url: str, options: Options, locked: Callable[[], None]) -> JournalBackend:
        backend = self._open(self.absolute(url), options, locked)
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
        return not split(url)[1] or folder_has(folder_of(url), _is_of_store)

    def absolute(self, url: str) -> str:
        folder, dialect = parse(url)
        folder = os.path.abspath(folder)
        return folder if dialect is None else f"journal:{folder}?dialect={dialect}"

    def place(self, url: str) -> str:
        return os.path.abspath(folder_of(url))

    def tables(self, url: str) -> Tables:
        from penstock.stores.journal.tables import JournalTables

        return JournalTables()

    def packer(self, url: str) -> Packer:
        from penstock.stores.journal.packer import JournalPacker

        return JournalPacker()

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.journal.doctor import examine

        return examine(folder_of(url), dialect=dialect_of(url))

    def dump(self, url: str, dialect: Any) -> Iterator[Piece]:
        from penstock.stores.journal.dumping import dump

        return dump(split(url)[1], dialect)

    def backup(self, url: str, dest: str, verify: bool, progress: Callable[[int, int], object] | None) -> Copy:
        from penstock.stores.journal.backup import backup

        made = backup(url, dest, verify=verify, progress=progress)
        return Copy(sum(each.bytes for each in made), [asdict(each) for each in made])

    def _open(self, url: str, options: Options, locked: Callable[[], None]) -> JournalBackend:
        folder, dialect = parse(url)
        return open_journal(
            folder,
            clock=options.clock or SystemClock(),
            sync=options.sync,
            dialect=dialect or options.dialect,
            locked=locked,
        )


def _is_of_store(entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder belongs to a journal store."""
    if entry.name == ".penstock":
        return "queues" in names_in(entry.path)
    # It may be a journal of Kestrel: opening the store decides.
    return entry.name not in USUAL and os.path.isfile(entry.path) and os.path.getsize(entry.path) > 0


KIND = JournalKind()
