"""Figures of queues, for monitoring."""

import pytest

from penstock import QueueNotFound, SimulatedClock, Store
from penstock.contract.operations import Figures
from tests.conformance.conftest import MakeQueue

COUNTING = ("memory", "journal", "slate", "http", "aio", "aio-local", "guest", "aio-guest", "slate-bucket")


def of(store: Store, queue: str) -> Figures:
    for each in store.figures():
        if each.queue == queue:
            return each
    raise QueueNotFound(queue)


def test_figures_have_counts_and_the_longest_wait(
    store: Store, make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue()
    assert (of(store, queue.name).up, of(store, queue.name).waiting_seconds) == (True, 0)
    queue.put_many([b"a", b"b", b"c"])
    clock.advance(5)
    queue.put("d", delay=60)
    queue.claim()
    figures = of(store, queue.name)
    assert figures.counts == queue.counts()
    assert figures.waiting_seconds == 5


def test_figures_have_counters_where_one_process_owns_the_store(
    request: pytest.FixtureRequest, store: Store, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    queue.put_many([b"a", b"b", b"c"])
    first, second = queue.claim(2)
    first.ack()
    second.fail()
    queue.pop()
    events = of(store, queue.name).events
    if request.node.callspec.params["kind"].name in COUNTING:
        assert {name: count for name, count in events.items() if count} == {
            "put": 3, "claimed": 2, "acked": 1, "failed": 1, "popped": 1,
        }  # fmt: skip
    else:
        assert events == {}
