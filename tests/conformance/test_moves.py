"""Messages that move to another queue: by hand, as dead letters, and back. Each is in exactly one queue."""

from collections.abc import Callable

import pytest

from penstock import (
    Draft,
    InvalidArgument,
    LeaseExpired,
    Queue,
    QueueFull,
    QueueNotFound,
    SimulatedClock,
    Store,
)

pytestmark = pytest.mark.many_queues


@pytest.fixture
def dead(store: Store) -> Queue:
    return store.create("dead", keep_done=60)


@pytest.fixture
def jobs(store: Store, dead: Queue) -> Queue:
    return store.create("jobs", max_attempts=1, dead_letter="dead")


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.messages()]


def test_a_message_that_fails_for_good_goes_to_the_dead_letter_queue(
    jobs: Queue, dead: Queue, clock: SimulatedClock
) -> None:
    jobs.put(b"a", priority=3, headers={"type": "order"}, created_at=5, group="g")
    [message] = jobs.claim()
    clock.advance(1)
    message.fail(reason="no disk")
    assert payloads(jobs) == []
    [letter] = dead.messages()
    assert (letter.payload, letter.priority, letter.created_at, letter.group) == (b"a", 3, 5, "g")
    assert letter.headers == {"type": "order", "penstock.origin": "jobs", "penstock.reason": "no disk"}
    assert (letter.state, letter.attempts, letter.reason) == ("available", 0, None)
    assert dead.claim()[0].payload == b"a"


def test_what_a_consumer_settled_may_be_repeated_after_its_message_has_moved(
    store: Store, jobs: Queue, dead: Queue, clock: SimulatedClock
) -> None:
    jobs.put_many([b"fails", b"comes back", b"expires"])
    fails, comes_back, _ = jobs.claim(3, lease=5)
    fails.fail(reason="no disk")
    comes_back.release()
    assert jobs.move("default", comes_back.id) == 1
    clock.advance(5)
    assert dead.count() == 2
    for _ in range(2):
        fails.fail(reason="no disk")
        comes_back.release()
    with pytest.raises(LeaseExpired):
        fails.ack()
    assert [message.headers["penstock.reason"] for message in dead.messages()] == ["no disk", "lease expired"]


def test_only_the_last_attempt_is_one(store: Store, dead: Queue) -> None:
    jobs = store.create("jobs", max_attempts=2, dead_letter="dead")
    jobs.put(b"a")
    jobs.claim()[0].fail()
    assert (jobs.count(), dead.count()) == (1, 0)
    jobs.claim()[0].fail()
    assert (jobs.count(), dead.count()) == (0, 1)
    assert "penstock.reason" not in next(dead.messages()).headers


def test_a_lease_that_ends_for_the_last_time_is_a_dead_letter_too(
    jobs: Queue, dead: Queue, clock: SimulatedClock, store: Store
) -> None:
    jobs.put_many([b"a", b"b"])
    jobs.claim(2, lease=5)
    clock.advance(5)
    assert [info.counts["available"] for info in store.queues() if info.name == "dead"] == [2]
    assert [message.headers["penstock.reason"] for message in dead.claim(2)] == ["lease expired"] * 2
    assert jobs.counts()["failed"] == 0


def test_a_group_goes_on_when_its_head_is_a_dead_letter(jobs: Queue, dead: Queue) -> None:
    jobs.put_many([Draft(b"a", group="g"), Draft(b"b", group="g")])
    jobs.claim()[0].fail()
    assert [message.payload for message in jobs.claim(9)] == [b"b"]


def test_a_full_or_missing_dead_letter_queue_leaves_messages_failed(
    store: Store, dead: Queue, jobs: Queue
) -> None:
    dead.update(max_size=1)
    jobs.put_many([b"a", b"b", b"c"])
    jobs.fail(*jobs.claim(3))
    assert (payloads(dead), jobs.counts()["failed"]) == ([b"a"], 2)
    dead.claim()[0].ack()
    assert dead.counts()["available"] == 1  # there was room again
    assert jobs.counts()["failed"] == 1
    store.delete("dead")
    assert jobs.update(description="goes on", dead_letter="dead").dead_letter == "dead"
    jobs.put(b"d")
    jobs.claim()[0].fail(reason="gone")
    assert [message.payload for message in jobs.messages("failed")] == [b"c", b"d"]
    assert jobs.redrive() == 2


def test_a_dead_letter_queue_takes_what_its_settings_allow(store: Store) -> None:
    store.create("small", max_payload=1, priorities=(0, 5))
    jobs = store.create("jobs", max_attempts=1, dead_letter="small")
    jobs.put_many([Draft(b"long"), Draft(b"x"), Draft(b"y", priority=9), Draft(b"z")])
    jobs.fail(*jobs.claim(4))
    assert payloads(store.queue("small")) == [b"x", b"z"]
    assert [message.payload for message in jobs.messages("failed")] == [b"long", b"y"]


def test_a_letter_that_was_refused_and_removed_holds_back_no_other(store: Store) -> None:
    store.create("small", max_payload=1)
    jobs = store.create("jobs", max_attempts=1, dead_letter="small")
    for payload in ("long", "x"):
        jobs.put(payload)
        jobs.fail(*jobs.claim())
        jobs.remove(*[message.id for message in jobs.messages("failed")])
    assert payloads(store.queue("small")) == [b"x"]


def test_redrive_sends_each_dead_letter_back_to_its_origin(store: Store, dead: Queue, jobs: Queue) -> None:
    mails = store.create("mails", max_attempts=1, dead_letter="dead")
    for queue in (jobs, mails):
        queue.put(queue.name, headers={"a": "b"})
        queue.claim()[0].fail(reason="no")
    own = dead.put(b"not a letter")
    assert dead.redrive() == 2
    assert [message.id for message in dead.messages()] == [own]
    for queue in (jobs, mails):
        [message] = queue.claim()
        assert (message.payload.decode(), message.headers, message.attempts) == (queue.name, {"a": "b"}, 1)


def test_redrive_of_some_dead_letters_and_of_those_without_an_origin_to_go_to(
    store: Store, dead: Queue, jobs: Queue
) -> None:
    jobs.put_many([b"a", b"b"])
    jobs.fail(*jobs.claim(2))
    first, second = (message.id for message in dead.messages())
    assert dead.redrive(second) == 1
    assert payloads(jobs) == [b"b"]
    store.delete("jobs")
    assert dead.redrive(first) == 0
    assert payloads(dead) == [b"a"]


def test_messages_move_by_hand(store: Store, clock: SimulatedClock) -> None:
    a, b = store.create("a", max_attempts=1), store.create("b")
    ids = [
        a.put(b"waits", headers={"x": "y"}, retention=100),
        a.put(b"delayed", delay=10),
        a.put(b"failed"),
        a.put(b"in flight"),
    ]
    for message in a.claim(3):
        if message.payload == b"failed":
            message.fail()
        elif message.payload == b"waits":
            message.release()
    assert a.move("b", *ids, "nonsense") == 3
    assert payloads(a) == [b"in flight"]
    assert {message.payload: message.state for message in b.messages()} == {
        b"waits": "available", b"delayed": "delayed", b"failed": "available",
    }  # fmt: skip
    [waits] = [message for message in b.messages() if message.payload == b"waits"]
    assert (waits.headers, waits.attempts, waits.expires_at) == ({"x": "y"}, 0, clock.now() + 100_000)
    clock.advance(10)
    assert b.counts()["available"] == 3


def test_without_ids_all_failed_messages_move(store: Store) -> None:
    a, b = store.create("a", max_attempts=1), store.create("b")
    a.put_many([str(at) for at in range(1_200)])
    a.fail(*a.claim(1_100))
    assert a.move("b") == 1_100
    assert payloads(b) == [str(at).encode() for at in range(1_100)]
    assert a.counts() == {"delayed": 0, "available": 100, "in_flight": 0, "done": 0, "failed": 0}


def test_what_cannot_move_is_refused_and_nothing_has_moved(store: Store) -> None:
    a, b = store.create("a"), store.create("b", max_size=1)
    ids = a.put_many([b"x", b"y"])
    with pytest.raises(QueueFull, match="queue 'b' holds 0 of at most 1"):
        a.move("b", *ids)
    with pytest.raises(QueueNotFound, match="nowhere"):
        a.move("nowhere", *ids)
    with pytest.raises(InvalidArgument, match="cannot move to 'a'"):
        a.move("a", *ids)
    assert (a.count(), b.count()) == (2, 0)
    b.update(max_size=2)
    b.put_many([b"1", b"2"])
    b.update(max_size=1)
    assert a.move("b") == 0  # none has failed


def test_chains_cycles_and_missing_queues_are_refused(store: Store, dead: Queue, jobs: Queue) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue 'nowhere'"):
        store.create("x", dead_letter="nowhere")
    with pytest.raises(InvalidArgument, match="queue 'jobs' has a dead_letter itself"):
        store.create("x", dead_letter="jobs")
    with pytest.raises(InvalidArgument, match="takes the dead letters of 'jobs'"):
        dead.update(dead_letter="default")
    with pytest.raises(InvalidArgument, match="is the queue itself"):
        store.queue().update(dead_letter="default")
    assert sorted(info.name for info in store.queues()) == ["dead", "default", "jobs"]


def test_a_dead_letter_queue_that_is_named_later_takes_what_has_failed_already(store: Store, dead: Queue) -> None:
    jobs = store.create("jobs", max_attempts=1)
    jobs.put(b"a")
    jobs.claim()[0].fail()
    jobs.update(dead_letter="dead")
    assert (payloads(dead), jobs.counts()["failed"]) == ([b"a"], 0)
    jobs.update(dead_letter=None)
    jobs.put(b"b")
    jobs.claim()[0].fail()
    assert jobs.counts()["failed"] == 1


def test_what_has_moved_is_kept(store: Store, jobs: Queue, dead: Queue, reopen: Callable[[], Store]) -> None:
    jobs.put_many([b"a", b"b"])
    jobs.fail(*jobs.claim(2), reason="no")
    dead.move("default", next(dead.messages()).id)
    store = reopen()
    assert payloads(store.queue("dead")) == [b"b"]
    assert payloads(store.queue()) == [b"a"]
    assert store.queue("jobs").settings.dead_letter == "dead"
    assert store.queue("jobs").counts()["failed"] == 0
    assert store.queue("dead").redrive() == 1
    assert payloads(store.queue("jobs")) == [b"b"]
