"""Stores of every kind, with the URL for Spark."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.contract.kinds import split
from penstock.http.server import serve_in_thread

KINDS = ["journal", "server", "text", "folder", "slate", "bucket", "server of slate"]
# Second ways to the same records: test_slate.py has a bucket in `make test`, test_server.py a server.
SECOND_WAYS = ("server", "bucket", "server of slate")
EACH_KIND = [pytest.param(kind, marks=pytest.mark.long) if kind in SECOND_WAYS else kind for kind in KINDS]


class Place:
    """An open store, and its URL for Spark."""

    def __init__(self, kind: str, url: str, store: penstock.Store) -> None:
        self.kind = kind
        self.url = url
        self.store = store

    @property
    def is_slate(self) -> bool:
        return self.kind in ("slate", "bucket", "server of slate", "server of a guest")

    @property
    def late(self) -> int:
        """Milliseconds by which visible_at may be off in stores that keep a delay instead of a time."""
        return 60_000 if self.kind in ("text", "folder") else 0

    def total(self) -> int:
        return sum(sum(info.counts.values()) for info in self.store.queues())

    def staged(self) -> list[str]:
        """Staged files that loads have left behind."""
        if self.is_slate:
            from penstock.stores.slate.snapshot import place_at

            return list(place_at(self.store.url).list_loads())
        folder = Path(split(self.store.url)[1], ".penstock", "staged")
        return [path.name for path in folder.iterdir()] if folder.exists() else []


@contextmanager
def opened(
    kind: str, request: pytest.FixtureRequest, folder: Path, clock: penstock.SimulatedClock | None = None
) -> Iterator[Place]:
    """A new store of this kind, open in this process; also "server of a guest" of a slate store."""
    schemes = {"journal": "journal:", "server": "journal:", "text": "text:", "folder": "folder:"}
    url = request.getfixturevalue("bucket") if kind == "bucket" else f"{schemes.get(kind, 'slate:')}{folder}"
    with ExitStack() as stack:
        store = stack.enter_context(penstock.open(url, clock=clock))
        if kind == "server of a guest":
            store = stack.enter_context(penstock.open(url))
        if kind.startswith("server"):
            server = serve_in_thread(store)
            stack.callback(server.stop)
            url = server.url
        yield Place(kind, url, store)


@pytest.fixture(params=EACH_KIND)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store of every kind."""
    with opened(request.param, request, tmp_path / "store") as found:
        yield found
