"""The streams that read queues of a store, for the report."""

import os
from contextlib import closing

from penstock.contract.stream_operations import Streams
from penstock.contract.streams import StreamInfo
from penstock.contract.urls import is_remote, is_slate, journal_folder
from penstock.errors import NotSupported
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.system.clock import SystemClock
from penstock.system.files import ReadingDisk


def streams_of(url: str) -> list[StreamInfo]:
    """Every stream, as the files of a store say, or a server; text and folder stores have none."""
    if is_remote(url):
        from penstock.http.client.backend import RemoteBackend

        with closing(RemoteBackend(url)) as backend:
            try:
                return Streams(backend.run).all()
            except NotSupported:  # a text or folder store is served
                return []
    if is_slate(url):
        return _of_slate(url)
    folder = journal_folder(url)
    if folder is None:
        return []
    disk = ReadingDisk()
    store = StoreSnapshot(folder, disk, SystemClock().now())
    found: list[StreamInfo] = []
    for queue in store.settings():
        view = store.view(queue, disk.open, lambda path: None)
        if view is not None:
            found += view.contents.streams.all()
    return found


def _of_slate(url: str) -> list[StreamInfo]:
    from penstock.stores.slate import recovery, snapshot
    from penstock.stores.slate.place import parse

    moment = snapshot.take(url, os.getpid(), objects=False)
    try:
        with closing(snapshot.opened(moment)) as view:
            queues = recovery.load(view, parse(url).log).queues
    finally:
        snapshot.drop(moment)
    return [stream for name in sorted(queues) for stream in queues[name].ledger.streams.all()]
