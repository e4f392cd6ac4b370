"""The slate kind: what the program can do with a `slate:` URL, without loading SlateDB before it is needed."""

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from penstock.contract.backend import Backend
from penstock.contract.dumps import Piece
from penstock.contract.examination import Examination
from penstock.contract.kinds import Copy, Kind, Options, folder_has, names_in, split
from penstock.contract.tables import Packer, Tables
from penstock.stores.slate.format import VERSION


class SlateKind(Kind):
    """`slate:DIR` or `slate:s3://bucket/prefix`. Methods import late, as those modules load SlateDB."""

    name = "slate"
    format_version = VERSION
    owned = True
    fenced = True
    has_tables = True
    has_streams = True
    has_log = True

    def open(self, url: str, options: Options) -> Backend:
        from penstock.stores.slate.store import open_slate

        return open_slate(url, clock=options.clock, sync=options.sync, timeout=options.timeout)

    def open_owned(self, url: str, options: Options, locked: Callable[[], None]) -> Any:
        from penstock.stores.slate.store import open_slate

        shared, clock, sync, timeout = self.meeting_folder(url), options.clock, options.sync, options.timeout
        return open_slate(url, clock=clock, sync=sync, timeout=timeout, shared=shared, locked=locked)

    def meeting_folder(self, url: str) -> str:
        where = _where(url)
        if "://" not in where:
            return os.path.abspath(where)
        ours = os.path.join(tempfile.gettempdir(), f"penstock-{os.geteuid()}")
        with suppress(FileExistsError):
            os.mkdir(ours, 0o700)
        if os.stat(ours, follow_symlinks=False).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder belongs to another user", ours)
        path = os.path.join(ours, hashlib.sha256(where.encode()).hexdigest()[:32])
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def check_guest(self, url: str, backend: Backend) -> None:
        from penstock.stores.owner_operations import SlateOwner
        from penstock.stores.slate.place import parse
        from penstock.stores.slate.recovery import check_asked

        found = SlateOwner(backend.run).instance()
        check_asked(parse(url).instance, set() if found is None else {found})

    def exists(self, url: str) -> bool:
        where = _where(url)
        if "://" not in where:
            return not where or folder_has(where, _is_database)
        from penstock.stores.slate import snapshot

        return snapshot.exists(url)

    def tables(self, url: str) -> Tables:
        from penstock.stores.slate.tables import SlateTables

        return SlateTables()

    def packer(self, url: str) -> Packer:
        from penstock.stores.slate.packer import SlatePacker

        return SlatePacker()

    def examine(self, url: str) -> Examination[Any]:
        from penstock.stores.slate.doctor import examine

        return examine(url)

    def dump(self, url: str, dialect: Any) -> Iterator[Piece]:
        from penstock.stores.slate.doctor import pieces

        return pieces(url)

    def backup(self, url: str, dest: str, verify: bool, progress: Callable[[int, int], object] | None) -> Copy:
        from penstock.stores.slate.backups import backup

        copied = backup(url, dest, verify=verify, progress=progress)
        return Copy(copied.bytes, [{"queue": name, "counts": counts} for name, counts in copied.queues.items()])


def _where(url: str) -> str:
    """The folder, or the URL of the bucket."""
    return split(url)[1].partition("?")[0]


def _is_database(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is the database of a slate store."""
    return entry.name == "db" and any(
        name.endswith(ending)
        for folder, ending in (("manifest", ".manifest"), ("wal", ".sst"))
        for name in names_in(f"{entry.path}/{folder}")
    )


KIND = SlateKind()
