"""The bucket client, by obstore: put, get, copy, delete, list; raises Penstock's errors.

Endpoint and credentials come from the usual environment variables, for SlateDB and for us alike:

    s3://  AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN; or renewed ones (`_RENEWED`);
           AWS_REGION (or AWS_DEFAULT_REGION); AWS_ENDPOINT (or AWS_ENDPOINT_URL)
    gs://  Google's: GOOGLE_APPLICATION_CREDENTIALS and others
    az://  Azure's: AZURE_STORAGE_ACCOUNT_NAME and others
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument, NotSupported, StoreUnreachable
from penstock.stores.slate.binding import check_process, load

_TRIES = 3
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RENEWED = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)
_SCHEMES = {"s3": ("S3", "bucket"), "gs": ("GCS", "bucket"), "az": ("AZURE", "container_name")}


class Bucket:
    """Objects under a prefix of a bucket."""

    def __init__(self, url: str, timeout: float) -> None:
        """`timeout`: seconds that a server may take to answer. No request is made here."""
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not _NAME.fullmatch(parts.netloc):
            raise InvalidArgument(f"{url!r} is no bucket: give slate:s3://bucket/prefix, gs:// or az://")
        self.name = parts.netloc
        self.prefix = parts.path.strip("/")
        self._scheme = parts.scheme
        self._timeout = timeout
        self._settings = _of_s3() if parts.scheme == "s3" else {}
        self._store: Any = None

    def for_slatedb(self) -> Any:
        """The bucket as SlateDB's object store, without the prefix."""
        ffi = load()
        kind, name = _SCHEMES[self._scheme]
        builder = ffi.ObjectStoreBuilder.from_env(getattr(ffi.ObjectStoreType, kind))
        for key, value in {name: self.name, **self._settings}.items():
            builder.with_config(key, value)
        return builder.build()

    def put(self, name: str, data: bytes) -> None:
        """Store an object; durable when this returns."""
        with self._asked() as (obstore, store):
            obstore.put(store, name, data, use_multipart=False)

    def get(self, name: str) -> bytes:
        """An object; FileNotFoundError."""
        with self._asked() as (obstore, store):
            return bytes(obstore.get(store, name).bytes())

    def delete(self, name: str) -> None:
        """Remove an object, if it exists."""
        with self._asked() as (obstore, store):
            try:
                obstore.delete(store, name)
            except FileNotFoundError:
                return

    def copy(self, name: str, to: str) -> None:
        """Copy an object inside the bucket; FileNotFoundError."""
        with self._asked() as (obstore, store):
            obstore.copy(store, name, to)

    def list(self, folder: str = "") -> list[str]:
        """The names of the objects in a folder, or of all."""
        return [*self.sizes(folder)]

    def sizes(self, folder: str = "", after: str | None = None) -> dict[str, int]:
        """The sizes of the objects in a folder whose names sort after `after`, in the order of names."""
        with self._asked() as (obstore, store):
            pages = obstore.list(store, folder or None, offset=after)
            return {each["path"]: each["size"] for page in pages for each in page}

    def has(self, name: str) -> bool:
        """Whether an object exists."""
        with self._asked() as (obstore, store):
            try:
                obstore.head(store, name)
            except FileNotFoundError:
                return False
            return True

    def has_folder(self, folder: str) -> bool:
        """Whether a folder has any object; FileNotFoundError if there is no bucket."""
        with self._asked() as (obstore, store):
            return any(page for page in obstore.list(store, folder, chunk_size=1))

    @contextmanager
    def _asked(self) -> Iterator[tuple[Any, Any]]:
        """obstore and its store for one request; its errors become Penstock's."""
        try:
            import obstore
        except ImportError as error:
            raise NotSupported(
                f"a slate store in a bucket needs obstore, which is not installed ({error}): "
                "pip install 'penstock[slate]'"
            ) from error
        check_process("obstore")
        try:
            if self._store is None:
                self._store = self._opened()
            yield obstore, self._store
        except obstore.exceptions.BaseError as error:
            failure = str(error).partition("\n\nDebug source")[0]
            if "status code: 404" in failure:  # a list answers it if there is no bucket
                raise FileNotFoundError(self.name) from error
            where = self._settings.get("endpoint") or f"{self._scheme}://{self.name}"
            raise StoreUnreachable(
                f"the bucket at {where} cannot be used ({failure}): check it, then try again"
            ) from error

    def _opened(self) -> Any:
        from obstore import store as stores

        limit = timedelta(seconds=self._timeout)
        client = {
            "connect_timeout": limit / _TRIES,
            "read_timeout": limit,
            "timeout": limit * 100,  # for the whole answer, which may be large, on a slow line
            "allow_http": True,
        }
        kind = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[self._scheme]
        settings = {key: value for key, value in self._settings.items() if key != "allow_http"}
        return kind(
            self.name,
            prefix=self.prefix or None,
            client_options=client,
            retry_config={"max_retries": _TRIES - 1, "retry_timeout": limit},
            **settings,
        )


def _of_s3() -> dict[str, str]:
    """Endpoint, region and credentials of S3, by the environment; InvalidArgument."""

    def first(*names: str) -> str:
        return next((os.environ[name] for name in names if os.environ.get(name)), "")

    settings = {
        "region": first("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        "access_key_id": first("AWS_ACCESS_KEY_ID"),
        "secret_access_key": first("AWS_SECRET_ACCESS_KEY"),
        "token": first("AWS_SESSION_TOKEN"),
        "endpoint": first("AWS_ENDPOINT", "AWS_ENDPOINT_URL"),
    }
    if settings["endpoint"]:
        settings["allow_http"] = "true" if settings["endpoint"].startswith("http:") else "false"
    if not (settings["access_key_id"] and settings["secret_access_key"]) and not first(*_RENEWED):
        raise InvalidArgument(
            "a store in a bucket needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
            "AWS_ENDPOINT if it is not Amazon's)"
        )
    return {key: value for key, value in settings.items() if value}
