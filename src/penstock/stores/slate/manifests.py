"""What a manifest of a database says must be there: its tables, and the log after what is in them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.errors import StoreCorrupt
from penstock.stores.slate.binding import blocking, load, told


class Needed(NamedTuple):
    """What a database cannot do without."""

    after: int = 0  # the last file of the log that is in tables
    tables: dict[str, int] = {}  # noqa: RUF012 - names in db/compacted, and how long each of them is at least

    def lost(self, sizes: dict[str, int]) -> list[str]:
        """In words: the tables that are missing or too short, of those that are there with their sizes."""
        missing = [f"db/compacted/{name} is missing" for name in self.tables if name not in sizes]
        cut_off = [
            f"db/compacted/{name} is cut off"
            for name, least in self.tables.items()
            if sizes.get(name, least) < least
        ]
        return missing + cut_off


def read(store: Any, path: str, number: int, what: str, seconds: float) -> Needed:
    """What a manifest says; StoreCorrupt, StoreUnreachable."""
    ffi = load()
    with told(ffi, what, seconds, opening=True):
        found = blocking(ffi.AdminBuilder(path, store).build().read_manifest(number), seconds)
    if found is None:
        raise StoreCorrupt(f"{what} has lost its manifest {number:020}: put it back from a backup")
    tables = {} if found.external_dbs else dict(_tables(found))  # those of a clone are in another database
    return Needed(int(found.replay_after_wal_id), tables)


def _tables(manifest: Any) -> Iterator[tuple[str, int]]:
    for part in (manifest, *manifest.segments):
        for view in (*part.l0, *[each for run in part.compacted for each in run.sst_views]):
            info = view.sst.info
            ends = (
                info.index_offset + info.index_len,
                info.filter_offset + info.filter_len,
                info.stats_offset + info.stats_len,
            )
            yield f"{view.sst.id.value}.sst", max(ends)
