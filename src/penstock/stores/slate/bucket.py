"""A database in a bucket. What S3 has acknowledged is durable, and SlateDB removes by itself what nobody needs.

    PREFIX/db/...          SlateDB's
    PREFIX/objects/ID      payloads that are too large for a record
    PREFIX/synced          JSON: "manifest", "compactions": the newest at one time, as numbers; "checksums": of
                           these two objects; "log": the objects in db/wal after those in tables, by number, with
                           their lengths; "instance": its name; "checksum": of all of this. Checksums are CRC-32
    PREFIX/aside/TIME/...  objects that an opening has set aside, removed a week later

SlateDB takes a missing object of its log for the log's end, and an empty one for a writer's first. So opening
first compares what there is with what the manifest needs, and with `synced`. That is written when the store is
opened and closed, and every 2,000 commits. It stays true, as manifests only get higher numbers, and an object of
the log goes only when a manifest says that it is in tables. Whoever opens the database takes it away from its
writer: so one who asks for another instance is refused before that.
"""

import json
import os
import re
import zlib
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument, StoreCorrupt, StoreUnreachable
from penstock.stores.slate import s3
from penstock.stores.slate.binding import Database, load
from penstock.stores.slate.recovery import check_asked
from penstock.stores.slate.synced import (
    KINDS,
    SUBFOLDER,
    WEEK,
    Needed,
    StoreLock,
    in_words,
    number_of,
    read_manifest,
)
from penstock.system.clock import SystemClock

_DB = "db"
_SYNCED = "synced"
_ASIDE = "aside"
_NOTHING: dict[str, Any] = {"manifest": 0, "compactions": 0, "checksums": [0, 0], "log": {}}
RESTORE = "put these objects back from a backup"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SETTINGS = (
    *[
        (f"garbage_collector_options.{kind}_options.{name}", f'"{value}"')
        for kind, interval, min_age in (
            ("wal", "20s", "60s"),  # a file for each commit: thousands a minute
            ("manifest", "60s", "120s"),
            ("compacted", "60s", "120s"),
            ("compactions", "60s", "120s"),
        )
        for name, value in (("interval", interval), ("min_age", min_age))
    ],
    ("compactor_options.checkpoint_lifetime", '"120s"'),
)


class BucketPlace:
    """Where a store in a bucket lies."""

    def __init__(self, url: str, timeout: float, shared: str | None = None, instance: str = "") -> None:
        """`shared`: a folder of this machine in which its processes agree on who writes."""
        self._instance = instance
        parts = urlsplit(url)
        if parts.scheme != "s3" or not _NAME.fullmatch(parts.netloc):
            raise InvalidArgument(f"{url!r} is no bucket: give slate:s3://bucket/prefix")
        self.what = f"the store {url!r}"
        self._shared = None if shared is None else os.path.join(shared, SUBFOLDER)
        self._lock: StoreLock | None = None
        self._bucket = parts.netloc
        prefix = parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self.path = f"{self._prefix}{_DB}"  # of the database
        self._account = s3.Account.from_environment()
        self._objects = s3.Bucket(self._account, self._bucket, f"{self._prefix}objects/", timeout)
        self._all = s3.Bucket(self._account, self._bucket, self._prefix, timeout)
        self._timeout = timeout
        self.files = 0  # that commits have added to the log: a measure of when to look after the rest

    def lock(self) -> None:
        """Whoever opens the database last is its writer, as SlateDB fences the others; here the first is."""
        if self._shared is not None:
            os.makedirs(self._shared, exist_ok=True)
            self._lock = StoreLock(os.path.join(self._shared, "lock"), self.what)
            self._lock.take()

    def unlock(self) -> None:
        """Let others of this machine open the store."""
        if self._lock is not None:
            self._lock.release()

    def forked(self) -> None:
        """In a child: the store stays the parent's."""
        if self._lock is not None:
            self._lock.forked()

    def open(self, timeout: float) -> Database:
        """Open the database, after a look at the bucket: SlateDB would wait for one that is not there."""
        self.exists()
        if lost := self.lost():
            raise StoreCorrupt(
                f"{self.what} has lost some of what it has written, and nothing was changed: {in_words(lost)}: "
                f"{RESTORE}"
            )
        record = self._recorded()
        check_asked(self._instance, {record["instance"]} if "instance" in record else ())
        return Database(self.object_store(), self.path, _SETTINGS, self.what, timeout)

    def loaded(self) -> None:
        """What the database holds was read, and is of the instance that was asked for."""
        self._remember()

    def exists(self) -> bool:
        """Whether there is a store, or what is left of one; StoreUnreachable if there is no bucket."""
        try:
            return self._all.check(f"{_DB}/") or self._all.check(_SYNCED)
        except FileNotFoundError:
            raise StoreUnreachable(
                f"{self.what} has no bucket {self._bucket!r}: make it, or name another"
            ) from None

    def lost(self) -> list[str]:
        """In words: what is missing or has changed, of what is needed or was recorded; nothing is changed."""
        while True:
            newest = {kind: self._newest(kind) for kind in KINDS}
            lost = self._compare(self._recorded(), newest)
            if not lost or self._newest("manifest") == newest["manifest"]:  # else someone writes, and removes
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
        tables = self._all.sizes(f"{_DB}/compacted/")
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
            record: dict[str, Any] = json.loads(self._all.get(_SYNCED))
            if record.pop("checksum") != _checksum_of(record):
                raise ValueError("its checksum is another one")
        except FileNotFoundError:
            return _NOTHING  # another program made the database, or an earlier version
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise StoreCorrupt(
                f"{_SYNCED!r} of {self.what} cannot be read ({error}): restore it from a backup, or remove it if "
                "everything else is as it was written"
            ) from error
        return record

    def _remember(self) -> None:
        """Record what is there now."""
        newest = {kind: self._newest(kind) for kind in KINDS}
        log = self._log(self._needed(newest["manifest"]).after)
        names = [f"{_DB}/{kind}/{number:020}.{kind}" for kind, number in newest.items()]
        sums = [self._checksum(name) if newest[kind] else 0 for kind, name in zip(KINDS, names, strict=True)]
        sizes = {str(number): size for number, size in log.items()}
        record = {**newest, "checksums": sums, "log": sizes, "instance": self._instance}
        self._all.put(_SYNCED, json.dumps({**record, "checksum": _checksum_of(record)}).encode())

    def _newest(self, kind: str) -> int:
        return max([number_of(name) or 0 for name in self._all.list(f"{_DB}/{kind}/")], default=0)

    def _checksum(self, name: str) -> int:
        return zlib.crc32(self._all.get(name))

    def _needed(self, manifest: int) -> Needed:
        if not manifest:
            return Needed()
        return read_manifest(self.object_store(), self.path, manifest, self.what, self._timeout)

    def _log(self, after: int) -> dict[int, int]:
        """The lengths of the log's objects after one of them, by number."""
        found = self._all.sizes(f"{_DB}/wal/", f"{_DB}/wal/{after:020}.sst")
        return {number: size for name, size in found.items() if (number := number_of(name)) is not None}

    def object_store(self) -> Any:
        """The bucket as SlateDB knows it."""
        ffi, account = load(), self._account
        builder = ffi.ObjectStoreBuilder.from_env(ffi.ObjectStoreType.S3)
        settings = {
            "bucket": self._bucket,
            "region": account.region,
            "access_key_id": account.key,
            "secret_access_key": account.secret,
        }
        if account.token:
            settings["token"] = account.token
        if account.endpoint:
            settings["endpoint"] = account.endpoint
            settings["allow_http"] = "true" if account.endpoint.startswith("http:") else "false"
        for name, value in settings.items():
            builder.with_config(name, value)
        return builder.build()

    def make_durable(self) -> None:
        """It is, since S3 has acknowledged it."""
        self.files += 1

    def collect(self, database: Database) -> None:
        """Record what is there, and remove what was set aside long ago; SlateDB removes its own by itself."""
        self._remember()
        for name in self._all.list(f"{_ASIDE}/"):
            time = name.split("/")[1]
            if time.isdecimal() and int(time) < SystemClock().now() - WEEK:
                self._all.delete(name)

    def closed(self) -> None:
        """The database was closed, and has written its last manifest."""
        with suppress(StoreUnreachable):
            self._remember()

    def free(self) -> int | None:
        """A bucket has no end."""
        return None

    def put_object(self, name: str, data: bytes) -> None:
        """Keep a payload beside the database."""
        self._objects.put(name, data)

    def get_object(self, name: str) -> bytes:
        """A payload; FileNotFoundError."""
        return self._objects.get(name)

    def delete_object(self, name: str) -> None:
        """A payload is not needed any more; one that cannot be removed now is found when the store is opened."""
        with suppress(ConnectionError):
            self._objects.delete(name)

    def discard_objects(self, names: list[str]) -> None:
        """Set payloads aside to which nothing leads."""
        self.set_aside([f"objects/{name}" for name in names])

    def set_aside(self, names: list[str]) -> None:
        """Give objects other names, under which people find them for a week."""
        folder = f"{_ASIDE}/{SystemClock().now()}"
        for name in names:
            with suppress(FileNotFoundError):
                self._all.copy(name, f"{folder}/{name}")
                self._all.delete(name)

    def list_objects(self) -> list[str]:
        """The names of all payloads."""
        return self._objects.list()


def _checksum_of(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
