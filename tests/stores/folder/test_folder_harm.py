"""What people, shells, other programs and disks do to a folder store: nothing is lost, nothing else affected."""

import errno
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import SimulatedClock, StoreClosed, StoreCorrupt
from penstock.contract.store import Store
from penstock.errors import StoreUnavailable
from penstock.stores.folder import layout
from penstock.stores.folder.backend import open_folder
from penstock.system.files import StrPath, SystemDisk
from tests.stores.slate.loop_disk import missing

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]
SUM = "user.penstock.sum"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[penstock.Store]:
    with penstock.open(f"folder:{folder}") as store:
        store.create("jobs")
        yield store


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that is no part of the store, with its time set back."""
    path = tmp_path / "secret"
    path.write_bytes(b"secret")
    os.utime(path, (1, 1))
    return path


def is_untouched(path: Path) -> bool:
    return path.read_bytes() == b"secret" and path.stat().st_mtime == 1 and os.listxattr(path) == []


def some_id() -> str:
    return str(uuid.uuid1(node=0x0025904F6E08))


def payloads(store: penstock.Store, queue: str = "jobs") -> list[bytes]:
    return [message.payload for message in store.queue(queue).claim(100)]


def warned(caplog: pytest.LogCaptureFixture, path: Path) -> int:
    return sum(str(path) in record.getMessage() for record in caplog.records)


# Links


@pytest.mark.parametrize("name", ["by hand", some_id()])
def test_a_link_in_a_queue_is_no_message_and_what_it_leads_to_stays_as_it_is(
    name: str, folder: Path, store: penstock.Store, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.queue("jobs").put(b"mine")
    link = folder / "queues" / "jobs" / name
    link.symlink_to(outside)
    assert payloads(store) == [b"mine"]
    assert [message.payload for message in store.queue("jobs").messages()] == [b"mine"]
    assert link.is_symlink()
    assert is_untouched(outside)
    with penstock.open(f"folder:{folder}") as again:
        assert payloads(again) == []
    assert warned(caplog, link) == 2  # once by each store


def test_links_to_messages_in_other_folders_are_left_alone(
    folder: Path, store: penstock.Store, outside: Path
) -> None:
    links = [folder / part / f"jobs:{some_id()}" for part in ("new", "delay", "failed", "done")]
    for link in links:
        link.symlink_to(outside)
    assert store.queue("jobs").counts() == dict.fromkeys(store.queue("jobs").counts(), 0)
    store.queue("jobs").purge()
    store.backend.tend()  # type: ignore[attr-defined]
    with penstock.open(f"folder:{folder}"):
        assert all(link.is_symlink() for link in links)
    assert is_untouched(outside)


def test_a_queue_whose_folder_is_a_link_is_refused_by_name_and_the_others_go_on(
    folder: Path, store: penstock.Store, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.create("moved")
    (folder / "queues" / "moved").rmdir()
    (folder / "queues" / "moved").symlink_to(elsewhere)
    (folder / "queues" / "stray").symlink_to(elsewhere)
    with penstock.open(f"folder:{folder}") as again:
        with pytest.raises(StoreUnavailable, match=r"queues/moved.*symbolic link"):
            again.queue("moved")
        with pytest.raises(penstock.QueueNotFound):
            again.queue("stray")
        again.queue("jobs").put(b"a")
        assert payloads(again) == [b"a"]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("part", ["delay", "new", ".penstock", ".penstock/settings", ".penstock/held"])
def test_a_store_whose_own_folder_is_a_link_is_refused(part: str, folder: Path, tmp_path: Path) -> None:
    with penstock.open(f"folder:{folder}"):
        pass
    (folder / part).rename(tmp_path / "elsewhere")
    (folder / part).symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.joinpath("elsewhere").rglob("*"))
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        penstock.open(f"folder:{folder}")
    assert sorted(tmp_path.joinpath("elsewhere").rglob("*")) == before


def test_settings_behind_a_link_are_not_read(folder: Path, store: penstock.Store, outside: Path) -> None:
    (folder / ".penstock" / "settings" / "jobs").unlink()
    (folder / ".penstock" / "settings" / "jobs").symlink_to(outside)
    with penstock.open(f"folder:{folder}") as again, pytest.raises(StoreUnavailable, match="symbolic link"):
        again.queue("jobs")
    assert is_untouched(outside)


def test_a_store_that_is_reached_by_a_link_works(folder: Path, store: penstock.Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with penstock.open(f"folder:{tmp_path / 'link'}") as other:
        other.queue("jobs").put(b"a")
        assert payloads(other) == [b"a"]


# Strays


def strays(folder: Path) -> list[Path]:
    """Something of each kind in each place, none of which is a message."""
    files = [
        folder / "queues" / "README", folder / "queues" / "notes.txt", folder / "delay" / "jobs:x",
        folder / "delay" / "x", folder / "failed" / f"jobs:{uuid.uuid4()}", folder / "done" / "notes",
        folder / "new" / "x", folder / "remove" / "notes", folder / ".penstock" / "batches" / "x",
    ]  # fmt: skip
    for each in files:
        each.touch()
    folders = [folder / "queues" / "jobs" / "folder", folder / "queues" / "jobs" / some_id()]
    folders += [folder / part / f"jobs:{some_id()}" for part in ("new", "delay", "failed", "done", "remove")]
    for each in folders:
        each.mkdir()
    others = [folder / "queues" / "jobs" / each for each in ("pipe", some_id(), "socket")]
    os.mkfifo(others[0])
    os.mkfifo(others[1])
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(others[2].parent)  # a socket's path must be short
        try:
            listening.bind(others[2].name)
        finally:
            os.chdir(here)
    os.mkfifo(folder / "delay" / f"jobs:{some_id()}")
    return [*files, *folders, *others]


def test_strays_of_any_kind_are_skipped_and_said_once_and_nothing_else_is_affected(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        jobs = store.create("jobs")
        jobs.put_many([b"a", b"b", b"c"])
        left = strays(folder)
        for _ in range(3):
            clock.advance(5)
            assert {info.name for info in store.queues()} == {"default", "jobs"}
            store.backend.tend()  # type: ignore[attr-defined]
        [first, second] = jobs.claim(2)
        first.ack()
        second.fail()
        assert [message.payload for message in jobs.messages()] == [b"b", b"c"]
        assert jobs.counts()["available"] == 2
        store.create("README").put(b"d")
        assert payloads(store, "README") == [b"d"]
    assert all(each.exists() for each in left)
    named = [each for each in left if warned(caplog, each)]
    assert {each.name for each in left} - {each.name for each in named} <= {"notes", "x", *(
        each.name for each in left if each.parent.name in ("done", "remove", "new")
    )}  # fmt: skip
    assert max(warned(caplog, each) for each in named) == 1
    with penstock.open(f"folder:{folder}", clock=clock) as store:  # also where they were before
        assert payloads(store) == [b"b", b"c"]


def test_a_server_goes_on_beside_a_file_in_queues(folder: Path, store: penstock.Store) -> None:
    (folder / "queues" / "README").touch()
    with penstock.open(f"folder:{folder}") as served:
        from penstock.http.server import serve_in_thread

        server = serve_in_thread(served)
        try:
            assert ask(f"{server.url}/-/readyz")[0] == 200
            assert ask(f"{server.url}/jobs/messages", b"a")[0] == 201
            assert ask(f"{server.url}/jobs/messages") == (200, b"a")
        finally:
            server.stop()


def ask(url: str, body: bytes | None = None, method: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("ahead", [3_600, 86_400 * 365, 86_400 * 365 * 3_000])
def test_a_name_that_says_a_time_to_come_moves_no_time(
    ahead: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        jobs = store.create("jobs")
        jobs.put(b"held")
        [held] = jobs.claim(lease=60)
        jobs.put(b"short", retention=60)
        to_come = layout.make_id(layout.first_order(clock.now() + ahead * 1000), 1, 0x0025904F6E08)
        stray = folder / "queues" / "jobs" / to_come
        stray.write_bytes(b"stray")
        clock.advance(1)
        assert sorted(message.payload for message in jobs.messages()) == [b"held", b"short", b"stray"]
        assert warned(caplog, stray) == 1
        put = jobs.put(b"later")
        [message] = [message for message in jobs.messages() if message.id == put]
        assert message.received_at == clock.now()
        assert [message.payload for message in jobs.claim(5)] == [b"short", b"stray", b"later"]
        held.ack()
    with penstock.open(f"folder:{folder}", clock=clock) as again:
        again.queue("jobs").counts()
        again.queue("jobs").put(b"new")
        [message] = again.queue("jobs").claim()
        assert message.claimed_at == clock.now()


@pytest.mark.parametrize("name", ["order", "received_at", "expires_at", "priority"])
def test_a_changed_attribute_moves_no_time_and_its_message_is_set_aside(name: str, folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        jobs = store.create("jobs")
        ids = jobs.put_many([b"a", b"b", b"c"])
        [held] = jobs.claim(lease=60)
        assert held.receipt
        value = layout.first_order(clock.now() + 1_800_000) if name == "order" else clock.now() + 1_800_000
        os.setxattr(folder / "queues" / "jobs" / ids[1], f"user.penstock.{name}", str(value).encode())
    with penstock.open(f"folder:{folder}", clock=clock) as again:
        jobs = again.queue("jobs")
        assert jobs.counts()["in_flight"] == 1
        listed = jobs.messages("available")
        assert next(listed).payload == b"c"
        with pytest.raises(StoreCorrupt, match=ids[1]):
            next(listed)
        assert payloads(again) == [b"c"]
        jobs.ack(held.receipt)
        assert (folder / ".penstock" / "damaged" / f"jobs:{ids[1]}").read_bytes() == b"b"


# MQ-Core


def test_a_tree_of_mq_core_is_adopted_whole(tmp_path: Path) -> None:
    for name in ("new", "queues/queue001", "queues/my.queue", "delay", "remove"):
        (tmp_path / name).mkdir(parents=True)
    first, second, third, other = (some_id() for _ in range(4))
    (tmp_path / "queues" / "queue001" / first).write_bytes(b"1")
    (tmp_path / "delay" / f"queue001:{second}").write_bytes(b"2")
    os.utime(tmp_path / "delay" / f"queue001:{second}", (1, 1))
    (tmp_path / "new" / f"queue001:{third}").write_bytes(b"3")
    (tmp_path / "new" / f"my.queue:{other}").write_bytes(b"4")
    (tmp_path / "new" / "queue001:any-id").write_bytes(b"5")
    (tmp_path / "remove" / f"queue001:{some_id()}").write_bytes(b"6")
    with penstock.open(f"folder:{tmp_path}") as store:
        assert [info.name for info in store.queues()] == ["default", "my.queue", "queue001"]
        claimed = store.queue("queue001").claim(10)
        assert [message.payload for message in claimed] == [b"1", b"2", b"3", b"5"]
        assert [message.id for message in claimed][:3] == [first, second, third]
        assert payloads(store, "my.queue") == [b"4"]
        assert store.queue("queue001").remove(first) == 1
        store.backend.reap()  # type: ignore[attr-defined]
    assert list((tmp_path / "new").iterdir()) == []
    assert [path.name for path in (tmp_path / "remove").iterdir() if path.read_bytes() == b"6"] == []


def test_what_is_still_being_written_to_new_is_not_delivered(folder: Path, store: penstock.Store) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as other:
        with open(folder / "new" / f"jobs:{some_id()}", "wb") as file:
            file.write(b"half")
            file.flush()
            other.backend.tend()  # type: ignore[attr-defined]
            assert payloads(other) == []
            file.write(b" and whole")
        other.backend.tend()  # type: ignore[attr-defined]
        clock.advance(1)
        assert payloads(other) == [b"half and whole"]


@pytest.mark.parametrize("kind", ["memory:", "journal:{}/journal", "text:{}/text", "folder:{}/folder"])
def test_a_queue_that_mq_core_makes_redelivers_for_ever(kind: str, tmp_path: Path) -> None:
    from penstock.http.server import serve_in_thread

    clock = SimulatedClock()
    with penstock.open(kind.format(tmp_path), clock=clock) as store:
        before = store.create("before").settings
        server = serve_in_thread(store)
        try:
            assert ask(f"{server.url}/endless", method="PUT")[0] == 201
            assert ask(f"{server.url}/endless", method="PUT")[0] == 204
            assert ask(f"{server.url}/before", method="PUT")[0] == 204
            assert ask(f"{server.url}/few?max_attempts=2", method="PUT")[0] == 201
            assert ask(f"{server.url}/endless/messages", b"a")[0] == 201
            for _ in range(12):
                assert ask(f"{server.url}/endless/messages?lease=1") == (200, b"a")
                clock.advance(2)
        finally:
            server.stop()
        assert store.queue("endless").counts()["failed"] == 0
        assert store.queue("before").settings == before
        assert (before.max_attempts, store.queue("few").settings.max_attempts) == (5, 2)


# Damage


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "headers"])
def test_a_message_that_is_not_as_it_was_put_is_given_to_nobody_and_kept(
    how: str, folder: Path, store: penstock.Store, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = store.queue("jobs")
    jobs.put(b"one")
    put = jobs.put(b"payload", headers={"long": "x" * 1000})
    jobs.put(b"three")
    path = folder / "queues" / "jobs" / put
    change = {"flipped": b"paylord", "cut": b"payl", "longer": b"payload!", "headers": b"payload"}[how]
    with open(path, "r+b") as file:  # the attributes stay
        file.truncate(0)
        file.write(change)
    if how == "headers":
        [long] = (folder / ".penstock" / "long").iterdir()
        long.write_text(long.read_text().replace("x", "y", 1))
    assert [message.payload for message in jobs.peek(3)] == [b"one", b"three"]
    listed = jobs.messages()
    assert [next(listed).payload, next(listed).payload] == [b"one", b"three"]
    with pytest.raises(StoreCorrupt, match=put):
        next(listed)
    examined = subprocess.run([*COMMAND, "--store", f"folder:{folder}", "doctor"], capture_output=True, text=True)
    assert examined.returncode == 1
    assert f"problem  queue jobs: message {put} in queues/ is damaged" in examined.stdout
    assert payloads(store) == [b"one", b"three"]
    assert jobs.pop() is None
    aside = folder / ".penstock" / "damaged" / f"jobs:{put}"
    assert aside.read_bytes() == change
    assert warned(caplog, aside) == 1
    shutil.copyfile(aside, folder / "queues" / "jobs" / "accepted")  # as it is: a file that a person puts there
    with penstock.open(f"folder:{folder}") as again:
        assert payloads(again) == [change]


def test_messages_of_an_older_version_have_no_checksum_and_are_read_as_before(
    folder: Path, store: penstock.Store
) -> None:
    put = store.queue("jobs").put(b"a", priority=3, headers={"a": "b"})
    os.removexattr(folder / "queues" / "jobs" / put, SUM)
    [message] = store.queue("jobs").claim()
    assert (message.payload, message.headers, message.priority) == (b"a", {"a": "b"}, 3)
    message.fail(reason="no")
    [message] = store.queue("jobs").claim()
    assert message.attempts == 2


def test_a_file_dropped_by_hand_has_a_checksum_once_it_was_claimed(folder: Path, store: penstock.Store) -> None:
    (folder / "queues" / "jobs" / "dropped").write_bytes(b"a")
    [message] = store.queue("jobs").claim()
    path = folder / "delay" / f"jobs:{message.id}"
    assert os.getxattr(path, SUM)
    path.write_bytes(b"b")
    os.utime(path, ns=(0, (message.lease_until or 0) * 1_000_000))  # its lease goes on
    message.release()
    assert payloads(store) == []
    assert (folder / ".penstock" / "damaged" / f"jobs:{message.id}").read_bytes() == b"b"


def test_attempts_and_redriven_messages_are_not_taken_for_damaged(store: penstock.Store) -> None:
    queue = store.create("few", max_attempts=2)
    queue.put(b"a", headers={"a": "b"})
    for how in ("fail", "fail", "redrive", "release", "fail"):
        if how == "redrive":
            assert queue.redrive() == 1
        else:
            [message] = queue.claim()
            message.fail(reason="no" * 500) if how == "fail" else message.release()
        assert [each.payload for each in queue.messages()] == [b"a"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"name": "jobs"}', b"flipped"])
def test_damaged_or_missing_settings_are_a_named_error_of_their_queue(
    content: bytes | None, folder: Path, store: penstock.Store
) -> None:
    store.create("limited", max_size=4)
    store.queue("limited").put(b"a")
    path = folder / ".penstock" / "settings" / "limited"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b": 4", b": 5") if content == b"flipped" else content)
    with penstock.open(f"folder:{folder}") as again:
        for call in (again.queue, again.create, again.delete):
            with pytest.raises(StoreCorrupt, match=r"settings/limited.*kept/limited"):
                call("limited")
        with pytest.raises(StoreCorrupt, match="settings/limited"):
            again.queues()
        again.queue("jobs").put(b"b")
        assert payloads(again) == [b"b"]
    examined = subprocess.run([*COMMAND, "--store", f"folder:{folder}", "doctor"], capture_output=True, text=True)
    assert (examined.returncode, "settings/limited" in examined.stdout) == (1, True)
    shutil.copyfile(folder / ".penstock" / "kept" / "limited", path)
    with penstock.open(f"folder:{folder}") as again:
        assert again.queue("limited").settings.max_size == 4
        assert payloads(again, "limited") == [b"a"]


def test_settings_of_an_older_version_and_settings_that_a_person_changed_are_read(
    folder: Path, store: penstock.Store
) -> None:
    path = folder / ".penstock" / "settings" / "jobs"
    entry = json.loads(path.read_text())
    del entry["sum"]
    entry["settings"]["max_attempts"] = 9
    path.write_text(json.dumps(entry))
    (folder / ".penstock" / "kept" / "jobs").unlink()
    with penstock.open(f"folder:{folder}") as again:
        assert again.queue("jobs").settings.max_attempts == 9


def test_a_sound_store_is_called_so_and_strays_are_named(folder: Path, store: penstock.Store) -> None:
    store.queue("jobs").put_many([b"a", b"b"])
    store.queue("jobs").claim()[0].fail()
    (folder / "delay" / "jobs:x").touch()
    examined = subprocess.run(
        [*COMMAND, "--store", f"folder:{folder}", "doctor", "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(examined.stdout)
    assert found["sound"]
    assert [each["file"] for each in found["findings"] if each["severity"] == "note"] == [
        str(folder / "delay" / "jobs:x")
    ]
    [jobs] = [queue for queue in found["queues"] if queue["name"] == "jobs"]
    assert (jobs["bytes"], jobs["files"]["queues"], jobs["findings"]) == (2, 2, [])


def test_a_store_without_a_place_is_not_made_by_the_doctor(tmp_path: Path) -> None:
    command = [*COMMAND, "--store", f"folder:{tmp_path / 'none'}", "doctor"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    assert not (tmp_path / "none").exists()


# Errors of the system


class FailingDisk(SystemDisk):
    """Lets operations fail that touch a path of this kind, as long as told."""

    def __init__(self) -> None:
        self.error = 0
        self.pattern = "."

    def _check(self, path: StrPath) -> None:
        if self.error and re.search(self.pattern, os.fspath(path)):
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))

    def open(self, path: StrPath, **how: Any) -> Any:
        if how.get("create") or how.get("exclusive"):
            self._check(path)
        return super().open(path, **how)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._check(target)
        super().rename(source, target)

    def unlink(self, path: StrPath) -> None:
        self._check(path)
        super().unlink(path)

    def sync_files(self, paths: Any) -> None:
        for path in paths if self.error == errno.EIO else ():
            self._check(path)
        super().sync_files(paths)


@pytest.mark.parametrize(
    ("error", "words"),
    [(errno.EROFS, "the file system is read-only"), (errno.EACCES, "permission denied"),
     (errno.EFBIG, "ulimit -f"), (errno.EMFILE, "too many files open")],
)  # fmt: skip
def test_what_the_system_refuses_is_named_and_the_store_goes_on_once_it_is_allowed(
    error: int, words: str, folder: Path
) -> None:
    disk = FailingDisk()
    with Store("folder:", open_folder(str(folder), disk=disk)) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        [held] = queue.claim()
        disk.error = error
        for call in (
            lambda: queue.put(b"c"),
            lambda: queue.put_many([b"c", b"d"]),
            queue.claim,
            queue.pop,
            held.ack,
        ):
            with pytest.raises(StoreUnavailable, match=words) as refused:
                call()
            assert "the disk failed" not in str(refused.value)
        disk.error = 0
        held.ack()
        queue.put(b"c")
        assert [message.payload for message in queue.claim(5)] == [b"b", b"c"]


def test_after_an_error_of_the_disk_the_store_stops_and_says_why(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    from penstock.http.server import serve_in_thread

    with Store("folder:", open_folder(str(folder), disk=disk)) as store:
        store.queue().put(b"a")
        server = serve_in_thread(store)
        try:
            assert ask(f"{server.url}/-/readyz")[0] == 200
            disk.error = errno.EIO
            with pytest.raises(StoreClosed, match="Input/output error"):
                store.queue().claim()
            assert "Input/output error" in "".join(record.getMessage() for record in caplog.records)
            assert ask(f"{server.url}/-/readyz")[0] == 503
            disk.error = 0
            assert ask(f"{server.url}/-/readyz")[0] == 503
        finally:
            server.stop()
        with pytest.raises(StoreClosed):
            penstock.work(store.queue(), lambda message: None)
    with penstock.open(f"folder:{folder}") as again:
        assert payloads(again, "default") == [b"a"]


SERVE = """
import errno, os, sys
from penstock.cli import main
fsync = os.fsync
def failing(descriptor):
    if os.path.exists(os.environ["FAIL"]):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(descriptor)
os.fsync = failing
main()
"""


def test_a_server_ends_with_an_error_when_its_disk_fails(folder: Path, tmp_path: Path) -> None:
    fail = tmp_path / "fail"
    command = [sys.executable, "-c", SERVE, "--store", f"folder:{folder}", "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "FAIL": str(fail)}
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        assert ask(f"{url}/default/messages", b"a")[0] == 201
        fail.touch()
        assert ask(f"{url}/default/messages", b"b")[0] == 503
        _, log = server.communicate()
    assert server.returncode == 1
    assert "Input/output error" in log
    with penstock.open(f"folder:{folder}") as again:
        assert b"a" in payloads(again, "default")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_an_error_at_open_is_one_of_ours(error: int, folder: Path) -> None:
    disk = FailingDisk()
    disk.error, disk.pattern = error, "probe|locks"
    with pytest.raises(penstock.PenstockError, match=re.escape(str(folder))) as refused:
        open_folder(str(folder), disk=disk)
    assert ("the disk failed" in str(refused.value)) == (error == errno.EIO)
    disk.error = 0
    open_folder(str(folder), disk=disk).close()


def test_a_file_size_limit_is_named_and_changes_nothing(folder: Path, store: penstock.Store) -> None:
    store.queue("jobs").put(b"a")
    done = subprocess.run(
        [*COMMAND, "--store", f"folder:{folder}", "put", "jobs", "x" * 5_000], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)),
    )  # fmt: skip
    assert done.returncode == 1
    assert "ulimit -f" in done.stderr
    assert payloads(store) == [b"a"]


def test_a_file_in_the_place_of_a_store_and_a_folder_of_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="this is a file, where a folder belongs"):
        penstock.open(f"folder:{tmp_path / 'file'}")
    tree = tmp_path / "tree"
    (tree / "remove").mkdir(parents=True)
    (tree / "remove" / "mine:1").touch()
    (tree / "Makefile").touch()
    with pytest.raises(StoreUnavailable, match="is no folder store, as there is 'Makefile' in it"):
        penstock.open(f"folder:{tree}")
    (tree / "Makefile").unlink()
    with pytest.raises(StoreUnavailable, match="remove"):
        penstock.open(f"folder:{tree}")
    assert [path.name for path in tree.rglob("*")] == ["remove", "mine:1"]
    with penstock.open(tmp_path / "journal") as journal:
        journal.queue().put(b"a")
    with pytest.raises(StoreUnavailable, match="is no folder store"):
        penstock.open(f"folder:{tmp_path / 'journal'}")


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system of a few megabytes."""
    if missing():
        pytest.skip(missing())
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with open(tmp_path / "image", "wb") as file:
        file.truncate(6 << 20)
    subprocess.run(["mkfs.ext4", "-q", tmp_path / "image"], check=True)
    subprocess.run(["mount", "-o", "loop", tmp_path / "image", mounted], check=True)
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_a_store_filled_by_puts_can_be_worked_off(small_disk: Path) -> None:
    with penstock.open(f"folder:{small_disk / 'store'}", sync="never") as store:
        jobs = store.create("jobs")
        put = 0
        with suppress(penstock.DiskFull):
            while True:
                jobs.put(b"x" * 3_000, headers={"long": "y" * 100})
                put += 1
        assert put > 300
        for _ in range(put // 2):
            [message] = jobs.claim(consumer="a host:1234")
            assert len(message.payload) == 3_000
            message.ack()
        failed = jobs.claim(5)
        jobs.fail(*failed, reason="no")
        worked = 0
        while jobs.pop() is not None:
            worked += 1
        assert worked == put - put // 2
    examined = subprocess.run(
        [*COMMAND, "--store", f"folder:{small_disk / 'store'}", "doctor"], capture_output=True
    )
    assert examined.returncode == 0


# The reaper


@pytest.mark.parametrize("part", ["delay", "queues/jobs", "done", ".penstock/settings", "."])
def test_the_reaper_refuses_other_folders_of_a_store(part: str, folder: Path, store: penstock.Store) -> None:
    store.queue("jobs").put(b"a", delay=60)
    command = [*COMMAND, "reaper", "--source", str(folder / part), "--once"]
    before = sorted(folder.rglob("*"))
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "is part of the store" in refused.stderr
    assert "--force" in refused.stderr
    assert sorted(folder.rglob("*")) == before
    if part == "delay":
        subprocess.run([*command, "--force"], check=True)
        assert list((folder / "delay").iterdir()) == []


def test_the_reaper_refuses_other_folders_of_a_tree_of_mq_core(tmp_path: Path) -> None:
    for name in ("new", "queues", "delay", "remove"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "queue001:1").touch()
    command = [*COMMAND, "reaper", "--once", "--source"]
    assert subprocess.run([*command, tmp_path / "new"], capture_output=True).returncode == 2
    assert subprocess.run([*command, tmp_path / "remove"], capture_output=True).returncode == 0
    assert sorted(path.parent.name for path in tmp_path.rglob("queue001:1")) == ["delay", "new", "queues"]
