"""Damaged and unreadable files of a slate store: no acknowledged message is lost without an error.

A store is closed, or its process is killed. Then a bit of a file is flipped, a file is removed or cut off, or the
system refuses to open it. Opening either finds every message, or is an error that changes nothing: once the damage
is repaired, every message is there. `doctor` reports the same.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import PenstockError, StoreCorrupt
from penstock.contract.store import Store
from penstock.errors import StoreUnavailable
from penstock.stores.slate.doctor import examine
from penstock.stores.slate.objects import Bucket
from penstock.stores.slate.store import open_slate
from penstock.system.clock import SystemClock

Contents = dict[str, list[tuple[str, bytes, str, int]]]


def fill(store: penstock.Store, tables: Callable[[], None]) -> None:
    """Messages in tables, in the log, and beside the database."""
    jobs = store.create("jobs", keep_done=None)
    store.create("orders", filter="type = 'order'")
    jobs.put_many([b"%d" % number for number in range(300)] + [b"a" * 70_000])
    jobs.ack(*jobs.claim(5))
    tables()
    for number in range(5):
        store.publish(b"published %d" % number, headers={"type": "order"})
    jobs.put(b"b" * 70_000)
    jobs.put(b"last")


def contents_of(url: str) -> Contents:
    with penstock.open(url, share=False) as store:
        return {
            info.name: [
                (each.id, each.payload, each.state, each.attempts) for each in store.queue(info.name).messages()
            ]
            for info in store.queues()
        }


def contents(folder: Path) -> Contents:
    return contents_of(f"slate:{folder}")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    """A store that was closed, and what it holds. Tests take a copy."""
    folder = tmp_path_factory.mktemp("damage") / "original"
    with penstock.open(f"slate:{folder}", share=False) as store:
        fill(store, store.backend.collect)  # type: ignore[attr-defined]
    expected = contents(folder)
    assert sum(map(len, expected.values())) == 308
    return folder, expected


@pytest.fixture
def folder(original: tuple[Path, Contents], tmp_path: Path) -> Path:
    return Path(shutil.copytree(original[0], tmp_path / "store"))


@pytest.fixture
def expected(original: tuple[Path, Contents]) -> Contents:
    return original[1]


def files_of(folder: Path) -> dict[str, bytes]:
    """All files but the lock, whose content names its last holder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def log_files(folder: Path) -> list[Path]:
    """The files of the log that have rows, in their order."""
    return sorted(path for path in (folder / "db" / "wal").glob("*.sst") if path.stat().st_size)


def needed(folder: Path) -> list[Path]:
    """The files of the log whose rows are in no table."""
    [mark] = (folder / "db" / "wal").glob("synced#*")
    after = int(mark.name.partition("#")[2][:20])
    return [path for path in log_files(folder) if int(path.stem) > after]


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


class Kept:
    """The files or objects of a store, by their names below it."""

    whole = True  # an error at opening adds no file either

    def __init__(self, url: str, expected: Contents) -> None:
        self.url, self.expected = url, expected
        self._folder = Path(url.removeprefix("slate:"))

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        (self._folder / name).write_bytes(content)

    def delete(self, name: str) -> None:
        (self._folder / name).unlink()

    def names(self, below: str = "") -> list[str]:
        return sorted(str(path.relative_to(self._folder)) for path in (self._folder / below).iterdir())

    def everything(self) -> dict[str, bytes]:
        return files_of(self._folder)

    def log(self) -> list[str]:
        """The names of log files with rows that are in no table."""
        return [f"db/wal/{path.name}" for path in needed(self._folder)]

    def contents(self) -> Contents:
        return contents_of(self.url)

    def problems(self) -> list[str]:
        found = examine(self.url)
        return [finding.text for _, finding in found.all_findings() if finding.severity == "problem"]

    def check_refused(self, match: str, grows: bool = False) -> None:
        """Opening is an error that changes nothing, and doctor says the same; it may add files, if `grows`."""
        before = self.everything()
        assert any(match in text for text in self.problems()), self.problems()
        assert grows or self.everything() == before
        with pytest.raises(StoreCorrupt, match=match):
            self.contents()
        after = self.everything()
        assert before.items() <= after.items()
        assert grows or len(after) == len(before)

    def check_whole(self) -> None:
        assert self.problems() == []
        assert self.contents() == self.expected


class KeptInBucket(Kept):
    """A store in a bucket."""

    whole = False

    def __init__(self, url: str) -> None:
        self.bucket = Bucket(url.removeprefix("slate:"), 30)
        with penstock.open(url, share=False) as store:
            fill(store, store.backend._database.flush_tables)  # type: ignore[attr-defined]
        super().__init__(url, contents_of(url))

    def get(self, name: str) -> bytes:
        return self.bucket.get(name)

    def put(self, name: str, content: bytes) -> None:
        self.bucket.put(name, content)

    def delete(self, name: str) -> None:
        self.bucket.delete(name)

    def names(self, below: str = "") -> list[str]:
        return self.bucket.list(below)

    def everything(self) -> dict[str, bytes]:
        return {name: self.get(name) for name in self.names()}

    def log(self) -> list[str]:
        recorded = json.loads(self.get("synced"))["log"]
        return [f"db/wal/{int(number):020}.sst" for number, size in recorded.items() if size]


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.long)])
def kept(request: pytest.FixtureRequest) -> Kept:
    if request.param == "bucket":
        return KeptInBucket(request.getfixturevalue("bucket"))
    folder, expected = request.getfixturevalue("folder"), request.getfixturevalue("expected")
    return Kept(f"slate:{folder}", expected)


@pytest.fixture
def in_bucket(bucket: str) -> KeptInBucket:
    return KeptInBucket(bucket)


def check_refused(folder: Path, match: str) -> None:
    Kept(f"slate:{folder}", {}).check_refused(match)


def problems(folder: Path) -> list[str]:
    return Kept(f"slate:{folder}", {}).problems()


# Damage


def test_a_file_of_the_log_that_is_missing_or_was_changed_is_named(kept: Kept) -> None:
    """SlateDB takes a missing one for the end of the log, and an empty one for a writer's first."""
    for name in kept.log()[:: 1 if kept.whole else 3]:
        content = kept.get(name)
        half = len(content) // 2
        kept.delete(name)
        kept.check_refused(f"{name} is missing")
        kept.put(name, content[:half] + bytes((content[half] ^ 1,)) + content[half + 1 :])
        kept.check_refused(name.rpartition("/")[2], grows=not kept.whole)
        kept.put(name, content)
    for name in (kept.log()[0], kept.log()[-1]):
        content = kept.get(name)
        for length in (0, 1, 20, -1) if kept.whole else (0, 20):
            kept.put(name, content[:length])
            kept.check_refused("db/wal" if kept.whole else f"{name} has changed")
        kept.put(name, content)
    kept.check_whole()


@pytest.mark.parametrize("kind", ["manifest", "compactions"])
def test_a_manifest_that_is_missing_or_has_changed_is_named(kept: Kept, kind: str) -> None:
    name = max(kept.names(f"db/{kind}"))
    content = kept.get(name)
    for damaged in (b"", content[:-3], bytes(len(content)), content[:-1] + bytes((content[-1] ^ 1,))):
        kept.put(name, damaged)
        kept.check_refused(f"{name} has changed")
    kept.delete(name)
    kept.check_refused(f"{name} is missing")
    kept.put(name, content)
    kept.check_whole()


def test_a_table_that_is_missing_or_cut_off_is_named(kept: Kept) -> None:
    for name in kept.names("db/compacted"):
        content = kept.get(name)
        for length in (0, 1, 20, len(content) // 2)[:: 1 if kept.whole else 3]:
            kept.put(name, content[:length])
            kept.check_refused(f"{name} is cut off")
        kept.delete(name)
        kept.check_refused(f"{name} is missing")
        kept.put(name, content)
    kept.check_whole()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_store_without_any_manifest_is_not_made_anew(kept: Kept, recorded: bool) -> None:
    record = ".penstock/synced" if kept.whole else "synced"
    names = kept.names("db/manifest") + ([] if recorded else [record])
    away = {name: kept.get(name) for name in names}
    for name in names:
        kept.delete(name)
    kept.check_refused("manifest")
    for name, content in away.items():
        kept.put(name, content)
    kept.check_whole()


def test_a_large_payload_that_has_changed_or_is_missing_is_named(kept: Kept) -> None:
    changes = 4 if kept.whole else 1
    for name in kept.names("objects"):
        content = kept.get(name)
        for damaged in (content[:-1], b"", bytes(len(content)), content + b"x")[:changes]:
            kept.put(name, damaged)
            with pytest.raises(StoreCorrupt, match=f"{name} has changed"):
                kept.contents()
            assert any(f"{name} has changed" in text for text in kept.problems())
        kept.delete(name)
        with pytest.raises(StoreCorrupt, match=f"has lost the payload {name}"):
            kept.contents()
        assert any(name in text for text in kept.problems())
        kept.put(name, content)
    kept.check_whole()


def test_a_log_file_with_the_content_of_another_is_found(folder: Path, expected: Contents) -> None:
    first, second = needed(folder)[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    check_refused(folder, "has changed")
    first.write_bytes(content)
    assert contents(folder) == expected


def test_the_record_of_the_log_must_be_there(folder: Path, expected: Contents) -> None:
    [mark] = (folder / "db" / "wal").glob("synced#*")
    mark.unlink()
    check_refused(folder, "the record of the log")
    mark.touch()
    assert contents(folder) == expected


@pytest.mark.parametrize("kind", ["manifest", "compactions"])
@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: bytes(len(data)), lambda data: b"x"])
def test_a_damaged_manifest_of_a_store_without_checksums_is_store_corrupt(
    folder: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    forget(folder)
    path = max((folder / "db" / kind).iterdir())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreCorrupt, match="is damaged"):
        contents(folder)


def test_compactions_that_name_another_writer_are_damage_as_nobody_else_can_be_one(folder: Path) -> None:
    forget(folder)
    path = max((folder / "db" / "compactions").iterdir())
    content = path.read_bytes()
    for position in range(0, len(content), 2):
        flip(path, position, 6)
        with suppress(StoreCorrupt):  # which all others would be
            contents(copy_of(folder))
        path.write_bytes(content)


def test_large_payloads_without_a_checksum_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            "penstock.stores.slate.entries.MAX_INLINE", 1 << 30
        )  # as versions before have written the log
        with penstock.open(f"slate:{tmp_path}", share=False) as store:
            store.queue().put(b"a" * 70_000)
    with penstock.open(f"slate:{tmp_path}", share=False) as store:
        assert [message.payload for message in store.queue().messages()] == [b"a" * 70_000]
    assert examine(f"slate:{tmp_path}").sound


def check_flips(folder: Path, expected: Contents, positions: int, dice: random.Random) -> None:
    """Flip bits of every file, one at a time: everything is read as it was, or an error changes nothing."""
    names = [name for name, content in files_of(folder).items() if content]
    found = 0
    for name in names:
        path = folder / name
        content = path.read_bytes()
        for position in dice.sample(range(len(content)), min(positions, len(content))):
            bit = dice.randrange(8)
            flip(path, position, bit)
            damaged = copy_of(folder)
            path.write_bytes(content)
            where = f"{name}: bit {bit} of byte {position}"
            try:
                sound = examine(f"slate:{damaged}").sound
            except PenstockError:
                sound = False
            try:
                there = contents(damaged)
            except PenstockError:
                found += 1
                assert not sound, where
                (damaged / name).write_bytes(content)
                assert contents(damaged) == expected, where
            else:
                assert there == expected, where
    assert found


def copy_of(folder: Path) -> Path:
    """A copy with the same files, in the same place for each test."""
    copy = folder.parent / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy))


def test_a_flipped_bit_in_any_file_is_found_or_harmless(folder: Path, expected: Contents) -> None:
    check_flips(folder, expected, 1, random.Random(17))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_flipped_bits_are_found_or_harmless(folder: Path, expected: Contents, seed: int) -> None:
    check_flips(folder, expected, 40, random.Random(seed))


# Refusals


@contextmanager
def refusing(path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system refuses to open or list a path."""

    def refused(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(name: Any, *arguments: Any, **keywords: Any) -> Any:
            if isinstance(name, str | os.PathLike) and os.fspath(name) == str(path):
                raise OSError(code, os.strerror(code), os.fspath(name))
            return call(name, *arguments, **keywords)

        return called

    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refused(open))
        patched.setattr(os, "open", refused(os.open))
        patched.setattr(os, "listdir", refused(os.listdir))
        yield


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("what", ["wal file", "unsynced wal file", "wal", "manifest", "synced", "lock", "objects"])
def test_a_file_that_the_system_refuses_at_opening_changes_nothing(
    folder: Path, expected: Contents, code: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, newest = needed(folder)[-1], max((folder / "db" / "wal").glob("*.sst"))
    paths = {
        "wal file": last,
        "unsynced wal file": last.with_name(f"{int(newest.stem) + 1:020}.sst"),
        "wal": last.parent,
        "manifest": max((folder / "db" / "manifest").iterdir()),
        "synced": folder / ".penstock" / "synced",
        "lock": folder / ".penstock" / "lock",
        "objects": folder / "objects",
    }
    if what == "unsynced wal file":
        paths[what].write_bytes(last.read_bytes()[:-9])
    before = files_of(folder)
    with refusing(paths[what], code, monkeypatch), pytest.raises(StoreUnavailable, match=paths[what].name):
        contents(folder)
    if what != "objects":
        assert files_of(folder) == before
    assert contents(folder) == expected


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_record_that_the_system_refuses_at_closing_is_told_and_nothing_is_lost(
    folder: Path, expected: Contents, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = penstock.open(f"slate:{folder}", share=False)
    new = store.queue().put(b"new")
    path = folder / ".penstock" / "synced.new"
    with refusing(path, code, monkeypatch), pytest.raises(StoreUnavailable, match=path.name):
        store.close()
    assert problems(folder) == []
    assert contents(folder) == {**expected, "default": [(new, b"new", "available", 0)]}


def test_a_folder_in_the_place_of_a_log_file_changes_nothing(folder: Path, expected: Contents) -> None:
    path = needed(folder)[-1]
    path.rename(folder / "away")
    path.mkdir()
    with pytest.raises(StoreUnavailable, match="this is a folder, where a file belongs"):
        contents(folder)
    path.rmdir()
    (folder / "away").rename(path)
    assert contents(folder) == expected


SHORT = """
import os, resource, sys, penstock
penstock.open(sys.argv[2], share=len(sys.argv) > 3).close()  # so that everything is imported
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
for spare in range(0, 42, 3):
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(spare):
        os.close(held.pop())
    try:
        penstock.open(sys.argv[1], share=len(sys.argv) > 3).close()
        print("opened", flush=True)
    except penstock.PenstockError as error:
        print(type(error).__name__, error, flush=True)
    for each in held:
        os.close(each)
"""


@pytest.mark.parametrize("arguments", [[], ["share"]])
def test_a_process_that_is_short_of_descriptors_changes_nothing(
    folder: Path, expected: Contents, arguments: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SHORT, f"slate:{folder}", f"slate:{tmp_path / 'other'}", *arguments]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = told.stdout.splitlines()
    assert len(lines) == 14, told.stderr
    assert any("StoreUnavailable" in line and "too many files open" in line for line in lines)
    assert lines[-1] == "opened"
    assert contents(folder) == expected
    assert problems(folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_read_a_log_file_changes_nothing(
    folder: Path, expected: Contents, tmp_path: Path
) -> None:
    code = """
import os, sys, penstock
penstock.open(sys.argv[2], share=False).close()  # so that everything is imported
os.seteuid(65534)
try:
    penstock.open(sys.argv[1], share=False).close()
except penstock.PenstockError as error:
    print(type(error).__name__, error)
"""
    for path in (folder, *folder.rglob("*"), *folder.parents):
        if path.is_relative_to(folder) or path.is_relative_to(folder.parents[3]):
            os.chmod(path, 0o777 if path.is_dir() else 0o666)
    path = needed(folder)[-1]
    os.chmod(path, 0o600)
    command = [sys.executable, "-c", code, f"slate:{folder}", f"slate:{tmp_path / 'other'}"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stdout.startswith("StoreUnavailable"), told
    assert "permission denied" in told.stdout
    assert path.name in told.stdout
    assert contents(folder) == expected


# In a bucket


def test_a_gap_in_the_log_of_a_bucket_without_a_record_is_named(in_bucket: KeptInBucket) -> None:
    """As earlier versions have left it, or another program."""
    names = in_bucket.log()
    in_bucket.delete("synced")
    for name in names[:-1]:
        content = in_bucket.get(name)
        in_bucket.delete(name)
        in_bucket.check_refused(f"{name} is missing")
        in_bucket.put(name, content)
    in_bucket.check_whole()


def test_a_damaged_record_of_a_bucket_is_named(in_bucket: KeptInBucket) -> None:
    content = in_bucket.get("synced")
    for damaged in (b"", b"7", b"[]", b"{}", content[:-1], content.replace(b'"manifest": ', b'"manifest": 1')):
        in_bucket.put("synced", damaged)
        in_bucket.check_refused("cannot be read")
    in_bucket.put("synced", content)
    assert in_bucket.contents() == in_bucket.expected


def run_and_kill(code: str, url: str) -> None:
    """Run code that uses `store`, in a process that is killed afterwards with the store open."""
    code = f"import sys, penstock\nstore = penstock.open({url!r}, share=False)\n{code}"
    command = [sys.executable, "-c", code + '\nprint("put", flush=True)\nsys.stdin.read()']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"put\n"
        process.send_signal(signal.SIGKILL)


def test_the_record_of_a_bucket_holds_for_a_store_that_was_killed_long_after_it(in_bucket: KeptInBucket) -> None:
    code = """
for number in range(3):
    store.queue("jobs").put(b"%d" % number)
    store.backend._database.flush_tables()
store.queue("jobs").put(b"last")
"""
    run_and_kill(code, in_bucket.url)
    assert in_bucket.problems() == []
    assert len(in_bucket.contents()["jobs"]) == len(in_bucket.expected["jobs"]) + 4


def test_what_opening_takes_away_from_a_bucket_is_set_aside_for_a_week(in_bucket: KeptInBucket) -> None:
    left = {"objects/999999": b"of nobody", "objects/1000000": b"c" * 70_000}
    for name, content in left.items():
        in_bucket.put(name, content)
    examined = examine(in_bucket.url)
    assert examined.sound
    assert any("large payloads belong to messages that are gone" in each.text for each in examined.findings)
    assert in_bucket.contents() == in_bucket.expected
    found = {name.split("/", 2)[2]: in_bucket.get(name) for name in in_bucket.names("aside")}
    assert found == left
    assert not left.keys() & set(in_bucket.names("objects"))
    now = SystemClock().now()
    for age in (6, 8):
        in_bucket.put(f"aside/{now - age * 86_400_000}/objects/7", b"x")
    with Store("", open_slate(in_bucket.url)) as store:
        store.backend.collect()  # type: ignore[attr-defined]
    assert sorted(in_bucket.names("aside"))[0] == f"aside/{now - 6 * 86_400_000}/objects/7"
    assert in_bucket.contents() == in_bucket.expected


# Processes that were killed, and versions before


def test_a_flipped_bit_in_the_log_of_a_killed_process_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    run_and_kill('for number in range(20): store.queue().put(b"%d" % number)', f"slate:{folder}")
    for path in needed(folder)[-3:]:
        flip(path, path.stat().st_size // 2)
        check_refused(folder, path.name)
        flip(path, path.stat().st_size // 2)
    assert [payload for _, payload, _, _ in contents(folder)["default"]] == [
        b"%d" % number for number in range(20)
    ]


def forget(folder: Path) -> None:
    """Make a store what the version before has written: a record of two numbers, and nothing of the log."""
    path = folder / ".penstock" / "synced"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({kind: record[kind] for kind in ("manifest", "compactions")}))
    for mark in (folder / "db" / "wal").glob("synced#*"):
        mark.unlink()


def test_a_store_of_the_version_before_opens_and_is_recorded_from_then_on(
    folder: Path, expected: Contents
) -> None:
    forget(folder)
    assert problems(folder) == []
    assert contents(folder) == expected
    assert needed(folder)
    for path in needed(folder):
        flip(path, path.stat().st_size // 2)
        check_refused(folder, path.name)
        flip(path, path.stat().st_size // 2)
    assert contents(folder) == expected


def test_a_torn_end_of_a_store_of_the_version_before_is_set_aside(folder: Path, expected: Contents) -> None:
    forget(folder)
    last = max((folder / "db" / "wal").iterdir())
    torn = last.with_name(f"{int(last.stem) + 1:020}.sst")
    torn.write_bytes(log_files(folder)[-1].read_bytes()[:-9])
    assert any(torn.name in text for text in problems(folder))
    assert contents(folder) == expected
    assert [path.read_bytes() for path in aside(folder)] == [log_files(folder)[-1].read_bytes()[:-9]]


def test_damage_before_the_end_of_a_store_of_the_version_before_is_an_error(
    folder: Path, expected: Contents
) -> None:
    forget(folder)
    path = needed_before(folder)
    flip(path, 100)
    check_refused(folder, path.name)
    flip(path, 100)
    assert contents(folder) == expected


def test_a_missing_file_before_the_end_of_a_store_of_the_version_before_is_named(
    folder: Path, expected: Contents
) -> None:
    paths = needed(folder)[:-4]
    forget(folder)
    assert paths
    for path in paths:
        path.rename(folder / "away")
        check_refused(folder, f"{path.name} is missing")
        (folder / "away").rename(path)
    assert contents(folder) == expected


def test_what_is_left_of_a_damaged_log_can_be_seen_as_the_error_says(folder: Path) -> None:
    damaged = needed(folder)[2]
    flip(damaged, damaged.stat().st_size // 2)
    with pytest.raises(
        StoreCorrupt, match=r"remove from the copy \.penstock/synced, these files and all later ones"
    ):
        contents(folder)
    copy = copy_of(folder)
    (copy / ".penstock" / "synced").unlink()
    for path in (copy / "db" / "wal").iterdir():
        if path.name >= damaged.name:
            path.unlink()
    assert len(contents(copy)["jobs"]) == 301
    assert len(contents(copy)["orders"]) == 2


def needed_before(folder: Path) -> Path:
    """A file of the log that is in no table, and not one of the last four."""
    return sorted((folder / "db" / "wal").iterdir())[-5]


def aside(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / ".penstock" / "aside").rglob("*") if path.is_file())


def test_what_opening_takes_away_is_set_aside(folder: Path, expected: Contents) -> None:
    left = {
        "db/wal/00000000000000009999.sst#1": b"half",
        "db/compacted/x.sst#2": b"half",
        "db/manifest/00000000000000009999.manifest": b"later",
        "db/gc/manifest.boundary": b"made again",
        "objects/999999": b"of nobody",
    }
    for name, content in left.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    assert contents(folder) == expected
    found = {"/".join(path.relative_to(folder / ".penstock" / "aside").parts[1:]): path for path in aside(folder)}
    assert {name: path.read_bytes() for name, path in found.items()} == left
    assert not any((folder / name).exists() for name in left)


def test_what_was_set_aside_goes_after_a_week(folder: Path, expected: Contents) -> None:
    now = SystemClock().now()
    for age in (6, 8):
        (folder / ".penstock" / "aside" / f"{now - age * 86_400_000}").mkdir(parents=True)
    with Store("", open_slate(f"slate:{folder}")) as store:
        store.backend.collect()  # type: ignore[attr-defined]
    assert len(list((folder / ".penstock" / "aside").iterdir())) == 1
    assert contents(folder) == expected


def test_a_backup_is_recorded_as_well(folder: Path, expected: Contents, tmp_path: Path) -> None:
    from penstock.stores.slate.backups import backup

    copy = tmp_path / "copy"
    backup(f"slate:{folder}", copy)
    path = log_files(copy)[-1]
    path.rename(tmp_path / "away")
    check_refused(copy, f"{path.name} is missing")
    (tmp_path / "away").rename(path)
    assert contents(copy) == expected


def test_a_store_that_is_never_synced_says_nothing_of_its_log(tmp_path: Path) -> None:
    with penstock.open(f"slate:{tmp_path}", share=False, sync="never") as store:
        store.queue().put_many([b"a", b"b"])
    assert not list((tmp_path / "db" / "wal").glob("synced#*"))
    torn = max((tmp_path / "db" / "wal").iterdir())
    torn.with_name(f"{int(torn.stem) + 1:020}.sst").write_bytes(b"torn" * 100)
    assert len(contents(tmp_path)["default"]) == 2


def test_no_record_is_taken_for_more_than_it_is(folder: Path) -> None:
    path = folder / ".penstock" / "synced"
    whole = path.read_text()
    record = json.loads(whole)
    for other in (
        {**record, "manifest": record["manifest"] - 1},
        {**record, "more": 1},
        {name: value for name, value in record.items() if name != "checksum"},
        {name: value for name, value in record.items() if name != "log"},
        {"manifest": "1", "compactions": 1},
        {"manifest": 1},
        [1, 2],
        7,
    ):
        path.write_text(json.dumps(other))
        with pytest.raises(StoreCorrupt, match="synced cannot be read"):
            contents(folder)
    path.write_text(whole[:-1])
    with pytest.raises(StoreCorrupt, match="synced cannot be read"):
        contents(folder)
    path.write_text(whole)
    assert contents(folder)
