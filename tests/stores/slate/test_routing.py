"""Publishing on a slate store: the router delivers each message once to every queue whose filter matches."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import InvalidArgument, QueueFull, SimulatedClock, Store
from penstock.contract.message import Entry
from penstock.stores.slate import extensions
from penstock.stores.slate import format as records
from penstock.stores.slate.doctor import examine
from penstock.stores.slate.store import SlateBackend
from tests.stores.slate import document

Reopen = Callable[[], Store]


@pytest.fixture
def reopen(tmp_path: Path, clock: SimulatedClock) -> Iterator[Reopen]:
    """Open the store, or open it again."""
    opened: list[Store] = []

    def reopen() -> Store:
        if opened:
            opened[-1].close()
        opened.append(penstock.open(f"slate:{tmp_path}", clock=clock, share=False))
        return opened[-1]

    yield reopen
    opened[-1].close()


def payloads(queue: penstock.Queue) -> list[bytes]:
    return [message.payload for message in queue.messages()]


def stored(store: Store, queue: str) -> int:
    """The bytes of payloads that a queue is known to hold."""
    assert isinstance(store.backend, SlateBackend)
    return store.backend._storages[queue].ledger.state.stored


def test_a_message_has_the_same_id_in_every_queue_and_its_payload_is_stored_once(
    reopen: Reopen, tmp_path: Path
) -> None:
    store = reopen()
    for name in ("a", "b"):
        store.create(name, filter="type = 'order'")
    published = store.publish(b"payload", headers={"type": "order"})
    assert [message.id for name in ("a", "b") for message in store.queue(name).messages()] == [published] * 2
    store.close()
    kinds = [records.parse_key(key).kind for key, _ in document.rows(tmp_path)]
    assert (kinds.count(records.PAYLOAD), kinds.count(records.LOG)) == (1, 1)


def test_a_message_that_is_done_in_one_queue_is_still_there_for_the_others(reopen: Reopen) -> None:
    store = reopen()
    for name in ("a", "b"):
        store.create(name, filter="1 = 1")
    store.publish(b"x")
    store.queue("a").claim()[0].ack()
    store = reopen()
    assert store.queue("b").claim()[0].payload == b"x"


def test_a_message_that_is_alone_in_its_bucket_takes_one_record_and_keeps_its_size(
    reopen: Reopen, tmp_path: Path
) -> None:
    store = reopen()
    names = ["few-1", "few-2"]
    for name in names:
        store.create(name, filter="type = 'rare'")
    store.queue().put_many([b"x"] * 1_500)
    published = store.publish(b"12345", headers={"type": "rare"})
    store.close()
    bucket = int(published) >> records.BUCKET_BITS
    keys = [records.parse_key(key) for key, _ in document.rows(tmp_path)]
    assert [each.kind for each in keys if each.queue in names and each.number == bucket] == [records.ACTIVE] * 2
    store = reopen()
    assert [stored(store, name) for name in names] == [5, 5]
    assert {queue.name: queue.bytes for queue in examine(f"slate:{tmp_path}").queues} == {
        "default": 1_500,
        "few-1": 5,
        "few-2": 5,
    }
    [first], [second] = (store.queue(name).claim() for name in names)
    store = reopen()
    store.publish(b"another", headers={"type": "rare"})
    store.queue("few-1").ack(first.receipt or "")
    store.queue("few-2").release(second.receipt or "")
    store = reopen()
    assert [payloads(store.queue(name)) for name in names] == [[b"another"], [b"12345", b"another"]]
    assert [stored(store, name) for name in names] == [7, 12]


def test_the_sizes_of_messages_that_are_alone_are_found_wherever_these_lie_in_the_log(reopen: Reopen) -> None:
    store = reopen()
    names = ["one", "two"]
    for name in names:
        store.create(name, filter=f"type = '{name}'")
    store.queue().put_many([b"x"] * 1_500)
    store.publish(b"1", headers={"type": "one"})  # these two are neighbours, and the third is far from them
    store.publish(b"22", headers={"type": "two"})
    store.queue().put_many([b"x"] * 1_000)
    store.publish(b"333", headers={"type": "one"})
    store = reopen()
    assert [stored(store, name) for name in names] == [4, 2]


def test_only_a_queue_that_is_not_where_all_are_has_a_position_of_its_own(reopen: Reopen, tmp_path: Path) -> None:
    store = reopen()
    narrow = store.create("narrow", filter="1 = 1", max_size=1)
    store.create("wide", filter="1 = 1")
    for _ in range(3):
        store.publish(b"x")
    store.close()

    def positions() -> dict[str, tuple[int, bool]]:
        found = [(records.parse_key(key), value) for key, value in document.rows(tmp_path)]
        return {key.queue: extensions.decode_position(row) for key, row in found if key.kind == records.POSITION}

    assert positions() == {"": (4, False), "narrow": (2, True), "wide": (1, False)}
    store = reopen()
    narrow = store.queue("narrow")
    for _ in range(3):
        narrow.pop()
    assert (narrow.pop(), len(store.queue("wide"))) == (None, 3)
    store.close()
    assert not positions()["narrow"][1]
    store = reopen()
    assert [len(store.queue(name)) for name in ("narrow", "wide")] == [0, 3]


def test_what_a_queue_was_given_before_it_was_interrupted_is_given_to_it_again_and_to_no_other(
    reopen: Reopen,
) -> None:
    store = reopen()
    for name in ("interrupted", "other"):
        store.create(name, filter="1 = 1")
    store.publish(b"stored")
    backend = store.backend
    assert isinstance(backend, SlateBackend)
    backend._router.publish(Entry(b"delivered"))  # and not committed yet
    storage = backend._storages["interrupted"]
    with storage.lock:
        storage.refuse(lambda: penstock.StoreClosed("a change was interrupted"))
    store.publish(b"later")
    store = reopen()
    for name in ("interrupted", "other"):
        assert payloads(store.queue(name)) == [b"stored", b"delivered", b"later"]


def test_a_full_queue_holds_up_nobody_but_itself_and_gets_what_it_missed_in_order(reopen: Reopen) -> None:
    store = reopen()
    narrow = store.create("narrow", filter="1 = 1", max_size=2)
    wide = store.create("wide", filter="1 = 1")
    for number in range(6):
        store.publish(bytes([number]))
    assert payloads(narrow) == [b"\x00", b"\x01"]
    assert len(wide) == 6
    narrow.claim()[0].ack()
    assert payloads(narrow) == [b"\x01", b"\x02"]
    store = reopen()
    narrow = store.queue("narrow")
    for number in range(1, 6):
        [message] = narrow.claim()
        assert message.payload == bytes([number])
        message.ack()
    store.publish(b"new")
    assert payloads(narrow) == [b"new"]


def test_a_queue_tells_how_far_it_is_behind_the_log(reopen: Reopen) -> None:
    store = reopen()
    store.create("narrow", filter="1 = 1", max_size=2)
    store.create("wide", filter="1 = 1")
    store.queue().put(b"no business of theirs")
    for number in range(6):
        store.publish(bytes([number]))

    def lags() -> dict[str, int | None]:
        return {info.name: info.lag for info in store.queues()}

    assert lags() == {"default": None, "narrow": 4, "wide": 0}
    store = reopen()
    assert lags() == {"default": None, "narrow": 4, "wide": 0}
    for _ in range(4):
        store.queue("narrow").claim()[0].ack()
    assert lags() == {"default": None, "narrow": 0, "wide": 0}


def test_a_queue_that_time_makes_room_in_gets_what_it_missed(reopen: Reopen, clock: SimulatedClock) -> None:
    store = reopen()
    queue = store.create("q", filter="1 = 1", max_size=1)
    store.publish(b"1", retention=5)
    store.publish(b"2")
    clock.advance(5)
    assert [message.payload for message in queue.claim(wait=60)] == [b"2"]


def test_nothing_overtakes_published_messages_that_wait_for_a_queue(reopen: Reopen) -> None:
    store = reopen()
    queue = store.create("q", filter="1 = 1", max_size=1)
    store.publish(b"1")
    store.publish(b"2")
    store.publish(b"3")
    with pytest.raises(QueueFull, match="published messages wait for it"):
        queue.put(b"put")
    queue.claim()[0].ack()
    with pytest.raises(QueueFull):
        queue.put(b"put")
    queue.claim()[0].ack()
    queue.claim()[0].ack()
    queue.put(b"put")
    assert payloads(queue) == [b"put"]


@pytest.mark.parametrize("settings", [{"max_payload": 0}, {"priorities": (1, 2)}])
def test_what_a_queue_would_never_take_is_left_out(reopen: Reopen, settings: dict[str, object]) -> None:
    store = reopen()
    refusing = store.create("refusing", filter="1 = 1", **settings)  # type: ignore[arg-type]
    taking = store.create("taking", filter="1 = 1")
    store.publish(b"x")
    assert (len(refusing), len(taking)) == (0, 1)


def test_a_later_queue_may_start_at_the_beginning_at_a_time_or_now(reopen: Reopen, clock: SimulatedClock) -> None:
    store = reopen()
    store.publish(b"1", headers={"type": "order"})
    store.publish(b"other")
    store.queue().put(b"put", headers={"type": "order"})
    clock.advance(10)
    between = clock.now()
    store.publish(b"2" * 70_000, headers={"type": "order"})
    store = reopen()
    store.publish(b"3", headers={"type": "order"})
    for name, start in (("all", "beginning"), ("late", between), ("new", "now")):
        store.create(name, filter="type = 'order' AND size > 0", start=start)
    store.publish(b"4", headers={"type": "order"})
    for _ in range(2):
        assert [payload[:1] for payload in payloads(store.queue("all"))] == [b"1", b"2", b"3", b"4"]
        assert [payload[:1] for payload in payloads(store.queue("late"))] == [b"2", b"3", b"4"]
        assert payloads(store.queue("new")) == [b"4"]
        store = reopen()


def test_a_queue_that_starts_earlier_and_is_too_small_gets_the_rest_when_it_has_room(reopen: Reopen) -> None:
    store = reopen()
    for number in range(5):
        store.publish(bytes([number]))
    queue = store.create("q", filter="1 = 1", start="beginning", max_size=2)
    seen = []
    while messages := queue.claim(2):
        seen += [message.payload for message in messages]
        queue.ack(*messages)
        queue = reopen().queue("q")
    assert seen == [bytes([number]) for number in range(5)]


@pytest.mark.parametrize("start", ["yesterday", -1, True, 1.5])
def test_a_start_that_is_none_is_refused(reopen: Reopen, start: object) -> None:
    with pytest.raises((InvalidArgument, TypeError)):
        reopen().create("q", filter="1 = 1", start=start)  # type: ignore[arg-type]


def test_when_its_retention_ends_a_message_is_gone_from_the_whole_store(
    reopen: Reopen, clock: SimulatedClock, tmp_path: Path
) -> None:
    store = reopen()
    store.create("q", filter="type = 'a'")
    store.publish(bytes(70_000), headers={"type": "a"}, retention=10)
    store.publish(b"unwanted", retention=10.5)
    store.publish(b"kept", headers={"type": "a"})
    clock.advance(10)
    store = reopen()
    assert payloads(store.queue("q")) == [b"kept"]
    clock.advance(1)
    store = reopen()
    store.close()
    kept = [records.parse_key(key) for key, _ in document.rows(tmp_path)]
    assert [key.kind for key in kept].count(records.PAYLOAD) == 1
    assert [key.kind for key in kept].count(records.LOG) == 1
    assert records.EXPIRY not in [key.kind for key in kept]
    assert list((tmp_path / "objects").iterdir()) == []


def test_the_queues_own_retention_counts_where_the_message_has_none(reopen: Reopen, clock: SimulatedClock) -> None:
    store = reopen()
    queue = store.create("q", filter="1 = 1", retention=5)
    store.publish(b"usual")
    store.publish(b"for ever", retention=0)
    store.publish(b"longer", retention=7.5)
    expected = [clock.now() + 5_000, None, clock.now() + 7_500]
    assert [message.expires_at for message in queue.messages()] == expected
    clock.advance(5)
    assert payloads(reopen().queue("q")) == [b"for ever", b"longer"]


def test_who_claimed_a_published_message_is_listed_across_queues(reopen: Reopen, tmp_path: Path) -> None:
    store = reopen()
    for name in ("a", "b"):
        store.create(name, filter="1 = 1")
    published = int(store.publish(b"x"))
    store.queue("a").claim(consumer="first")[0].release()
    store.queue("b").claim(consumer="second")
    store.queue("a").claim(consumer="third")
    store.close()
    rows = dict(document.rows(tmp_path))
    assert records.decode_attempts(rows[records.attempts_key(published)]) == ["first", "second", "third"]


def test_headers_that_are_too_many_for_the_log_are_kept_all_the_same(reopen: Reopen) -> None:
    store = reopen()
    headers = {str(number): "x" * (number % 7) for number in range(254)}
    queue = store.create("q", filter="`253` = 'x' OR `0` = ''")
    store.publish(b"x", headers=headers, priority=3, retention=0.5)
    [message] = queue.messages()
    assert message.headers == {**headers, "penstock.publish": message.id}
    store.queue().put(b"y", headers={**headers, "254": ""}, priority=9)
    assert next(reopen().queue().messages()).headers == {**headers, "254": ""}


def test_a_store_has_as_many_logs_as_instances(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}?instance=news", share=False) as store:
        store.publish(b"x")
    logs = {
        records.parse_key(key).queue
        for key, _ in document.rows(tmp_path)
        if records.parse_key(key).kind == records.LOG
    }
    assert logs == {"opendata-queue/messages/metadata/news"}


def test_of_many_filters_each_finds_its_own(reopen: Reopen) -> None:
    store = reopen()
    for number in range(50):
        store.create(f"q{number}", filter=f"customer = {number}")
    ids = [store.publish(b"x", headers={"customer": str(number)}) for number in range(50)]
    for number in range(50):
        assert [message.id for message in store.queue(f"q{number}").messages()] == [ids[number]]
