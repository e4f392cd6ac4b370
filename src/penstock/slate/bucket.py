"""A database in a bucket. What S3 has acknowledged is durable, and SlateDB removes by itself what nobody needs.

PREFIX/db/...          SlateDB's
PREFIX/objects/ID      payloads that are too large for a record
"""

import os
import re
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument, StoreUnreachable
from penstock.journal.catalog import FOLDER
from penstock.slate import s3
from penstock.slate.binding import Database, load
from penstock.slate.locking import StoreLock

_DB = "db"
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

    files = 0  # SlateDB collects them

    def __init__(self, url: str, timeout: float, shared: str | None = None) -> None:
        """`shared`: a folder of this machine in which its processes agree on who writes."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not _NAME.fullmatch(parts.netloc):
            raise InvalidArgument(f"{url!r} is no bucket: give slate:s3://bucket/prefix")
        self.what = f"the store {url!r}"
        self._shared = None if shared is None else os.path.join(shared, FOLDER)
        self._lock: StoreLock | None = None
        self._bucket = parts.netloc
        prefix = parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._account = s3.Account.from_environment()
        self._objects = s3.Bucket(self._account, self._bucket, f"{self._prefix}objects/", timeout)

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
        try:
            self._objects.check()
        except FileNotFoundError:
            raise StoreUnreachable(
                f"{self.what} has no bucket {self._bucket!r}: make it, or name another"
            ) from None
        return Database(self._object_store(), f"{self._prefix}{_DB}", _SETTINGS, self.what, timeout)

    def _object_store(self) -> Any:
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

    def collect(self, database: Database) -> None:
        """SlateDB does that by itself."""

    def closed(self) -> None:
        """There is nothing to write down."""

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
        """Remove payloads to which nothing leads."""
        for name in names:
            self.delete_object(name)

    def list_objects(self) -> list[str]:
        """The names of all payloads."""
        return self._objects.list()
