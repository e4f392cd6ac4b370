from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

import penstock
from tests.conformance.stores import STORES, StoreUnderTest


class MakeQueue(Protocol):
    def __call__(self, name: str = "jobs", /, **settings: object) -> penstock.Queue: ...


@pytest.fixture(params=STORES, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> StoreUnderTest:
    chosen: StoreUnderTest = request.param
    if request.node.get_closest_marker("many_queues") and not chosen.many_queues:
        pytest.skip(f"a {chosen.name} store holds one queue")
    return chosen


@pytest.fixture
def clock() -> penstock.SimulatedClock:
    return penstock.SimulatedClock()


@pytest.fixture
def store(kind: StoreUnderTest, tmp_path: Path, clock: penstock.SimulatedClock) -> Iterator[penstock.Store]:
    with kind.open(tmp_path, clock) as store:
        yield store


@pytest.fixture
def make_queue(store: penstock.Store) -> MakeQueue:
    def make(name: str = "jobs", /, **settings: object) -> penstock.Queue:
        return store.create(name, **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def queue(make_queue: MakeQueue) -> penstock.Queue:
    return make_queue()
