"""Packing journals together, built by who has not opened the store: what is left, and what goes wrong."""

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import DiskFull, Draft, PenstockError, Store, StoreCorrupt
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.sharing.backend import engine_of
from penstock.stores.journal import packing
from penstock.stores.journal.packer import Surveyed, survey
from penstock.stores.journal.packing import Order, Result, Round, build_order
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.files import SystemDisk
from penstock.system.threads import SystemThreads
from tests.simulated_disk import SimulatedDisk


def backend_of(store: Store) -> JournalBackend:
    backend = engine_of(store)
    assert isinstance(backend, JournalBackend)
    return backend


def built(orders: list[Order], attempt: int = 0) -> list[Result]:
    """As another process would: what it gets and what it gives are only bytes."""
    answers = [build_order(pickle.loads(pickle.dumps(order)), SystemDisk(), attempt) for order in orders]
    for answer in answers:
        if isinstance(answer, PenstockError):
            raise answer
    return [pickle.loads(pickle.dumps(answer)) for answer in answers]


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*~~*")]


def half_done(store: Store, name: str, count: int = 20) -> list[str]:
    """A queue of which every second message is acknowledged; the ids of the others."""
    queue = store.create(name)
    queue.put_many([Draft(f"{name} {number}", headers={"n": str(number)}) for number in range(count)])
    queue.remove(*[message.id for message in queue.messages() if int(message.id) % 2])
    return [message.id for message in queue.messages()]


def looked_at(folder: Path, *queues: str, now: int, let_go: bool = True) -> list[Surveyed]:
    found = dict(survey(str(folder), queues, SystemDisk(), now, let_go))
    assert all(isinstance(each, Surveyed) for each in found.values()), found
    return [each for each in found.values() if isinstance(each, Surveyed)]


def test_what_is_put_and_settled_while_others_build_is_kept(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        left = {name: half_done(store, name) for name in ("a", "b")}
        with Round(backend_of(store), ["a", "b"]) as packing:
            results = built(packing.begin())
            (claimed,) = store.queue("a").claim()
            late = store.queue("b").put(b"late")
            packed = packing.swap(results)
        assert [(each.queue, each.after < each.before) for each in packed] == [("a", True), ("b", True)]
        store.queue("a").ack(claimed)
        assert [each.id for each in store.queue("b").messages()] == [*left["b"], late]
        assert not temporaries(tmp_path)
    with penstock.open(tmp_path) as store:
        assert [each.id for each in store.queue("a").messages()] == left["a"][1:]
        assert [each.id for each in store.queue("b").messages()] == [*left["b"], late]
        assert [each.payload for each in store.queue("a").messages()] == [
            f"a {int(each) - 1}".encode() for each in left["a"][1:]
        ]


@pytest.mark.parametrize("failing", [False, True])
def test_a_batch_that_a_stream_settles_while_others_build_can_be_read_again(tmp_path: Path, failing: bool) -> None:
    with penstock.open(tmp_path) as store:
        left = half_done(store, "a")
        streams, reader = Streams(store.run), reader_name()
        streams.begin("a", "s", reader)
        assert streams.next("a", "s", reader, 0, 3, 1 << 30) == 1
        with Round(backend_of(store), ["a"]) as packing:
            results = built(packing.begin())
            if failing:
                streams.fail("a", "s", 1, left[:1], "no")
            assert streams.next("a", "s", reader, 1, 2, 1 << 30) == 2
            packing.swap(results)
        for _ in range(2):
            batch = streams.messages("a", "s", 1, "", "", 9)
            assert [each.payload for each in batch] == [f"a {int(each) - 1}".encode() for each in left[:3]]
            backend_of(store).pack("a")


def test_a_queue_that_was_not_built_is_as_it_was_and_what_was_built_in_vain_is_removed(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        left = {name: half_done(store, name) for name in ("a", "b")}
        backend = backend_of(store)
        with Round(backend, ["a", "b"]) as packing:
            orders = packing.begin()
            results = built(orders)
            built(orders, attempt=1)  # a second time, as when a task seems to be lost
            assert len(temporaries(tmp_path)) == 4
            packed = packing.swap([result for result in results if result.journal == "a"])
        assert [each.queue for each in packed] == ["a"]
        assert not temporaries(tmp_path)
        assert backend.pack("b") > 0  # nobody holds it any more
        for name in ("a", "b"):
            assert [each.id for each in store.queue(name).messages()] == left[name]


def test_an_emptied_queue_shrinks_to_nothing_without_a_builder(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        for _ in range(3):
            queue.remove(queue.put(b"x" * 1000))
        backend = backend_of(store)
        before = backend.stored("jobs")
        assert before > 3_000
        with Round(backend, ["jobs", "default", "no such queue"]) as packing:
            assert packing.begin() == []
            assert packing.swap([]) == [("default", 0, 0), ("jobs", before, 0)]
        assert backend_of(store).stored("jobs") == 0
        assert queue.put(b"next") == "4"
    with penstock.open(tmp_path) as store:
        assert [(each.id, each.payload) for each in store.queue("jobs").messages()] == [("4", b"next")]


def test_a_queue_is_not_deleted_while_it_is_packed(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        half_done(store, "jobs")
        deleting = threading.Thread(target=store.delete, args=("jobs",))
        with Round(backend_of(store), ["jobs"]) as packing:
            results = built(packing.begin())
            deleting.start()
            deleting.join(0.1)
            assert deleting.is_alive()
            assert len(packing.swap(results)) == 1
        deleting.join()
        assert [info.name for info in store.queues()] == ["default"]
    assert not list(tmp_path.glob("jobs*"))


def test_a_damaged_message_is_named_and_its_journal_stays_as_it_was(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        queue.put_many([b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"])
        queue.remove(queue.put(b"x" * 1000))
        with Round(backend_of(store), ["jobs"]) as packing:
            (order,) = packing.begin()
            (_, name) = order.files[-1]
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(content.replace(b"bbbbbbbb", b"bbbbXbbb"))
            answer = build_order(order, SystemDisk(), 0)
            assert isinstance(answer, StoreCorrupt)
            offset = content.index(b"bbbbbbbb") - 21
            assert str(answer).startswith(f"a message is damaged at offset {offset} of {name}. Put that file back")
            assert not temporaries(tmp_path)
            assert packing.swap([]) == []
        (tmp_path / name).write_bytes(content)
        assert [each.payload for each in queue.messages()] == [b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"]
        assert backend_of(store).pack("jobs") > 1_000


def test_a_store_that_opens_only_by_its_snapshot_still_does_after_packing_was_refused(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put_many([b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"])
    file = tmp_path / "jobs"
    file.write_bytes(file.read_bytes().replace(b"bbbbbbbb", b"bbbbXbbb"))
    for _ in range(2):
        with penstock.open(tmp_path) as store, pytest.raises(StoreCorrupt, match="a message is damaged"):
            backend_of(store).pack("jobs")
    with penstock.open(tmp_path) as store:
        assert [each.payload for each in store.queue("jobs").claim(1)] == [b"aaaaaaaa"]
        store.queue("jobs").remove("2")
        backend_of(store).pack("jobs")
    with penstock.open(tmp_path) as store:
        assert [each.payload for each in store.queue("jobs").messages()] == [b"aaaaaaaa", b"cccccccc"]


def test_without_space_nothing_is_built_and_nothing_is_lost() -> None:
    disk = SimulatedDisk(Random(0))
    backend = open_journal("/data", disk=disk)
    store = Store("/data", backend)
    ids = store.queue().put_many([bytes(1_000)] * 50)
    with Round(backend, ["default"]) as packing:
        (order,) = packing.begin()
        disk.capacity = 60_000
        assert isinstance(build_order(order, disk, 0), DiskFull)
        assert not [name for name in disk.listdir("/data") if "~~" in name]
        assert packing.swap([]) == []
    disk.capacity = None
    backend.pack("default")
    assert [each.id for each in store.queue().messages()] == ids
    store.close()


def test_a_builder_that_sees_another_folder_is_noticed(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        left = half_done(store, "jobs")
        harms: list[Callable[[Path], object]] = [Path.unlink, lambda path: path.write_bytes(b"other")]
        for harm in harms:
            with Round(backend_of(store), ["jobs"]) as packing:
                results = built(packing.begin())
                harm(tmp_path / results[0].temporary)
                with pytest.raises(PenstockError, match=r"must see the same folder there\. Nothing was changed"):
                    packing.swap(results)
        assert [each.id for each in store.queue("jobs").messages()] == left
        assert backend_of(store).pack("jobs") > 0


def test_what_a_builder_left_when_the_process_died_is_removed_by_opening(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        left = half_done(store, "jobs")
    (tmp_path / "jobs~~1700000000000000007").write_bytes(b"half a pack")
    with penstock.open(tmp_path) as store:
        assert not temporaries(tmp_path)
        assert [each.id for each in store.queue("jobs").messages()] == left


def test_the_first_error_ends_the_work_and_an_interrupt_waits_for_what_was_begun() -> None:
    seen: list[int] = []
    failing = threading.Event()

    def work(item: int) -> None:
        seen.append(item)
        if item == 3:
            failing.set()
            raise KeyboardInterrupt
        if item > 3:
            failing.wait()
        threading.Event().wait(0.01)

    with pytest.raises(KeyboardInterrupt):
        packing._for_each(work, range(1_000), SystemThreads())
    assert len(seen) < 1_000
    packing._for_each(seen.append, range(1_000, 2_000), SystemThreads())
    assert set(range(1_000, 2_000)) <= set(seen)


def test_what_time_let_go_is_counted_until_the_files_hold_it_no_more(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock()
    with penstock.open(tmp_path, clock=clock) as store:
        short = store.create("short", retention=10)
        short.put_many([b"x" * 100] * 3)
        short.put(b"stays", retention=0)
        listed = store.create("listed", keep_done=5)
        listed.put_many([b"y" * 50] * 4)
        listed.ack(*listed.claim(3))
        plain = store.create("plain")
        plain.put_many([b"z", b"z"])
        plain.pop()
        queues = ("short", "listed", "plain")
        assert [each[3:] for each in looked_at(tmp_path, *queues, now=clock.now())] == [(0, 0, 0)] * 3
        now = clock.now() + 10_000
        found = looked_at(tmp_path, *queues, now=now)
        assert [(each.expired, each.done) for each in found] == [(3, 0), (0, 3), (0, 0)]
        assert 300 < found[0].let_go < 400
        assert 150 < found[1].let_go < 250
        clock.advance(10)
        short.put(b"something happens, and the messages are gone from the index", retention=0)
        assert looked_at(tmp_path, "short", now=now)[0][3:5] == (3, 0)
        estimates = {each.queue: each.packed for each in looked_at(tmp_path, *queues, now=now, let_go=False)}
        for queue in queues:
            backend_of(store).pack(queue)
            assert abs(backend_of(store).stored(queue) - estimates[queue]) < 100
        assert [each[3:] for each in looked_at(tmp_path, *queues, now=now)] == [(0, 0, 0)] * 3
    assert [each[3:] for each in looked_at(tmp_path, *queues, now=now)] == [(0, 0, 0)] * 3


def test_a_queue_that_cannot_be_looked_at_says_why_and_the_others_are(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        for name in ("good", "bad"):
            store.create(name).put_many([b"aaaaaaaa", b"bbbbbbbb"])
    file = tmp_path / "bad"
    file.write_bytes(file.read_bytes().replace(b"bbbbbbbb", b"bbbbXbbb"))
    found = dict(survey(str(tmp_path), ["good", "bad", "gone"], SystemDisk(), 0, let_go=True))
    assert found.keys() == {"good", "bad"}
    assert isinstance(found["good"], Surveyed)
    assert "the journal of queue 'bad' is damaged" in str(found["bad"])
