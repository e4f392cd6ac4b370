"""Queues themselves: creating, finding, listing, deleting, settings."""

import pytest

import penstock
from penstock import (
    InvalidArgument,
    InvalidFilter,
    LeaseExpired,
    QueueExists,
    QueueNotFound,
    QueueProtected,
    Settings,
    Store,
    StoreClosed,
)
from tests.conformance.conftest import MakeQueue

NONE = {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 0}


@pytest.mark.many_queues
def test_the_default_queue_is_there_from_the_start(store: Store) -> None:
    assert [(info.name, info.settings, info.counts) for info in store.queues()] == [("default", Settings(), NONE)]
    assert store.queue().name == store.queue("").name == store.queue("default").name == "default"
    store.queue().put(b"x")
    assert len(store.queue("default")) == 1


@pytest.mark.many_queues
def test_the_default_queue_cannot_be_deleted(store: Store) -> None:
    for name in ("default", ""):
        with pytest.raises(QueueProtected, match=r"empty it with purge\(\)"):
            store.delete(name)


@pytest.mark.many_queues
def test_the_default_queue_cannot_be_created_again(store: Store) -> None:
    for name in ("default", ""):
        with pytest.raises(QueueExists):
            store.create(name)


@pytest.mark.many_queues
def test_a_queue_exists_once(store: Store) -> None:
    store.create("jobs")
    with pytest.raises(QueueExists, match=r"open it with store.queue\('jobs'\)"):
        store.create("jobs")


@pytest.mark.many_queues
def test_a_queue_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(QueueNotFound, match=r"there is no queue 'jobs': create it with store.create\('jobs'\)"):
        store.queue("jobs")
    with pytest.raises(QueueNotFound):
        store.delete("jobs")


@pytest.mark.many_queues
def test_settings_are_kept_and_listed(store: Store) -> None:
    given = {
        "max_size": 4_294_967_295,
        "max_attempts": 65_535,
        "keep_done": None,
        "filter": "type = 'order'",
        "start": "now",
        "max_payload": 1,
        "priorities": (0, 9),
        "max_lease": 0.5,
        "retention": 86_400,
        "description": "für Bestellungen",
        "lease": 0.25,
        "delay": 7,
        "backoff": (0.5, 2, 60),
        "dead_letter": None,
        "labels": {"team": "Läden", "a = b\n": '{"quoted": "\\"}'},
    }
    queue = store.create("jobs", **given)  # type: ignore[arg-type]
    assert dict(queue.settings) == given
    [_, info] = store.queues()
    assert (info.name, dict(info.settings), info.counts) == ("jobs", given, NONE)
    assert queue.settings.max_lease == 0.5


@pytest.mark.many_queues
def test_settings_unpack_into_another_queue(store: Store) -> None:
    first = store.create("a", max_attempts=2, keep_done=60)
    assert store.create("b", **first.settings).settings == first.settings


@pytest.mark.many_queues
@pytest.mark.parametrize(
    ("settings", "error", "advice"),
    [
        ({"max_size": -1}, InvalidArgument, "max_size=-1 is out of range; give 0 to 4294967295"),
        ({"max_size": 4_294_967_296}, InvalidArgument, "max_size"),
        ({"max_size": 1.5}, TypeError, "max_size is an integer, not float"),
        ({"max_attempts": 65_536}, InvalidArgument, "max_attempts"),
        ({"keep_done": -1}, InvalidArgument, "keep_done"),
        ({"keep_done": "1h"}, TypeError, "keep_done is a number of seconds, not str"),
        ({"max_payload": 16_777_217}, InvalidArgument, "max_payload"),
        ({"priorities": (2, 1)}, InvalidArgument, r"priorities=\(2, 1\) is empty"),
        ({"priorities": (0, 2**63)}, InvalidArgument, "the highest of priorities"),
        ({"priorities": 7}, InvalidArgument, "give \\(lowest, highest\\)"),
        ({"max_lease": 0}, InvalidArgument, "max_lease=0 would end every lease"),
        ({"retention": -5}, InvalidArgument, "retention"),
        ({"description": 7}, TypeError, "description is a str"),
        ({"description": "\ud800"}, InvalidArgument, "not valid Unicode"),
        ({"description": "x" * 1_001}, InvalidArgument, "description has 1001 bytes; give 0 to 1000"),
        ({"filter": ""}, InvalidFilter, "filter"),
        ({"filter": "type = "}, InvalidFilter, "type ="),
        ({"filter": 7}, TypeError, "filter is a str"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    store: Store, settings: dict[str, object], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        store.create("jobs", **settings)  # type: ignore[arg-type]
    assert [info.name for info in store.queues()] == ["default"]


@pytest.mark.many_queues
def test_a_deleted_queue_is_gone_with_its_messages(store: Store) -> None:
    queue = store.create("jobs")
    queue.put_many([b"a", b"b"])
    [message] = queue.claim()
    store.delete("jobs")
    for operation in (queue.counts, queue.claim, queue.pop, queue.purge, queue.messages, message.ack, queue.count):
        with pytest.raises(QueueNotFound):
            operation()
    assert [info.name for info in store.queues()] == ["default"]


@pytest.mark.many_queues
def test_a_queue_created_again_under_an_old_name_knows_nothing_of_the_old_one(store: Store) -> None:
    old = store.create("jobs", keep_done=60)
    old_id = old.put(b"old", key="k")
    [message] = old.claim()
    store.delete("jobs")
    new = store.create("jobs")
    new_id = new.put(b"new", key="k")
    assert new_id != old_id
    assert new.remove(old_id) == 0
    new.claim()
    with pytest.raises(LeaseExpired):
        new.ack(message)
    assert new.counts() == {**NONE, "in_flight": 1}


@pytest.mark.many_queues
def test_queues_do_not_touch_each_other(make_queue: MakeQueue, store: Store) -> None:
    queues = [make_queue(f"q{number}") for number in range(20)]
    for number, queue in enumerate(queues):
        queue.put_many([f"{number}"] * (number + 1))
    queues[3].purge()
    counts = {info.name: info.counts["available"] for info in store.queues()}
    assert counts == {"default": 0, **{f"q{number}": number + 1 if number != 3 else 0 for number in range(20)}}


def test_a_closed_store_refuses_everything_and_closes_twice(store: Store, queue: penstock.Queue) -> None:
    store.close()
    store.close()
    for operation in (store.queues, store.queue, queue.counts, queue.claim, lambda: store.publish(b"x")):
        with pytest.raises(StoreClosed, match=r"open it again with penstock\.(aio\.)?open\(\)"):
            operation()
    assert "closed" in repr(store)


def test_a_handle_is_true_also_when_its_queue_is_empty(queue: penstock.Queue) -> None:
    assert queue
    assert len(queue) == queue.count() == 0
    assert repr(queue).startswith(f"<penstock.Queue {queue.name!r} of ")
