"""Time: delays, expiry, and clocks that jump."""

import pytest

from penstock import Draft, LeaseExpired, Queue, SimulatedClock, State
from tests.conformance.conftest import MakeQueue

NONE = {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 0}


def test_a_delayed_message_waits_its_time(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", delay=1.5)
    assert queue.counts() == {**NONE, "delayed": 1}
    assert len(queue) == 1
    assert queue.claim() == []
    clock.advance(1.499)
    assert queue.claim() == []
    clock.advance(0.001)
    assert queue.counts() == {**NONE, "available": 1}
    [message] = queue.claim()
    assert message.visible_at == message.received_at + 1_500


def test_the_shortest_delay_still_is_one(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", delay=0.0001)
    assert queue.claim() == []
    clock.advance(0.001)
    queue.claim()[0].fail(delay=0.0001)
    assert queue.counts()["delayed"] == 1


def test_a_delayed_message_takes_the_place_of_its_arrival(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"first", delay=10)
    queue.put(b"second")
    queue.put(b"third", delay=5)
    clock.advance(10)
    assert [message.payload for message in queue.claim(3)] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("state", ["delayed", "available", "in_flight", "done", "failed"])
def test_an_expired_message_is_gone_whatever_its_state(
    make_queue: MakeQueue, clock: SimulatedClock, state: State
) -> None:
    queue = make_queue(max_attempts=1, keep_done=None)
    queue.put(b"a", retention=60, delay=59 if state == "delayed" else 0)
    if state in ("in_flight", "done", "failed"):
        [message] = queue.claim(lease=3600)
        if state == "done":
            message.ack()
        elif state == "failed":
            message.fail()
    [stored] = queue.messages(state)
    assert stored.expires_at == stored.received_at + 60_000
    if state == "delayed":
        clock.advance(58.999)
        assert queue.counts() == {**NONE, "delayed": 1}
        clock.advance(1.001)
    else:
        clock.advance(59.999)
        assert queue.counts() == {**NONE, state: 1}
        clock.advance(0.001)
    assert queue.counts() == NONE
    assert list(queue.messages()) == list(queue.peek()) == queue.claim() == []
    assert queue.remove(stored.id) == 0


def test_an_expired_message_is_lost_to_its_consumer(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", retention=10)
    [message] = queue.claim(lease=60)
    clock.advance(10)
    with pytest.raises(LeaseExpired):
        message.ack()


def test_a_queue_has_a_retention_of_its_own_that_a_put_may_overrule(
    make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue(retention=10)
    queue.put(b"usual")
    queue.put(b"longer", retention=20)
    queue.put(b"for ever", retention=0)
    clock.advance(10)
    assert [message.payload for message in queue.messages()] == [b"longer", b"for ever"]
    clock.advance(1_000_000)
    assert [message.payload for message in queue.messages()] == [b"for ever"]


def test_the_longest_delay_and_retention_are_kept(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", delay=4_294_967_295, retention=4_294_967_295)
    [message] = queue.messages("delayed")
    assert message.visible_at == message.expires_at == clock.now() + 4_294_967_295_000


def test_the_shortest_retention_still_is_one(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a", retention=0.0001)
    assert len(queue) == 1
    clock.advance(0.001)
    assert len(queue) == 0


def test_a_clock_that_jumps_back_ends_nothing_early_and_moves_no_time_backwards(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"a")
    queue.put(b"b", delay=60)
    [held] = queue.claim(lease=30)
    before = clock.now()
    clock.jump(-3600)
    assert queue.claim() == []
    queue.put(b"c")
    [late] = queue.claim(lease=30)
    assert late.received_at == late.claimed_at == before
    assert late.lease_until == before + 30_000
    clock.advance(29.999)
    assert queue.counts() == {**NONE, "delayed": 1, "in_flight": 2}
    held.ack()
    late.ack()


def test_delays_and_leases_last_as_long_as_was_asked_although_the_clock_was_set_back(
    queue: Queue, clock: SimulatedClock
) -> None:
    queue.put(b"a")
    queue.claim(lease=30)
    queue.put(b"b", delay=60)
    clock.jump(-86_400)
    for seconds in (10, 19.999):
        clock.advance(seconds)
        assert queue.counts() == {**NONE, "delayed": 1, "in_flight": 1}
    clock.advance(0.001)
    assert queue.counts() == {**NONE, "delayed": 1, "available": 1}
    clock.advance(30)
    assert queue.counts() == {**NONE, "available": 2}


def test_one_look_at_a_clock_that_is_a_day_ahead_changes_nothing(
    queue: Queue, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put_many([b"held", Draft(b"kept", retention=100), Draft(b"later", delay=60)])
    [held] = queue.claim(lease=30)
    before = clock.now()
    clock.jump(86_400)
    queue.put(b"new")
    assert queue.counts() == {**NONE, "available": 2, "delayed": 1, "in_flight": 1}
    clock.jump(-86_400)
    clock.advance(29.999)
    assert queue.counts() == {**NONE, "available": 2, "delayed": 1, "in_flight": 1}
    held.ack()
    assert [message.received_at for message in queue.messages() if message.payload == b"new"] == [before]
    clock.advance(30.001)
    assert queue.counts() == {**NONE, "available": 3}
    said = [record.getMessage() for record in caplog.records if "ahead" in record.getMessage()]
    assert said == [
        "the clock is 86,400 s ahead of the time that has passed: not believed unless that lasts for 10 s"
    ]


def test_a_clock_that_stays_ahead_is_believed_after_ten_seconds(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    [held] = queue.claim(lease=3600)
    clock.jump(86_400)
    for _ in range(10):
        assert queue.counts() == {**NONE, "in_flight": 1}
        clock.advance(1)
    assert queue.counts() == {**NONE, "available": 1}
    with pytest.raises(LeaseExpired):
        held.ack()


def test_a_clock_that_jumps_ahead_ends_what_is_over_by_then(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(max_attempts=1)
    queue.put(b"a")
    queue.put(b"b", delay=60)
    queue.put(b"c", retention=100)
    [held] = queue.claim(lease=30)
    clock.jump(3600)
    assert queue.counts() == {**NONE, "available": 1, "failed": 1}
    [failed] = queue.messages("failed")
    assert failed.settled_at == held.lease_until  # when its lease ended, not when that was noticed
    with pytest.raises(LeaseExpired):
        held.ack()
