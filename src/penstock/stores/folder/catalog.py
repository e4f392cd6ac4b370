"""The catalog of a folder store: its queues, each a folder and a settings file; creation, change and deletion.

A folder in `queues/` that a person made is a queue with default settings. A queue is deleted once its settings
file says so; if the process dies before it has removed the queue's files, the next process removes them.
"""

import errno
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.contract import names
from penstock.contract.settings import Settings
from penstock.errors import InvalidName, PenstockError, StoreCorrupt, StoreUnavailable
from penstock.stores.folder.layout import (
    DELAY,
    DONE,
    FAILED,
    KEPT,
    KEYS,
    LOCKS,
    LONGEST,
    NEW,
    QUEUES,
    REMOVE,
    SETTINGS,
    is_file_of,
    queue_name,
)
from penstock.stores.folder.shared import FolderWatch, Shared
from penstock.stores.folder.tree import is_full, read_json, read_text
from penstock.system.files import replace_file, unavailable

_ALL = "%"  # no queue's file name


@dataclass(frozen=True)
class Listed:
    """A queue as it is on disk."""

    name: str
    file: str
    settings: Settings
    made: str  # a random id: differs from that of an earlier queue of the same name
    deleted: bool = False


class Catalog:
    """The queues of a store on disk. One process at a time may change them."""

    def __init__(self, shared: Shared) -> None:
        self._tree = shared.tree
        self._mutex = shared.threads.lock()
        self._settings, self._folders = FolderWatch(shared, SETTINGS), FolderWatch(shared, QUEUES)
        self.refused: dict[str, PenstockError] = {}  # the errors of queues that cannot be used, by name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for making, changing and deleting queues."""
        with self._mutex, self._tree.disk.open(self._tree.path(f"{LOCKS}/{_ALL}"), create=True) as file:
            file.lock(wait=True)
            yield

    def changed(self, eager: bool = False) -> bool:
        """Whether the folders of the catalog were listed again, so that queues may differ."""
        return any([self._settings.look(eager), self._folders.look(eager)])

    def read(self) -> dict[str, Listed]:
        """Every queue by name, deleted ones included; queues that cannot be used are in `refused`."""
        found: dict[str, Listed] = {}
        self.refused = {}
        files = set()
        for file in sorted(self._tree.names(SETTINGS)):
            if file.endswith(".new") or file.startswith("."):
                continue
            try:
                listed = self._read(file)
            except (StoreCorrupt, StoreUnavailable) as error:
                if not any(self._tree.kind(f"{each}/{file}") for each in (QUEUES, KEPT)):
                    self._tree.skip(self._tree.path(f"{SETTINGS}/{file}"), "it is not the settings of a queue")
                    continue
                files.add(file)
                self._refuse(file, error)
                continue
            if listed is not None:
                files.add(file)
                found[listed.name] = listed
        for file in self._tree.names(QUEUES):
            if file in files or file.startswith("."):
                continue
            path, name = self._tree.path(f"{QUEUES}/{file}"), queue_name(file)
            if self._tree.disk.kind(path) != "folder":
                self._tree.skip(path, "only folders are queues, and links are not followed: move it away")
            elif name is None:
                self._tree.skip(path, _why_no_queue(file))
            elif (missing := self._missing_settings(file)) is not None:
                self._refuse(file, missing)
            elif name not in found:
                found[name] = Listed(name, file, Settings(), "")
        return found

    def _read(self, file: str) -> Listed | None:
        path, folder = self._tree.path(f"{SETTINGS}/{file}"), self._tree.path(f"{QUEUES}/{file}")
        kind = self._tree.disk.kind(path)
        if kind is None:
            return None
        if kind != "file":
            raise unavailable(path, OSError(errno.ELOOP if kind == "link" else errno.EISDIR, ""))
        if (kind := self._tree.disk.kind(folder)) not in ("folder", None):
            raise unavailable(folder, OSError(errno.ELOOP if kind == "link" else errno.ENOTDIR, ""))
        try:
            text = read_text(self._tree.disk, path)
        except PermissionError as error:
            raise unavailable(path, error) from error
        if text is None:
            return None
        entry = read_json(text)
        try:
            if entry.pop("sum", None) not in (None, _sum(entry)):
                raise ValueError("its content is not what its line `sum` says")
            given = entry["settings"]
            if given.get("priorities") is not None:
                given["priorities"] = tuple(given["priorities"])
            name = names.checked(entry["name"])
            if not is_file_of(file, name):  # a copy of another queue's settings
                raise ValueError(f"it holds those of queue {name!r}")
            return Listed(name, file, Settings(**given), entry["made"], entry["deleted"])
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            what = "it is no JSON of settings" if isinstance(error, AttributeError) else str(error)
            raise StoreCorrupt(
                f"the settings of a queue in {path!r} are damaged ({what}): {self._remedy(file)}; if you changed "
                "them yourself, take out the line `sum`"
            ) from error

    def _missing_settings(self, file: str) -> StoreCorrupt | None:
        """The error for a queue with a second copy of its settings and no first; None if there is no second."""
        path = self._tree.path(f"{SETTINGS}/{file}")
        if self._tree.kind(f"{KEPT}/{file}") is None:
            return None
        there = (self._tree.disk.kind(each) for each in (path, self._tree.path(f"{QUEUES}/{file}")))
        if list(there) != [None, "folder"]:  # another process has just made or deleted it
            return None
        return StoreCorrupt(f"the settings of a queue in {path!r} are missing: {self._remedy(file)}")

    def _remedy(self, file: str) -> str:
        kept = self._tree.path(f"{KEPT}/{file}")
        return f"copy {kept!r} there" if self._tree.disk.exists(kept) else "write them anew, or remove the file"

    def _refuse(self, file: str, error: PenstockError) -> None:
        """Remember why a queue cannot be used, by the name in the second copy of its settings, if it has one."""
        kept = {}
        with suppress(PermissionError):  # a queue of another user
            kept = read_json(read_text(self._tree.disk, self._tree.path(f"{KEPT}/{file}")), {})
        name = kept.get("name") if isinstance(kept, dict) else None
        self.refused[name if isinstance(name, str) else queue_name(file) or file] = error
        self._tree.skip(self._tree.path(f"{QUEUES}/{file}"), str(error))

    def make(self, name: str, settings: Settings, made: str) -> Listed:
        """Make a queue of a new name; the lock is held."""
        known = [*self._tree.names(SETTINGS), *self._tree.names(QUEUES)]
        listed = Listed(name, names.new_file(name, known, LONGEST, 1), settings, made)
        path = self._tree.path(f"{SETTINGS}/{listed.file}")
        try:
            self._write(listed)  # before the folder: a folder alone would be a queue with default settings
            self.make_folder(listed)
            self._write(listed, KEPT)  # last: a second copy without the first means that the first was lost
        except OSError:
            if self._tree.disk.exists(path):  # as long as this file exists, so does the queue
                self._tree.disk.unlink(path)
                self._tree.sync(SETTINGS)
                with suppress(FileNotFoundError):
                    self._tree.disk.rmdir(self._tree.path(f"{QUEUES}/{listed.file}"))
                    self._tree.sync(QUEUES)
            raise
        return listed

    def update(self, listed: Listed, settings: Settings) -> Listed:
        """Change a queue's settings; the lock is held. On a full disk the queue keeps its old settings."""
        changed, path = replace(listed, settings=settings), self._tree.path(f"{SETTINGS}/{listed.file}")
        had_some = self._tree.disk.exists(path)
        try:
            self._write(changed)
        except OSError:
            if had_some:
                self._write(listed)
            elif self._tree.disk.exists(path):
                self._tree.disk.unlink(path)
                self._tree.sync(SETTINGS)
            raise
        try:
            self._write(changed, KEPT)
        except OSError as error:
            if not is_full(error):
                raise
        return changed

    def adopt(self) -> None:
        """Give queues that MQ-Core made unlimited attempts, as they had there; the lock is held."""
        for listed in self.read().values():
            if not listed.made and not listed.file.endswith(".new"):
                adopted = replace(listed, settings=Settings(max_attempts=0), made="mq-core")
                self._write(adopted)
                self._write(adopted, KEPT)

    def make_folder(self, listed: Listed) -> None:
        """Make the queue's folder if it is missing."""
        path = self._tree.path(f"{QUEUES}/{listed.file}")
        if not self._tree.disk.exists(path):
            with suppress(FileExistsError):
                self._tree.disk.mkdir(path)
        self._tree.sync(QUEUES)

    def delete(self, listed: Listed) -> None:
        """Delete a queue and its messages; the lock is held."""
        self._tree.take_effect()
        self._write(Listed(listed.name, listed.file, listed.settings, listed.made, deleted=True))
        self.clear(listed)

    def clear(self, listed: Listed) -> None:
        """Remove the files of a deleted queue; the lock is held."""
        tree, file = self._tree, listed.file
        for folder in (NEW, DELAY, FAILED, DONE):
            for uid in tree.ids(folder, file):
                self._throw_away(f"{folder}/{file}:{uid}", f"{file}:{uid}")
        path = f"{QUEUES}/{file}"
        while tree.disk.exists(tree.path(path)):
            for name in tree.names(path):
                self._throw_away(f"{path}/{name}", f"{file}:{name}")
            try:
                tree.disk.rmdir(tree.path(path))
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process has just put a message
                    raise
        # Not the queue's lock file: a process that waits for it would get a lock that excludes nobody.
        for each in (KEYS, KEPT):
            with suppress(FileNotFoundError):
                tree.disk.unlink(tree.path(f"{each}/{file}"))
        tree.sync(REMOVE, NEW, DELAY, FAILED, DONE, QUEUES, KEYS, KEPT)
        with suppress(FileNotFoundError):
            tree.disk.unlink(tree.path(f"{SETTINGS}/{file}"))
        tree.sync(SETTINGS)

    def _throw_away(self, path: str, name: str) -> None:
        """Move a message to remove/. After a crash it may have both names, and then a rename does nothing."""
        source = self._tree.path(path)
        self._tree.move(source, self._tree.path(f"{REMOVE}/{name}"))
        with suppress(FileNotFoundError):
            self._tree.disk.unlink(source)

    def _write(self, listed: Listed, folder: str = SETTINGS) -> None:
        settings: dict[str, Any] = {field.name: listed.settings[field.name] for field in fields(Settings)}
        entry = {"name": listed.name, "settings": settings, "made": listed.made, "deleted": listed.deleted}
        entry["sum"] = _sum(entry)
        path = self._tree.path(f"{folder}/{listed.file}")
        replace_file(self._tree.disk, path, json.dumps(entry, ensure_ascii=False, indent=1).encode())


def _why_no_queue(file: str) -> str:
    """Why a folder in queues/ is no queue, and how to name it."""
    try:
        encoded = names.file_name(names.checked(file))
    except InvalidName as error:
        return str(error)
    return f"a queue of that name is the folder {encoded!r} here: rename it, or create it with penstock"


def _sum(entry: dict[str, Any]) -> str:
    """A checksum of a settings file that does not depend on the layout of its JSON."""
    return f"{zlib.crc32(json.dumps(entry, sort_keys=True).encode()):08x}"
