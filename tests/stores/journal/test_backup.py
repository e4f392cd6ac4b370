"""Backups of a journal store: made while it is used, rotated and packed, and whole whatever happens."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import InvalidArgument, NotSupported, PenstockError, StoreLocked
from penstock.contract.kinds import kind_of
from penstock.contract.message import Entry
from penstock.contract.store import Store
from penstock.http.server import serve_in_thread
from penstock.stores.journal import backup
from penstock.stores.journal.catalog import FOLDER, Catalog
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.files import SystemDisk
from tests.harness import everything
from tests.stores.journal.journals import staged

ROOT = Path(__file__).parents[3]


def listed(folder: Path) -> dict[str, list[tuple[str, str, bytes, int, str | None]]]:
    with penstock.open(folder) as store:
        return {
            info.name: [
                (each.id, each.state, each.payload, each.attempts, each.reason)
                for each in store.queue(info.name).messages()
            ]
            for info in store.queues()
        }


def fill(store: Store) -> None:
    jobs = store.create("jobs", max_attempts=1, keep_done=None, description="of the day")
    jobs.put_many([b"%d" % number for number in range(100)])
    claimed = jobs.claim(30, lease=1000)
    jobs.ack(*claimed[:10])
    jobs.fail(*claimed[10:20], reason="no")
    store.create("odd/name ~".replace(" ", "")).put(b"x", priority=4, headers={"a": "b"}, delay=1000)
    store.create("empty")
    store.create("gone").put(b"x")
    store.delete("gone")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as store:
        fill(store)
    return tmp_path / "store"


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty folder"])
def test_a_backup_is_a_store_with_the_same_queues_and_leaves_nothing_else(
    folder: Path, tmp_path: Path, there: bool
) -> None:
    if there:
        (tmp_path / "copy").mkdir()
    steps: list[tuple[int, int]] = []
    made = backup(folder, f"{tmp_path}/copy/", progress=lambda copied, total: steps.append((copied, total)))
    assert steps[-1][0] == steps[-1][1] == sum(each.bytes for each in made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "store"]
    assert not list((folder / FOLDER / "pins").iterdir())
    assert examine(tmp_path / "copy").sound
    assert listed(tmp_path / "copy") == listed(folder)
    with penstock.open(folder) as store, penstock.open(tmp_path / "copy") as copy:
        assert [(info.name, info.settings) for info in copy.queues()] == [
            (info.name, info.settings) for info in store.queues()
        ]
        assert copy.create("later").put(b"x") == store.create("later").put(b"x")  # no number is given out twice
    assert {each.queue: sum(each.counts.values()) for each in made} == {
        "default": 0, "empty": 0, "jobs": 100, "odd/name~": 1
    }  # fmt: skip


def test_leases_and_receipts_go_on_in_the_copy(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        jobs = store.create("jobs", keep_done=None)
        jobs.put(b"x")
        [message] = jobs.claim(lease=1000)
        backup(tmp_path / "store", tmp_path / "copy")
    with penstock.open(tmp_path / "copy") as copy:
        copy.queue("jobs").ack(message.receipt or "")
        assert copy.queue("jobs").counts()["done"] == 1


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_groups_dead_letters_and_settings_go_on_in_the_copy(kind: str, tmp_path: Path) -> None:
    url, copy = f"{kind}:{tmp_path / 'store'}", str(tmp_path / "copy")
    with penstock.open(url) as store:
        receipt = everything.fill(store)
        kind_of(url).backup(url, copy, True, None)
    with penstock.open(f"{kind}:{copy}") as restored:
        everything.check(restored, receipt)


def test_a_torn_end_is_not_copied(folder: Path, tmp_path: Path) -> None:
    before = (folder / "jobs").read_bytes()
    with penstock.open(folder) as store:
        store.queue("jobs").put(b"more")
    os.unlink(folder / FOLDER / "clean")
    os.truncate(folder / "jobs", len(before) + 60)
    backup(folder, tmp_path / "copy")
    assert (tmp_path / "copy" / "jobs").read_bytes() == before


def test_queues_are_whole_and_at_one_moment_while_threads_use_rotate_and_pack_them(tmp_path: Path) -> None:
    backend = open_journal(tmp_path / "store", segment_size=20_000)
    with Store("", backend) as store:
        jobs = store.create("jobs", keep_done=None)
        ending = threading.Event()
        acknowledged: list[int] = []  # puts that were answered, in order

        def put() -> None:
            number = 0
            while not ending.is_set():
                jobs.put_many([b"%d.%d" % (number, part) for part in range(5)])
                acknowledged.append(number)
                number += 1

        def work() -> None:
            while not ending.is_set():
                for message in jobs.claim(10, wait=0.01):
                    message.ack() if len(message.payload) % 2 else message.fail()

        def pack() -> None:
            while not ending.is_set():
                backend.pack("jobs")
                time.sleep(0.02)

        before: list[int] = []
        with ThreadPoolExecutor() as pool:
            running = [pool.submit(run) for run in (put, work, pack)]
            try:
                for number in range(8):
                    before.append(len(acknowledged))
                    backup(tmp_path / "store", tmp_path / f"copy{number}")
                    time.sleep(0.05)
            finally:
                ending.set()
            for each in running:
                each.result()
        rest = Counter(message.payload for message in jobs.messages())
    for number, count in enumerate(before):
        copy = Counter(payload for *_, payload, _, _ in listed(tmp_path / f"copy{number}")["jobs"])
        puts = Counter(int(payload.partition(b".")[0]) for payload in copy)
        assert set(puts.values()) <= {5}  # each put whole
        assert sorted(puts) == list(range(len(puts)))  # none between two that are there is missing
        assert len(puts) >= count  # nothing that was answered before
        assert not copy - rest  # and nothing made up
    with penstock.open(tmp_path / "copy3") as store:  # it goes on
        store.queue("jobs").put(b"more")
        assert store.queue("jobs").claim(1)


def load(backend: JournalBackend, run: str) -> bool:
    entries = [Entry(f"{run}.{number}".encode()) for number in range(20)]
    return backend.load(staged(backend, {"part": {"a": entries, "b": entries}}, 20, run=run))


def test_a_load_is_in_the_copy_with_all_of_its_queues_or_with_none_and_does_not_take_effect_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    backend = open_journal(folder)
    with Store("", backend) as store:
        for queue in ("a", "b"):
            store.create(queue)
        assert load(backend, "0")
        ending = threading.Event()
        began = threading.Event()

        def load_more() -> None:
            for number in range(1, 1000):
                if ending.is_set():
                    return
                load(backend, str(number))
                began.set()
                time.sleep(0.05)

        loader = threading.Thread(target=load_more)
        loader.start()
        began.wait()
        try:
            backup(folder, tmp_path / "copy")
        finally:
            ending.set()
            loader.join()
    found = listed(tmp_path / "copy")
    first, second = ([payload for *_, payload, _, _ in found[queue]] for queue in ("a", "b"))
    assert first == second
    assert len(first) >= 40
    copy = open_journal(tmp_path / "copy")
    with Store("", copy):
        for number in range(len(first) // 20):
            assert not load(copy, str(number))


TRAFFIC = """
import sys
from penstock.stores.journal.store import open_journal
from penstock.contract.store import Store

backend = open_journal(sys.argv[1], segment_size=100_000)
with Store("", backend) as store:
    jobs = store.create("jobs", keep_done=None)
    number = 0
    while True:
        jobs.put_many([b"%d" % (number + part) + b"." * 1000 for part in range(10)])
        number += 10
        print(number, flush=True)
        jobs.ack(*jobs.claim(3))
        if number % 500 == 0:
            backend.pack("jobs")
"""


def test_a_store_that_another_process_uses_is_copied(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAFFIC, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for number in range(4):
                for _ in range(60):
                    reached = int(process.stdout.readline())
                backup(tmp_path / "store", tmp_path / f"copy{number}")
                numbers = sorted(
                    int(payload.rstrip(b".")) for *_, payload, _, _ in listed(tmp_path / f"copy{number}")["jobs"]
                )
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= reached
        finally:
            process.kill()


def test_a_backup_that_is_killed_leaves_no_destination_and_the_next_one_clears_up(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        jobs = store.create("jobs")
        jobs.put_many([bytes(1_000_000)] * 60)
        command = [sys.executable, "-m", "penstock", "--store", str(tmp_path / "store"), "backup"]
        random = Random(7)
        finished = 0
        for number in range(5):
            dest = tmp_path / f"copy{number}"
            with subprocess.Popen([*command, str(dest)], stdout=subprocess.DEVNULL) as process:
                while process.poll() is None and not dest.with_name(dest.name + ".partial").exists():
                    time.sleep(0.001)
                time.sleep(random.uniform(0, 0.3))
                process.kill()
            if dest.exists():
                finished += 1
            else:
                assert process.returncode == -signal.SIGKILL
                backup(tmp_path / "store", dest)
            assert not dest.with_name(dest.name + ".partial").exists()
            with penstock.open(dest) as copy:
                assert copy.queue("jobs").counts()["available"] == 60
            shutil.rmtree(dest)
        assert finished < 5
        jobs.put(b"one more")
    with penstock.open(tmp_path / "store"):
        pins = tmp_path / "store" / FOLDER / "pins"
        assert not pins.exists() or not list(pins.iterdir())  # opening has dropped those of the killed


def test_a_backup_that_fails_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def interrupted(copied: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(folder, tmp_path / "copy", progress=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_damage_is_found_and_there_is_no_backup(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "jobs").read_bytes())
    data[200] ^= 1  # the snapshot of the index stands for it, so that opening does not look
    (folder / "jobs").write_bytes(data)
    with pytest.raises(penstock.StoreCorrupt, match="doctor"):
        backup(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "copy.partial").exists()


@pytest.mark.parametrize(("taken", "why"), [("copy", "not empty"), ("copy.partial", "in the way")])
def test_a_folder_of_others_in_the_place_of_the_copy_is_left_alone(
    folder: Path, tmp_path: Path, taken: str, why: str
) -> None:
    (tmp_path / taken).mkdir()
    (tmp_path / taken / "mine").touch()
    with pytest.raises(PenstockError, match=why):
        backup(folder, tmp_path / "copy")
    assert [path.name for path in (tmp_path / taken).iterdir()] == ["mine"]


def test_a_destination_inside_of_the_store_is_refused(folder: Path) -> None:
    for dest in (folder, folder / "copy"):
        with pytest.raises(InvalidArgument, match="inside of the store"):
            backup(folder, dest)


def test_two_backups_to_one_destination_do_not_meet(folder: Path, tmp_path: Path) -> None:
    other = Catalog(str(tmp_path / "copy.partial"), SystemDisk())
    other.open()
    with pytest.raises(StoreLocked, match="another backup"):
        backup(folder, tmp_path / "copy")
    other.close()


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no such folder"):
        backup(tmp_path / "nothing", tmp_path / "copy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["http://localhost:1", "memory:"])
def test_stores_of_other_kinds_say_what_to_do(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="machine that has"):
        backup(url, tmp_path / "copy")


@pytest.mark.parametrize("kind", ["text", "folder"])
def test_text_and_folder_stores_go_on_in_a_copy_of_their_files(kind: str, tmp_path: Path) -> None:
    with penstock.open(f"{kind}:{tmp_path / 'store'}") as store:
        dead_letters = everything.takes_dead_letters(store)
        receipt = everything.fill(store, dead_letters)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with penstock.open(f"{kind}:{tmp_path / 'copy'}") as restored:
        everything.check(restored, receipt, dead_letters)


@pytest.mark.parametrize("kind", ["text", "folder", "tq"])
def test_text_and_folder_stores_are_copied_with_cp_while_nobody_uses_them(kind: str, tmp_path: Path) -> None:
    home, copy = tmp_path / "store", tmp_path / "copy"
    home.mkdir()
    copy.mkdir()
    url = str(home / "jobs.tq") if kind == "tq" else f"{kind}:{home}"
    with penstock.open(url) as store:
        queue = store.queue()
        queue.put_many([penstock.Draft(b"a", headers={"n": "1" * 5_000}), b"b", penstock.Draft(b"c", priority=3)])
        (held,) = queue.claim(lease=600)
        queue.fail(*queue.claim(), delay=300, reason="later")
        expected = list(queue.messages())
    with pytest.raises(NotSupported, match="while nobody uses it") as refused:
        backup(url, copy)
    command = str(refused.value).partition("`")[2].partition("`")[0]
    subprocess.run(["sh", "-c", command.replace("DEST", str(copy))], check=True)
    if kind != "tq":
        copy = copy / "store"
    with penstock.open(str(copy / "jobs.tq") if kind == "tq" else f"{kind}:{copy}") as store:
        queue = store.queue()
        assert list(queue.messages()) == expected
        queue.ack(held.receipt or "")


# The command line


def run(store: str | Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "--store", str(store), "backup", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_command_tells_what_is_in_the_copy(folder: Path, tmp_path: Path) -> None:
    told = json.loads(run(folder, str(tmp_path / "copy"), "--json", "--no-verify").stdout)
    assert told["dest"] == str(tmp_path / "copy")
    assert told["bytes"] == sum(each["bytes"] for each in told["queues"]) > 0
    [jobs] = [each for each in told["queues"] if each["queue"] == "jobs"]
    assert jobs["counts"] == {"delayed": 0, "available": 70, "in_flight": 10, "done": 10, "failed": 10}


def test_the_store_of_a_server_is_copied_beside_it_but_not_through_it(folder: Path, tmp_path: Path) -> None:
    with penstock.open(folder) as store:
        server = serve_in_thread(store)
        refused = run(server.url, str(tmp_path / "copy"), code=1)
        run(folder, str(tmp_path / "copy"))
        server.stop()
    assert "the server may go on" in refused.stderr
    assert listed(tmp_path / "copy") == listed(folder)
