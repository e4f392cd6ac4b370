"""Groups: their messages are handed out one at a time and in order, and nothing else waits for them."""

from collections.abc import Callable

import pytest

from penstock import Draft, Queue, SimulatedClock, Store
from tests.conformance.conftest import MakeQueue


def put(queue: Queue, text: str, priority: int = 0) -> list[str]:
    """A message for each letter, in the group of that letter; dots have none."""
    drafts = [
        Draft(f"{letter}{at}", priority, group=None if letter == "." else letter) for at, letter in enumerate(text)
    ]
    return queue.put_many(drafts)


def claimed(queue: Queue, n: int = 100) -> list[str]:
    return [message.payload.decode() for message in queue.claim(n)]


def test_a_message_says_its_group(queue: Queue) -> None:
    queue.put(b"x", group="Läden / 7")
    queue.put(b"y")
    assert [message.group for message in queue.messages()] == ["Läden / 7", None]
    assert [message.group for message in queue.claim(2)] == ["Läden / 7", None]


def test_one_message_of_a_group_is_in_flight_and_others_are_not_held_up(queue: Queue) -> None:
    put(queue, "aab.ab.")
    assert claimed(queue) == ["a0", "b2", ".3", ".6"]
    assert claimed(queue) == []
    assert queue.counts()["available"] == 3
    assert [message.payload for message in queue.peek(10)] == []


def test_the_next_of_a_group_comes_when_the_one_before_is_done(queue: Queue) -> None:
    put(queue, "aaa")
    for text in ("a0", "a1", "a2"):
        [message] = queue.claim(10)
        assert message.payload.decode() == text
        message.ack()
    assert queue.count() == 0


def test_pop_and_peek_go_by_groups_too(queue: Queue) -> None:
    put(queue, "aab")
    assert [message.payload for message in queue.peek(10)] == [b"a0", b"b2"]
    popped = [queue.pop() for _ in range(4)]
    assert [message and message.payload for message in popped] == [b"a0", b"a1", b"b2", None]


def test_a_head_that_waits_for_its_retry_holds_its_group(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "aab")
    first, other = queue.claim(10)
    first.fail(delay=10)
    assert claimed(queue) == []
    clock.advance(10)
    [again] = queue.claim(10)
    assert (again.payload, again.attempts) == (b"a0", 2)
    again.release()
    assert claimed(queue) == ["a0"]
    other.ack()


def test_a_head_that_is_delayed_holds_its_group(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"first", delay=10, group="a")
    queue.put(b"second", group="a")
    assert claimed(queue) == []
    clock.advance(10)
    assert claimed(queue) == ["first"]


def test_a_lease_that_ends_gives_the_same_message_again(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "aa")
    queue.claim(10, lease=5)
    clock.advance(5)
    assert claimed(queue) == ["a0"]


def test_a_head_whose_lease_is_revoked_comes_again_before_the_rest_of_its_group(queue: Queue) -> None:
    put(queue, "aab")
    first, other = queue.claim(10)
    assert queue.revoke(first.id) == 1
    assert claimed(queue) == ["a0"]
    other.ack()


def test_a_head_that_fails_for_good_frees_the_next_and_a_redrive_takes_its_old_place(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(max_attempts=1)
    ids = put(queue, "aaa")
    queue.claim()[0].fail()
    [second] = queue.claim()
    assert second.payload == b"a1"
    assert queue.redrive(ids[0]) == 1
    assert claimed(queue) == []  # the second is in flight still
    second.ack()
    [first] = queue.claim(10)
    assert first.payload == b"a0"
    first.ack()
    assert claimed(queue) == ["a2"]


def test_a_message_that_is_redriven_comes_before_one_that_could_be_claimed(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1)
    put(queue, "aa")
    queue.claim()[0].fail()
    assert [message.payload for message in queue.peek(9)] == [b"a1"]
    queue.redrive()
    assert [message.payload for message in queue.peek(9)] == [b"a0"]
    assert claimed(queue) == ["a0"]


def test_a_head_that_is_removed_or_expires_frees_the_next(queue: Queue, clock: SimulatedClock) -> None:
    ids = put(queue, "a")
    queue.put(b"short", group="a", retention=5)
    put(queue, "a")
    queue.claim()
    assert queue.remove(ids[0]) == 1
    assert [message.payload for message in queue.peek(9)] == [b"short"]
    clock.advance(5)
    assert claimed(queue) == ["a0"]


def test_priorities_count_between_groups_not_within(queue: Queue) -> None:
    queue.put(b"a first", priority=5, group="a")
    queue.put(b"a urgent", priority=0, group="a")
    queue.put(b"b", priority=3, group="b")
    queue.put(b"alone", priority=4)
    assert claimed(queue) == ["b", "alone", "a first"]


def test_purge_leaves_what_is_in_flight_and_its_group_goes_on(queue: Queue) -> None:
    put(queue, "aa")
    [first] = queue.claim(10)
    assert queue.purge() == 1
    put(queue, "a")
    assert claimed(queue) == []
    first.ack()
    assert claimed(queue) == ["a0"]


def test_groups_are_kept(queue: Queue, reopen: Callable[[], Store]) -> None:
    put(queue, "aab.b")
    receipts = [message.receipt for message in queue.claim(2)]
    queue = reopen().queue(queue.name)
    assert [message.group for message in queue.messages()] == ["a", "a", "b", None, "b"]
    assert claimed(queue) == [".3"]
    queue.ack(*filter(None, receipts))
    assert claimed(queue) == ["a1", "b4"]


@pytest.mark.parametrize("settle", ["ack", "fail", "release"])
def test_a_thousand_messages_of_a_few_groups_keep_their_order(queue: Queue, settle: str) -> None:
    queue.put_many([Draft(str(at), group=str(at % 7)) for at in range(200)])
    seen: dict[str, list[int]] = {}
    while messages := queue.claim(50):
        for message in messages:
            group = message.group or ""
            if settle != "ack" and message.attempts == 1 and int(message.payload) % 3 == 0:
                getattr(message, settle)()
                continue
            seen.setdefault(group, []).append(int(message.payload))
            message.ack()
    assert seen == {str(group): list(range(group, 200, 7)) for group in range(7)}
