"""What packing would free, and what time has let go that the files still hold: seen without the store's lock."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.rules.ledger import Ledger
from penstock.stores.journal.checkup import packed_size
from penstock.stores.journal.viewing import StoreView
from penstock.system.files import Disk, File


class Surveyed(NamedTuple):
    """A queue's journal as it lies there."""

    queue: str
    bytes: int
    packed: int  # bytes that packing would leave, about
    expired: int = 0  # messages whose expires_at has passed, and that are still in the files
    done: int = 0  # the same for done messages that were listed as long as keep_done says
    let_go: int = 0  # bytes that both take in the files


class _Witness(Ledger):
    """A ledger that counts what time takes from it."""

    expired_by_time = done = let_go = 0

    def _happen(self, time: int, seq: int) -> None:
        found = self._rows.find(seq)
        if found is None:
            return
        page, at = found
        size, expires_at = page.size[at], page.expires_at[at]
        super()._happen(time, seq)
        if not self.has(seq):
            self.expired_by_time += expires_at == time
            self.done += expires_at != time
            self.let_go += size


def survey(
    folder: str, queues: Iterable[str], disk: Disk, now: int, let_go: bool = False
) -> Iterator[tuple[str, Surveyed | PenstockError]]:
    """Look at queues as of now; or why that cannot be. Those that are deleted by then are left out.

    What was let go is known only to who reads journals from their beginning, and is counted if that is asked for.
    """
    store = StoreView(folder, disk, now, _Witness if let_go else None)
    store.settings()  # of all queues, so that none is looked for by itself
    for queue in queues:
        try:
            surveyed = _look(store, queue, disk)
        except PenstockError as error:
            yield queue, error
        else:
            if surveyed is not None:
                yield queue, surveyed


def _look(store: StoreView, queue: str, disk: Disk) -> Surveyed | None:
    sizes: dict[str, int] = {}

    def open_file(path: str) -> File:
        file = disk.open(path)
        sizes[path] = file.size()
        return file

    view = store.view(queue, open_file, lambda path: None)
    if view is None:
        return None
    contents = view.contents
    frozen = contents.freeze()
    size = sum(sizes[each.path] for each in view.files)
    found = Surveyed(queue, size, min(size, packed_size(frozen, 0)))
    if isinstance(contents, _Witness):
        return found._replace(expired=contents.expired_by_time, done=contents.done, let_go=contents.let_go)
    return found
