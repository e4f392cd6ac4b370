"""The queues of a folder store: a folder each, and a file with name and settings. A lock for making and deleting.

A folder in `queues/` that somebody made by hand is a queue with the usual settings. A queue whose settings say
that it is deleted is gone from that moment on; whoever comes next clears away what is left of it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any

from penstock.errors import StoreCorrupt
from penstock.files import replace_file
from penstock.folder.layout import (
    DELAY,
    DONE,
    FAILED,
    LOCKS,
    NEW,
    OWN,
    QUEUES,
    REMOVE,
    SETTINGS,
    parse_flat,
    queue_file,
    queue_name,
)
from penstock.folder.shared import Shared
from penstock.folder.texts import read_json, read_text
from penstock.folder.watching import Watch
from penstock.settings import Settings

_ALL = "%"  # no queue's file name


@dataclass(frozen=True)
class Listed:
    """A queue as it is on disk."""

    name: str
    file: str
    settings: Settings
    made: str  # differs for each queue that ever had the name
    deleted: bool = False


class Catalog:
    """Which queues there are."""

    def __init__(self, shared: Shared) -> None:
        self._tree = shared.tree
        self._mutex = shared.threads.lock()
        self._settings = Watch(self._tree.disk, self._tree.path(SETTINGS), shared.clock, shared.changes)
        self._folders = Watch(self._tree.disk, self._tree.path(QUEUES), shared.clock, shared.changes)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one to make or delete queues."""
        with self._mutex, self._tree.disk.open(self._tree.path(f"{LOCKS}/{_ALL}"), create=True) as file:
            file.lock(wait=True)
            yield

    def changed(self, eager: bool = False) -> bool:
        """Whether it is time to read the queues again."""
        return any([self._settings.look(eager), self._folders.look(eager)])

    def read(self) -> dict[str, Listed]:
        """Every queue, by name."""
        found: dict[str, Listed] = {}
        files = set()
        for file in sorted(self._tree.names(SETTINGS)):
            if not file.endswith(".new") and (listed := self._read(file)) is not None:
                files.add(file)
                found[listed.name] = listed
        for file in self._tree.names(QUEUES):
            name = queue_name(file)
            if file not in files and name is not None and name not in found:
                found[name] = Listed(name, file, Settings(), "")
        return found

    def _read(self, file: str) -> Listed | None:
        text = read_text(self._tree.disk, self._tree.path(f"{SETTINGS}/{file}"))
        if text is None:
            return None
        entry = read_json(text)
        if not isinstance(entry, dict):
            raise StoreCorrupt(
                f"{self._tree.path(f'{SETTINGS}/{file}')!r} is no JSON any more: write it anew, or remove it: the "
                "queue has the usual settings"
            )
        given = entry["settings"]
        if given.get("priorities") is not None:
            given["priorities"] = tuple(given["priorities"])
        return Listed(entry["name"], file, Settings(**given), entry["made"], entry["deleted"])

    def make(self, name: str, settings: Settings, made: str) -> Listed:
        """Make a queue; the lock is held, and there is none of that name."""
        known = [*self._tree.names(SETTINGS), *self._tree.names(QUEUES)]
        listed = Listed(name, queue_file(name, {file.casefold() for file in known}), settings, made)
        path = self._tree.path(f"{SETTINGS}/{listed.file}")
        try:
            self._write(listed)  # before the folder: a folder alone would be a queue with the usual settings
            self.make_folder(listed)
        except OSError:
            if self._tree.disk.exists(path):  # there is such a queue, unless it is gone for good
                self._tree.disk.unlink(path)
                self._tree.sync(SETTINGS)
                with suppress(FileNotFoundError):
                    self._tree.disk.rmdir(self._tree.path(f"{QUEUES}/{listed.file}"))
                    self._tree.sync(QUEUES)
            raise
        return listed

    def make_folder(self, listed: Listed) -> None:
        """Make the queue's folder, if it is not there."""
        path = self._tree.path(f"{QUEUES}/{listed.file}")
        if not self._tree.disk.exists(path):
            with suppress(FileExistsError):
                self._tree.disk.mkdir(path)
        self._tree.sync(QUEUES)

    def delete(self, listed: Listed) -> None:
        """Remove a queue and all that is in it; the lock is held."""
        self._tree.count()
        self._write(Listed(listed.name, listed.file, listed.settings, listed.made, deleted=True))
        self.clear(listed)

    def clear(self, listed: Listed) -> None:
        """Finish the deletion of a queue; the lock is held."""
        tree, file = self._tree, listed.file
        for folder in (NEW, DELAY, FAILED, DONE):
            for name in tree.names(folder):
                if (parsed := parse_flat(name)) is not None and parsed[0] == file:
                    self._throw_away(f"{folder}/{name}", name)
        path = f"{QUEUES}/{file}"
        while tree.disk.exists(tree.path(path)):
            for name in tree.names(path):
                self._throw_away(f"{path}/{name}", f"{file}:{name}")
            with suppress(OSError):  # another process has just put something
                tree.disk.rmdir(tree.path(path))
        with suppress(FileNotFoundError):
            tree.disk.unlink(tree.path(f"{OWN}/keys/{file}"))
        tree.sync(REMOVE, NEW, DELAY, FAILED, DONE, QUEUES, f"{OWN}/keys")
        with suppress(FileNotFoundError):
            tree.disk.unlink(tree.path(f"{SETTINGS}/{file}"))
        tree.sync(SETTINGS)

    def _throw_away(self, path: str, name: str) -> None:
        """Leave a message to the reaper. After a crash it may have both names: then a rename changes nothing."""
        source = self._tree.path(path)
        self._tree.move(source, self._tree.path(f"{REMOVE}/{name}"))
        with suppress(FileNotFoundError):
            self._tree.disk.unlink(source)

    def _write(self, listed: Listed) -> None:
        settings: dict[str, Any] = {field.name: listed.settings[field.name] for field in fields(Settings)}
        entry = {"name": listed.name, "settings": settings, "made": listed.made, "deleted": listed.deleted}
        path = self._tree.path(f"{SETTINGS}/{listed.file}")
        replace_file(self._tree.disk, path, json.dumps(entry, ensure_ascii=False, indent=1).encode())
