"""Claiming: who gets what, for how long, and what happens when a lease ends."""

import threading
from dataclasses import replace

import pytest

from penstock import Draft, InvalidArgument, LeaseExpired, Queue, SimulatedClock
from tests.conformance.conftest import MakeQueue


def test_a_claimed_message_says_who_holds_it_and_until_when(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    clock.advance(1)
    [message] = queue.claim(lease=12.5, consumer="worker ⚙ 1")
    assert message.state == "in_flight"
    assert message.attempts == 1
    assert message.claimed_at == clock.now()
    assert message.lease_until == clock.now() + 12_500
    assert message.consumer == "worker ⚙ 1"
    assert message.receipt
    assert (message.settled_at, message.reason) == (None, None)
    assert list(queue.messages("in_flight")) == [replace(message, receipt=None)]


def test_a_consumer_is_named_after_its_host_and_process_unless_it_names_itself(queue: Queue) -> None:
    queue.put(b"a")
    consumer = queue.claim()[0].consumer
    assert consumer is not None
    assert consumer.rpartition(":")[2].isdigit()


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    assert queue.claim() == []
    assert queue.claim(100) == []
    assert queue.pop() is None


def test_claim_gives_at_most_n_and_at_most_what_is_there(queue: Queue) -> None:
    queue.put_many([b"a", b"b", b"c"])
    assert [message.payload for message in queue.claim(2)] == [b"a", b"b"]
    assert [message.payload for message in queue.claim(2)] == [b"c"]
    assert queue.claim(2) == []


def test_a_claim_acknowledges_earlier_messages_first(make_queue: MakeQueue) -> None:
    queue = make_queue(keep_done=60)
    queue.put_many([b"a", b"b", b"c", b"d"])
    first = queue.claim(2)
    [third] = queue.claim(ack=first)
    assert third.payload == b"c"
    [fourth] = queue.claim(9, ack=third)
    assert queue.claim(ack=[first[0], fourth.receipt or ""]) == []  # repeating an ack does no harm
    assert [message.payload for message in queue.messages("done")] == [b"a", b"b", b"c", b"d"]


def test_a_claim_whose_acks_have_lost_their_lease_settles_the_others_and_takes_nothing(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(keep_done=60)
    queue.put_many([b"a", b"b", b"c"])
    [late, _] = queue.claim(2, lease=1)
    [in_time] = queue.claim()
    clock.advance(1)
    with pytest.raises(LeaseExpired) as lost:
        queue.claim(ack=[late, in_time])
    assert lost.value.receipts == [late.receipt]
    assert queue.counts() == {"delayed": 0, "available": 2, "in_flight": 0, "done": 1, "failed": 0}


def test_an_acknowledged_head_frees_the_next_of_its_group_for_the_same_claim(queue: Queue) -> None:
    queue.put_many([Draft(b"1", group="g"), Draft(b"2", group="g")])
    [head] = queue.claim(2)
    assert [message.payload for message in queue.claim(2, ack=head)] == [b"2"]


def test_the_shortest_lease_still_is_one(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [message] = queue.claim(lease=0.0001)
    assert message.lease_until == clock.now() + 1
    message.ack()


def test_a_claimed_message_is_given_to_nobody_else(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    queue.claim(lease=30)
    clock.advance(29.999)
    assert queue.claim() == []
    assert queue.pop() is None
    assert list(queue.peek()) == []


def test_a_lease_that_ends_counts_as_a_failed_attempt(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [first] = queue.claim(lease=30)
    clock.advance(30)
    [waiting] = queue.messages()
    assert (waiting.state, waiting.reason, waiting.receipt) == ("available", "lease expired", None)
    assert (waiting.claimed_at, waiting.lease_until, waiting.consumer) == (None, None, None)
    [second] = queue.claim()
    assert second.id == first.id
    assert second.attempts == 2
    assert second.receipt != first.receipt


def test_a_lease_that_ends_after_the_last_attempt_fails_the_message(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(max_attempts=2)
    queue.put(b"a")
    for _ in range(2):
        queue.claim(lease=5, consumer="w")
        clock.advance(5)
    [message] = queue.messages("failed")
    assert (message.attempts, message.reason, message.consumer) == (2, "lease expired", "w")
    assert message.settled_at == clock.now()
    assert queue.claim() == []


def test_a_lost_lease_can_do_nothing_any_more(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [lost] = queue.claim(lease=1)
    clock.advance(1)
    for operation in (lost.ack, lost.fail, lost.release, lost.extend):
        with pytest.raises(LeaseExpired) as caught:
            operation()
        assert caught.value.receipts == [lost.receipt]
    [held] = queue.claim()
    for operation in (lost.ack, lost.fail, lost.release, lost.extend):
        with pytest.raises(LeaseExpired):
            operation()
    held.ack()
    assert queue.counts() == dict.fromkeys(queue.counts(), 0)


def test_a_queue_caps_the_lease(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(max_lease=10)
    queue.put(b"a")
    [message] = queue.claim(lease=3600)
    assert message.lease_until == clock.now() + 10_000
    clock.advance(5)
    message.extend(3600)
    assert message.lease_until == clock.now() + 10_000
    clock.advance(10)
    assert len(queue.claim()) == 1


def test_extend_counts_from_now(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [message] = queue.claim(lease=30)
    clock.advance(20)
    message.extend(lease=30)
    assert message.lease_until == clock.now() + 30_000
    [stored] = queue.messages("in_flight")
    assert stored.lease_until == message.lease_until
    clock.advance(29.999)
    assert queue.claim() == []
    message.ack()


def test_extend_extends_what_is_held_and_names_what_is_lost(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    [lost] = queue.claim(lease=1)
    [held] = queue.claim(lease=10)
    clock.advance(5)
    before = lost.lease_until
    with pytest.raises(LeaseExpired) as caught:
        queue.extend(lost, held, lease=60)
    assert caught.value.receipts == [lost.receipt]
    assert (lost.lease_until, held.lease_until) == (before, clock.now() + 60_000)


def test_extend_may_shorten_a_lease(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [message] = queue.claim(lease=3600)
    message.extend(lease=1)
    clock.advance(1)
    assert len(queue.claim()) == 1


def test_pop_takes_the_message_for_good(queue: Queue, clock: SimulatedClock) -> None:
    queue.put_many([b"a", b"b"])
    message = queue.pop()
    assert message is not None
    assert (message.payload, message.state, message.attempts, message.receipt) == (b"a", "done", 1, None)
    assert message.claimed_at == message.settled_at == clock.now()
    assert queue.counts() == {"delayed": 0, "available": 1, "in_flight": 0, "done": 0, "failed": 0}


def test_pop_leaves_a_done_message_where_such_are_kept(make_queue: MakeQueue) -> None:
    queue = make_queue(keep_done=60)
    queue.put(b"a")
    message = queue.pop()
    assert list(queue.messages("done")) == [message]


def test_a_message_that_was_not_claimed_cannot_be_settled(queue: Queue) -> None:
    queue.put_many([b"a", b"b"])
    [peeked] = queue.peek()
    popped = queue.pop()
    assert popped is not None
    for message in (peeked, popped):
        with pytest.raises(InvalidArgument, match=r"was not claimed, so it cannot be settled: use claim\(\)"):
            message.ack()
        with pytest.raises(InvalidArgument, match="was not claimed"):
            queue.ack(message)


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        ({"n": 0}, InvalidArgument, "n=0 is out of range"),
        ({"n": 1.5}, TypeError, "n is an integer"),
        ({"lease": 0}, InvalidArgument, "lease=0 would end at once"),
        ({"lease": -1}, InvalidArgument, "lease=-1 is not a duration"),
        ({"lease": float("inf")}, InvalidArgument, "lease=inf is not a duration"),
        ({"wait": -1}, InvalidArgument, "wait=-1 is not a duration"),
        ({"consumer": ""}, InvalidArgument, "give 1 to 255"),
        ({"consumer": "ä" * 128}, InvalidArgument, "consumer has 256 bytes; give 1 to 255"),
        ({"consumer": "\ud800"}, InvalidArgument, "not valid Unicode"),
        ({"consumer": 7}, TypeError, "consumer is a str"),
    ],
)
def test_a_claim_that_makes_no_sense_says_why(
    queue: Queue, arguments: dict[str, object], error: type[Exception], advice: str
) -> None:
    queue.put(b"a")
    with pytest.raises(error, match=advice):
        queue.claim(**arguments)  # type: ignore[arg-type]
    assert queue.counts()["available"] == 1


def test_many_threads_never_get_the_same_message(queue: Queue) -> None:
    count, threads = 800, 8
    seen: list[str] = []

    def produce(number: int) -> None:
        for each in range(count // threads):
            queue.put(f"{number}/{each}")

    def consume() -> None:
        while len(seen) < count:
            for message in queue.claim(7, wait=0):
                seen.append(message.payload.decode())
                message.ack()

    workers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
    workers += [threading.Thread(target=consume) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == sorted(
        f"{number}/{each}" for number in range(threads) for each in range(count // threads)
    )
    assert queue.counts() == dict.fromkeys(queue.counts(), 0)
