"""Damaged files, attributes and settings of a folder store: quarantined or named in an error."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock import Message, SimulatedClock, Store, StoreCorrupt
from penstock.contract.operations import Messages
from penstock.stores.folder import layout
from tests.stores.folder.test_folder_harm import COMMAND, SUM, payloads, some_id, warned

# Damage


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "headers"])
def test_a_message_that_is_not_as_it_was_put_is_given_to_nobody_and_kept(
    how: str, folder: Path, store: Store, caplog: pytest.LogCaptureFixture
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


def test_a_page_of_a_listing_reads_no_message_before_or_behind_it(folder: Path, store: Store) -> None:
    ids = store.queue("jobs").put_many([b"payload %d" % number for number in range(6)])
    for damaged in (ids[0], ids[5]):
        (folder / "queues" / "jobs" / damaged).write_bytes(b"other")
    page: Iterator[Message] = store.run(Messages("jobs", after=ids[1], until=ids[4]))
    assert [message.id for message in page] == ids[2:5]  # and no StoreCorrupt
    rest: Iterator[Message] = store.run(Messages("jobs", after=ids[4]))
    with pytest.raises(StoreCorrupt, match=ids[5]):
        next(rest)


def test_messages_of_an_older_version_have_no_checksum_and_are_read_as_before(folder: Path, store: Store) -> None:
    put = store.queue("jobs").put(b"a", priority=3, headers={"a": "b"})
    os.removexattr(folder / "queues" / "jobs" / put, SUM)
    [message] = store.queue("jobs").claim()
    assert (message.payload, message.headers, message.priority) == (b"a", {"a": "b"}, 3)
    message.fail(reason="no")
    [message] = store.queue("jobs").claim()
    assert message.attempts == 2


def test_a_file_dropped_by_hand_has_a_checksum_once_it_was_claimed(folder: Path, store: Store) -> None:
    (folder / "queues" / "jobs" / "dropped").write_bytes(b"a")
    [message] = store.queue("jobs").claim()
    path = folder / "delay" / f"jobs:{message.id}"
    assert os.getxattr(path, SUM)
    path.write_bytes(b"b")
    os.utime(path, ns=(0, (message.lease_until or 0) * 1_000_000))  # its lease goes on
    message.release()
    assert payloads(store) == []
    assert (folder / ".penstock" / "damaged" / f"jobs:{message.id}").read_bytes() == b"b"


def test_attempts_and_redriven_messages_are_not_taken_for_damaged(store: Store) -> None:
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
    content: bytes | None, folder: Path, store: Store
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
    folder: Path, store: Store
) -> None:
    path = folder / ".penstock" / "settings" / "jobs"
    entry = json.loads(path.read_text())
    del entry["sum"]
    entry["settings"]["max_attempts"] = 9
    path.write_text(json.dumps(entry))
    (folder / ".penstock" / "kept" / "jobs").unlink()
    with penstock.open(f"folder:{folder}") as again:
        assert again.queue("jobs").settings.max_attempts == 9


def test_a_sound_store_is_called_so_and_strays_are_named(folder: Path, store: Store) -> None:
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


# What a message's attributes lead to


def test_an_attribute_leads_to_no_file_outside_of_its_folder(folder: Path, store: Store, tmp_path: Path) -> None:
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
    store.backend.reap()  # type: ignore[attr-defined]
    assert secret.read_text() == '{"secret": "yes"}'


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_a_message_whose_headers_are_no_file_is_set_aside_and_the_next_one_given(
    kind: str, folder: Path, store: Store, tmp_path: Path
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


def test_copies_and_strays_among_the_settings_change_no_queue(folder: Path, store: Store) -> None:
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


def test_settings_of_another_queue_are_a_named_error(folder: Path, store: Store) -> None:
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
        store.backend.reap()  # type: ignore[attr-defined]
    shutil.copyfile(folder / ".penstock" / "kept" / "kept", path)
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        assert [message.payload for message in store.queue("kept").messages("done")] == [b"a"]
