"""A slate store in a bucket. Acknowledged objects are durable, and SlateDB collects its own garbage.

    PREFIX/db/...          SlateDB's objects
    PREFIX/objects/ID      payloads that are too large for a record
    PREFIX/synced          JSON: "manifest", "compactions": the newest at one time, as numbers; "checksums": of
                           these two objects; "log": the objects in db/wal after those in tables, by number, with
                           their lengths; "instance": its name; "checksum": of all of this. Checksums are CRC-32
    PREFIX/aside/TIME/...  objects that an opening has set aside, removed a week later

SlateDB takes a missing object of its log for the log's end, and an empty one for the start of a writer. So opening
first compares the objects with what the manifest needs, and with `synced`. `synced` is written when the store is
opened and closed, and every 2,000 commits. It stays true: manifests only get higher numbers, and an object of the
log is removed only after a manifest says that its rows are in tables. Opening the database fences its writer, so a
wrong instance is refused before that.
"""

import json
import os
import zlib
from contextlib import suppress
from typing import Any

from penstock.errors import StoreCorrupt, StoreUnreachable
from penstock.stores.slate.binding import Database
from penstock.stores.slate.objects import Bucket
from penstock.stores.slate.place import ASIDE, STAGED, SUBFOLDER, WEEK, Place, StoreLock
from penstock.stores.slate.recovery import check_asked
from penstock.stores.slate.synced import KINDS, Needed, in_words, number_of, read_manifest
from penstock.system.clock import SystemClock

_DB = "db"
_SYNCED = "synced"
_OBJECTS = "objects"
_NOTHING: dict[str, Any] = {"manifest": 0, "compactions": 0, "checksums": [0, 0], "log": {}}
RESTORE = "put these objects back from a backup"
_SETTINGS = (
    *[
        (f"garbage_collector_options.{kind}_options.{name}", f'"{value}"')
        for kind, interval, min_age in (
            ("wal", "20s", "60s"),  # each commit writes one: thousands a minute
            ("manifest", "60s", "120s"),
            ("compacted", "60s", "120s"),
            ("compactions", "60s", "120s"),
        )
        for name, value in (("interval", interval), ("min_age", min_age))
    ],
    ("compactor_options.checkpoint_lifetime", '"120s"'),
)


class BucketPlace(Place):
    """The objects of a store in a bucket."""

    def __init__(self, url: str, timeout: float, shared: str | None = None, instance: str = "") -> None:
        """`shared`: a folder of this machine with the lock that its processes take to write."""
        self.what = f"the store {url!r}"
        self._instance = instance
        self._shared = None if shared is None else os.path.join(shared, SUBFOLDER)
        self._bucket = Bucket(url, timeout)
        self.path = f"{self._bucket.prefix}/{_DB}".lstrip("/")  # of the database
        self._timeout = timeout

    def lock(self) -> None:
        # SlateDB lets the last process that opens the database write; on one machine the lock lets the first.
        if self._shared is not None:
            os.makedirs(self._shared, exist_ok=True)
            self._lock = StoreLock(os.path.join(self._shared, "lock"), self.what)
            self._lock.take()

    def open(self, timeout: float) -> Database:
        self.exists()  # SlateDB would wait for a missing bucket
        if lost := self.lost():
            raise StoreCorrupt(
                f"{self.what} has lost objects, and nothing was changed: {in_words(lost)}: {RESTORE}"
            )
        record = self._recorded()
        check_asked(self._instance, {record["instance"]} if "instance" in record else ())
        return Database(self.object_store(), self.path, _SETTINGS, self.what, timeout)

    def loaded(self) -> None:
        self._remember()

    def exists(self) -> bool:
        """Whether the bucket has a store, or remains of one; StoreUnreachable if there is no bucket."""
        try:
            return self._bucket.has_folder(_DB) or self._bucket.has(_SYNCED)
        except FileNotFoundError:
            raise StoreUnreachable(
                f"{self.what} has no bucket {self._bucket.name!r}: make it, or name another"
            ) from None

    def lost(self) -> list[str]:
        """Sentences on objects that are missing or differ from the manifest or the record; changes nothing."""
        while True:
            newest = {kind: self._newest(kind) for kind in KINDS}
            lost = self._compare(self._recorded(), newest)
            if not lost or self._newest("manifest") == newest["manifest"]:  # else a writer removed some
                return lost

    def _compare(self, record: dict[str, Any], newest: dict[str, int]) -> list[str]:
        lost = []
        for kind, checksum in zip(KINDS, record["checksums"], strict=True):
            number, name = record[kind], f"{_DB}/{kind}/{record[kind]:020}.{kind}"
            if newest[kind] < number:
                lost.append(f"{name} is missing")
            elif newest[kind] == number and number and self._checksum(name) != checksum:
                lost.append(f"{name} has changed")
        if lost:
            return lost
        needed = self._needed(newest["manifest"])
        tables = self._bucket.sizes(f"{_DB}/compacted")
        lost = needed.lost({name.rpartition("/")[2]: size for name, size in tables.items()})
        log = self._log(needed.after)
        if not newest["manifest"] and (any(tables.values()) or any(log.values())):
            return [*lost, "db/manifest has no manifest"]
        then = {int(number): size for number, size in record["log"].items() if int(number) > needed.after}
        for number in range(needed.after + 1, max([*log, *then], default=0) + 1):
            if number not in log:
                lost.append(f"db/wal/{number:020}.sst is missing")
            elif log[number] != then.get(number, log[number]):
                lost.append(f"db/wal/{number:020}.sst has changed")
        return lost

    def _recorded(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self._bucket.get(_SYNCED))
            if record.pop("checksum") != _checksum_of(record):
                raise ValueError("wrong checksum")
        except FileNotFoundError:
            return _NOTHING  # another program or an earlier version made the database
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise StoreCorrupt(
                f"{_SYNCED!r} of {self.what} cannot be read ({error}): restore it from a backup, or remove it if "
                "all other objects are intact"
            ) from error
        return record

    def _remember(self) -> None:
        """Write `synced` by the objects of the bucket."""
        newest = {kind: self._newest(kind) for kind in KINDS}
        log = self._log(self._needed(newest["manifest"]).after)
        names = [f"{_DB}/{kind}/{number:020}.{kind}" for kind, number in newest.items()]
        sums = [self._checksum(name) if newest[kind] else 0 for kind, name in zip(KINDS, names, strict=True)]
        sizes = {str(number): size for number, size in log.items()}
        record = {**newest, "checksums": sums, "log": sizes, "instance": self._instance}
        self._bucket.put(_SYNCED, json.dumps({**record, "checksum": _checksum_of(record)}).encode())

    def _newest(self, kind: str) -> int:
        return max([number_of(name) or 0 for name in self._bucket.list(f"{_DB}/{kind}")], default=0)

    def _checksum(self, name: str) -> int:
        return zlib.crc32(self._bucket.get(name))

    def _needed(self, manifest: int) -> Needed:
        if not manifest:
            return Needed()
        return read_manifest(self.object_store(), self.path, manifest, self.what, self._timeout)

    def _log(self, after: int) -> dict[int, int]:
        """The lengths of the log's objects with higher numbers than `after`."""
        found = self._bucket.sizes(f"{_DB}/wal", f"{_DB}/wal/{after:020}.sst")
        return {number: size for name, size in found.items() if (number := number_of(name)) is not None}

    def object_store(self) -> Any:
        return self._bucket.for_slatedb()

    def make_durable(self) -> None:
        self.files += 1  # the bucket has acknowledged the objects already

    def collect(self, database: Database) -> None:
        self._remember()  # SlateDB collects its own garbage
        for name in self._bucket.list(ASIDE):
            time = name.split("/")[1]
            if time.isdecimal() and int(time) < SystemClock().now() - WEEK:
                self._bucket.delete(name)

    def closed(self) -> None:
        with suppress(StoreUnreachable):
            self._remember()

    def free(self) -> int | None:
        return None

    def put_object(self, name: str, data: bytes) -> None:
        self._bucket.put(f"{_OBJECTS}/{name}", data)

    def get_object(self, name: str) -> bytes:
        return self._bucket.get(f"{_OBJECTS}/{name}")

    def delete_object(self, name: str) -> None:
        with suppress(ConnectionError):
            self._bucket.delete(f"{_OBJECTS}/{name}")

    def discard_objects(self, names: list[str]) -> None:
        self._set_aside([f"{_OBJECTS}/{name}" for name in names])

    def list_objects(self) -> list[str]:
        return [name.removeprefix(f"{_OBJECTS}/") for name in self._bucket.list(_OBJECTS)]

    def stage(self, load: str, name: str, frame: bytes) -> None:
        self._bucket.put(f"{STAGED}/{load}/{name}", frame)

    def staged(self, load: str, name: str) -> bytes:
        return self._bucket.get(f"{STAGED}/{load}/{name}")

    def has_load(self, load: str) -> bool:
        return self._bucket.has_folder(f"{STAGED}/{load}")

    def remove_load(self, load: str) -> None:
        for name in self._bucket.list(f"{STAGED}/{load}"):
            self._bucket.delete(name)

    def discard_load(self, load: str) -> None:
        self._set_aside(self._bucket.list(f"{STAGED}/{load}"))

    def list_loads(self) -> list[str]:
        return sorted({name.split("/")[1] for name in self._bucket.list(STAGED)})

    def _set_aside(self, names: list[str]) -> None:
        """Move objects to aside/TIME, where people can find them for a week."""
        folder = f"{ASIDE}/{SystemClock().now()}"
        for name in names:
            with suppress(FileNotFoundError):
                self._bucket.copy(name, f"{folder}/{name}")
                self._bucket.delete(name)


def _checksum_of(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
