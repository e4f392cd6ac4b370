"""Stores as jobs write to them: which queues there are, and what runs have already brought."""

import os
from contextlib import closing
from typing import Any

import penstock
from penstock.contract import kinds
from penstock.contract.settings import Settings
from penstock.contract.urls import absolute, is_file, is_remote, is_shared, is_slate, journal_folder
from penstock.errors import NotSupported
from penstock.http.client.backend import RemoteLoads
from penstock.sharing.backend import open_shared
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.loads import read_run
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.owner_operations import SlateOwner
from penstock.system.clock import SystemClock
from penstock.system.files import ReadingDisk


def folder_of(store: str) -> str | None:
    """The folder of a journal store; None if it is of another kind."""
    if is_remote(store) or is_shared(store) or is_slate(store):
        return None
    folder = journal_folder(store)
    if folder is None:
        raise NotSupported(f"store {store!r}: jobs work with stores on disk, and with those that a server has")
    return os.path.abspath(folder)


def place_of(store: str) -> str:
    """The same for all spellings of a store's URL: runs are known by it."""
    place = folder_of(store) or absolute(store)
    return place.removeprefix("text:") if is_file(place) else place


def same(one: str, other: str) -> bool:
    """Whether two URLs mean one store, links followed."""
    return _real(place_of(one)) == _real(place_of(other))


def _real(place: str) -> str:
    if "://" in place:
        return place
    kind, slash, path = place.partition("/")
    return kind + os.path.realpath(slash + path)


def exists(store: str) -> bool:
    """Whether there is such a store; of a server that is not asked."""
    folder = folder_of(store)
    return kinds.exists(store) if folder is None else os.path.isdir(os.path.join(folder, ".penstock"))


def settings_in(store: str) -> dict[str, Settings]:
    """The queues of a store; a store that is open elsewhere is looked at from outside."""
    folder = folder_of(store)
    if folder is None:
        with penstock.open(store) as opened:
            return {info.name: info.settings for info in opened.queues()}
    return StoreSnapshot(folder, ReadingDisk(), SystemClock().now()).settings()


def already_loaded(store: str, run: str) -> list[list[Any]] | None:
    """What a run has brought into each queue: messages and bytes; None if it has not taken effect."""
    folder = folder_of(store)
    if is_shared(store):
        from penstock.spark.shared_sink import Run  # here, because it needs pyspark

        known = Run(ReadingDisk(), store, run)
        return known.brought() if known.is_complete else None
    if is_slate(store):
        with closing(open_shared(store)) as shared:
            return SlateOwner(shared.run).run(run)
    if folder is None:
        with closing(RemoteLoads(store)) as loads:
            brought = loads.run(run)
        return None if brought is None else [[each.queue, each.messages, each.bytes] for each in brought]
    disk = ReadingDisk()
    load = read_run(disk, Catalog(folder, disk), run)
    if load is None:
        return None
    return [
        [queue, sum(piece.messages for piece in pieces), sum(piece.payloads for piece in pieces)]
        for queue, pieces in sorted(load.by_queue().items())
    ]


def loaded(store: str, run: str) -> list[list[Any]]:
    """What a run has just brought."""
    return already_loaded(store, run) or []
