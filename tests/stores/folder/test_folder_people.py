"""More of what people, other users and full disks do to a folder store."""

import errno
import json
import logging
import os
import shutil
import subprocess
import tempfile
import traceback
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import SimulatedClock, StoreCorrupt
from penstock.contract.store import Store
from penstock.errors import StoreUnavailable
from penstock.stores.folder import doctor, layout
from penstock.stores.folder.backend import open_folder
from tests.stores.folder.test_folder_harm import COMMAND, FailingDisk
from tests.stores.slate.loop_disk import missing

NOBODY = 65_534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[penstock.Store]:
    with penstock.open(f"folder:{folder}") as store:
        store.create("jobs")
        yield store


def some_id() -> str:
    return str(uuid.uuid1(node=0x0025904F6E08))


def payloads(store: penstock.Store, queue: str = "jobs") -> list[bytes]:
    return [message.payload for message in store.queue(queue).claim(100)]


def backend_of(store: penstock.Store) -> Any:
    return store.backend


# What a message's attributes lead to


def test_an_attribute_leads_to_no_file_outside_of_its_folder(
    folder: Path, store: penstock.Store, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"secret": "yes"}')
    for name in ("headers", "reason", "history"):
        path = folder / "queues" / "jobs" / some_id()
        path.write_bytes(b"prepared")
        os.setxattr(path, "user.penstock.order", str(layout.order_of(path.name)).encode())
        leads = os.path.relpath(secret, folder / ".penstock" / "long")
        os.setxattr(path, f"user.penstock.{name}", f"@{leads}".encode())
    with suppress(StoreCorrupt):
        assert "yes" not in repr(list(store.queue("jobs").messages()))
    for _ in range(3):
        assert "yes" not in repr(store.queue("jobs").pop())
    backend_of(store).reap()
    assert secret.read_text() == '{"secret": "yes"}'


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_a_message_whose_headers_are_no_file_is_set_aside_and_the_next_one_given(
    kind: str, folder: Path, store: penstock.Store, tmp_path: Path
) -> None:
    put = store.queue("jobs").put(b"a", headers={"x": "y" * 1_000})
    store.queue("jobs").put(b"b")
    [long] = (folder / ".penstock" / "long").iterdir()
    long.rename(tmp_path / "elsewhere")
    if kind == "link":
        long.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(long)
    elif kind == "folder":
        long.mkdir()
    assert payloads(store) == [b"b"]
    assert (folder / ".penstock" / "damaged" / f"jobs:{put}").read_bytes() == b"a"


@pytest.mark.parametrize(
    ("name", "value"),
    [("receipt", b'["a", "b", "c", "d", null]'), ("receipt", b"5"), ("receipt", b"[1, 2, 3, 4, 5]"),
     ("history", b"5"), ("history", b"[5]"), ("history", b"[[]]"), ("history", b'"x"'), ("history", b"{}"),
     ("history", b'[["a", "b", "c", "d", "e", "f", "g", "h"]]'), ("attempts", b"9" * 2_000), ("ended", b"\xff")],
)  # fmt: skip
def test_attributes_that_say_nothing_stop_no_queue(name: str, value: bytes, folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        jobs = store.create("jobs", max_attempts=3)
        jobs.put_many([b"a", b"b"])
        jobs.claim()[0].fail(reason="no")
        [message] = jobs.claim(lease=10)
        [path] = (folder / "delay").iterdir()
        os.setxattr(path, f"user.penstock.{name}", value)
        list(jobs.messages())
        jobs.attempts(message.id)
        with suppress(penstock.LeaseExpired):  # by a receipt that was changed
            message.fail(reason="no")
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        clock.advance(20)
        store.queue("jobs").counts()
        assert b"b" in payloads(store)


# Settings


def test_copies_and_strays_among_the_settings_change_no_queue(folder: Path, store: penstock.Store) -> None:
    store.create("limited", max_size=4).put(b"a")
    settings = folder / ".penstock" / "settings"
    for name in ("limited.bak", "limited~", ".limited.swp", "a-copy"):
        shutil.copyfile(settings / "limited", settings / name)
    (settings / "README").write_text("notes")
    (settings / "folder").mkdir()
    os.mkfifo(settings / "pipe")
    with penstock.open(f"folder:{folder}") as again:
        assert [info.name for info in again.queues()] == ["default", "jobs", "limited"]
        assert again.queue("limited").settings.max_size == 4
        assert payloads(again, "limited") == [b"a"]
    assert sorted(path.name for path in (folder / "queues").iterdir()) == ["default", "jobs", "limited"]


def test_settings_of_another_queue_are_a_named_error(folder: Path, store: penstock.Store) -> None:
    store.create("other").put(b"a")
    settings = folder / ".penstock" / "settings"
    shutil.copyfile(settings / "jobs", settings / "other")
    with penstock.open(f"folder:{folder}") as again:
        with pytest.raises(StoreCorrupt, match=r"settings/other.*those of queue 'jobs'"):
            again.queue("other")
        again.queue("jobs").put(b"b")
        assert payloads(again) == [b"b"]


def test_what_is_done_stays_while_nobody_knows_how_long_its_queue_keeps_it(folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        kept = store.create("kept", keep_done=None)
        kept.put(b"a")
        kept.claim()[0].ack()
    path = folder / ".penstock" / "settings" / "kept"
    path.write_bytes(b"{")
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        clock.advance(3_600)
        backend_of(store).reap()
    shutil.copyfile(folder / ".penstock" / "kept" / "kept", path)
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        assert [message.payload for message in store.queue("kept").messages("done")] == [b"a"]


# Folders


def test_strays_among_what_processes_hold_are_left_alone(folder: Path, store: penstock.Store) -> None:
    held = folder / ".penstock" / "held"
    (held / "README").write_text("notes")
    (held / "gone").mkdir()
    (held / "gone" / layout.ABANDONED).touch()
    strays = [held / "gone" / name for name in ("notes", "delay.0.0:jobs:x", f"other.0.0:jobs:{some_id()}")]
    for stray in strays:
        stray.write_bytes(b"mine")
    (held / "gone" / f"queues.0.1:jobs:{some_id()}").write_bytes(b"given back")
    with penstock.open(f"folder:{folder}") as again:
        assert payloads(again) == [b"given back"]
    assert all(stray.read_bytes() == b"mine" for stray in strays)


def test_a_manifest_that_somebody_has_prepared_moves_nothing_from_elsewhere(
    folder: Path, store: penstock.Store, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    gone = folder / ".penstock" / "held" / "gone"
    gone.mkdir()
    (gone / layout.ABANDONED).touch()
    (folder / "new" / "jobs:x").mkdir()
    for queue, uid, place in [
        ("jobs", "x/../../../secret", "queues"), ("../../secret", some_id(), "queues"), ("jobs", some_id(), ".."),
    ]:  # fmt: skip
        name = layout.make_id(layout.first_order(1_000), 1, layout.node_of("gone"))
        manifest = {"queue": queue, "messages": [[uid, place]]}
        (folder / ".penstock" / "batches" / name).write_text(json.dumps(manifest))
        with penstock.open(f"folder:{folder}") as again:
            assert payloads(again) == []
        gone.mkdir(exist_ok=True)
        (gone / layout.ABANDONED).touch()
    assert secret.read_bytes() == b"secret"


def test_a_message_is_held_under_a_name_that_can_be_read_whatever_its_time_is() -> None:
    name = layout.held_name(layout.DELAY, -5, 1, "jobs", some_id())
    assert layout.parse_held(name) is not None


def test_a_stray_is_not_removed_by_its_name(folder: Path, store: penstock.Store) -> None:
    ids = [some_id(), some_id()]
    (folder / "queues" / "jobs" / ids[0]).mkdir()
    (folder / "queues" / "jobs" / ids[1]).symlink_to("/etc/passwd")
    assert store.queue("jobs").remove(*ids) == 0
    assert sorted(os.listdir(folder / "queues" / "jobs")) == sorted(ids)


@pytest.mark.parametrize("part", ["new", "delay", "done", "remove", ".penstock/locks", ".penstock/long"])
def test_a_folder_that_somebody_deletes_is_made_again(part: str, folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        jobs = store.create("jobs", max_size=9)
        jobs.put(b"a")
        shutil.rmtree(folder / part)
        clock.advance(2)
        jobs.put(b"b", delay=1, headers={"x": "y" * 1_000})
        clock.advance(2)
        [first, second] = jobs.claim(2)
        assert (first.payload, second.payload) == (b"a", b"b")
        first.ack()
        assert jobs.remove(second.id) == 1


@pytest.mark.parametrize("part", ["delay", "remove", "done", ".penstock/held"])
def test_a_link_that_takes_a_folders_place_is_not_followed(part: str, folder: Path, tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        store.create("jobs").put(b"a")
        elsewhere = tmp_path / "elsewhere"
        (folder / part).rename(elsewhere)
        (folder / part).symlink_to(elsewhere)
        (elsewhere / "jobs:notes").write_bytes(b"mine")
        clock.advance(2)
        before = sorted(elsewhere.iterdir())
        for call in (lambda: store.queue("jobs").claim(), store.queues, backend_of(store).tend):
            with pytest.raises(StoreUnavailable, match="symbolic link"):
                call()
        assert sorted(elsewhere.iterdir()) == before
        (folder / part).unlink()
        elsewhere.rename(folder / part)
        clock.advance(2)
        assert payloads(store) == [b"a"]


# MQ-Core


def test_the_queues_of_mq_cores_tree_redeliver_for_ever(tmp_path: Path) -> None:
    for name in ("new", "queues/queue001", "queues/my.queue", "delay", "remove"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("queue001", "my.queue"):
        (tmp_path / "new" / f"{name}:{some_id()}").write_bytes(b"a")
    for _ in range(7):
        with penstock.open(f"folder:{tmp_path}") as store:
            for name in ("queue001", "my.queue"):
                [message] = store.queue(name).claim()
                message.fail()


def test_a_folder_with_some_of_mq_cores_names_is_not_taken_for_its_tree(tmp_path: Path) -> None:
    package = tmp_path / "queues" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "new").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreUnavailable, match="is no folder store"):
        penstock.open(f"folder:{tmp_path}")
    assert sorted(tmp_path.rglob("*")) == before


# The reaper


@pytest.mark.parametrize("kind", ["text", "journal", "slate"])
def test_the_reaper_refuses_stores_of_other_kinds(kind: str, tmp_path: Path) -> None:
    with penstock.open(f"{kind}:{tmp_path / 'data'}") as store:
        store.create("jobs").put(b"a")
    before = sorted(tmp_path.rglob("*"))
    refused = subprocess.run(
        [*COMMAND, "reaper", "--once", "--source", tmp_path / "data"], capture_output=True, text=True
    )
    assert (refused.returncode, "is part of the store" in refused.stderr) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before


# Other users


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which any user may work."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    try:
        yield path / "store"
    finally:
        shutil.rmtree(path)


def as_nobody(call: Callable[[], None]) -> None:
    """Do something as another user, in a child."""
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        call()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def prepare(shared: Path) -> None:
    with penstock.open(f"folder:{shared}") as store:
        store.create("jobs").put(b"mine")
        store.create("other").put(b"other")


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("sticky", [False, True])
def test_files_of_another_user_are_skipped_and_nothing_else_is_affected(
    mode: int, sticky: bool, shared: Path
) -> None:
    as_nobody(lambda: prepare(shared))
    names = [f"{part}/jobs:{some_id()}" for part in ("new", "delay", "failed", "done", "remove")]
    files = [shared / name for name in ("queues/jobs/by hand", f"queues/jobs/{some_id()}", *names)]
    for file in files:
        file.write_bytes(b"another's")
        os.utime(file, (1, 1))
        file.chmod(mode)
        if sticky:
            os.chown(file.parent, 0, 0)
            file.parent.chmod(0o1777)

    def work() -> None:
        clock = SimulatedClock()
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            jobs = store.queue("jobs")
            assert [message.payload for message in jobs.messages()] == [b"mine"]
            assert [message.payload for message in jobs.peek(9)] == [b"mine"]
            [message] = jobs.claim(9)
            message.fail()
            assert jobs.redrive() == 0
            assert payloads(store) == [b"mine"]
            clock.advance(60)
            backend_of(store).tend()
            assert jobs.purge() == 1
            jobs.put(b"more")
            assert payloads(store) == [b"more"]
        doctor.examine(str(shared))

    as_nobody(work)
    assert all(file.read_bytes() == b"another's" for file in files if file.parent.name != "remove")


@pytest.mark.parametrize("sticky", [False, True])
def test_a_file_of_another_user_that_may_be_written_is_popped_and_not_leased(sticky: bool, shared: Path) -> None:
    as_nobody(lambda: prepare(shared))
    for name in ("by hand", some_id()):
        file = shared / "queues" / "jobs" / name
        file.write_bytes(b"another's")
        file.chmod(0o666)
    if sticky:
        os.chown(file.parent, 0, 0)
        file.parent.chmod(0o1777)

    def work() -> None:
        with penstock.open(f"folder:{shared}") as store:
            assert payloads(store) == [b"mine"]
            popped = [store.queue("jobs").pop() for _ in range(2)]
            there = [message.payload for message in popped if message is not None]
            assert there == ([] if sticky else [b"another's"] * 2)

    as_nobody(work)


def test_a_message_that_another_user_has_put_is_left_to_who_may_change_it(shared: Path) -> None:
    as_nobody(lambda: prepare(shared))
    with penstock.open(f"folder:{shared}") as store:
        put = store.queue("jobs").put(b"roots", retention=60)
    (shared / "queues" / "jobs" / put).chmod(0o666)

    def work() -> None:
        clock = SimulatedClock()
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            assert payloads(store) == [b"mine"]
            clock.advance(3_600)
            store.queue("jobs").put(b"more")
            assert b"more" in payloads(store)

    as_nobody(work)


def test_messages_of_another_user_in_a_sticky_folder_are_left_to_who_may_remove_them(shared: Path) -> None:
    clock = SimulatedClock()
    as_nobody(lambda: prepare(shared))
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        jobs = store.queue("jobs")
        jobs.put(b"expired", retention=5)
        left = jobs.put(b"left")
    folder = shared / "queues" / "jobs"
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)
    clock.advance(10)

    def work() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            jobs = store.queue("jobs")
            with pytest.raises(StoreUnavailable, match=f"{left}.*permission denied"):
                jobs.remove(jobs.put(b"removed"), left)
            [message] = jobs.claim(9)
            message.release()
            assert jobs.purge() == 1
            jobs.put(b"more")
            assert payloads(store) == [b"more"]

    as_nobody(work)
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        assert b"left" in payloads(store)


def of_root(shared: Path, mode: int, clock: SimulatedClock, *, failed: bool) -> penstock.Message:
    """A message in flight, or one that has failed, which another user may read or write, but not give times."""

    def begin() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            store.create("jobs", max_attempts=1)

    as_nobody(begin)
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        store.queue("jobs").put(b"roots")
        [message] = store.queue("jobs").claim()
        if failed:
            message.fail()
    (shared / ("failed" if failed else "delay") / f"jobs:{message.id}").chmod(mode)
    return message


@pytest.mark.parametrize("mode", [0o666, 0o644])
@pytest.mark.parametrize("how", ["fail", "extend"])
def test_a_lease_that_another_user_may_not_change_stays_as_it_was(how: str, mode: int, shared: Path) -> None:
    clock = SimulatedClock()
    message = of_root(shared, mode, clock, failed=False)

    def work() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            with pytest.raises(StoreUnavailable, match=f"{message.id}.*permission denied"):
                getattr(store.queue("jobs"), how)(message.receipt)
            store.queue("jobs").put(b"more")  # the store goes on

    with penstock.open(f"folder:{shared}", clock=clock) as store:
        as_nobody(work)
        jobs = store.queue("jobs")
        [held] = jobs.messages("in_flight")
        assert (held.state, held.attempts, held.lease_until) == ("in_flight", 1, message.lease_until)
        jobs.fail(message.receipt or "", reason="bad")
        [attempt] = jobs.attempts(message.id)
        assert attempt.reason == "bad"
        assert jobs.redrive() == 1


def test_a_lease_of_another_users_that_is_over_is_left_to_who_may_end_it(shared: Path) -> None:
    clock = SimulatedClock()
    of_root(shared, 0o666, clock, failed=False)
    clock.advance(60)

    def work() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            assert store.queue("jobs").redrive() == 0
            store.queue("jobs").put(b"more")

    with penstock.open(f"folder:{shared}", clock=clock) as store:
        as_nobody(work)
        assert store.queue("jobs").redrive() == 1


def test_a_failed_message_that_another_user_may_not_write_is_not_redriven_by_its_id(shared: Path) -> None:
    clock = SimulatedClock()
    message = of_root(shared, 0o644, clock, failed=True)

    def work() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            assert store.queue("jobs").redrive(message.id) == 0
            store.queue("jobs").put(b"more")

    with penstock.open(f"folder:{shared}", clock=clock) as store:
        as_nobody(work)
        assert store.queue("jobs").redrive(message.id) == 1


def test_a_message_that_another_user_may_not_read_is_removed_by_its_id(shared: Path) -> None:
    clock = SimulatedClock()
    message = of_root(shared, 0o600, clock, failed=True)

    def work() -> None:
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            assert store.queue("jobs").remove(message.id) == 1
            store.queue("jobs").put(b"more")

    as_nobody(work)


def test_a_queue_that_another_user_has_made_is_named_and_the_others_go_on(shared: Path) -> None:
    as_nobody(lambda: prepare(shared))
    with penstock.open(f"folder:{shared}") as store:
        store.create("roots").put(b"roots")

    def work() -> None:
        with penstock.open(f"folder:{shared}") as store:
            with pytest.raises(StoreUnavailable, match=r"settings/roots.*permission denied"):
                store.queue("roots").claim()
            backend_of(store).tend()
            assert payloads(store) == [b"mine"]

    as_nobody(work)


@pytest.mark.parametrize("part", ["queues/jobs", ".penstock/settings/jobs"])
def test_a_queue_that_may_not_be_read_is_named_and_the_others_go_on(part: str, shared: Path) -> None:
    def begin() -> None:
        prepare(shared)
        with penstock.open(f"folder:{shared}") as store:
            store.queue("other").put(b"later", delay=0.001)

    as_nobody(begin)
    os.chown(shared / part, 0, 0)
    (shared / part).chmod(0)

    def work() -> None:
        with penstock.open(f"folder:{shared}") as store:
            for call in (
                store.queues,
                lambda: store.queue("jobs").claim(),
                lambda: list(store.queue("jobs").peek()),
                lambda: list(store.queue("jobs").messages()),
            ):
                with pytest.raises(StoreUnavailable, match=f"{part}.*permission denied"):
                    call()
            with suppress(StoreUnavailable):
                backend_of(store).tend()
            assert payloads(store, "other") == [b"other", b"later"]
        found = doctor.examine(str(shared))
        assert not found.sound

    as_nobody(work)


def test_a_store_that_may_not_be_read_is_named_by_the_doctor(shared: Path) -> None:
    as_nobody(lambda: prepare(shared))
    os.chown(shared / ".penstock", 0, 0)
    (shared / ".penstock").chmod(0)

    def look() -> None:
        [finding] = doctor.examine(str(shared)).findings
        assert "permission denied" in finding.text

    as_nobody(look)


# Through a server


def ask(url: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_server_whose_store_cannot_be_written_says_so_and_why_until_it_can(
    error: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.http.server import serve_in_thread

    disk = FailingDisk()
    with Store("folder:", open_folder(str(folder), disk=disk)) as store:
        server = serve_in_thread(store)
        try:
            assert ask(f"{server.url}/default/messages", b"a") == 201
            disk.error = error
            with caplog.at_level(logging.WARNING, "penstock"):
                assert ask(f"{server.url}/default/messages", b"b") == 503
                assert {error: "read-only", errno.EACCES: "permission denied"}[error] in caplog.text
                assert ask(f"{server.url}/-/readyz") == 503
            disk.error = 0
            assert ask(f"{server.url}/-/readyz") == 200
            assert ask(f"{server.url}/default/messages", b"c") == 201
        finally:
            server.stop()
        assert payloads(store, "default") == [b"a", b"c"]


# A full disk


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A store that puts have filled, on an ext4 file system of its own."""
    if missing():
        pytest.skip(missing())
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with open(tmp_path / "image", "wb") as file:
        file.truncate(6 << 20)
    subprocess.run(["mkfs.ext4", "-q", tmp_path / "image"], check=True)
    subprocess.run(["mount", "-o", "loop", tmp_path / "image", mounted], check=True)
    try:
        with penstock.open(f"folder:{mounted / 'store'}", sync="never") as store:
            jobs = store.create("jobs")
            with suppress(penstock.DiskFull):
                while True:
                    jobs.put(b"x" * 3_000)
        with open(mounted / "others", "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 1_000)
        yield mounted / "store"
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_a_store_that_has_used_up_the_files_of_its_disk_can_be_worked_off(tmp_path: Path) -> None:
    if missing():
        pytest.skip(missing())
    (tmp_path / "mounted").mkdir()
    with open(tmp_path / "image", "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-N", "128", tmp_path / "image"], check=True)
    subprocess.run(["mount", "-o", "loop", tmp_path / "image", tmp_path / "mounted"], check=True)
    try:
        folder = tmp_path / "mounted" / "store"
        with penstock.open(f"folder:{folder}") as store:
            jobs = store.create("jobs")
            with suppress(penstock.DiskFull):
                while True:
                    jobs.put(b"a")
            left = jobs.count()
        for _ in range(3):
            assert command(folder, "pop", "jobs").returncode == 0
        with penstock.open(f"folder:{folder}") as store:
            [message] = store.queue("jobs").claim()
            message.fail(reason="long" * 500)
            assert len(payloads(store)) == left - 3
        assert command(folder, "doctor").returncode == 0
    finally:
        subprocess.run(["umount", tmp_path / "mounted"], check=True)


def command(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "--store", f"folder:{store}", *arguments], capture_output=True, text=True)


def test_a_full_store_can_be_worked_off_by_processes_that_come_anew(full: Path) -> None:
    assert command(full, "put", "jobs", "more").returncode == 1
    assert command(full, "list").returncode == 0
    popped = command(full, "pop", "jobs")
    assert (popped.returncode, "xxx" in popped.stdout) == (0, True)
    assert command(full, "claim", "jobs").returncode == 0
    purged = command(full, "purge", "jobs", "--yes")
    assert (purged.returncode, purged.stderr) == (0, "")
    assert command(full, "put", "jobs", "more").returncode == 0


def test_a_full_store_can_be_worked_off_many_messages_at_a_time(full: Path) -> None:
    with penstock.open(f"folder:{full}", sync="never") as store:
        jobs = store.queue("jobs")
        count = jobs.count()
        acked = 0
        while claimed := jobs.claim(150, lease=600):
            jobs.fail(*claimed[:20], reason="no")
            jobs.ack(*claimed[20:])
            acked += len(claimed[20:]) or len(claimed)
            if len(claimed) <= 20:
                jobs.ack(*jobs.claim(20))
        assert acked >= count - 20
        assert jobs.counts()["in_flight"] == 0
