"""Changed settings of slate queues: both records are written, and a new filter applies from its position on."""

import shutil
from pathlib import Path

import pytest

from penstock import QueueFull, Settings, SimulatedClock, Store
from penstock.stores.slate import format as records
from penstock.stores.slate.format import Config
from penstock.stores.slate.store import SlateBackend, open_slate
from tests.stores.slate import document
from tests.stores.slate.test_followers import entered, publish, put, settle
from tests.stores.slate.test_store import START


def opened(folder: Path, clock: SimulatedClock | None = None, query: str = "") -> tuple[SlateBackend, Store]:
    backend = open_slate(f"slate:{folder}{query}", clock=clock or SimulatedClock(START))
    return backend, Store(str(folder), backend)


def numbers(store: Store, queue: str = "all") -> list[int]:
    return [int(message.id) for message in store.queue(queue).messages()]


def test_the_config_of_the_document_and_our_record_have_them(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    store.create("jobs", max_attempts=7).update(max_attempts=9, keep_done=None, filter="a = 'b'", max_size=3)
    store.close()
    rows = dict(document.rows(tmp_path))
    assert records.decode_config(rows[b"\x01\x06jobs\x00"]) == Config("a = 'b'", 9, 0)
    assert b'"max_size": 3' in rows[b"\x01\x07jobs\x00"]


@pytest.mark.parametrize("query", ["", "?router=off"])
def test_a_filter_begins_where_it_was_changed_also_after_a_crash(tmp_path: Path, query: str) -> None:
    backend, store = opened(tmp_path / "data", query=query)
    jobs = store.create("all")
    publish(backend, "a")
    jobs.update(filter="kind = 'a'")
    first = publish(backend, "a")
    publish(backend, "b")
    jobs.update(filter="kind = 'b'")
    publish(backend, "a")
    second = publish(backend, "b")
    store.queue().put(b"whatever")
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    store.close()
    for folder in ("data", "crashed"):
        backend, store = opened(tmp_path / folder)  # whose router goes on where nobody has routed
        assert numbers(store) == [first, second]
        third = publish(backend, "b")
        assert numbers(store) == [first, second, third]
        store.queue("all").update(filter=None)
        publish(backend, "b")
        assert store.queue("all").counts()["available"] == 3
        store.close()


def test_the_filter_of_a_queue_that_is_behind_stays_until_it_is_not(tmp_path: Path) -> None:
    backend, store = opened(tmp_path)
    jobs = store.create("all", filter="kind = 'a'", max_size=1)
    found = [publish(backend, "a") for _ in range(2)]
    with pytest.raises(QueueFull, match="published messages wait for it"):
        jobs.update(filter="kind = 'b'")
    jobs.update(max_size=2)  # which makes room
    assert numbers(store) == found
    found.append(publish(backend, "a"))
    jobs.update(max_size=9)
    jobs.update(filter="kind = 'b'")
    found.append(publish(backend, "b"))
    assert numbers(store) == found
    store.close()


def test_followers_see_what_entered_by_the_filter_of_its_time(tmp_path: Path) -> None:
    backend, store = opened(tmp_path / "data")
    jobs = store.create("all", filter="kind = 'a'")
    after, _ = backend.streams().start("all", "f", "latest")
    backend.streams().follow("all", "named", "2147483647-1-1@x@here", after)
    found = [publish(backend, "a"), put(backend)]
    publish(backend, "b")
    settle(backend)
    jobs.update(filter="kind = 'b'", max_payload=1)
    publish(backend, "a")
    found.append(publish(backend, "b"))
    settle(backend)
    jobs.update(max_payload=0)
    publish(backend, "b")
    jobs.update(filter=None, max_payload=9)
    publish(backend, "b")
    found.append(put(backend))
    assert entered(backend, after) == found
    store.close()
    backend, store = opened(tmp_path / "data")
    assert entered(backend, after) == found
    store.close()


def test_who_follows_later_is_told_that_something_is_missing(tmp_path: Path) -> None:
    backend, store = opened(tmp_path / "data")
    jobs = store.create("all", filter="kind = 'a'")
    backend.streams().start("all", "f", "latest")
    gone = publish(backend, "a")
    settle(backend)
    backend.streams().close()
    jobs.update(filter="kind = 'b'")
    after, gaps = backend.streams().start("all", "g", "earliest")
    assert gone < gaps
    found = [publish(backend, "b")]
    assert entered(backend, after, follower="g") == found
    assert store.queue("all").settings == Settings(filter="kind = 'b'")
    store.close()
