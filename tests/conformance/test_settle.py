"""Settling: ack, fail, release, and what else ends a message or brings it back."""

from collections.abc import Callable

import pytest

from penstock import InvalidArgument, LeaseExpired, Message, Queue, SimulatedClock, State
from tests.conformance.conftest import MakeQueue

NONE = {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 0}


def claim_one(queue: Queue) -> Message:
    queue.put(b"a")
    [message] = queue.claim()
    return message


def bring_into(queue: Queue, state: State) -> None:
    """Put a message and bring it into that state."""
    bring: dict[str, Callable[[], object]] = {
        "delayed": lambda: queue.put(b"a", delay=5),
        "available": lambda: queue.put(b"a"),
        "in_flight": lambda: claim_one(queue),
        "done": lambda: claim_one(queue).ack(),
        "failed": lambda: claim_one(queue).fail(),
    }
    bring[state]()


def test_ack_ends_a_message(queue: Queue, clock: SimulatedClock) -> None:
    message = claim_one(queue)
    message.ack()
    clock.advance(100_000)
    assert queue.counts() == NONE
    assert list(queue.messages()) == []


def test_a_done_message_stays_listed_for_as_long_as_the_queue_keeps_it(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(keep_done=60)
    message = claim_one(queue)
    clock.advance(5)
    message.ack()
    [done] = queue.messages("done")
    assert (done.payload, done.state, done.settled_at) == (b"a", "done", clock.now())
    assert (done.consumer, done.claimed_at, done.receipt) == (message.consumer, message.claimed_at, None)
    clock.advance(59.999)
    assert queue.counts()["done"] == 1
    clock.advance(0.001)
    assert queue.counts() == NONE


def test_a_message_that_is_done_after_all_has_no_reason(make_queue: MakeQueue) -> None:
    queue = make_queue(keep_done=60)
    for settle in ("ack", "pop"):
        claim_one(queue).fail(reason="no")
        if settle == "ack":
            queue.claim()[0].ack()
        else:
            queue.pop()
    assert [(message.attempts, message.reason) for message in queue.messages("done")] == [(2, None), (2, None)]


def test_a_queue_may_keep_done_messages_for_ever(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(keep_done=None)
    claim_one(queue).ack()
    clock.advance(10 * 365 * 86_400)
    assert queue.counts()["done"] == 1


def test_a_failed_attempt_makes_the_message_available_again(queue: Queue) -> None:
    message = claim_one(queue)
    message.fail(reason="disk on fire")
    [again] = queue.claim()
    assert (again.id, again.attempts, again.reason) == (message.id, 2, "disk on fire")


def test_a_failed_attempt_may_be_retried_later(queue: Queue, clock: SimulatedClock) -> None:
    claim_one(queue).fail(delay=10)
    [delayed] = queue.messages("delayed")
    assert delayed.visible_at == clock.now() + 10_000
    clock.advance(9.999)
    assert queue.claim() == []
    clock.advance(0.001)
    assert len(queue.claim()) == 1


def test_after_the_last_attempt_a_message_has_failed(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(max_attempts=3)
    queue.put(b"a")
    for attempt in (1, 2, 3):
        [message] = queue.claim(consumer=f"w{attempt}")
        message.fail(delay=0, reason=f"reason {attempt}")
    assert queue.claim() == []
    [failed] = queue.messages("failed")
    assert (failed.attempts, failed.reason, failed.consumer) == (3, "reason 3", "w3")
    assert failed.settled_at == clock.now()
    assert failed.payload == b"a"


def test_a_queue_may_allow_attempts_without_end(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=0)
    queue.put(b"a")
    for _ in range(50):
        queue.claim()[0].fail()
    assert queue.claim()[0].attempts == 51


def test_release_gives_a_message_back_with_its_attempt_counted(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1)
    message = claim_one(queue)
    message.release()
    [again] = queue.claim()
    assert (again.id, again.attempts, again.reason) == (message.id, 2, None)
    again.fail()
    assert queue.counts() == {**NONE, "failed": 1}


@pytest.mark.parametrize("how", ["fail", "release", "expire", "delay", "redrive"])
def test_a_message_that_comes_back_keeps_its_place_among_its_equals(
    make_queue: MakeQueue, clock: SimulatedClock, how: str
) -> None:
    queue = make_queue(max_attempts=1 if how == "redrive" else 5)
    for payload in (b"a", b"b", b"c"):
        queue.put(payload, priority=1)
    [a, b] = queue.claim(2)
    queue.put(b"later", priority=1)
    queue.put(b"less urgent", priority=2)
    queue.put(b"more urgent", priority=0)
    b.release()
    if how == "fail":
        a.fail()
    elif how == "release":
        a.release()
    elif how == "expire":
        clock.advance(30)
    elif how == "delay":
        a.fail(delay=2)
        clock.advance(2)
    else:
        a.fail()
        queue.redrive()
    expected = [b"more urgent", b"a", b"b", b"c", b"later", b"less urgent"]
    assert [message.payload for message in queue.peek(10)] == expected
    assert [message.payload for message in queue.claim(10)] == expected


@pytest.mark.parametrize("operation", ["ack", "fail", "release"])
def test_settling_again_with_the_same_receipt_does_nothing_for_five_minutes(
    queue: Queue, clock: SimulatedClock, operation: str
) -> None:
    message = claim_one(queue)
    getattr(queue, operation)(message)
    before = list(queue.messages())
    clock.advance(300)
    getattr(queue, operation)(message)
    getattr(queue, operation)(message.receipt, message)
    assert list(queue.messages()) == before


@pytest.mark.parametrize("operation", ["fail", "release"])
def test_a_repeat_does_not_touch_the_next_holder(queue: Queue, operation: str) -> None:
    first = claim_one(queue)
    getattr(queue, operation)(first)
    [second] = queue.claim()
    getattr(queue, operation)(first)
    assert [(message.id, message.attempts) for message in queue.messages("in_flight")] == [(second.id, 2)]
    second.ack()
    getattr(queue, operation)(first)
    assert queue.counts() == NONE


@pytest.mark.parametrize("operation", ["fail", "release"])
@pytest.mark.parametrize("earlier_first", [True, False])
def test_a_repeat_beside_the_receipt_that_holds_the_message_is_one(
    queue: Queue, operation: str, earlier_first: bool
) -> None:
    earlier = claim_one(queue)
    getattr(queue, operation)(earlier)
    [held] = queue.claim()
    getattr(queue, operation)(*([earlier, held] if earlier_first else [held, earlier]))
    [again] = queue.claim()
    assert (again.id, again.attempts) == (held.id, 3)
    with pytest.raises(LeaseExpired) as lost:
        queue.ack(again, held)
    assert lost.value.receipts == [held.receipt]
    assert queue.counts() == NONE


@pytest.mark.parametrize(
    ("first", "then"), [("ack", "fail"), ("fail", "ack"), ("release", "ack"), ("ack", "extend")]
)
def test_another_operation_with_a_settled_receipt_is_refused(queue: Queue, first: str, then: str) -> None:
    message = claim_one(queue)
    getattr(message, first)()
    with pytest.raises(LeaseExpired):
        getattr(message, then)()


def test_settling_many_settles_what_is_held_and_names_what_is_lost(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b", b"c", b"d"])
    [lost, other] = queue.claim(2, lease=1)
    clock.advance(1)
    other_again, *held = [message for message in queue.claim(4) if message.id != lost.id]
    with pytest.raises(LeaseExpired, match=rf"2 receipt\(s\) of queue {queue.name!r}") as caught:
        queue.ack(held[0], lost, "no receipt at all", held[1])
    assert caught.value.receipts == [lost.receipt, "no receipt at all"]
    assert other_again.id == other.id
    assert queue.counts() == {**NONE, "in_flight": 2}


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "1",
        "1.",
        ".",
        "x.y",
        "+1.0000000000000000",
        "1.000000000000000x",
        "1.0000000000000000",
        "99.ffff",
        "-1.0",
        "1.1.1",
        "٣.1",
    ],
)
def test_a_forged_receipt_settles_nothing(queue: Queue, forged: str) -> None:
    claim_one(queue)
    for operation in (queue.ack, queue.fail, queue.release, queue.extend):
        with pytest.raises(LeaseExpired):
            operation(forged)
    assert queue.counts() == {**NONE, "in_flight": 1}


def test_a_receipt_cannot_be_guessed_from_another(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    [a], [b] = queue.claim(), queue.claim()
    assert a.receipt is not None
    assert b.receipt is not None
    forged = a.receipt.replace(a.id, b.id, 1)
    if forged != a.receipt:  # a store may not show the id in its receipts
        with pytest.raises(LeaseExpired):
            queue.ack(forged)


def test_settling_nothing_is_nothing(queue: Queue) -> None:
    queue.ack()
    queue.fail()
    queue.release()
    queue.extend()


def test_the_same_receipt_twice_in_one_call_counts_once(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=2)
    message = claim_one(queue)
    queue.fail(message, message)
    assert queue.counts() == {**NONE, "available": 1}


@pytest.mark.many_queues
def test_a_message_is_settled_in_its_own_queue_only(make_queue: MakeQueue) -> None:
    message = claim_one(make_queue("a"))
    with pytest.raises(InvalidArgument, match="is of queue 'a', not of 'b'"):
        make_queue("b").ack(message)


def test_only_messages_and_receipts_can_be_settled(queue: Queue) -> None:
    with pytest.raises(TypeError, match="give messages or receipts, not int"):
        queue.ack(7)  # type: ignore[arg-type]


def test_a_long_reason_is_cut_and_a_broken_one_mended(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1)
    claim_one(queue).fail(reason="x" * 5_000)
    claim_one(queue).fail(reason="broken \udce4 text")
    assert [message.reason for message in queue.messages("failed")] == ["x" * 1_000, "broken ? text"]


def test_a_lease_that_is_revoked_ends_as_if_its_consumer_had_released_the_message(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(max_attempts=1)
    held, other = claim_one(queue), claim_one(queue)
    clock.advance(5)
    assert queue.revoke(held.id, held.id, "unknown") == 1
    assert queue.revoke(held.id) == 0
    for settle in (held.ack, held.fail, held.extend):
        with pytest.raises(LeaseExpired):
            settle()
    [attempt] = queue.attempts(held.id)
    assert (attempt.ended_at, attempt.outcome, attempt.reason) == (clock.now(), "released", None)
    other.ack()
    [again] = queue.claim(2)
    assert (again.id, again.attempts, again.reason) == (held.id, 2, None)
    held.release()  # as it was: the next holder keeps its lease
    again.ack()
    assert queue.counts() == NONE


@pytest.mark.parametrize("state", ["delayed", "available", "done", "failed"])
def test_only_messages_in_flight_have_a_lease_to_revoke(make_queue: MakeQueue, state: State) -> None:
    queue = make_queue(max_attempts=1, keep_done=60)
    bring_into(queue, state)
    before = list(queue.messages())
    assert queue.revoke(before[0].id) == 0
    assert list(queue.messages()) == before


def test_a_lease_that_is_over_is_not_revoked(queue: Queue, clock: SimulatedClock) -> None:
    held = claim_one(queue)
    clock.advance(30)
    assert queue.revoke(held.id) == 0
    assert [message.reason for message in queue.messages("available")] == ["lease expired"]


def failed_messages(queue: Queue, count: int) -> list[str]:
    ids = queue.put_many([str(number) for number in range(count)])
    queue.fail(*queue.claim(count), reason="no")
    return ids


def test_redrive_starts_all_failed_messages_over(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(max_attempts=1)
    failed_messages(queue, 3)
    clock.advance(7)
    assert queue.redrive() == 3
    assert queue.redrive() == 0
    messages = queue.claim(5)
    assert [(message.payload, message.attempts, message.reason) for message in messages] == [
        (b"0", 1, None),
        (b"1", 1, None),
        (b"2", 1, None),
    ]
    assert messages[0].visible_at == clock.now()


def test_redrive_by_id_leaves_the_others(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1)
    ids = failed_messages(queue, 3)
    waiting = queue.put(b"waiting")
    assert queue.redrive(ids[1], waiting, "unknown", ids[1]) == 1
    assert [message.id for message in queue.messages("failed")] == [ids[0], ids[2]]


@pytest.mark.parametrize("state", ["delayed", "available", "in_flight", "done", "failed"])
def test_remove_takes_a_message_out_in_any_state(make_queue: MakeQueue, state: State) -> None:
    queue = make_queue(max_attempts=1, keep_done=60)
    bring_into(queue, state)
    [message] = queue.messages(state)
    assert queue.remove(message.id, message.id, "unknown") == 1
    assert queue.remove(message.id) == 0
    assert queue.counts() == NONE
    assert queue.claim() == []


def test_a_message_removed_under_its_consumer_is_lost_to_it(queue: Queue) -> None:
    message = claim_one(queue)
    queue.remove(message.id)
    with pytest.raises(LeaseExpired):
        message.ack()


@pytest.mark.parametrize("unknown", ["", "007", "1.5", "x", "-1", "9" * 40, "\uff11"])
def test_an_id_that_names_nothing_removes_nothing(queue: Queue, unknown: str) -> None:
    queue.put_many([b"x"] * 10)
    assert queue.remove(unknown) == 0
    assert len(queue) == 10


def test_ids_are_text(queue: Queue) -> None:
    with pytest.raises(TypeError, match="an id is a str, not int"):
        queue.remove(1)  # type: ignore[arg-type]


def test_purge_empties_the_queue_of_everything_but_what_is_in_flight(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1, keep_done=60)
    claim_one(queue).ack()
    claim_one(queue).fail()
    held = claim_one(queue)
    queue.put(b"b")
    queue.put(b"c", delay=5)
    assert queue.purge() == 4
    assert queue.counts() == {**NONE, "in_flight": 1}
    assert queue.purge() == 0
    held.ack()
    assert queue.counts() == {**NONE, "done": 1}
