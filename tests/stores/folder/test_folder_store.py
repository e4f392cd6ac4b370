"""The folder store: files, shells, other processes, file systems without attributes, the daemons."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Draft, NotSupported, QueueFull, SimulatedClock
from penstock.contract.names import new_file
from penstock.contract.store import Store
from penstock.stores.folder import layout, stamps
from penstock.stores.folder.backend import open_folder
from penstock.stores.folder.queue import FolderQueue
from penstock.stores.folder.tree import Tree
from penstock.system.files import StrPath, SystemDisk
from tests.simulated_disk import SimulatedDisk
from tests.stores.folder.test_folder_harm import COMMAND

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=255)


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with penstock.open(f"folder:{folder}") as store:
        yield store


def shell(command: str, folder: Path) -> str:
    return subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True, text=True).stdout


# Files


def test_a_message_moves_from_folder_to_folder_with_its_payload_as_the_content(store: Store, folder: Path) -> None:
    queue = store.create("a/b:c", max_attempts=1)
    put = queue.put(b"\x00payload", priority=3)
    assert (folder / "queues" / "a%2Fb%3Ac" / put).read_bytes() == b"\x00payload"
    assert os.getxattr(folder / "queues" / "a%2Fb%3Ac" / put, "user.penstock.priority") == b"3"
    [message] = queue.claim(lease=60)
    claimed = folder / "delay" / f"a%2Fb%3Ac:{put}"
    assert claimed.read_bytes() == b"\x00payload"
    assert claimed.stat().st_mtime_ns == (message.lease_until or 0) * 1_000_000
    message.fail(reason="no")
    assert (folder / "failed" / f"a%2Fb%3Ac:{put}").exists()
    queue.redrive()
    queue.claim()[0].ack()
    assert (folder / "done" / f"a%2Fb%3Ac:{put}").exists()
    other = queue.put(b"x")
    queue.remove(other)
    assert (folder / "remove" / f"a%2Fb%3Ac:{other}").exists()
    assert [path for path in (folder / "queues").rglob("*") if path.is_file()] == []


def test_ids_are_uuids_of_version_1_in_the_order_of_arrival(store: Store) -> None:
    ids = [store.queue().put(b"x") for _ in range(5)] + store.queue().put_many([b"y"] * 5)
    assert {uuid.UUID(each).version for each in ids} == {1}
    assert sorted(ids, key=lambda each: uuid.UUID(each).time) == ids


def test_a_failed_write_leaves_nothing(folder: Path) -> None:
    class FullDisk(SystemDisk):
        full = False

        def sync_files(self, paths: Any) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "no space")
            super().sync_files(paths)

    disk = FullDisk()
    queue = Store("", open_folder(str(folder), disk=disk)).queue()
    disk.full = True
    with pytest.raises(penstock.DiskFull, match="nothing was changed"):
        queue.put_many([b"a", b"b"])
    assert list((folder / "new").iterdir()) == []
    assert len(queue) == 0


def test_long_headers_lie_beside_the_message_and_go_with_it(folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        queue = store.queue()
        queue.put(b"x", headers={"long": "ö" * 30_000})
        assert len(list((folder / ".penstock" / "long").iterdir())) == 1
        [message] = queue.claim()
        assert message.headers == {"long": "ö" * 30_000}
        message.ack()
        clock.advance(3_600)
        store.backend.reap()  # type: ignore[attr-defined]
        assert list((folder / ".penstock" / "long").iterdir()) == list((folder / "done").iterdir()) == []


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(NAMES)
def test_any_name_is_a_folder_that_no_other_name_has(name: str) -> None:
    file = new_file(name, (), layout.LONGEST, 1)
    assert not set(file) & {":", "/", "."}
    assert len(file) <= 180
    assert layout.parse_flat(f"{file}:{layout.make_id(7, 1, 2)}") == (file, layout.make_id(7, 1, 2))
    held = layout.parse_held(layout.held_name("delay", 12, 34, file, layout.make_id(7, 1, 2), leased=True))
    assert held == ("delay", 12, 34, file, layout.make_id(7, 1, 2), True, False)
    if len(file) < 150:
        assert layout.queue_name(file) == name


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=10),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**59),
)
def test_stamps_say_what_was_stamped(headers: dict[str, str], priority: int, order: int) -> None:
    uid = layout.make_id(order, 5, 1 << 40)
    stamp = stamps.Stamp(order, priority, 5, None, 7, 9, headers=stamps.to_json(headers) if headers else None)
    named = {f"penstock.{name}": value for name, value in stamp.to_attributes().items()}
    read = stamps.parse(uid, named)
    assert read == stamp
    assert layout.order_of(uid) == order
    assert json.loads(read.headers or "{}") == headers


# Shells


def test_shell_commands_feed_a_queue(folder: Path, store: Store) -> None:
    store.create("jobs")
    (folder / "letter.txt").write_text("dear all")
    shell("cp letter.txt queues/jobs/; mv letter.txt 'queues/jobs/my letter.txt'", folder)
    shell("printf hidden > queues/jobs/.part; mkdir queues/jobs/folder", folder)
    with penstock.open(f"folder:{folder}") as other:
        messages = other.queue("jobs").claim(5)
        assert [message.payload for message in messages] == [b"dear all", b"dear all"]
        assert all(uuid.UUID(message.id).version == 1 for message in messages)
        messages[0].fail(reason="again")
        assert other.queue("jobs").claim()[0].attempts == 2
    assert (folder / "queues" / "jobs" / ".part").exists()


def test_a_file_that_was_put_by_hand_keeps_its_name_as_a_header(folder: Path, store: Store) -> None:
    jobs = store.create("jobs")
    shell("echo a > queues/jobs/my\\ létter.txt; printf b > queues/jobs/$(printf 'odd\\377')", folder)
    found = {message.payload: message for message in jobs.messages()}
    assert found[b"a\n"].headers == {"file": "my létter.txt"}
    assert found[b"b"].headers == {"file": "odd\ufffd"}
    jobs.ack(*[message for message in jobs.claim(2, lease=60) if message.headers["file"] != "odd"])
    jobs.put(b"c")
    assert [message.headers for message in jobs.messages()] == [{}]


def test_a_message_that_is_copied_by_hand_keeps_the_headers_that_it_had(folder: Path, store: Store) -> None:
    jobs, other = store.create("jobs"), store.create("other")
    id_ = jobs.put(b"a", headers={"kind": "image"})
    shell(f"cp --preserve=xattr queues/jobs/{id_} queues/other/copy.txt", folder)
    assert [message.headers for message in other.messages()] == [{"kind": "image"}]


def test_a_folder_that_can_be_no_queue_is_named_with_the_reason(
    folder: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    shell("mkdir queues/a+b queues/my.queue queues/a:b 'queues/a b' queues/naïve", folder)
    with penstock.open(f"folder:{folder}") as other:
        assert [info.name for info in other.queues()] == ["a+b", "default", "my.queue"]
    said = {record.getMessage().rpartition("/")[2] for record in caplog.records}
    assert (
        "a:b is skipped: a queue of that name is the folder 'a%3Ab' here: rename it, or create it with penstock"
        in said
    )
    assert any(each.startswith("a b is skipped: queue name 'a b' has ' ' at position 1") for each in said)
    assert any(each.startswith("naïve is skipped: queue name 'naïve' has 'ï' at position 2") for each in said)


def test_a_folder_made_by_hand_is_a_queue(folder: Path, store: Store) -> None:
    shell("mkdir queues/by-hand; echo hello > queues/by-hand/x", folder)
    with penstock.open(f"folder:{folder}") as other:
        assert [message.payload for message in other.queue("by-hand").claim()] == [b"hello\n"]


def test_a_file_that_is_still_being_written_is_no_message_yet(folder: Path, store: Store) -> None:
    path = folder / "queues" / "default" / "slow"
    with path.open("wb") as file:
        file.write(b"half")
        file.flush()
        assert store.queue().claim() == []
        file.write(b" and half")
    assert [message.payload for message in store.queue().peek()] == [b"half and half"]
    assert [message.payload for message in store.queue().claim()] == [b"half and half"]


@pytest.mark.parametrize("peers", [0, 2])
def test_files_that_are_still_being_written_hold_up_nothing_behind_them(folder: Path, peers: int) -> None:
    with penstock.open(f"folder:{folder}", peers=peers) as store:
        queue = store.queue()
        slow = [(folder / "queues" / "default" / name).open("wb") for name in ("slow", "slower")]
        assert queue.claim() == []  # they are there before all others
        queue.put_many([b"1", b"2", b"3", b"4", b"5", b"6"])
        taken = [queue.claim(), queue.claim(), queue.claim(wait=5), queue.claim(), queue.claim(wait=5)]
        assert all(taken)
        popped = queue.pop()
        assert popped is not None
        assert {popped.payload, *(each.payload for [each] in taken)} == {b"1", b"2", b"3", b"4", b"5", b"6"}
        assert (queue.claim(), queue.count()) == ([], 2)
        for number, file in enumerate(slow):
            file.write(b"whole %d" % number)
            file.close()
        assert sorted(message.payload for message in queue.claim(3)) == [b"whole 0", b"whole 1"]
        assert queue.claim() == []


def test_a_file_that_is_whole_again_has_its_place_in_the_order(folder: Path, store: Store) -> None:
    with (folder / "queues" / "default" / "slow").open("wb"):
        assert store.queue().claim() == []
        store.queue().put_many([b"second", b"third"])
    assert [message.payload for message in store.queue().claim(3)] == [b"", b"second", b"third"]


def test_who_waits_gets_what_is_behind_a_file_or_the_file_once_it_is_whole(folder: Path, store: Store) -> None:
    queue = store.queue()
    with (folder / "queues" / "default" / "slow").open("wb") as file, ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.claim, wait=600)
        queue.put(b"behind it")
        assert [message.payload for message in waiting.result()] == [b"behind it"]
        waiting = pool.submit(queue.claim, wait=600)
        file.write(b"whole")
        file.close()
        assert [message.payload for message in waiting.result()] == [b"whole"]


def test_a_file_that_is_taken_away_before_it_is_whole_was_never_there(folder: Path, store: Store) -> None:
    queue = store.queue()
    with (folder / "queues" / "default" / "slow").open("wb"):
        assert queue.claim() == []
        assert queue.count() == 1
        shell("rm queues/default/*", folder)
        assert queue.claim() == []
        assert queue.count() == 0


# Other processes


class ImpatientClock(penstock.SystemClock):
    """For a test, waiting takes no time; its seconds are only counted."""

    def __init__(self) -> None:
        self.waited = 0.0

    def monotonic(self) -> float:
        return self.waited

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return event.wait()
        self.waited += seconds
        return event.is_set()


def test_what_another_process_puts_is_seen_within_a_second(folder: Path) -> None:
    with penstock.open(f"folder:{folder}", clock=ImpatientClock()) as store:
        store.queue().put(b"mine")
        store.queue().claim()
        code = f"import penstock; penstock.open('folder:{folder}').queue().put(b'theirs')"
        subprocess.run([sys.executable, "-c", code], check=True)
        [message] = store.queue().claim(wait=1)
        assert message.payload == b"theirs"


def test_what_others_have_settled_is_seen_in_every_queue(folder: Path, store: Store) -> None:
    queues = [store.create("one"), store.create("two")]
    for queue in queues:
        queue.put(b"x")
    claimed = [queue.claim()[0] for queue in queues]
    assert [queue.counts()["in_flight"] for queue in queues] == [1, 1]
    with penstock.open(f"folder:{folder}") as other:
        for message in claimed:
            other.queue(message.queue).ack(str(message.receipt))
    assert [queue.counts()["in_flight"] for queue in queues] == [0, 0]


def test_a_claim_of_several_is_given_others_for_those_that_cannot_be_had(folder: Path, store: Store) -> None:
    queue = store.queue()
    queue.put_many([b"1", b"2", b"3", b"4", b"5"])
    with penstock.open(f"folder:{folder}") as other:
        first = other.queue().claim(2)  # which is not seen yet
        assert [message.payload for message in first] == [b"1", b"2"]
        assert [message.payload for message in queue.claim(3)] == [b"3", b"4", b"5"]


def test_a_limit_and_a_key_are_exact_among_processes(folder: Path, store: Store) -> None:
    store.create("jobs", max_size=20)
    code = """
import sys, penstock
with penstock.open(sys.argv[1]) as store:
    queue = store.queue("jobs")
    for number in range(15):
        try:
            queue.put(b"x", key=f"key {number}" if number % 2 else None)
        except penstock.QueueFull:
            pass
"""
    command = [sys.executable, "-c", code, f"folder:{folder}"]
    producers = [subprocess.Popen(command) for _ in range(4)]
    assert [producer.wait() for producer in producers] == [0] * 4
    assert len(store.queue("jobs")) == 20
    with pytest.raises(QueueFull, match="holds 20 of at most 20"):
        store.queue("jobs").put(b"one more")
    store.create("keyed")
    puts = "import sys, penstock; print(penstock.open(sys.argv[1]).queue('keyed').put(b'x', key='k'))"
    answers = [
        subprocess.Popen([sys.executable, "-c", puts, f"folder:{folder}"], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert len({answer.communicate()[0] for answer in answers}) == 1
    assert len(store.queue("keyed")) == 1


def test_queues_of_other_processes_come_and_go(folder: Path, store: Store) -> None:
    with penstock.open(f"folder:{folder}") as other:
        other.create("theirs", max_attempts=7)
        assert store.queue("theirs").settings.max_attempts == 7
        other.delete("theirs")
        time.sleep(1.1)
        with pytest.raises(penstock.QueueNotFound):
            store.queue("theirs")


def test_a_hundred_thousand_messages_are_claimed_without_listing_them_each_time(folder: Path) -> None:
    class CountingDisk(SystemDisk):
        listed = 0

        def listdir(self, path: StrPath) -> list[str]:
            names = super().listdir(path)
            self.listed += len(names)
            return names

    with penstock.open(f"folder:{folder}", sync="never") as store:
        store.queue()
    for number in range(20_000):
        name = layout.make_id(layout.first_order(1_700_000_000_000) + number, 1, 1 << 40)
        (folder / "queues" / "default" / name).touch()
    disk = CountingDisk()
    queue = Store("", open_folder(str(folder), disk=disk, sync="never")).queue()
    queue.claim()
    disk.listed = 0
    started = time.monotonic()
    for _ in range(200):
        queue.claim()[0].ack()
    assert disk.listed <= 20_500 * (2 + (time.monotonic() - started))


# Without attributes


def bare(folder: str = "/data") -> Store:
    disk = SimulatedDisk(Random(0))
    disk.has_attributes = False
    return Store(folder, open_folder(folder, disk=disk, clock=SimulatedClock()))


def test_without_attributes_there_still_are_queues_with_leases() -> None:
    store = bare()
    clock: Any = store.backend.clock  # type: ignore[attr-defined]
    queue = store.queue()
    ids = [queue.put(b"a"), *queue.put_many([b"b", b"c"])]
    first, second = queue.claim(2, lease=10)
    assert [first.id, second.id] == ids[:2]
    assert queue.claim(lease=10)[0].id == ids[2]
    second.ack()
    second.ack()
    first.extend(60)
    clock.advance(10)
    assert [message.payload for message in queue.claim(5)] == [b"c"]
    first.release()
    clock.advance(30)
    assert [message.payload for message in queue.claim(5)] == [b"a", b"c"]


@pytest.mark.parametrize(
    ("what", "draft"),
    [
        ("priority", Draft(b"x", priority=1)),
        ("headers", Draft(b"x", headers={"a": "b"})),
        ("retention", Draft(b"x", retention=5)),
        ("created_at", Draft(b"x", created_at=5)),
    ],
)
def test_without_attributes_what_they_would_hold_is_refused_by_name(what: str, draft: Draft) -> None:
    queue = bare().queue()
    with pytest.raises(NotSupported, match=f"{what}: the file system of '/data' has no user extended attributes"):
        queue.put_many([draft])
    queue.put(b"x")
    with pytest.raises(NotSupported, match="reason: the file system"):
        queue.claim()[0].fail(reason="no")
    assert sum(queue.counts().values()) == 1


def test_a_message_can_be_removed_wherever_it_is_from_new_on(folder: Path, store: Store) -> None:
    queue = store.queue()
    unfinished, available, delayed = queue.put(b"a"), queue.put(b"b"), queue.put(b"c", delay=60)
    os.rename(folder / "queues" / "default" / unfinished, folder / "new" / f"default:{unfinished}")
    (held,) = queue.claim()
    assert held.id == available
    assert queue.remove(unfinished, available, delayed, str(uuid.uuid1())) == 3
    assert {path.name for path in (folder / "remove").iterdir()} == {
        f"default:{each}" for each in (unfinished, available, delayed)
    }
    with pytest.raises(penstock.LeaseExpired):
        held.ack()


# The daemons


def test_the_mover_brings_back_what_is_due_and_the_reaper_unlinks(folder: Path, store: Store) -> None:
    queue = store.queue()
    queue.put(b"a")
    removed = queue.put(b"b", priority=1)
    queue.remove(removed)
    queue.claim(lease=0.01)  # the last that is asked of this process: it would bring the message back itself
    time.sleep(0.02)
    move = ["mover", "--source", "delay", "--destination", "queues", "--delay", "0", "--once", "--json"]
    done = subprocess.run([*COMMAND, *move], cwd=folder, check=True, capture_output=True)
    assert json.loads(done.stdout) == {"moved": 1}
    assert len(list((folder / "queues" / "default").iterdir())) == 1
    reap = ["reaper", "--source", "remove", "--once", "--json"]
    done = subprocess.run([*COMMAND, *reap], cwd=folder, check=True, capture_output=True)
    assert json.loads(done.stdout) == {"unlinked": 1}
    assert list((folder / "remove").iterdir()) == []


def test_the_daemons_serve_any_tree_and_end_when_told(tmp_path: Path) -> None:
    for name in ("delay", "queues", "queues/jobs", "remove"):
        (tmp_path / name).mkdir()
    (tmp_path / "delay" / "jobs:now").write_text("a")
    (tmp_path / "delay" / "jobs:later").write_text("b")
    os.utime(tmp_path / "delay" / "jobs:later", (time.time() + 500,) * 2)
    (tmp_path / "remove" / "jobs:gone").write_text("c")
    mover = [*COMMAND, "mover", "--source", "delay", "--destination", "queues", "--delay", "0.2"]
    with (
        subprocess.Popen(mover, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as moving,
        subprocess.Popen(
            [*COMMAND, "reaper", "--source", "remove"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as reaping,
    ):
        while not (tmp_path / "queues" / "jobs" / "now").exists() or (tmp_path / "remove" / "jobs:gone").exists():
            time.sleep(0.02)
        for daemon in (moving, reaping):
            daemon.send_signal(signal.SIGTERM)
        assert moving.communicate()[0] == "1 moved\n"
        assert reaping.communicate()[0] == "1 unlinked\n"
    assert (tmp_path / "delay" / "jobs:later").exists()


# Arguments


def test_peers_are_for_folder_stores(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="peers=2: store 'memory:' has none"):
        penstock.open("memory:", peers=2)
    with pytest.raises(penstock.InvalidArgument, match="peers=-1 is out of range"):
        penstock.open(f"folder:{tmp_path}", peers=-1)
    with pytest.raises(NotSupported, match='give "always" or "never"'):
        penstock.open(f"folder:{tmp_path}", sync="interval")


def test_with_peers_any_of_the_first_candidates_is_taken(folder: Path) -> None:
    with penstock.open(f"folder:{folder}", peers=3, sync="never") as store:
        queue = store.queue()
        ids = queue.put_many([b"x"] * 200)
        places = [ids.index(queue.claim()[0].id) for _ in range(20)]
        assert places != sorted(places)
        assert max(places) < 200


# Files that no message names


def test_long_values_that_a_killed_process_left_for_no_message_are_dropped(folder: Path) -> None:
    pid = os.fork()
    if not pid:
        queue = penstock.open(f"folder:{folder}").queue()
        queue.put(b"kept", headers={"long": "x" * 5_000})
        queue.put(b"failed", headers={"long": "y" * 5_000}, priority=-1)
        queue.fail(*queue.claim(), reason="z" * 5_000)
        tree: Tree = queue._store.backend.shared.tree  # type: ignore[attr-defined]
        tree.keep_value({"for": "nobody" * 1_000})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    long = folder / ".penstock" / "long"
    before = len(list(long.iterdir()))
    with penstock.open(f"folder:{folder}") as store:
        assert len(list(long.iterdir())) == before - 1
        first, second = store.queue().claim(2)
        assert (len(first.headers["long"]), len(second.headers["long"])) == (5_000, 5_000)
        assert len(first.reason or "") == 1_000


def test_they_stay_while_another_process_has_the_store_open(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as other:
        pid = os.fork()
        if not pid:
            tree: Tree = penstock.open(f"folder:{folder}").backend.shared.tree  # type: ignore[attr-defined]
            tree.keep_value({"for": "nobody" * 1_000})
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        long = folder / ".penstock" / "long"
        (orphan,) = long.iterdir()
        with penstock.open(f"folder:{folder}"):
            assert orphan.exists()
        assert other.queue().count() == 0
    with penstock.open(f"folder:{folder}"):  # alone
        assert not list(long.iterdir())


def test_a_claim_does_not_look_at_the_folder_a_second_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.create("jobs")
    queue.put_many([b"a", b"b", b"c"])
    monkeypatch.setattr(FolderQueue, "peek", lambda *arguments: pytest.fail("it has looked"))
    assert len(queue.claim()) == 1
    assert len(queue.claim(5)) == 2
