import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

import penstock
from tests.conformance.stores import STORES, StoreUnderTest

# What a transport has a say in: waiting, claims that race, pages of long answers, queues that come and go. `http`,
# `aio-local` and `guest` run everything over their transports, `text` and `folder` run everything directly; of
# kinds that bring two of them together, the rest is for `make test-all`.
TRANSPORTED = ("test_waiting.py", "test_claim.py", "test_browse.py", "test_queues.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
        if isinstance(kind, StoreUnderTest) and kind.carried and item.path.name not in TRANSPORTED:
            item.add_marker(pytest.mark.long)


class MakeQueue(Protocol):
    def __call__(self, name: str = "jobs", /, **settings: object) -> penstock.Queue: ...


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.long] if kind.slow else []) for kind in STORES],
    ids=lambda kind: kind.name,
)
def kind(request: pytest.FixtureRequest) -> StoreUnderTest:
    chosen: StoreUnderTest = request.param
    if request.node.get_closest_marker("many_queues") and not chosen.many_queues:
        pytest.skip(f"a {chosen.name} store holds one queue")
    return chosen


class WatchedClock(penstock.SimulatedClock):
    """A simulated clock that knows which threads wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[threading.Thread] = set()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waiting.add(threading.current_thread())
        try:
            return super().wait(event, seconds)
        finally:
            self.waiting.discard(threading.current_thread())


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
def store(kind: StoreUnderTest, tmp_path: Path, clock: penstock.SimulatedClock) -> Iterator[penstock.Store]:
    with kind.open(tmp_path, clock) as store:
        yield store


@pytest.fixture
def reopen(
    kind: StoreUnderTest, tmp_path: Path, clock: penstock.SimulatedClock, store: penstock.Store
) -> Iterator[Callable[[], penstock.Store]]:
    """Close the store, if it is still open, and open it again."""
    if not kind.reopens:
        pytest.skip(f"a {kind.name} store ends when it is closed")
    opened = [store]

    def reopen() -> penstock.Store:
        opened[-1].close()
        opened.append(kind.open(tmp_path, clock))
        return opened[-1]

    yield reopen
    opened[-1].close()


@pytest.fixture
def make_queue(kind: StoreUnderTest, store: penstock.Store) -> MakeQueue:
    def make(name: str = "jobs", /, **settings: object) -> penstock.Queue:
        return kind.make_queue(store, name, **settings)

    return make


@pytest.fixture
def queue(make_queue: MakeQueue) -> penstock.Queue:
    return make_queue()
