"""Links, strays, deleted folders and files of MQ-Core in a folder store: nothing is lost or affected."""

import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import penstock
from penstock import SimulatedClock, Store, StoreCorrupt
from penstock.errors import StoreUnavailable
from penstock.stores.folder import layout
from tests.stores.errors import ask

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]
SUM = "user.penstock.sum"


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


def payloads(store: Store, queue: str = "jobs") -> list[bytes]:
    return [message.payload for message in store.queue(queue).claim(100)]


def warned(caplog: pytest.LogCaptureFixture, path: Path) -> int:
    return sum(str(path) in record.getMessage() for record in caplog.records)


# Links


@pytest.mark.parametrize("name", ["by hand", some_id()])
def test_a_link_in_a_queue_is_no_message_and_what_it_leads_to_stays_as_it_is(
    name: str, folder: Path, store: Store, outside: Path, caplog: pytest.LogCaptureFixture
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


def test_links_to_messages_in_other_folders_are_left_alone(folder: Path, store: Store, outside: Path) -> None:
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
    folder: Path, store: Store, tmp_path: Path
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


def test_settings_behind_a_link_are_not_read(folder: Path, store: Store, outside: Path) -> None:
    (folder / ".penstock" / "settings" / "jobs").unlink()
    (folder / ".penstock" / "settings" / "jobs").symlink_to(outside)
    with penstock.open(f"folder:{folder}") as again, pytest.raises(StoreUnavailable, match="symbolic link"):
        again.queue("jobs")
    assert is_untouched(outside)


def test_a_store_that_is_reached_by_a_link_works(folder: Path, store: Store, tmp_path: Path) -> None:
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


def test_a_server_goes_on_beside_a_file_in_queues(folder: Path, store: Store) -> None:
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


# Folders


def test_strays_among_what_processes_hold_are_left_alone(folder: Path, store: Store) -> None:
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
    folder: Path, store: Store, tmp_path: Path
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


def test_a_stray_is_not_removed_by_its_name(folder: Path, store: Store) -> None:
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
        for call in (lambda: store.queue("jobs").claim(), store.queues, store.backend.tend):  # type: ignore[attr-defined]
            with pytest.raises(StoreUnavailable, match="symbolic link"):
                call()
        assert sorted(elsewhere.iterdir()) == before
        (folder / part).unlink()
        elsewhere.rename(folder / part)
        clock.advance(2)
        assert payloads(store) == [b"a"]


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


def test_what_is_still_being_written_to_new_is_not_delivered(folder: Path, store: Store) -> None:
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


# What is no store


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


# The reaper


@pytest.mark.parametrize("part", ["delay", "queues/jobs", "done", ".penstock/settings", "."])
def test_the_reaper_refuses_other_folders_of_a_store(part: str, folder: Path, store: Store) -> None:
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
