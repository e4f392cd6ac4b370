"""The streams that read queues of a store, for the report."""

import os
from contextlib import closing

from penstock.clock import SystemClock
from penstock.files import ReadingDisk
from penstock.journal.viewing import StoreView
from penstock.ledger import Ledger
from penstock.opening import is_remote, is_slate, journal_folder
from penstock.streams import StreamInfo


def streams_of(url: str) -> list[StreamInfo]:
    """Every stream, as the files of a store say, or a server; text and folder stores have none."""
    if is_remote(url):
        from penstock.client.keeper import RemoteKeeper

        with closing(RemoteKeeper(url)) as keeper:
            return keeper.streams().all()
    if is_slate(url):
        return _of_slate(url)
    folder = journal_folder(url)
    if folder is None:
        return []
    disk = ReadingDisk()
    store = StoreView(folder, disk, SystemClock().now())
    found: list[StreamInfo] = []
    for queue in store.settings():
        view = store.view(queue, disk.open, lambda path: None)
        if view is not None and isinstance(view.contents, Ledger):
            found += view.contents.streams()
    return found


def _of_slate(url: str) -> list[StreamInfo]:
    from penstock.slate import loading, moments

    moment = moments.take(url, os.getpid(), objects=False)
    try:
        with closing(moments.opened(moment)) as view:
            queues = loading.load(view, moments.parse(url).log).queues
    finally:
        moments.drop(moment)
    return [stream for name in sorted(queues) for stream in queues[name].ledger.streams()]
