"""Moments of a slate store, wherever it lies."""

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qs

from penstock.errors import InvalidArgument
from penstock.stores.slate import checkpoints, frozen, loading
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.format import LOG_KEY
from penstock.stores.slate.own import LOG_END_KEY
from penstock.stores.slate.staging import Staging, staging_of
from penstock.stores.slate.view import Moment, View

TIMEOUT = 30.0  # seconds that a disk or a bucket may take


class Address(NamedTuple):
    """What the URL of a slate store says."""

    where: str  # a folder, or the URL of a bucket
    log: str
    instance: str

    @property
    def is_bucket(self) -> bool:
        """Whether it lies in a bucket."""
        return "://" in self.where


def parse(url: str) -> Address:
    """Of `slate:DIR` or `slate:s3://bucket/prefix`, perhaps with `?instance=NAME`."""
    where, _, query = url.removeprefix("slate:").partition("?")
    instance = parse_qs(query).get("instance", [""])[-1]
    if not where:
        raise InvalidArgument("slate: without a folder or a bucket; give slate:DIR or slate:s3://bucket/prefix")
    return Address(where, f"{LOG_KEY}/{instance}" if instance else LOG_KEY, instance)


def take(url: str, owner: int, objects: bool = True) -> Moment:
    """The store as it is now, held for a process; without large payloads if nobody wants them."""
    where = parse(url)
    return checkpoints.take(where.where, owner, TIMEOUT) if where.is_bucket else frozen.freeze(
        where.where, owner, objects
    )  # fmt: skip


def exists(url: str) -> bool:
    """Whether there is such a store."""
    where = parse(url)
    return checkpoints.exists(where.where, TIMEOUT) if where.is_bucket else frozen.exists(where.where)


def tail(url: str) -> int:
    """A number that grows with every commit."""
    where = parse(url)
    return checkpoints.tail(where.where, TIMEOUT) if where.is_bucket else frozen.tail(where.where)


def opened(moment: Moment) -> View:
    """Look at a moment, in any process."""
    return checkpoints.opened(moment, TIMEOUT) if "://" in moment.url else frozen.opened(moment, TIMEOUT)


def opened_for(moment: Moment, log: str) -> tuple[Moment, View]:
    """The same, and the moment with which tasks see what was opened.

    In a database that Penstock has never written the log may have numbers of its own: see loading.adoption().
    """
    view = opened(moment)
    if view.get(LOG_END_KEY) is None and (moved := loading.adoption(view, log).moved):
        view.close()
        moment = replace(moment, rows={**moment.rows, **moved})
        view = opened(moment)
    return moment, view


def staging(url: str) -> Staging:
    """Where messages are staged for the store."""
    where = parse(url).where
    place = BucketPlace(where, TIMEOUT) if "://" in where else Folder(where, "never")
    return staging_of(place, TIMEOUT)


def drop(moment: Moment) -> None:
    """A moment is not needed any more."""
    if "://" in moment.url:
        checkpoints.drop(moment, TIMEOUT)
    else:
        frozen.drop(moment.held)
