"""The streams that read queues of a store, for the report."""

from contextlib import closing

from penstock.clock import SystemClock
from penstock.files import ReadingDisk
from penstock.journal.viewing import StoreView
from penstock.ledger import Ledger
from penstock.opening import is_remote, journal_folder
from penstock.streams import StreamInfo


def streams_of(url: str) -> list[StreamInfo]:
    """Every stream, as the files of a folder say, or a server; other stores have none."""
    if is_remote(url):
        from penstock.client.keeper import RemoteKeeper

        with closing(RemoteKeeper(url)) as keeper:
            return keeper.streams().all()
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
