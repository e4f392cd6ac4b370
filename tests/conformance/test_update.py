"""Settings that change while a queue is at work: at once, durably, setting by setting."""

from collections.abc import Callable

import pytest

from penstock import (
    InvalidArgument,
    InvalidFilter,
    InvalidPriority,
    NotSupported,
    PayloadTooLarge,
    Queue,
    QueueFull,
    QueueNotFound,
    Settings,
    SimulatedClock,
    Store,
)
from tests.conformance.conftest import MakeQueue
from tests.conformance.stores import StoreUnderTest

CHANGED = Settings(
    max_size=7, max_attempts=2, keep_done=None, filter="type = 'order'", max_payload=100, priorities=(0, 9),
    max_lease=0.5, retention=86_400, description="für Bestellungen", lease=0.25, delay=7, backoff=(0.5, 2, 60),
    labels={"team": "ü"},
)  # fmt: skip


def done(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.messages("done")]


def test_only_settings_that_are_given_change(queue: Queue, store: Store) -> None:
    assert queue.update(max_attempts=10) == queue.settings == Settings(max_attempts=10)
    assert queue.update(keep_done=60, description="x").max_attempts == 10
    assert queue.settings == Settings(max_attempts=10, keep_done=60, description="x")
    [info] = [info for info in store.queues() if info.name == queue.name]
    assert info.settings == queue.settings


def test_any_setting_changes_and_back_to_what_it_was(make_queue: MakeQueue) -> None:
    queue = make_queue("jobs", max_size=3)
    for name, value in dict(CHANGED).items():
        assert queue.update(**{name: value})[name] == queue.settings[name] == value
    assert queue.settings == CHANGED
    assert queue.update(**Settings()) == queue.settings == Settings()


def test_nothing_given_changes_nothing(make_queue: MakeQueue) -> None:
    queue = make_queue("jobs", max_size=3)
    assert queue.update() == queue.update(max_size=3) == queue.settings == Settings(max_size=3)


def test_the_default_queue_changes_like_any_other(store: Store) -> None:
    store.queue().update(max_size=1)
    store.queue().put(b"a")
    with pytest.raises(QueueFull):
        store.queue().put(b"b")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"max_atempts": 3}, TypeError),
        ({"max_size": -1}, InvalidArgument),
        ({"max_size": "3"}, TypeError),
        ({"max_lease": 0}, InvalidArgument),
        ({"priorities": (3, 1)}, InvalidArgument),
        ({"filter": ""}, InvalidFilter),
        ({"filter": "type ="}, InvalidFilter),
        ({"description": "x" * 1_001}, InvalidArgument),
        ({"start": "earliest"}, NotSupported),
    ],
)
def test_settings_are_checked_as_those_of_a_new_queue(
    queue: Queue, changes: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error, match="unexpected end" if changes.get("filter") else next(iter(changes))):
        queue.update(**{"max_attempts": 9, **changes})  # type: ignore[arg-type]
    assert queue.settings == Settings()


@pytest.mark.many_queues
def test_a_queue_that_is_not_there_has_nothing_to_change(store: Store) -> None:
    queue = store.create("jobs")
    store.delete("jobs")
    with pytest.raises(QueueNotFound):
        queue.update(max_size=1)
    with pytest.raises(QueueNotFound):
        queue.update()


def test_settings_survive_a_restart(
    make_queue: MakeQueue, reopen: Callable[[], Store], kind: StoreUnderTest
) -> None:
    queue = make_queue("jobs", max_attempts=3, keep_done=100)
    queue.put(b"before")
    queue.claim()[0].ack()
    queue.update(**CHANGED)
    queue.update(max_attempts=4)
    queue.put(b"after", delay=0)
    expected = Settings(**{**CHANGED, "max_attempts": 4})
    for _ in range(2):
        queue = reopen().queue("jobs" if kind.many_queues else "")
        assert queue.settings == expected
        assert queue.counts() == {"delayed": 0, "available": 1, "in_flight": 0, "done": 1, "failed": 0}
    queue.update(max_size=0)
    assert reopen().queue(queue.name).settings.max_size == 0


# Setting by setting


def test_a_lower_max_size_removes_nothing_and_refuses_puts_until_there_is_room(queue: Queue) -> None:
    queue.put_many([b"a", b"b", b"c"])
    queue.update(max_size=2)
    assert len(queue) == 3
    with pytest.raises(QueueFull):
        queue.put(b"d")
    queue.pop()
    with pytest.raises(QueueFull):
        queue.put(b"d")
    queue.pop()
    queue.put(b"d")
    queue.update(max_size=0)
    queue.put_many([b"e"] * 5)
    assert len(queue) == 7


def test_max_attempts_holds_from_the_next_fail_on(make_queue: MakeQueue) -> None:
    queue = make_queue("jobs", max_attempts=5)
    queue.put_many([b"a", b"b"])
    for _ in range(2):
        queue.fail(*queue.claim(2))
    held = queue.claim(1)
    queue.update(max_attempts=1)
    assert queue.counts()["available"] == 1  # one that had two attempts is handed out once more
    queue.fail(*held)
    assert [message.attempts for message in queue.messages("failed")] == [3]
    queue.fail(*queue.claim(1), delay=10)
    assert queue.counts() == {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 2}
    queue.update(max_attempts=10)
    assert queue.counts()["failed"] == 2
    assert queue.redrive() == 2


def test_a_lease_that_ends_counts_by_the_new_max_attempts(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue("jobs", max_attempts=5)
    queue.put(b"a")
    queue.claim(lease=10)
    queue.update(max_attempts=1)
    clock.advance(11)
    assert queue.counts()["failed"] == 1


def test_keep_done_holds_for_messages_that_are_done(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue("jobs", keep_done=100)
    queue.put_many([b"a", b"b"])
    queue.ack(*queue.claim(1))
    clock.advance(50)
    queue.ack(*queue.claim(1))
    queue.update(keep_done=200)  # from when each was done
    clock.advance(120)
    assert done(queue) == [b"a", b"b"]
    queue.update(keep_done=150)  # a was done 170 seconds ago
    assert done(queue) == [b"b"]
    queue.update(keep_done=None)
    clock.advance(1_000_000)
    assert done(queue) == [b"b"]
    queue.update(keep_done=0)
    assert done(queue) == []
    queue.put(b"c")
    queue.pop()
    assert sum(queue.counts().values()) == 0


def test_a_queue_that_kept_nothing_keeps_what_is_done_from_now_on(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b", b"c"])
    queue.pop()
    held = queue.claim()
    queue.update(keep_done=10)
    queue.ack(*held)
    queue.pop()
    assert done(queue) == [b"b", b"c"]
    clock.advance(11)
    assert done(queue) == []


@pytest.mark.many_queues
def test_a_filter_holds_for_what_is_published_from_now_on(store: Store, queue: Queue) -> None:
    store.publish(b"before", headers={"type": "order"})
    queue.update(filter="type = 'order'")
    store.publish(b"order", headers={"type": "order"})
    store.publish(b"other", headers={"type": "other"})
    queue.update(filter="type = 'other'")
    store.publish(b"order", headers={"type": "order"})
    store.publish(b"last", headers={"type": "other"})
    queue.update(filter=None)
    store.publish(b"late", headers={"type": "other"})
    assert [message.payload for message in queue.messages()] == [b"order", b"last"]
    queue.update(filter="size = 5")
    store.publish(b"again")
    assert len(queue) == 3


@pytest.mark.many_queues
def test_a_filter_survives_a_restart(store: Store, queue: Queue, reopen: Callable[[], Store]) -> None:
    queue.update(filter="size = 1")
    store.publish(b"a")
    store = reopen()
    store.publish(b"b")
    store.queue("jobs").update(filter=None)
    store = reopen()
    store.publish(b"c")
    assert [message.payload for message in store.queue("jobs").messages()] == [b"a", b"b"]


def test_max_payload_and_priorities_hold_for_new_messages(queue: Queue) -> None:
    queue.put(b"large", priority=9)
    queue.update(max_payload=3, priorities=(0, 5))
    with pytest.raises(PayloadTooLarge):
        queue.put(b"more")
    with pytest.raises(InvalidPriority):
        queue.put(b"x", priority=6)
    [held] = queue.claim()
    queue.fail(held)
    assert queue.claim()[0].payload == b"large"
    queue.update(max_payload=100, priorities=None)
    queue.put(b"more", priority=6)


def test_max_lease_holds_for_new_claims_and_extensions(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    [first] = queue.claim(lease=1_000)
    queue.update(max_lease=10)
    [second] = queue.claim(lease=1_000)
    assert second.lease_until == clock.now() + 10_000
    clock.advance(60)
    assert queue.counts()["in_flight"] == 1  # the lease that was given stays
    first.extend(lease=1_000)
    assert first.lease_until == clock.now() + 10_000
    queue.update(max_lease=100)
    first.extend(lease=1_000)
    assert first.lease_until == clock.now() + 100_000


def test_retention_holds_for_new_messages(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    queue.update(retention=10)
    queue.put(b"b")
    clock.advance(5)
    queue.update(retention=0)
    queue.put(b"c")
    clock.advance(6)
    assert [message.payload for message in queue.messages()] == [b"a", b"c"]
