"""Closing and opening again: a store that is kept anywhere goes on as if it had never been closed."""

from collections.abc import Callable

import pytest

from penstock import Draft, LeaseExpired, Message, Queue, QueueFull, QueueNotFound, SimulatedClock, Store
from tests.conformance.conftest import MakeQueue
from tests.conformance.stores import StoreUnderTest

Reopen = Callable[[], Store]


def everything(queue: Queue) -> list[Message]:
    return list(queue.messages())


def test_messages_are_as_they_were_put(
    kind: StoreUnderTest, store: Store, make_queue: MakeQueue, reopen: Reopen
) -> None:
    queue = make_queue()
    queue.put(b"\x00\xff" * 100, priority=max(kind.priorities[0], -3), headers={"kind": "größe"})
    queue.put_many([b"", Draft(b"b", priority=7, created_at=0), Draft("text", retention=50, delay=9)])
    before = everything(queue)
    assert everything(reopen().queue(queue.name)) == before


def test_the_order_of_claiming_is_kept(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    queue = make_queue()
    queue.put_many([Draft(bytes([number]), priority=number % 3) for number in range(30)])
    for message in queue.claim(7)[::2]:
        message.release()
    before = [message.id for message in queue.peek(100)]
    queue = reopen().queue(queue.name)
    assert [message.id for message in queue.peek(100)] == before
    assert [message.id for message in queue.claim(100)] == before


def test_ids_go_on(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    queue = make_queue()
    ids = queue.put_many([b"a", b"b"])
    queue.ack(*queue.claim(2))
    queue = reopen().queue(queue.name)
    assert queue.put(b"c") not in ids
    assert queue.remove(*ids) == 0


def test_a_lease_goes_on(store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock) -> None:
    queue = make_queue()
    queue.put(b"a")
    [held] = queue.claim(lease=60, consumer="me")
    clock.advance(20)
    queue = reopen().queue(queue.name)
    [shown] = queue.messages("in_flight")
    assert (shown.lease_until, shown.consumer, shown.attempts) == (held.lease_until, "me", 1)
    assert queue.claim() == []
    clock.advance(39.999)
    assert queue.claim() == []
    clock.advance(0.001)
    assert queue.claim()[0].attempts == 2


def test_a_lease_that_ended_meanwhile_is_lost(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue()
    queue.put(b"a")
    [held] = queue.claim(lease=60)
    store.close()
    clock.advance(60)
    queue = reopen().queue(queue.name)
    with pytest.raises(LeaseExpired):
        queue.ack(held.receipt or "")
    assert [(message.attempts, message.reason) for message in queue.claim()] == [(2, "lease expired")]


@pytest.mark.parametrize("operation", ["ack", "fail", "release", "extend"])
def test_a_receipt_is_good_after_reopening(
    store: Store, make_queue: MakeQueue, reopen: Reopen, operation: str
) -> None:
    queue = make_queue(keep_done=60)
    queue.put(b"a")
    [held] = queue.claim(lease=60)
    queue = reopen().queue(queue.name)
    getattr(queue, operation)(held.receipt)
    state = {"ack": "done", "fail": "available", "release": "available", "extend": "in_flight"}[operation]
    assert [message.state for message in queue.messages()] == [state]


def test_an_extended_lease_is_kept(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue()
    queue.put(b"a")
    [held] = queue.claim(lease=10)
    held.extend(100)
    queue = reopen().queue(queue.name)
    clock.advance(99)
    queue.ack(held.receipt or "")
    assert everything(queue) == []


@pytest.mark.parametrize("operation", ["ack", "fail", "release"])
def test_settling_again_does_nothing_for_five_minutes(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock, operation: str
) -> None:
    queue = make_queue(keep_done=None)
    queue.put(b"a")
    [held] = queue.claim()
    receipt = held.receipt or ""
    getattr(queue, operation)(receipt)
    before = everything(queue)
    queue = reopen().queue(queue.name)
    clock.advance(300)
    getattr(queue, operation)(receipt)
    assert everything(queue) == before
    other = "release" if operation == "ack" else "ack"
    with pytest.raises(LeaseExpired):
        getattr(queue, other)(receipt)


def test_a_key_is_answered_with_the_first_id_for_five_minutes(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue()
    first = queue.put(b"a", key="order 7")
    queue.claim()[0].ack()
    clock.advance(200)
    queue = reopen().queue(queue.name)
    clock.advance(99.999)
    assert queue.put(b"again", key="order 7") == first
    assert everything(queue) == []
    queue = reopen().queue(queue.name)
    clock.advance(0.001)
    assert queue.put(b"new", key="order 7") != first


def test_a_delay_goes_on(store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock) -> None:
    queue = make_queue()
    queue.put(b"later", delay=60)
    queue.put(b"failed")
    queue.claim()[0].fail(delay=30, reason="not yet")
    clock.advance(10)
    queue = reopen().queue(queue.name)
    assert queue.counts()["delayed"] == 2
    clock.advance(20)
    assert [(message.payload, message.reason) for message in queue.claim(5)] == [(b"failed", "not yet")]
    clock.advance(29.999)
    assert queue.claim() == []
    clock.advance(0.001)
    assert [message.payload for message in queue.claim(5)] == [b"later", b"failed"]


def test_what_expired_meanwhile_is_gone(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue(retention=100)
    queue.put(b"short", retention=10)
    queue.put(b"usual")
    queue.put(b"for ever", retention=0)
    queue.claim(lease=1000)
    store.close()
    clock.advance(10)
    queue = reopen().queue(queue.name)
    assert [message.payload for message in queue.messages()] == [b"usual", b"for ever"]
    queue = reopen().queue(queue.name)
    clock.advance(90)
    assert [message.payload for message in queue.messages()] == [b"for ever"]


def test_a_failed_message_keeps_its_reason_and_can_be_redriven(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue(max_attempts=2)
    queue.put(b"a")
    for number in (1, 2):
        queue.claim(consumer=f"w{number}")[0].fail(reason=f"reason {number}")
    before = everything(queue)
    assert [message.state for message in before] == ["failed"]
    clock.advance(5)
    queue = reopen().queue(queue.name)
    assert everything(queue) == before
    assert queue.redrive() == 1
    queue = reopen().queue(queue.name)
    assert [(message.attempts, message.reason) for message in queue.claim()] == [(1, None)]


def test_done_messages_stay_listed_as_long_as_the_queue_keeps_them(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue(keep_done=60)
    queue.put_many([b"acked", b"popped"])
    queue.claim(consumer="me")[0].ack()
    queue.pop()
    before = everything(queue)
    assert [message.state for message in before] == ["done", "done"]
    clock.advance(30)
    queue = reopen().queue(queue.name)
    assert everything(queue) == before
    clock.advance(30)
    assert everything(queue) == []
    assert everything(reopen().queue(queue.name)) == []


def test_the_attempts_at_a_message_are_kept(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue(max_attempts=0, keep_done=60)
    message_id = queue.put(b"a")
    for number, settle in enumerate(["fail", "release", "expire", "ack"]):
        [message] = queue.claim(lease=10, consumer=f"w{number}")
        clock.advance(10 if settle == "expire" else 1)
        if settle != "expire":
            getattr(message, settle)()
        before = queue.attempts(message_id)
        queue = reopen().queue(queue.name)
        assert queue.attempts(message_id) == before
    assert [attempt.outcome for attempt in before] == ["failed", "released", "failed", "acked"]
    assert [attempt.consumer for attempt in before] == ["w0", "w1", "w2", "w3"]


def test_what_was_removed_or_purged_stays_away(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    queue = make_queue()
    ids = queue.put_many([b"a", b"b", b"c", b"d"])
    queue.claim()
    queue.remove(ids[1])
    queue = reopen().queue(queue.name)
    assert [message.id for message in queue.messages()] == [ids[0], *ids[2:]]
    assert queue.purge() == 2
    assert [message.id for message in reopen().queue(queue.name).messages()] == [ids[0]]


def test_settings_are_kept(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    settings = {
        "max_size": 3, "max_attempts": 7, "keep_done": 1.5, "filter": "type = 'ö' AND priority < 3",
        "max_payload": 100, "priorities": (-2, 9), "max_lease": 99.5, "retention": 1000, "description": "für alle",
    }  # fmt: skip
    queue = make_queue("odd", **settings)
    before = queue.settings
    queue.put_many([b"1", b"2", b"3"])
    queue = reopen().queue(queue.name)
    assert queue.settings == before
    with pytest.raises(QueueFull):
        queue.put(b"4")


@pytest.mark.many_queues
def test_a_filter_works_again(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    make_queue("orders", filter="type = 'order'")
    store = reopen()
    store.publish(b"yes", headers={"type": "order"})
    store.publish(b"no", headers={"type": "other"})
    assert [message.payload for message in store.queue("orders").messages()] == [b"yes"]


@pytest.mark.many_queues
def test_queues_are_there_and_deleted_ones_are_not(store: Store, make_queue: MakeQueue, reopen: Reopen) -> None:
    make_queue("empty")
    make_queue("full").put(b"a")
    make_queue("gone").put(b"b")
    make_queue("gone-empty")
    store.delete("gone")
    store.delete("gone-empty")
    before = store.queues()
    store = reopen()
    assert store.queues() == before
    assert [info.name for info in before] == ["default", "empty", "full"]
    with pytest.raises(QueueNotFound):
        store.queue("gone")


@pytest.mark.many_queues
def test_a_queue_that_is_made_again_starts_empty_and_with_new_ids(
    store: Store, make_queue: MakeQueue, reopen: Reopen
) -> None:
    ids: list[str] = []
    for life in range(3):
        queue = store.create("jobs", max_attempts=life + 1)
        new = [queue.put(b"a"), queue.put(b"b")]
        assert not set(new) & set(ids)
        ids += new
        store = reopen()
        assert store.queue("jobs").settings.max_attempts == life + 1
        store.delete("jobs")
        if life == 1:
            store = reopen()
    store = reopen()
    assert list(store.create("jobs").messages()) == []
    assert store.queue("jobs").put(b"c") not in ids


def test_an_old_receipt_means_nothing_to_a_new_message(
    store: Store, make_queue: MakeQueue, reopen: Reopen
) -> None:
    queue = make_queue()
    queue.put(b"a")
    receipts = []
    for _ in range(4):
        [message] = queue.claim()
        receipts.append(message.receipt or "")
        message.release()
        queue = reopen().queue(queue.name)
    assert len(set(receipts)) == 4
    queue.claim()
    for receipt in receipts:
        with pytest.raises(LeaseExpired):
            queue.ack(receipt)


def test_time_never_runs_backwards(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue()
    queue.put(b"a", delay=10)
    clock.advance(10)
    queue.put(b"b")
    put_at = clock.now()
    store.close()
    clock.jump(-3600)
    queue = reopen().queue(queue.name)
    assert queue.counts()["available"] == 2
    [message] = queue.claim(lease=10)
    assert (message.claimed_at, message.lease_until) == (put_at, put_at + 10_000)
    queue.put(b"c")
    assert [message.received_at for message in queue.messages() if message.payload == b"c"] == [put_at]


def test_a_store_that_was_used_a_day_ahead_is_not_frozen_for_a_day(
    store: Store, make_queue: MakeQueue, reopen: Reopen, clock: SimulatedClock
) -> None:
    queue = make_queue()
    clock.advance(86_400)
    queue.put(b"a")
    queue.put(b"b", delay=60)
    store.close()
    clock.jump(-86_400)
    queue = reopen().queue(queue.name)
    [held] = queue.claim(lease=30)
    assert held.payload == b"a"
    assert queue.claim() == []
    clock.advance(29)
    held.extend(lease=30)
    clock.advance(30)
    [again] = queue.claim(lease=30)
    assert again.payload == b"a"


def test_a_store_can_be_reopened_any_number_of_times_unused(
    store: Store, make_queue: MakeQueue, reopen: Reopen
) -> None:
    queue = make_queue()
    queue.put(b"a", headers={"a": "b"})
    queue.claim()
    before = everything(queue)
    for _ in range(5):
        reopen()
    assert everything(reopen().queue(queue.name)) == before
