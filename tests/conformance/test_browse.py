"""Looking without touching: peek, messages, counts."""

from typing import Any

import pytest

from penstock import Draft, InvalidArgument, Queue, SimulatedClock, Store
from penstock.contract.operations import Messages
from tests.conformance.conftest import MakeQueue


def test_peek_shows_what_claim_would_give_and_changes_nothing(queue: Queue) -> None:
    for number in range(5):
        queue.put(str(number), priority=9 - number)
    peeked = list(queue.peek(3))
    assert [message.payload for message in peeked] == [b"4", b"3", b"2"]
    assert peeked == list(queue.peek(3))
    assert [message.attempts for message in peeked] == [0, 0, 0]
    assert [message.id for message in queue.claim(3)] == [message.id for message in peeked]


def test_peek_of_an_empty_queue_is_empty(queue: Queue) -> None:
    assert next(queue.peek(), None) is None


def test_messages_lists_each_state_in_the_order_of_putting(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(keep_done=60, max_attempts=1)
    queue.put_many([b"done", b"failed", b"held", b"waiting"])
    done, failed, _held = queue.claim(3)
    queue.put(b"delayed", delay=5)
    failed.fail()
    done.ack()
    listed = [(message.payload.decode(), message.state) for message in queue.messages()]
    assert listed == [
        ("done", "done"),
        ("failed", "failed"),
        ("held", "in_flight"),
        ("waiting", "available"),
        ("delayed", "delayed"),
    ]
    for payload, state in listed:
        assert [message.payload.decode() for message in queue.messages(state)] == [payload]
    assert queue.counts() == dict.fromkeys(("delayed", "available", "in_flight", "done", "failed"), 1)
    assert len(queue) == queue.count() == 2


def test_messages_are_listed_from_after_one_id_until_another(make_queue: MakeQueue, store: Store) -> None:
    if not isinstance(store, Store):
        pytest.skip("for coroutines the same backend lists")
    queue = make_queue(max_attempts=1)
    ids = queue.put_many([b"%d" % number for number in range(7)])
    queue.fail(*queue.claim(3))

    def listed(**wanted: Any) -> list[str]:
        return [message.id for message in store.run(Messages(queue.name, **wanted))]

    assert listed(after=ids[1]) == ids[2:]
    assert listed(until=ids[1]) == ids[:2]
    assert listed(after=ids[0], until=ids[4], state="failed") == ids[1:3]
    assert listed(after=ids[0], state="available") == ids[3:]
    assert listed(after=ids[6]) == []
    queue.remove(ids[1], ids[4])
    assert listed(after=ids[0]) == [ids[2], ids[3], ids[5], ids[6]]


def test_a_message_is_found_by_its_id_in_every_state(make_queue: MakeQueue) -> None:
    queue = make_queue(keep_done=60, max_attempts=1)
    queue.put_many([b"done", b"failed", b"held", Draft(b"waiting", headers={"kind": "a"})])
    done, failed, _held = queue.claim(3, consumer="w")
    queue.put(b"delayed", delay=5)
    failed.fail(reason="no disk")
    done.ack()
    listed = list(queue.messages())
    assert {message.state for message in listed} == {"done", "failed", "in_flight", "available", "delayed"}
    assert [queue.message(message.id) for message in listed] == listed
    queue.remove(done.id)
    for unknown in (done.id, "7" * 40, "x", "../jobs"):
        assert queue.message(unknown) is None


def test_a_receipt_is_shown_to_nobody_but_who_claimed(queue: Queue) -> None:
    queue.put(b"a")
    [claimed] = queue.claim(consumer="w")
    [listed] = queue.messages("in_flight")
    assert listed.receipt is None
    assert (listed.consumer, listed.lease_until) == ("w", claimed.lease_until)
    with pytest.raises(InvalidArgument, match="was not claimed"):
        queue.ack(listed)


def test_messages_of_a_long_queue_come_complete(queue: Queue) -> None:
    queue.put_many([str(number) for number in range(5_000)])
    assert [int(message.payload) for message in queue.messages()] == list(range(5_000))
    assert [int(message.payload) for message in queue.messages("available")] == list(range(5_000))


def test_a_listing_goes_on_while_the_queue_is_worked_on(queue: Queue) -> None:
    queue.put_many([str(number) for number in range(2_000)])
    listing = queue.messages()
    first = [int(next(listing).payload) for _ in range(10)]
    queue.ack(*queue.claim(1_500))
    queue.put(b"2000")
    rest = [int(message.payload) for message in listing]
    assert first == list(range(10))
    assert rest == sorted(set(rest))
    assert set(range(1_500, 2_001)) <= set(rest)


def test_an_unknown_state_is_refused_at_once(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="state='ready' is none; give one of delayed, available"):
        queue.messages("ready")  # type: ignore[arg-type]


def test_peek_needs_a_positive_number(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="n=0 is out of range"):
        queue.peek(0)


def test_an_arrow_table_has_a_row_for_each_message(make_queue: MakeQueue) -> None:
    queue = make_queue(max_attempts=1)
    assert queue.to_arrow().num_rows == 0
    queue.put_many([Draft(b"failed", headers={"type": "order"}), b"held", b"\xff\x00"])
    failed, _held = queue.claim(2, consumer="w")
    failed.fail(reason="broken")
    rows = queue.to_arrow().to_pylist()
    assert [row["id"] for row in rows] == [message.id for message in queue.messages()]
    assert [(row["payload"], row["state"]) for row in rows] == [
        (b"failed", "failed"),
        (b"held", "in_flight"),
        (b"\xff\x00", "available"),
    ]
    assert [row["consumer"] for row in rows] == ["w", "w", None]
    assert [row["receipt"] for row in rows] == [None] * 3
    assert queue.to_arrow("failed").to_pylist() == rows[:1]
    assert (rows[0]["headers"], rows[0]["reason"]) == ([("type", "order")], "broken")
