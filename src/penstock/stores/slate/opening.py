"""From the URL of a slate store to the store."""

from collections.abc import Callable
from urllib.parse import parse_qs

from penstock.errors import InvalidArgument, PenstockError
from penstock.stores.slate.bucket import BucketPlace
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.moments import TIMEOUT, parse
from penstock.stores.slate.store import SlateBackend
from penstock.system.clock import Clock, SystemClock
from penstock.system.files import unavailable
from penstock.system.threads import Threads


def open_slate(
    url: str,
    *,
    clock: Clock | None = None,
    sync: str = "always",
    timeout: float | None = None,
    threads: Threads | None = None,
    shared: str | None = None,
    locked: Callable[[], None] = lambda: None,
) -> SlateBackend:
    """Open the store at `slate:DIR` or `slate:s3://bucket/prefix`, which is made if it is not there.

    shared: of a bucket: the folder in which processes of this machine agree on who has it open
    locked: called once it is ours
    """
    address = parse(url)
    router = parse_qs(url.partition("?")[2]).get("router", ["on"])[-1]
    if router not in ("on", "off"):
        raise InvalidArgument(f"router={router!r}: the router is on, or off while `penstock route` does its work")
    seconds = timeout or TIMEOUT
    place: Folder | BucketPlace = Folder(address.where, sync)
    if address.is_bucket:
        place = BucketPlace(address.where, seconds, shared, address.instance)
    try:
        return SlateBackend(place, address.log, clock or SystemClock(), seconds, threads, locked, router == "off")
    except PenstockError:
        raise
    except OSError as error:
        raise unavailable(error.filename or address.where, error) from error
