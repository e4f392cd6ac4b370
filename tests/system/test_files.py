"""Files and folders, on the system's disk and on its simulated twin, which must behave alike."""

import ctypes
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from penstock.system.files import (
    Disk,
    File,
    ReadingDisk,
    SystemDisk,
    SystemFile,
    refusal,
    remove_folder,
    replace_file,
    write_hint,
)
from tests.simulated_disk import SimulatedDisk, SimulatedFile


@pytest.fixture(params=["system", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return SystemDisk() if request.param == "system" else SimulatedDisk(Random(0))


@pytest.fixture
def folder(disk: Disk, tmp_path: Path) -> Path:
    return tmp_path if isinstance(disk, SystemDisk) else Path("/")


def put(disk: Disk, path: Path, data: bytes) -> None:
    with disk.open(path, create=True) as file:
        file.write(0, data)


def content(disk: Disk, path: Path) -> bytes:
    with disk.open(path) as file:
        return file.read(0, file.size())


def test_append_returns_the_offset_it_wrote_at(disk: Disk, folder: Path) -> None:
    with disk.open(folder / "journal", create=True) as file:
        assert file.append(b"first") == 0
        assert file.append(bytearray(b"second")) == 5
        assert file.append(b"") == 11
        file.sync()
        assert file.size() == 11
        assert file.read(5, 6) == b"second"


def test_append_goes_after_what_another_handle_appended(disk: Disk, folder: Path) -> None:
    with disk.open(folder / "queue", create=True) as one, disk.open(folder / "queue") as other:
        one.append(b"one")
        assert other.append(memoryview(b"other")) == 3
        assert one.append(b"!") == 8
        assert one.read(0, 100) == b"oneother!"


def test_read_returns_less_than_asked_for_only_at_the_end(disk: Disk, folder: Path) -> None:
    put(disk, folder / "file", b"0123456789")
    with disk.open(folder / "file") as file:
        assert file.read(0, 0) == b""
        assert file.read(2, 3) == b"234"
        assert file.read(8, 5) == b"89"
        assert file.read(10, 5) == b""
        assert file.read(99, 5) == b""


def test_write_overwrites_single_bytes_and_fills_a_gap_with_zeros(disk: Disk, folder: Path) -> None:
    put(disk, folder / "queue", b"-one\n-two\n")
    with disk.open(folder / "queue") as file:
        file.write(5, b"=")
        assert file.read(0, 10) == b"-one\n=two\n"
        file.write(12, b"x")
        assert file.read(10, 3) == b"\0\0x"
        file.write(20, b"")
        assert file.size() == 13


def test_truncate_cuts_and_lengthens(disk: Disk, folder: Path) -> None:
    put(disk, folder / "file", b"0123456789")
    with disk.open(folder / "file") as file:
        file.truncate(4)
        assert file.append(b"x") == 4
        file.truncate(8)
        assert file.read(0, 10) == b"0123x\0\0\0"


@pytest.mark.parametrize("offset", [-1, -1000])
def test_a_negative_offset_or_size_is_refused(disk: Disk, folder: Path, offset: int) -> None:
    attempts: list[Callable[[File], object]] = [
        lambda file: file.read(offset, 1),
        lambda file: file.read(0, offset),
        lambda file: file.write(offset, b"x"),
        lambda file: file.truncate(offset),
    ]
    with disk.open(folder / "file", create=True) as file:
        for attempt in attempts:
            with pytest.raises(OSError, match="Invalid argument"):
                attempt(file)


def test_open_creates_only_when_told_and_exclusively_only_once(disk: Disk, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(folder / "file")
    disk.open(folder / "file", exclusive=True).close()
    with pytest.raises(FileExistsError):
        disk.open(folder / "file", exclusive=True)
    with disk.open(folder / "file", create=True) as file:
        file.append(b"kept")
    with disk.open(folder / "file", create=True) as file:
        assert file.read(0, 10) == b"kept"
        assert file.path == str(folder / "file")


def test_a_closed_file_refuses_everything_but_another_close(disk: Disk, folder: Path) -> None:
    file = disk.open(folder / "file", create=True)
    file.close()
    file.close()
    attempts: list[Callable[[], object]] = [
        file.size,
        lambda: file.read(0, 1),
        lambda: file.append(b"x"),
        lambda: file.append(b""),
        lambda: file.write(0, b"x"),
        lambda: file.write(0, b""),
        lambda: file.truncate(0),
        file.sync,
        file.lock,
        file.unlock,
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Bad file descriptor") as refused:
            attempt()
        assert refused.value.errno == errno.EBADF


def test_a_lock_is_refused_while_another_handle_has_it(disk: Disk, folder: Path) -> None:
    one, other = disk.open(folder / "lock", create=True), disk.open(folder / "lock")
    assert one.lock()
    assert one.lock()
    assert not other.lock()
    other.unlock()
    assert not other.lock()
    one.unlock()
    assert other.lock()
    assert not one.lock()
    other.close()
    assert one.lock()
    one.close()


def test_rename_replaces_the_target_and_open_handles_follow_the_file(disk: Disk, folder: Path) -> None:
    put(disk, folder / "old", b"old")
    put(disk, folder / "new", b"new")
    with disk.open(folder / "old") as old, disk.open(folder / "new") as new:
        disk.rename(folder / "new", folder / "old")
        new.append(b"er")
        assert old.read(0, 10) == b"old"
    assert disk.listdir(folder) == ["old"]
    assert content(disk, folder / "old") == b"newer"


def test_rename_moves_across_folders(disk: Disk, folder: Path) -> None:
    disk.mkdir(folder / "new")
    disk.mkdir(folder / "queue")
    put(disk, folder / "new" / "message", b"payload")
    disk.rename(folder / "new" / "message", folder / "queue" / "message")
    disk.sync_folder(folder / "queue")
    disk.sync_folder(folder / "new")
    assert disk.listdir(folder / "new") == []
    assert content(disk, folder / "queue" / "message") == b"payload"


def test_rename_between_two_names_of_one_file_leaves_both(disk: Disk, folder: Path) -> None:
    put(disk, folder / "a", b"data")
    disk.link(folder / "a", folder / "b")
    disk.rename(folder / "a", folder / "b")
    assert sorted(disk.listdir(folder)) == ["a", "b"]


def test_a_link_keeps_the_content_after_the_first_name_is_gone(disk: Disk, folder: Path) -> None:
    put(disk, folder / "segment", b"data")
    disk.mkdir(folder / "pins")
    disk.link(folder / "segment", folder / "pins" / "segment")
    with pytest.raises(FileExistsError):
        disk.link(folder / "segment", folder / "pins" / "segment")
    disk.unlink(folder / "segment")
    assert not disk.exists(folder / "segment")
    assert content(disk, folder / "pins" / "segment") == b"data"


def test_an_unlinked_file_stays_readable_through_its_handle(disk: Disk, folder: Path) -> None:
    put(disk, folder / "file", b"data")
    with disk.open(folder / "file") as file:
        disk.unlink(folder / "file")
        put(disk, folder / "file", b"another")
        assert file.read(0, 10) == b"data"
    with pytest.raises(FileNotFoundError):
        disk.unlink(folder / "gone")


def test_folders_are_made_listed_and_removed_when_empty(disk: Disk, folder: Path) -> None:
    disk.mkdir(folder / "queue")
    with pytest.raises(FileExistsError):
        disk.mkdir(folder / "queue")
    put(disk, folder / "queue" / "b", b"")
    put(disk, folder / "queue" / "a", b"")
    assert sorted(disk.listdir(folder / "queue")) == ["a", "b"]
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(folder / "queue")
    disk.unlink(folder / "queue" / "a")
    disk.unlink(folder / "queue" / "b")
    disk.rmdir(folder / "queue")
    assert not disk.exists(folder / "queue")


class Meanwhile(SystemDisk):
    """A disk on which another process adds a file just before a folder's first removal."""

    def __init__(self) -> None:
        self.late = ["late"]

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        while self.late:
            Path(path, self.late.pop()).touch()
        super().rmdir(path)


def test_a_folder_is_removed_with_the_files_that_a_writer_adds_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "staged"
    remove_folder(Meanwhile(), str(folder))  # none there
    folder.mkdir()
    (folder / "first").touch()
    remove_folder(Meanwhile(), str(folder))
    assert not folder.exists()


def test_a_file_is_not_a_folder_and_a_folder_is_not_a_file(disk: Disk, folder: Path) -> None:
    put(disk, folder / "file", b"")
    disk.mkdir(folder / "folder")
    assert not disk.exists(folder / "file" / "inside")
    on_folders: list[Callable[[Path], object]] = [disk.listdir, disk.sync_folder, disk.rmdir]
    for attempt in on_folders:
        with pytest.raises(NotADirectoryError):
            attempt(folder / "file")
        with pytest.raises(FileNotFoundError):
            attempt(folder / "gone")
    on_files: list[Callable[[Path], object]] = [
        disk.open,
        disk.unlink,
        lambda path: disk.rename(folder / "file", path),
    ]
    for attempt in on_files:
        with pytest.raises(IsADirectoryError):
            attempt(folder / "folder")
    with pytest.raises(PermissionError):
        disk.link(folder / "folder", folder / "other")


def test_what_was_just_written_is_cached_and_what_is_not_there_is_not(disk: Disk, folder: Path) -> None:
    put(disk, folder / "file", b"0123456789")
    with disk.open(folder / "file") as file:
        assert file.read_cached(2, 3) in (b"234", None)  # not every file system can say
        assert file.read_cached(8, 3) in (b"89", None)


def test_replace_file_gives_new_content_and_leaves_nothing_beside_it(disk: Disk, folder: Path) -> None:
    put(disk, folder / "settings.new", b"left behind by a crash, and longer than what comes")
    for data in (b"first", b"second, longer", b"3"):
        replace_file(disk, folder / "settings", data)
        assert content(disk, folder / "settings") == data
        assert disk.listdir(folder) == ["settings"]


def test_replace_file_that_fails_leaves_the_target_and_nothing_beside_it(disk: Disk, folder: Path) -> None:
    disk.mkdir(folder / "settings")
    with pytest.raises(IsADirectoryError):
        replace_file(disk, folder / "settings", b"data")
    assert disk.listdir(folder) == ["settings"]


def test_a_link_is_followed_only_on_demand(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("secret")
    for disk in (SystemDisk(), ReadingDisk()):
        with pytest.raises(OSError, match="symbolic links") as refused:
            disk.open(tmp_path / "link")
        assert refused.value.errno == errno.ELOOP
        with disk.open(tmp_path / "link", follow=True) as file:
            assert file.read(0, 10) == b"secret"
    (tmp_path / "dangling").symlink_to("made")
    with pytest.raises(OSError, match="symbolic links"):
        SystemDisk().open(tmp_path / "dangling", create=True)
    assert not (tmp_path / "made").exists()
    assert sorted(SystemDisk().listlinks(tmp_path)) == ["dangling", "link"]
    assert SystemDisk().listfiles(tmp_path) == ["secret"]


def test_a_temporary_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    for write in (replace_file, write_hint):
        (tmp_path / "settings.new").symlink_to("secret")
        write(SystemDisk(), tmp_path / "settings", b"data")
        assert (tmp_path / "settings").read_bytes() == b"data"
        assert (tmp_path / "secret").read_bytes() == b"secret"
        assert sorted(os.listdir(tmp_path)) == ["secret", "settings"]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(tmp_path / "socket"))
    for disk in (SystemDisk(), ReadingDisk()):
        for name in ("pipe", "socket"):
            with pytest.raises(OSError, match="No such device") as refused:
                disk.open(tmp_path / name)
            assert "a pipe or a socket" in refusal(tmp_path / name, refused.value)
    assert SystemDisk().listfiles(tmp_path) == []


def test_new_content_keeps_the_mode_of_the_file(tmp_path: Path) -> None:
    for write in (replace_file, write_hint):
        (tmp_path / "settings").write_bytes(b"old")
        (tmp_path / "settings").chmod(0o600)
        write(SystemDisk(), tmp_path / "settings", b"new")
        assert (tmp_path / "settings").stat().st_mode & 0o777 == 0o600
    replace_file(SystemDisk(), tmp_path / "other", b"new", mode=0o600)
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o600


def test_short_writes_and_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    with SystemDisk().open(tmp_path / "file", create=True) as file:
        assert file.append(b"0123456789") == 0
        file.write(4, bytearray(b"abcd"))
        assert file.read(0, 10) == b"0123abcd89"
        assert file.read(5, 100) == b"bcd89"


def test_syncs_reach_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(f"data of {os.readlink(f'/proc/self/fd/{fd}')}"))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.chdir(tmp_path)
    replace_file(SystemDisk(), tmp_path / "file", b"data")
    replace_file(SystemDisk(), "file", b"data")
    assert synced == [f"data of {tmp_path / 'file.new'}", str(tmp_path)] * 2


def test_a_new_file_is_not_executable_and_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        SystemDisk().open(tmp_path / "file", create=True).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "file").st_mode) == 0o640


def test_exists_raises_what_it_cannot_know(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        SystemDisk().exists(tmp_path / ("x" * 300))


PATHS = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "a/x"]
paths = st.sampled_from(PATHS)
data = st.binary(max_size=20)
offsets = st.integers(0, 40)


def answer(call: Callable[[], object]) -> object:
    """What a call returns, or which error it raises."""
    try:
        return call()
    except OSError as error:
        return type(error), error.errno


def seen(disk: Disk, path: Path) -> list[object]:
    return [
        disk.exists(path),
        answer(lambda: sorted(disk.listdir(path))),
        answer(lambda: sorted(disk.listfiles(path))),
        answer(lambda: sorted(disk.listlinks(path))),
        answer(lambda: content(disk, path)),
    ]


ON_FILES: dict[str, Callable[[File, int, int, bytes], object]] = {
    "read": lambda file, offset, size, data: file.read(offset, size),
    "append": lambda file, offset, size, data: file.append(data),
    "write": lambda file, offset, size, data: file.write(offset, data),
    "truncate": lambda file, offset, size, data: file.truncate(size),
    "sync": lambda file, *_: file.sync(),
    "lock": lambda file, *_: file.lock(),
    "unlock": lambda file, *_: file.unlock(),
    "close": lambda file, *_: file.close(),
}
ON_PATHS: dict[str, Callable[[Disk, Path, Path], object]] = {
    "rename": lambda disk, path, to: disk.rename(path, to),
    "link": lambda disk, path, to: disk.link(path, to),
    "mkdir": lambda disk, path, to: disk.mkdir(path),
    "rmdir": lambda disk, path, to: disk.rmdir(path),
    "unlink": lambda disk, path, to: disk.unlink(path),
    "sync_folder": lambda disk, path, to: disk.sync_folder(path),
}


class Twins(RuleBasedStateMachine):
    """The same calls on the system's disk and on the simulated one get the same answers."""

    files = Bundle("files")

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.system, self.simulated = SystemDisk(), SimulatedDisk(Random(0))
        self.handles: list[File] = []

    def teardown(self) -> None:
        for file in self.handles:
            file.close()
        shutil.rmtree(self.root)

    def both(self, call: Callable[[Disk, Path], object]) -> tuple[object, object]:
        system = answer(lambda: call(self.system, Path(self.root)))
        return system, answer(lambda: call(self.simulated, Path("/")))

    def compare(self, call: Callable[[Disk, Path], object]) -> None:
        system, simulated = self.both(call)
        assert system == simulated

    @initialize(target=files)
    def start_with_something(self) -> object:
        self.use_disk("d", "", "mkdir")
        self.use_disk("d/e", "", "mkdir")
        self.open("a", create=True, exclusive=False)
        return self.open("d/a", create=True, exclusive=False)

    @rule(target=files, path=paths, create=st.booleans(), exclusive=st.booleans())
    def open(self, path: str, create: bool, exclusive: bool) -> object:
        opened = self.both(lambda disk, root: disk.open(root / path, create=create, exclusive=exclusive))
        match opened:
            case SystemFile() as system, SimulatedFile() as simulated:
                self.handles += [system, simulated]
                return system, simulated
        assert opened[0] == opened[1]
        return multiple()

    @rule(pair=files, offset=offsets, size=offsets, data=data, call=st.sampled_from(sorted(ON_FILES)))
    def use_file(self, pair: tuple[File, File], offset: int, size: int, data: bytes, call: str) -> None:
        system, simulated = (answer(lambda file=file: ON_FILES[call](file, offset, size, data)) for file in pair)  # type: ignore[misc]
        assert system == simulated

    @rule(path=paths, to=paths, call=st.sampled_from(sorted(ON_PATHS)))
    def use_disk(self, path: str, to: str, call: str) -> None:
        if call != "rename" or not os.path.isdir(os.path.join(self.root, path)):  # the twin moves files only
            self.compare(lambda disk, root: ON_PATHS[call](disk, root / path, root / to))

    @invariant()
    def same_names_and_contents(self) -> None:
        self.compare(lambda disk, root: [seen(disk, root / path) for path in PATHS])


TestTwins = Twins.TestCase
TestTwins.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_reservation_that_a_signal_interrupts_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = [errno.EINTR, errno.EINTR, 0]

    class Library:
        def fallocate(self, *_: object) -> int:
            ctypes.set_errno(answers.pop(0))
            return -1 if ctypes.get_errno() else 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    with SystemDisk().open(tmp_path / "file", create=True) as file:
        file.reserve(4096)
    assert answers == []
