"""Publishing: a message finds its queues by their filters."""

import contextlib
import sys
import threading
from collections.abc import Iterator

import pytest

from penstock import InvalidArgument, InvalidPriority, PayloadTooLarge, Queue, QueueFull, SimulatedClock, Store
from tests.conformance.conftest import MakeQueue
from tests.conformance.stores import StoreUnderTest

pytestmark = pytest.mark.many_queues


def test_a_published_message_goes_to_every_queue_whose_filter_matches(
    store: Store, make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    orders = make_queue("orders", filter="type = 'order'")
    urgent = make_queue("urgent", filter="priority < 2 OR note IS NOT NULL")
    invoices = make_queue("invoices", filter="type = 'invoice'")
    unfiltered = make_queue("unfiltered")
    published = store.publish(b"x", headers={"type": "order"}, priority=1, created_at=5)
    for queue in (orders, urgent):
        [message] = queue.claim(5)
        assert (message.payload, message.priority, message.created_at) == (b"x", 1, 5)
        assert message.received_at == clock.now()
        assert message.headers == {"type": "order", "penstock.publish": published}
    assert len(invoices) == len(unfiltered) == len(store.queue()) == 0


def test_the_copies_of_a_published_message_live_their_own_lives(store: Store, make_queue: MakeQueue) -> None:
    first, second = make_queue("a", filter="size = 1"), make_queue("b", filter="size > 0")
    store.publish(b"x")
    first.claim()[0].ack()
    assert (len(first), len(second)) == (0, 1)


def test_a_deleted_queue_takes_part_no_more(store: Store, make_queue: MakeQueue) -> None:
    make_queue("a", filter="1 = 1")
    kept = make_queue("b", filter="1 = 1")
    store.delete("a")
    store.publish(b"x")
    assert len(kept) == 1


def test_a_message_that_nobody_wants_is_published_all_the_same(store: Store) -> None:
    assert store.publish(b"x") != store.publish(b"x")
    assert sum(store.queues()[0].counts.values()) == 0


def test_a_published_message_may_be_delayed_and_expire(
    store: Store, make_queue: MakeQueue, clock: SimulatedClock
) -> None:
    queue = make_queue("q", filter="visible_at > received_at", retention=100)
    store.publish(b"now")
    store.publish(b"later", delay=5, retention=10)
    [message] = queue.messages("delayed")
    assert (message.payload, message.visible_at, message.expires_at) == (
        b"later",
        clock.now() + 5_000,
        clock.now() + 10_000,
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_size": 1}, QueueFull),
        ({"max_payload": 0}, PayloadTooLarge),
        ({"priorities": (1, 2)}, InvalidPriority),
    ],
)
def test_if_one_queue_refuses_nothing_is_put(
    kind: StoreUnderTest,
    store: Store,
    make_queue: MakeQueue,
    settings: dict[str, object],
    error: type[Exception],
) -> None:
    if kind.has_log:
        pytest.skip("what is published stays in the log, and no queue holds up others: see slate/test_routing.py")
    make_queue("a", filter="1 = 1")
    refusing = make_queue("b", filter="1 = 1", **settings)
    make_queue("c", filter="1 = 1")
    if error is QueueFull:
        refusing.put(b"already full")
    with pytest.raises(error, match="queue 'b'"):
        store.publish(b"x")
    assert [len(store.queue(name)) for name in ("a", "b", "c")] == [0, len(refusing), 0]


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads switch after every few steps, so that races show."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
def test_publishing_is_all_or_none_also_beside_other_producers(store: Store, make_queue: MakeQueue) -> None:
    free = make_queue("a", filter="1 = 1")
    for number in range(100):
        contested = make_queue(f"b{number}", filter=f"round = {number}", max_size=1)
        start = threading.Barrier(2)

        def put(contested: Queue = contested, start: threading.Barrier = start) -> None:
            start.wait()
            with contextlib.suppress(QueueFull):
                contested.put(b"x")

        producer = threading.Thread(target=put)
        producer.start()
        start.wait()
        try:
            store.publish(b"x", headers={"round": str(number)})
        except QueueFull:
            assert len(free) == 0
        else:
            assert free.purge() == 1
        producer.join()


def test_what_no_queue_would_take_is_refused_even_if_there_is_none(store: Store) -> None:
    with pytest.raises(InvalidPriority, match="priority 9223372036854775808"):
        store.publish(b"x", priority=2**63)
    with pytest.raises(PayloadTooLarge, match="16777217 bytes; the most is 16777216"):
        store.publish(bytes(16_777_217))


def test_what_cannot_be_put_cannot_be_published(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="Penstock's own"):
        store.publish(b"x", headers={"penstock.priority": "1"})
    with pytest.raises(TypeError, match="a payload is bytes or str"):
        store.publish(7)  # type: ignore[arg-type]


def test_a_published_message_may_have_as_many_headers_as_any(store: Store, make_queue: MakeQueue) -> None:
    queue = make_queue(filter="`0` IS NOT NULL")
    headers = {str(number): "" for number in range(256)}
    with pytest.raises(InvalidArgument, match="256 headers; a message has at most 255"):
        store.publish(b"x", headers=headers)
    headers.popitem()
    published = store.publish(b"x", headers=headers)
    [copy] = queue.claim()
    assert copy.headers == {**headers, "penstock.publish": published}
    store.queue().put(copy.payload, headers=copy.headers)
    assert store.queue().claim()[0].headers == copy.headers


def test_a_published_message_may_have_headers_as_long_as_any(store: Store, make_queue: MakeQueue) -> None:
    queue = make_queue(filter="long IS NOT NULL")
    with pytest.raises(InvalidArgument, match="the most is 65535 altogether"):
        store.publish(b"x", headers={"long": "x" * 65_532})
    store.publish(b"x", headers={"long": "x" * 65_531})
    assert len(queue.claim()[0].headers["long"]) == 65_531


def test_a_copy_may_be_put_elsewhere_with_all_its_headers(store: Store, make_queue: MakeQueue) -> None:
    queue = make_queue("a", filter="1 = 1")
    store.publish(b"x", headers={"kind": "k"})
    [message] = queue.claim()
    store.queue().put(message.payload, headers=message.headers)
    assert store.queue().claim()[0].headers == message.headers
