"""Damage that checksums do not tell: files that are gone, records that say what cannot be, a disk that refuses."""

import errno
import os
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from zlib_ng.zlib_ng import crc32

import penstock
from penstock import SimulatedClock, Store
from penstock.stores.journal import groups, records
from penstock.stores.journal.catalog import _text
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.store import open_journal
from penstock.system.files import StrPath, SystemDisk, SystemFile
from tests.stores.journal.journals import NOW, content_of, journal


def lively(folder: Path, packed: bool = False) -> None:
    """A closed store with records of every kind in one queue."""
    clock = SimulatedClock(NOW)
    backend = open_journal(folder, clock=clock, sync="never")
    queue = Store("", backend).create("jobs", keep_done=100, max_attempts=2)
    queue.put(b"one")
    queue.put_many([b"x"] * 40)
    queue.put_many([penstock.Draft(b"y", key=f"k{each}", delay=each, priority=each % 3) for each in range(5)])
    held = queue.claim(10)
    queue.ack(*held[:3])
    queue.fail(*held[3:6], reason="no", delay=5)
    queue.release(*held[6:8])
    queue.extend(held[8], lease=100)
    queue.pop()
    queue.remove(held[9].id)
    streams = backend.streams()
    streams.begin("jobs", "s", "me")
    clock.advance(10)
    queue.fail(*queue.claim(9), reason="again")
    queue.redrive()
    if packed:
        backend.pack("jobs")
    backend.close()


def crashed(folder: Path) -> None:
    """As if the store had not been closed."""
    (folder / ".penstock" / "clean").unlink()
    shutil.rmtree(folder / ".penstock" / "index")


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_settings_that_are_missing_are_told_and_nothing_is_changed(
    tmp_path: Path, closed: bool, packed: bool
) -> None:
    lively(tmp_path, packed)
    if not closed:
        crashed(tmp_path)
    settings = tmp_path / ".penstock" / "queues" / "jobs"
    kept = settings.read_bytes()
    settings.unlink()
    journals = {each.name: each.read_bytes() for each in tmp_path.glob("jobs*")}
    for _ in range(2):
        with pytest.raises(penstock.StoreCorrupt, match="jobs' is missing: it has the queue's name"):
            journal(tmp_path)
        assert {each.name: each.read_bytes() for each in tmp_path.glob("jobs*")} == journals
    assert not examine(tmp_path, now=NOW).sound
    settings.write_bytes(kept)
    with journal(tmp_path) as store:
        assert store.queue("jobs").settings.keep_done == 100


def test_settings_that_are_missing_are_told_of_a_queue_that_never_had_a_message_too(tmp_path: Path) -> None:
    with journal(tmp_path) as store:
        store.create("jobs", max_attempts=2)
        store.queue().put(b"x")
    settings = tmp_path / ".penstock" / "queues" / "jobs"
    kept = settings.read_bytes()
    settings.unlink()
    before = content_of(tmp_path)
    assert [each.file for each in examine(tmp_path).findings if each.severity == "problem"] == [str(settings)]
    for _ in range(2):
        with pytest.raises(penstock.StoreCorrupt, match="jobs' is missing: it has the queue's name"):
            journal(tmp_path)
    assert content_of(tmp_path) == before
    settings.write_bytes(kept)
    with journal(tmp_path) as store:
        assert [info.settings.max_attempts for info in store.queues()] == [5, 2]


@pytest.mark.parametrize("closed", [True, False])
def test_a_folder_of_settings_that_is_missing_is_told_and_nothing_is_changed(tmp_path: Path, closed: bool) -> None:
    lively(tmp_path / "store")
    if not closed:
        (tmp_path / "store" / ".penstock" / "clean").unlink()
    settings = tmp_path / "store" / ".penstock" / "queues"
    settings.rename(tmp_path / "away")
    before = content_of(tmp_path)
    for _ in range(2):
        assert not examine(tmp_path / "store").sound
        with pytest.raises(penstock.StoreCorrupt, match="queues' is missing: it has the names and settings"):
            journal(tmp_path / "store")
    assert content_of(tmp_path) == before
    (tmp_path / "away").rename(settings)
    with journal(tmp_path / "store") as store:
        assert store.queue("jobs").counts()["available"]


def test_a_journal_alone_in_a_folder_opens_with_default_settings(tmp_path: Path) -> None:
    with journal(tmp_path / "store") as store:
        store.create("jobs").put_many([b"x"] * 40)
    (tmp_path / "alone").mkdir()
    for path in (tmp_path / "store").glob("jobs*"):
        shutil.copy(path, tmp_path / "alone")
    for _ in range(2):
        with journal(tmp_path / "alone") as store:
            assert store.queue("jobs").settings == penstock.Settings()
            assert len(store.queue("jobs")) > 30


@pytest.mark.parametrize("count", [0, 1, 50])
def test_a_latest_file_that_is_missing_is_told_also_if_the_store_was_not_closed(
    tmp_path: Path, count: int
) -> None:
    with journal(tmp_path, segment_size=2_000) as store:
        queue = store.create("jobs")
        queue.put_many([b"x" * 100] * count)
        queue.put(b"last")
    crashed(tmp_path)
    (tmp_path / "jobs").unlink()
    before = content_of(tmp_path)
    for _ in range(2):
        with pytest.raises(penstock.StoreCorrupt, match="it is missing"):
            journal(tmp_path)
    assert content_of(tmp_path).keys() == before.keys()
    assert not examine(tmp_path, now=NOW).sound


def test_a_store_that_was_killed_opens_at_every_stage_of_its_life(tmp_path: Path) -> None:
    backend = open_journal(tmp_path / "store", clock=SimulatedClock(NOW), segment_size=2_000)
    queue = Store("", backend).create("jobs")

    def check(name: str, expected: int) -> None:
        shutil.copytree(tmp_path / "store", tmp_path / name)
        with journal(tmp_path / name) as store:
            assert len(store.queue("jobs")) == expected
            store.queue("jobs").put(b"more")
        with journal(tmp_path / name) as store:
            assert len(store.queue("jobs")) == expected + 1

    check("created", 0)
    queue.put(b"x")
    check("put", 1)
    queue.put_many([b"x" * 100] * 50)
    check("rotated", 51)
    queue.purge()
    backend.pack("jobs")
    check("packed", 0)
    backend.pack("jobs")
    check("packed again", 0)
    queue.put(b"x")
    check("filled again", 1)
    backend.close()


def rewritten(data: bytes, chance: random.Random) -> bytes:
    """A journal with other values in the records of a group, and the right checksum."""
    starts, offset = [], 0
    while (head := groups.head(data, offset)) is not None:
        starts.append((offset, head))
        offset += head.length
    offset, head = chance.choice(starts)
    changed, start = bytearray(data), offset + head.tail + groups.TAIL.size
    end = offset + head.length - groups.END.size
    change(changed, start, end, chance)
    changed[end : end + 4] = struct.pack("<I", crc32(changed[offset:end]))
    return bytes(changed)


def change(data: bytearray, start: int, end: int, chance: random.Random) -> None:
    for _ in range(chance.choice([1, 1, 2, 4])):
        size = chance.choice([1, 1, 4, 8])
        at = chance.randrange(start, max(start + 1, end - size))
        values = [
            b"\0" * size,
            b"\xff" * size,
            chance.randbytes(size),
            b"\xff" * (size - 1) + b"\x7f",
            b"\1" * size,
        ]
        data[at : at + size] = chance.choice(values)[: end - at]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_records_that_say_what_cannot_be_are_damage(tmp_path: Path, seed: int, packed: bool) -> None:
    chance = random.Random(seed)
    lively(tmp_path / "store", packed)
    crashed(tmp_path / "store")
    names = [each.name for each in (tmp_path / "store").glob("jobs*") if each.stat().st_size]
    for number in range(8):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "store", folder)
        path = folder / chance.choice(names)
        path.write_bytes(rewritten(path.read_bytes(), chance))
        examine(folder, now=NOW)
        work(folder)


def say(folder: Path, kind: int, offset: int, number: int) -> None:
    """Write another number into the only record of this kind of a packed journal, and the right checksum."""
    [path] = [each for each in folder.glob("jobs*") if each.stat().st_size]
    data, start = bytearray(path.read_bytes()), 0
    while (head := groups.head(memoryview(data), start)) is not None:
        record, end = start + head.tail + groups.TAIL.size, start + head.length - groups.END.size
        if data[record] == kind:
            struct.pack_into("<Q", data, record + offset, number)
            data[end : end + 4] = struct.pack("<I", crc32(data[start:end]))
        start += head.length
    path.write_bytes(data)


def with_one(folder: Path) -> None:
    with journal(folder) as store:
        store.create("jobs").put(b"first")
        store.backend.pack("jobs")  # type: ignore[attr-defined]
    crashed(folder)


def test_a_number_of_messages_that_cannot_be_takes_no_time(tmp_path: Path) -> None:
    with_one(tmp_path)
    say(tmp_path, records._REST, 9, 2**61)  # the number of the next message
    with journal(tmp_path) as store:
        queue = store.queue("jobs")
        assert [queue.put(b"next"), queue.put(b"last")] == [str(2**61), str(2**61 + 1)]
        assert [each.payload for each in queue.claim(5)] == [b"first", b"next", b"last"]


def test_a_message_that_was_claimed_more_often_than_can_be_is_damage(tmp_path: Path) -> None:
    with_one(tmp_path)
    attempts = 13 + 9 + 1 + 3 * 9 + 1  # behind a number, a state, and four columns of one value
    say(tmp_path, records._PAGE, attempts, 3)
    with journal(tmp_path) as store:
        [message] = store.queue("jobs").messages()
        assert message.attempts == 3
    crashed(tmp_path)
    say(tmp_path, records._PAGE, attempts, 2**32 - 1)
    with pytest.raises(penstock.StoreCorrupt, match="jobs"):
        journal(tmp_path)


def work(folder: Path) -> None:
    """Whatever is still possible works; all else is StoreCorrupt."""
    try:
        with journal(folder) as store:
            list(store.queue("jobs").messages())
            store.queue("jobs").claim(5)
            store.queue("jobs").put(b"new")
    except penstock.StoreCorrupt:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_that_says_what_cannot_be_is_only_a_hint(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lively(tmp_path / "store", packed=True)
    for number in range(8):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "store", folder)
        path = folder / ".penstock" / "index" / "jobs"
        changed = bytearray(path.read_bytes())
        change(changed, 9, len(changed) - 4, chance)
        changed[-4:] = struct.pack("<I", crc32(changed[:-4]))
        path.write_bytes(changed)
        examine(folder, now=NOW)
        work(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("queues/jobs", {}),
        ("queues/jobs", {"name": "jobs", "settings": {"priorities": None}, "starts": []}),
        ("queues/jobs", {"name": 7, "settings": {"priorities": None}, "starts": [1]}),
        ("queues/jobs", {"name": "jobs", "settings": {"priorities": None, "max_size": -1}, "starts": [1]}),
        ("queues/jobs", {"name": "jobs", "settings": {"priorities": 5}, "starts": [2**70]}),
        ("queues/jobs", {"name": "jobs", "settings": None}),
        ("store", {"first": "x"}),
        ("store", {}),
        ("adopting", {"files": 5}),
    ],
)
def test_settings_that_say_what_cannot_be_are_damage(tmp_path: Path, name: str, content: dict[str, Any]) -> None:
    lively(tmp_path)
    (tmp_path / ".penstock" / name).write_bytes(_text(content))
    with pytest.raises(penstock.StoreCorrupt, match=name):
        journal(tmp_path)


@pytest.mark.parametrize("content", [{"jobs": "x"}, {"jobs": None}, {"jobs": [1]}])
def test_a_mark_of_closing_that_says_what_cannot_be_is_no_mark(tmp_path: Path, content: dict[str, Any]) -> None:
    lively(tmp_path)
    (tmp_path / ".penstock" / "clean").write_bytes(_text(content))
    with journal(tmp_path) as store:
        assert len(store.queue("jobs")) > 30


ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EROFS]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", ["lock", "queues/jobs", "store", "jobs", "default"])
def test_a_file_that_the_system_refuses_at_opening_is_our_error_and_nothing_is_changed(
    tmp_path: Path, error: int, name: str
) -> None:
    lively(tmp_path)
    with journal(tmp_path) as store:
        store.queue().put(b"x")
        store.create("deleted")
        store.delete("deleted")
    before = content_of(tmp_path)

    class Refusing(SystemDisk):
        def open(self, path: StrPath, **how: Any) -> SystemFile:
            if os.fspath(path) in (str(tmp_path / name), str(tmp_path / ".penstock" / name)):
                raise OSError(error, os.strerror(error), path)
            return super().open(path, **how)

    with pytest.raises(penstock.StoreUnavailable, match=name):
        journal(tmp_path, disk=Refusing())
    assert content_of(tmp_path) == before
    with journal(tmp_path) as store:
        assert len(store.queue("jobs")) > 30
