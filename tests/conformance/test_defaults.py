"""What a queue does when it is not told: lease, delay and backoff of its settings; and `exist_ok`."""

from collections.abc import Callable

import pytest

from penstock import Draft, InvalidArgument, Queue, QueueExists, SimulatedClock, Store
from tests.conformance.conftest import MakeQueue


def waits(queue: Queue, clock: SimulatedClock) -> list[float]:
    """Seconds until each message is visible, by id."""
    return [(message.visible_at - clock.now()) / 1000 for message in queue.messages()]


def test_a_claim_that_names_no_lease_gets_the_queues(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(lease=7, max_lease=600)
    queue.put_many([b"a", b"b"])
    [first] = queue.claim()
    assert first.lease_until == clock.now() + 7_000
    [second] = queue.claim(lease=60)
    assert second.lease_until == clock.now() + 60_000
    clock.advance(5)
    queue.extend(first)
    assert first.lease_until == clock.now() + 7_000
    queue.update(lease=1_000)
    queue.extend(second)
    assert second.lease_until == clock.now() + 600_000  # max_lease


def test_a_put_that_names_no_delay_waits_as_the_queue_says(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(delay=10)
    queue.put(b"usual")
    queue.put(b"at once", delay=0)
    queue.put_many([b"a", b"b"])
    queue.put_many([Draft(b"later", delay=20), Draft(b"usual", headers={"a": "b"})])
    assert waits(queue, clock) == [10, 0, 10, 10, 20, 10]
    assert queue.counts()["available"] == 1
    queue.update(delay=0)
    queue.put(b"now")
    assert queue.counts()["available"] == 2
    clock.advance(10)
    assert [message.payload for message in queue.claim(10)] == [b"usual", b"at once", b"a", b"b", b"usual", b"now"]


def test_a_fail_that_names_no_delay_waits_longer_with_each_attempt(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(backoff=(1, 3, 20), max_attempts=0)
    queue.put(b"a")
    waited = []
    for _ in range(5):
        queue.claim()[0].fail(reason="no")
        waited += waits(queue, clock)
        clock.advance(waited[-1])
    assert waited == [1, 3, 9, 20, 20]
    queue.claim()[0].fail(delay=0)
    assert waits(queue, clock) == [0]
    queue.claim()[0].release()
    assert waits(queue, clock) == [0]


def test_messages_that_fail_together_wait_each_by_its_own_attempts(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(backoff=(1, 2, 60))
    queue.put(b"old")
    queue.claim()[0].fail(delay=0)
    queue.put(b"new")
    queue.fail(*queue.claim(2))
    assert waits(queue, clock) == [2, 1]


def test_a_lease_that_runs_out_counts_as_a_fail_without_a_delay(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(backoff=(4, 1, 4))
    queue.put(b"a")
    queue.claim(lease=10)
    clock.advance(13.999)
    assert queue.counts()["delayed"] == 1
    clock.advance(0.001)
    assert [message.reason for message in queue.claim()] == ["lease expired"]


def test_defaults_are_kept(make_queue: MakeQueue, reopen: Callable[[], Store], clock: SimulatedClock) -> None:
    queue = make_queue(backoff=(1, 2, 60), max_attempts=0)
    queue.put(b"a")
    for _ in range(3):
        queue.claim()[0].fail()
        clock.advance(60)
    queue.claim()[0].fail()
    before = waits(queue, clock)
    queue = reopen().queue(queue.name)
    assert waits(queue, clock) == before == [8]
    assert queue.settings.backoff == (1, 2, 60)


@pytest.mark.many_queues
@pytest.mark.parametrize(
    ("settings", "error", "advice"),
    [
        ({"lease": 0}, InvalidArgument, "lease=0 would end every lease at once"),
        ({"delay": -1}, InvalidArgument, "delay=-1 is not a duration"),
        (
            {"backoff": (1, 2)},
            InvalidArgument,
            "give .first seconds, factor, most seconds., for example .1, 2, 300.",
        ),
        ({"backoff": (1, 0.5, 60)}, InvalidArgument, "the factor is at least 1"),
        ({"backoff": (9, 2, 8)}, InvalidArgument, "the most at least the first"),
        ({"backoff": 3}, InvalidArgument, "backoff=3; give"),
        ({"labels": {"a": 1}}, TypeError, "label 'a' is a str, not int"),
        ({"labels": "a"}, TypeError, "labels are a dict"),
        ({"labels": {"a": "x" * 65_536}}, InvalidArgument, "label 'a' has 65536 bytes"),
    ],
)
def test_defaults_that_make_no_sense_say_why(
    store: Store, settings: dict[str, object], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        store.create("jobs", **settings)  # type: ignore[arg-type]
    with pytest.raises(error, match=advice):
        store.queue().update(**settings)  # type: ignore[arg-type]
    assert store.queue().settings.backoff is None


@pytest.mark.many_queues
def test_a_queue_that_is_there_is_given_as_it_is(store: Store) -> None:
    store.create("jobs", max_attempts=3, labels={"a": "b"}).put(b"a")
    assert store.create("jobs", exist_ok=True).count() == 1
    assert store.create("jobs", exist_ok=True, max_attempts=3).settings.labels == {"a": "b"}
    with pytest.raises(QueueExists, match="queue 'jobs' exists with max_attempts=3, not 5; labels="):
        store.create("jobs", exist_ok=True, max_attempts=5, labels=None)
    with pytest.raises(QueueExists, match="open it with"):
        store.create("jobs", max_attempts=3)
    assert store.create("new", exist_ok=True, max_size=7).settings.max_size == 7
