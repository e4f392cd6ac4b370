"""Putting: what goes in, in what order it comes out, and what is refused."""

import pytest

from penstock import Draft, InvalidArgument, InvalidPriority, PayloadTooLarge, Queue, QueueFull, SimulatedClock
from tests.conformance.conftest import MakeQueue
from tests.conformance.stores import StoreUnderTest

MAX_PAYLOAD = 16_777_216


def payloads(queue: Queue, n: int = 1000) -> list[bytes]:
    return [message.payload for message in queue.claim(n)]


def test_a_message_comes_out_as_it_went_in(queue: Queue, clock: SimulatedClock) -> None:
    headers = {"kind": "image", "größe": "zwölf ✓", "empty": "", "odd name": "a\nb\tc\x00d"}
    put = queue.put(b"\x00\xff payload\r\n", priority=7, headers=headers, created_at=1_600_000_000_123)
    [message] = queue.claim()
    assert message.id == put
    assert message.queue == queue.name
    assert message.payload == b"\x00\xff payload\r\n"
    assert message.headers == headers
    assert message.priority == 7
    assert message.created_at == 1_600_000_000_123
    assert message.received_at == clock.now()
    assert message.visible_at == clock.now()
    assert message.expires_at is None


def test_created_at_is_the_time_of_the_put_unless_given(queue: Queue, clock: SimulatedClock) -> None:
    queue.put(b"a")
    assert queue.claim()[0].created_at == clock.now()


def test_a_str_payload_is_stored_as_utf_8(queue: Queue) -> None:
    queue.put("grüße")
    assert payloads(queue) == ["grüße".encode()]


@pytest.mark.parametrize("kind_of_bytes", [bytearray, memoryview])
def test_other_kinds_of_bytes_are_copied(queue: Queue, kind_of_bytes: type[bytearray] | type[memoryview]) -> None:
    original = bytearray(b"abc")
    payload = kind_of_bytes(original)
    queue.put(payload)
    payload[0] = 0
    assert payloads(queue) == [b"abc"]


def test_an_empty_payload_is_a_message(queue: Queue) -> None:
    queue.put(b"")
    assert payloads(queue) == [b""]


def test_equal_priorities_are_first_in_first_out(queue: Queue) -> None:
    for number in range(50):
        queue.put(str(number))
    assert payloads(queue) == [str(number).encode() for number in range(50)]


def test_lower_priority_numbers_come_first(queue: Queue) -> None:
    for priority in (5, 1, 3, 1, 0, 5):
        queue.put(f"{priority}", priority=priority)
    assert payloads(queue) == [b"0", b"1", b"1", b"3", b"5", b"5"]


def test_priorities_reach_to_both_ends_of_what_the_store_holds(queue: Queue, kind: StoreUnderTest) -> None:
    lowest, highest = kind.priorities
    queue.put(b"last", priority=highest)
    queue.put(b"first", priority=lowest)
    assert [(message.payload, message.priority) for message in queue.claim(2)] == [
        (b"first", lowest),
        (b"last", highest),
    ]


def test_priorities_beyond_what_the_store_holds_are_refused(queue: Queue, kind: StoreUnderTest) -> None:
    for priority in (kind.priorities[0] - 1, kind.priorities[1] + 1):
        with pytest.raises(InvalidPriority, match=f"priority {priority}"):
            queue.put(b"x", priority=priority)
    assert len(queue) == 0


def test_a_queue_may_narrow_its_priorities(make_queue: MakeQueue) -> None:
    queue = make_queue(priorities=(1, 3))
    queue.put_many([Draft(b"a", priority=1), Draft(b"b", priority=3)])
    for priority in (0, 4):
        with pytest.raises(InvalidPriority, match=f"priority {priority}; queue {queue.name!r} takes 1 to 3"):
            queue.put(b"x", priority=priority)


def test_the_largest_payload_fits_and_one_byte_more_does_not(queue: Queue) -> None:
    largest = bytes(range(256)) * (MAX_PAYLOAD // 256)
    queue.put(largest)
    with pytest.raises(PayloadTooLarge, match=f"16777217 bytes; queue {queue.name!r} takes at most 16777216"):
        queue.put(largest + b"!")
    assert payloads(queue) == [largest]


def test_a_queue_may_narrow_its_payloads(make_queue: MakeQueue) -> None:
    queue = make_queue(max_payload=3)
    queue.put("abc")
    with pytest.raises(PayloadTooLarge):
        queue.put("äh!")  # four bytes in UTF-8
    assert len(queue) == 1


def test_put_many_returns_an_id_per_item_in_order(queue: Queue) -> None:
    ids = queue.put_many([Draft(b"a", priority=1), Draft("b", priority=0), Draft("c", priority=1)])
    claimed = queue.claim(3)
    assert [message.payload for message in claimed] == [b"b", b"a", b"c"]
    assert [message.id for message in claimed] == [ids[1], ids[0], ids[2]]
    assert len(set(ids)) == 3


def test_put_many_of_nothing_is_nothing(queue: Queue) -> None:
    assert queue.put_many([]) == []
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Draft(b"x", priority=2**63), InvalidPriority),
        (Draft(bytes(MAX_PAYLOAD + 1)), PayloadTooLarge),
        (Draft(b"x", delay=-1), InvalidArgument),
        (Draft(12), TypeError),  # type: ignore[arg-type]
        (None, TypeError),
    ],
    ids=["priority", "payload", "delay", "type of payload", "not a draft"],
)
def test_put_many_is_all_or_none(queue: Queue, bad: Draft, error: type[Exception]) -> None:
    with pytest.raises(error):
        queue.put_many([b"good", bad, b"good"])
    assert len(queue) == 0


@pytest.mark.parametrize("one", ["abc", b"abc", Draft(b"abc")])
def test_put_many_is_for_many(queue: Queue, one: str | bytes | Draft) -> None:
    with pytest.raises(TypeError, match=r"put_many takes several messages, not one \w+: use put\(\)"):
        queue.put_many(one)  # type: ignore[arg-type]


def test_put_many_says_which_item_is_wrong(queue: Queue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        queue.put_many([b"good", Draft(b"bad", retention=float("nan"))])
    assert "in item 1 of put_many; nothing was put" in caught.value.__notes__


def test_a_full_queue_refuses_and_stays_as_it_is(make_queue: MakeQueue) -> None:
    queue = make_queue(max_size=3)
    queue.put_many([b"a", b"b"])
    with pytest.raises(QueueFull, match=f"queue {queue.name!r} holds 2 of at most 3 messages; 2 more do not fit"):
        queue.put_many([b"c", b"d"])
    assert len(queue) == 2
    queue.put(b"c")
    with pytest.raises(QueueFull):
        queue.put(b"d")
    assert payloads(queue) == [b"a", b"b", b"c"]


def test_what_is_delayed_or_in_flight_takes_up_room_and_what_is_settled_does_not(make_queue: MakeQueue) -> None:
    queue = make_queue(max_size=2, keep_done=60, max_attempts=1)
    queue.put(b"a")
    queue.put(b"b", delay=10)
    [message] = queue.claim()
    with pytest.raises(QueueFull):
        queue.put(b"c")
    message.ack()
    queue.put(b"c")
    [message] = queue.claim()
    message.fail()
    queue.put(b"d")
    assert queue.counts() == {"delayed": 1, "available": 1, "in_flight": 0, "done": 1, "failed": 1}


def test_what_has_expired_takes_up_no_room(make_queue: MakeQueue, clock: SimulatedClock) -> None:
    queue = make_queue(max_size=1)
    queue.put(b"a", retention=5)
    clock.advance(5)
    queue.put(b"b")
    assert payloads(queue) == [b"b"]


def test_messages_that_come_back_are_never_refused(make_queue: MakeQueue) -> None:
    queue = make_queue(max_size=1, max_attempts=1)
    queue.put(b"a")
    queue.claim()[0].fail(reason="no")
    queue.put(b"b")
    assert queue.redrive() == 1
    assert queue.counts()["available"] == 2


def test_a_key_is_put_once(queue: Queue) -> None:
    first = queue.put(b"a", key="order-1")
    assert queue.put(b"b", key="order-1") == first
    assert queue.put(b"c", key="order-2") != first
    assert payloads(queue) == [b"a", b"c"]


def test_a_key_counts_within_one_batch_too(queue: Queue) -> None:
    ids = queue.put_many([Draft(b"a", key="k"), b"b", Draft(b"c", key="k")])
    assert ids[0] == ids[2] != ids[1]
    assert payloads(queue) == [b"a", b"b"]


def test_a_known_key_is_answered_even_when_the_message_is_done_or_the_queue_is_full(make_queue: MakeQueue) -> None:
    queue = make_queue(max_size=1)
    first = queue.put(b"a", key="k")
    assert queue.put(b"a", key="k") == first
    queue.claim()[0].ack()
    assert queue.put(b"a", key="k") == first
    assert len(queue) == 0


def test_a_known_key_is_answered_even_when_messages_that_came_back_overfill_the_queue(
    make_queue: MakeQueue,
) -> None:
    queue = make_queue(max_size=1, max_attempts=1)
    first = queue.put(b"a", key="k")
    queue.claim()[0].fail()
    queue.put(b"b")
    queue.redrive()
    assert len(queue) == 2
    assert queue.put(b"a", key="k") == first


def test_a_key_is_forgotten_after_five_minutes(queue: Queue, clock: SimulatedClock) -> None:
    first = queue.put(b"a", key="k")
    clock.advance(299.999)
    assert queue.put(b"a", key="k") == first
    clock.advance(0.001)
    assert queue.put(b"a", key="k") != first


@pytest.mark.many_queues
def test_keys_of_different_queues_do_not_meet(make_queue: MakeQueue) -> None:
    make_queue("a").put(b"x", key="k")
    other = make_queue("b")
    other.put(b"y", key="k")
    assert payloads(other) == [b"y"]


def test_what_the_caller_does_to_headers_afterwards_changes_nothing(queue: Queue) -> None:
    headers = {"kind": "a"}
    queue.put(b"x", headers=headers)
    headers["kind"] = "b"
    next(queue.peek()).headers["kind"] = "c"
    assert queue.claim()[0].headers == {"kind": "a"}


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        ({"payload": 5}, TypeError, "a payload is bytes or str, not int"),
        ({"payload": "\ud800"}, InvalidArgument, "not valid Unicode"),
        ({"priority": "high"}, TypeError, "priority is an integer"),
        ({"headers": {"a": 1}}, TypeError, "convert the value with str"),
        ({"headers": {"": "x"}}, InvalidArgument, "name it"),
        ({"headers": {"a": "\ud800"}}, InvalidArgument, "not valid Unicode"),
        ({"headers": {"penstock.queue": "x"}}, InvalidArgument, "Penstock's own"),
        ({"headers": {str(number): "" for number in range(256)}}, InvalidArgument, "at most 255"),
        ({"headers": {"a": "x" * 65_535}}, InvalidArgument, "65536 bytes; the most is 65535"),
        ({"delay": -0.001}, InvalidArgument, "give 0 to 4294967295 seconds"),
        ({"delay": float("nan")}, InvalidArgument, "not a duration"),
        ({"group": ""}, InvalidArgument, "group has 0 bytes"),
        ({"group": 7}, TypeError, "group is a str, not int"),
        ({"delay": ""}, TypeError, "delay is a number of seconds, not str"),
        ({"headers": [("a", "b")]}, TypeError, "headers are a dict"),
        ({"delay": "soon"}, TypeError, "delay is a number of seconds, not str"),
        ({"retention": 4_294_967_296}, InvalidArgument, "give 0 to 4294967295 seconds"),
        ({"key": ""}, InvalidArgument, "give 1 to 255"),
        ({"key": "k" * 256}, InvalidArgument, "give 1 to 255"),
        ({"key": 7}, TypeError, "key is a str"),
        ({"created_at": 1.5}, TypeError, "integer milliseconds"),
        ({"created_at": -1}, InvalidArgument, "from 1970 to 9999"),
    ],
)
def test_a_put_that_makes_no_sense_says_why(
    queue: Queue, arguments: dict[str, object], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        queue.put(**{"payload": b"x", **arguments})  # type: ignore[arg-type]
    assert len(queue) == 0


def test_the_most_headers_that_are_allowed_come_back(queue: Queue) -> None:
    many = {f"h{number}": str(number) for number in range(255)}
    large = {"a": "x" * 65_534}
    queue.put_many([Draft(b"", headers=many), Draft(b"", headers=large)])
    assert [message.headers for message in queue.claim(2)] == [many, large]
