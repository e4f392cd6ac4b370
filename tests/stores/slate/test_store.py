"""The rows that a slate store writes, and foreign, damaged or interrupted rows that it reads."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Draft, SimulatedClock, Store, StoreCorrupt
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import Row
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.format import Available, Config, InFlight, Metadata, Settled
from penstock.stores.slate.store import SlateBackend, open_slate
from tests.stores.slate import document

START = 1_700_000_000_000


def open_store(folder: Path, clock: SimulatedClock) -> Store:
    return Store("", open_slate(f"slate:{folder}", clock=clock))


@pytest.fixture
def store(tmp_path: Path, clock: SimulatedClock) -> Iterator[Store]:
    with open_store(tmp_path, clock) as store:
        yield store


def backend_of(store: Store) -> SlateBackend:
    backend = store.backend
    assert isinstance(backend, SlateBackend)
    return backend


def write(folder: Path, rows: list[Row]) -> None:
    """What another program writes into a database."""
    place = Folder(str(folder), "always")
    place.lock()
    database = place.open(30)
    database.write(rows)
    database.flush()
    place.make_durable()
    database.close()
    place.unlock()


def test_a_new_queue_has_its_config_and_empty_records(store: Store, tmp_path: Path) -> None:
    store.create("jobs", max_attempts=7, keep_done=0.5, filter="a = 'b'")
    store.close()
    rows = dict(document.rows(tmp_path))
    assert rows[b"\x01\x02jobs\x00"] == b"\x00\x00\x00\x00"
    assert rows[b"\x01\x03jobs\x00"] == rows[b"\x01\x04jobs\x00"] == b"\x00\x00"
    assert records.decode_config(rows[b"\x01\x06jobs\x00"]) == Config("a = 'b'", 7, 1)
    assert b"\x01\x07jobs\x00" in rows


def test_the_life_of_a_message_in_the_documents_records(
    store: Store, tmp_path: Path, clock: SimulatedClock
) -> None:
    queue = store.create("jobs", max_attempts=1, keep_done=60)
    ids = list(map(int, queue.put_many([b"a", Draft(b"b", priority=7, delay=9, retention=60), b"c", b"d"])))
    queue.claim(1, lease=10, consumer="host:1")
    queue.claim(1, lease=10, consumer="host:2")[0].fail(reason="no")
    clock.advance(1)
    queue.claim(1, lease=20, consumer="host:3")[0].ack()
    store.close()
    rows = dict(document.rows(tmp_path))
    assert records.decode_active(rows[b"\x01\x02jobs\x00"]) == (
        [Available(ids[1], 7, START + 9_000, START + 60_000, 0)],
        [InFlight(ids[0], 0, START, START + 10_000, 1)],
    )
    assert records.decode_settled(rows[b"\x01\x04jobs\x00"]) == [Settled(ids[2], START, 1)]
    assert records.decode_settled(rows[b"\x01\x03jobs\x00"]) == [Settled(ids[3], START + 1_000, 1)]
    assert records.decode_attempts(rows[records.attempts_key(ids[3])]) == ["host:3"]
    assert records.decode_payload(rows[records.payload_key(ids[1])]) == b"b"
    log = records.log_prefix(records.LOG_KEY)
    assert records.decode_metadata(rows[log + ids[1].to_bytes(8)]) == Metadata(
        ids[1], START, START, START + 9_000, 60, {"penstock.queue": "jobs", "penstock.priority": "7"}
    )


def test_messages_that_are_done_with_leave_nothing_behind(store: Store, tmp_path: Path) -> None:
    queue = store.queue()
    queue.put_many([Draft(bytes(70_000)), Draft(b"b", key="k"), Draft(b"c"), Draft(b"d")])
    queue.claim(1)[0].ack()
    queue.pop()
    queue.remove(*[message.id for message in queue.peek(1)])
    queue.purge()
    store.close()
    kinds = {records.parse_key(key).kind for key, _ in document.rows(tmp_path)}
    assert not kinds & {records.PAYLOAD, records.LOG, records.ATTEMPTS, records.SIZES, records.CLAIMS}
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_deleted_queue_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    queue = store.create("gone", filter="1 = 1")
    queue.put_many([b"x"] * 3_000)
    queue.fail(*queue.claim(5))
    store.publish(b"stays")
    store.delete("gone")
    store.close()
    keys = [records.parse_key(key) for key, _ in document.rows(tmp_path)]
    assert "gone" not in [key.queue for key in keys]
    assert [key.kind for key in keys].count(records.PAYLOAD) == 1


def test_many_messages_are_in_buckets_of_about_a_thousand(
    store: Store, tmp_path: Path, clock: SimulatedClock
) -> None:
    queue = store.queue()
    ids = queue.put_many([b"x"] * 5_000)
    store.close()
    found = [
        (records.parse_key(key).number, len(records.decode_active(value)[0]))
        for key, value in document.rows(tmp_path)
        if records.parse_key(key).kind == records.ACTIVE
    ]
    assert [number for number, _ in found] == list(range(5))
    assert sum(size for _, size in found) == 5_000
    assert max(size for _, size in found) == 1_024
    with open_store(tmp_path, clock) as again:
        assert [message.id for message in again.queue().claim(10_000)] == ids


def test_a_change_rewrites_its_bucket_and_no_other(store: Store, tmp_path: Path) -> None:
    queue = store.queue()
    queue.put_many([b"x"] * 5_000)
    before = {key: value for key, value in _scan(store) if records.parse_key(key).kind == records.ACTIVE}
    queue.claim()
    after = {key: value for key, value in _scan(store) if records.parse_key(key).kind == records.ACTIVE}
    assert [key for key in after if after[key] != before[key]] == [records.queue_key(records.ACTIVE, "default")]


def _scan(store: Store) -> list[tuple[bytes, bytes]]:
    return list(backend_of(store)._database.scan(b"\x00", b"\xff"))


def test_ids_are_never_given_twice(tmp_path: Path, clock: SimulatedClock) -> None:
    seen: set[str] = set()
    for life in range(4):
        with open_store(tmp_path, clock) as store:
            ids = store.queue().put_many([b"x"] * (1 if life % 2 else 5_000))
            ids.append(store.publish(b"x"))
            assert not seen & set(ids)
            seen |= set(ids)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((b"\x02\x02jobs\x00", b"\x00\x00\x00\x00"), "of version 2"),
        ((b"\x01\x7fjobs\x00", b"\x00"), "of type 127"),
        ((b"\x01\x06jobs\x00", b"\x00\x00"), "a config record ends after 2 bytes"),
        ((b"\x01\x02default\x00", b"\x01\x00\x00\x00"), "an active record ends"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, clock: SimulatedClock, row: Row, message: str) -> None:
    open_store(tmp_path, clock).close()
    write(tmp_path, [row])
    with pytest.raises(StoreCorrupt, match=message):
        open_store(tmp_path, clock)


def test_what_a_crash_left_of_a_deletion_is_removed(tmp_path: Path, clock: SimulatedClock) -> None:
    with open_store(tmp_path, clock) as store:
        store.create("gone").put_many([bytes(70_000), b"b"])
    write(tmp_path, [(records.queue_key(records.CONFIG, "gone"), None)])
    with open_store(tmp_path, clock) as store:
        assert [info.name for info in store.queues()] == ["default"]
        assert list(store.create("gone").messages()) == []
    kinds = [records.parse_key(key).kind for key, _ in document.rows(tmp_path)]
    assert records.PAYLOAD not in kinds
    assert list((tmp_path / "objects").iterdir()) == []


def test_a_listing_shows_messages_that_go_while_it_runs(tmp_path: Path, clock: SimulatedClock) -> None:
    with open_store(tmp_path, clock) as store:
        store.queue().put_many([b"%d" % number for number in range(100)])
    with open_store(tmp_path, clock) as store:  # whose bodies are not in memory
        backend, queue = backend_of(store), store.queue()
        storage = backend._storages["default"]
        wanted = storage.find([int(message.id) for message in queue.messages()])
        queue.purge()
        assert [payload for payload, *_ in storage.read(wanted)] == [b"%d" % number for number in range(100)]


def test_commits_do_not_pile_up_files(
    tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.slate.folder._MIN_AGE", 0.0)
    monkeypatch.setattr("penstock.stores.slate.writing._COLLECT_AFTER", 50)
    with open_store(tmp_path, clock) as store:
        queue = store.queue()
        for _ in range(150):
            queue.put(b"x")
            queue.pop()
        assert len(list((tmp_path / "db" / "wal").iterdir())) < 120
        backend_of(store).collect()
    with open_store(tmp_path, clock) as store:
        assert len(store.queue()) == 0


def test_threads_on_many_queues_share_commits(tmp_path: Path, clock: SimulatedClock) -> None:
    with open_store(tmp_path, clock) as store:
        queues = [store.create(f"q{number}") for number in range(16)]
        before = backend_of(store)._place.files
        start = threading.Barrier(16)

        def work(queue: penstock.Queue) -> None:
            start.wait()
            for _ in range(20):
                queue.put(b"x")
                queue.claim()[0].ack()

        threads = [threading.Thread(target=work, args=(queue,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert backend_of(store)._place.files - before < 16 * 20 * 3
    with open_store(tmp_path, clock) as store:
        assert sum(sum(info.counts.values()) for info in store.queues()) == 0


def test_rows_that_the_fast_way_cannot_write_go_the_slow_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise AttributeError("no such function")

    monkeypatch.setattr("penstock.stores.slate.binding._rows", None)
    monkeypatch.setattr("penstock.stores.slate.binding._try_out", fail)
    with Store("", open_slate(f"slate:{tmp_path}")) as store:
        store.queue().put(b"x")
        assert store.queue().pop() is not None
    assert "is not supported (no such function): writes are slow" in caplog.text
