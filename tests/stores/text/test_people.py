"""Content of people and other programs in a queue's file: parsed or warned about; packing; links; full disks."""

import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import penstock
from penstock.contract.store import Store
from penstock.stores.text import TextQueue
from penstock.stores.text.backend import open_text
from penstock.system.files import Status, StrPath, SystemDisk, SystemFile
from tests.stores.errors import FailingDisk, ext4, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "default.tq"


NAMES = [
    "id",
    "priority",
    "attempts",
    "lease",
    "mutex",
    "received",
    "visible",
    "expires",
    "created",
    "key",
    "header",
]
VALUES = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(str),
    st.text(st.characters(exclude_characters="\n"), max_size=40),
    st.text(st.characters(categories=["Nd", "No"]), max_size=10),
    st.text("0123456789abcdef-+:TZ. ", max_size=45),
)


@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6), st.sampled_from(["\n", "\r\n"]))
@example([("attempts", "4294967295")], "\n")
@example([("priority", "9" * 30)], "\n")
@example([("priority", "9" * 5000)], "\n")
@example([("lease", "x")], "\n")
@example([("lease", "9999-12-31T23:59:59.999Z 0123456789abcdef"), ("attempts", "-7")], "\n")
@example([("received", "0001-01-01T00:00:00+23:59"), ("visible", "9999-12-31T23:59:59.999-23:59")], "\n")
def test_any_value_of_a_variable_is_read_or_warned_about(variables: list[tuple[str, str]], end: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "default.tq")
        lines = ["-first", *(f"\\{name}={value}" for name, value in variables), "-second", ""]
        path.write_bytes(end.join(lines).encode(errors="replace"))
        for _ in range(2):
            with penstock.open(path, sync="never") as store:
                queue = store.queue()
                for message in queue.claim(3):
                    message.fail()
                for message in queue.claim(3):
                    message.release()
                assert sum(queue.counts().values()) == len(list(queue.messages()))


@given(st.lists(st.tuples(st.sampled_from([each.name for each in fields(penstock.Settings)]), VALUES), max_size=4))
@example([("max_attempts", "9" * 5_000)])
@example([("retention", "1e400")])
@example([("keep_done", "nan")])
@example([("priorities", "1 2 x")])
def test_any_value_of_a_setting_is_read_or_warned_about(settings: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "default.tq")
        lines = ["# Penstock queue", *(f"\\{name}={value}" for name, value in settings), "-first", ""]
        path.write_bytes("\n".join(lines).encode(errors="replace"))
        # The clock stands still: a max_lease or retention of a millisecond may be among the values.
        with penstock.open(path, sync="never", clock=penstock.SimulatedClock()) as store:
            queue = store.queue()
            with suppress(penstock.QueueFull, penstock.PayloadTooLarge, penstock.InvalidArgument):
                queue.put(b"second")
            for message in queue.claim(2):
                message.fail()
            assert sum(queue.counts().values()) == len(list(queue.messages()))


def test_a_number_that_is_none_is_warned_about_with_its_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(b"-a\n\\priority=high\n")
    with caplog.at_level(logging.WARNING), penstock.open(path) as store:
        assert [message.priority for message in store.queue().messages()] == [0]
    assert f"{path} line 2 is skipped: priority='high' is not understood" in caplog.text


def test_zeros_before_a_number_mean_nothing(path: Path) -> None:
    path.write_bytes(b"-a\n\\priority=" + b"0" * 30 + b"5\n-b\n\\priority=-" + b"0" * 5_000 + b"1\n")
    with penstock.open(path) as store:
        assert [message.priority for message in store.queue().messages()] == [5, -1]


def test_a_file_with_the_line_ends_of_another_system_works_and_keeps_them(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf-a\r\n b\r\n\\priority=5\r\n\r\n# note\r\n-c\r\n")
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put(b"d\r\ne\r")
        assert [message.payload for message in queue.messages()] == [b"a\nb", b"c", b"d\r\ne\r"]
        queue.ack(*queue.claim(3))
        store.backend.pack("default")  # type: ignore[attr-defined]
        queue.put(b"f")
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    assert data.count(b"\n") == data.count(b"\r\n")
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == [b"f"]


@pytest.mark.parametrize(
    "text", [b"-a\r\n-b", b"-a\r\n-b\r\n", b"\xef\xbb\xbf\r\n-a\r\n\r\n-b\r\n", b"-a\r\n-b\n", b"-a\r\n\n-b\n"]
)
def test_what_is_added_to_a_file_has_its_line_ends(
    path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(text)
    with penstock.open(path) as store:
        store.queue().put(b"c")
        TextQueue(path).append("d\ne", variables=["mutex=   "])
        store.queue().put(b"f")
        assert [message.payload for message in store.queue().messages()] == [b"a", b"b", b"c", b"d\ne", b"f"]
    added = path.read_bytes()[len(text) :]
    assert added.count(b"\n") == added.count(b"\r\n")
    assert not caplog.records


def test_a_payload_that_ends_in_a_carriage_return_comes_back_as_it_was(path: Path) -> None:
    payloads = [b"a\r", b"\r", b"a\r\nb\r", b"\r\n", b"\n\r", b"a\r\n"]
    with penstock.open(path) as store:
        store.queue().put_many(payloads)
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == payloads


def test_a_message_that_another_program_has_marked_is_its_own_until_the_mark_is_gone(path: Path) -> None:
    path.write_bytes(b"-a\n\\mutex=bob       \n-b\n\\mutex=          \n")
    with penstock.open(path) as store:
        queue = store.queue()
        [claimed] = queue.claim(2)
        assert claimed.payload == b"b"
        claimed.release()
        with path.open("r+b") as file:  # as another program does: in place
            file.write(b"-a\n\\mutex=          \n-b\n\\mutex=alice     \n")
        [claimed] = queue.claim(2)
        assert claimed.payload == b"a"
        assert queue.counts()["delayed"] == 1
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"alice"))
            file.write(b"     ")
        assert [message.payload for message in queue.claim(2)] == [b"b"]


# Packing, and files with several names


def test_packing_keeps_what_a_person_has_commented_out(path: Path) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put(b"removed by a person")
        path.write_bytes(path.read_bytes().replace(b"-removed", b"#removed"))
        queue.remove(queue.put(b"removed by us"))
        queue.ack(*(queue.put(b"done"), queue.claim())[1])
        assert store.backend.pack("default") > 0  # type: ignore[attr-defined]
        assert store.backend.pack("default") == 0  # type: ignore[attr-defined]
    data = path.read_bytes()
    assert b"#removed by a person" in data
    assert b"by us" not in data
    assert b"done" not in data


def test_packing_keeps_what_a_person_let_in_again_and_commented_out_later(path: Path) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.remove(queue.put(b"a job"))
        path.write_bytes(path.read_bytes().replace(b"#a job", b"-a job"))
        assert len(queue) == 1
        path.write_bytes(path.read_bytes().replace(b"-a job", b"#a job"))
        assert len(queue) == 0
        assert store.backend.pack("default") == 0  # type: ignore[attr-defined]
        path.write_bytes(path.read_bytes().replace(b"#a job", b"-a job"))
        queue.remove(next(queue.messages()).id)
        assert store.backend.pack("default") > 0  # type: ignore[attr-defined]


def test_packing_keeps_a_line_that_belongs_to_nothing(path: Path) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put(b"a")
        with path.open("ab") as file:
            file.write(b" a note below its variables\n=b\n")
        queue.ack(*queue.claim())
        assert store.backend.pack("default") == len(b"=b\n")  # type: ignore[attr-defined]
    assert TextQueue(path).pack() == 0
    assert path.read_bytes().endswith(b"\n a note below its variables\n")


APPEND = """
import sys
with open(sys.argv[1], "a+b", buffering=0) as file:
    print("open", file=sys.stderr, flush=True)
    input()
    file.write(b"-late\\n")
"""


@pytest.mark.parametrize(
    "program",
    [
        ["sh", "-c", "exec >> $0; echo open >&2; read line; echo '-late'"],
        [sys.executable, "-c", APPEND],  # which may read, too
    ],
)
def test_packing_waits_for_a_program_that_has_the_file_open_to_append(
    path: Path, caplog: pytest.LogCaptureFixture, program: list[str]
) -> None:
    with penstock.open(path) as store:
        store.queue().put("a")
        store.queue().pop()
        shell = subprocess.Popen([*program, path], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        assert shell.stderr is not None
        shell.stderr.readline()
        assert store.backend.pack("default") == TextQueue(path).pack() == 0  # type: ignore[attr-defined]
        assert f"process {shell.pid} has it open to append" in caplog.text
        shell.communicate(b"\n")
        assert store.backend.pack("default") > 0  # type: ignore[attr-defined]
        assert [each.payload for each in store.queue().messages()] == [b"late"]


def test_packing_keeps_owner_mode_and_attributes_and_a_symbolic_link(tmp_path: Path) -> None:
    path, link = tmp_path / "default.tq", tmp_path / "elsewhere" / "default.tq"
    link.parent.mkdir()
    link.symlink_to(path)
    with penstock.open(link) as store:
        queue = store.queue()
        path.chmod(0o640)
        if os.geteuid() == 0:  # only root can give a file away
            os.chown(path, 4711, 4712)
        os.setxattr(path, "user.note", b"mine")
        before = path.stat()
        queue.ack(*(queue.put(b"done"), queue.claim())[1])
        assert store.backend.pack("default") > 0  # type: ignore[attr-defined]
        queue.put(b"next")
    after = path.stat()
    assert link.is_symlink()
    assert (after.st_mode & 0o777, after.st_ino == before.st_ino) == (0o640, False)
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert os.getxattr(path, "user.note") == b"mine"
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages()] == [b"next"]


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_file_under_two_names_has_one_lock_and_one_set_of_leases(tmp_path: Path, link: str) -> None:
    path, other = tmp_path / "default.tq", tmp_path / "elsewhere" / "default.tq"
    other.parent.mkdir()
    with penstock.open(path) as store:
        store.queue().put_many([b"a", b"b"])
        assert [message.payload for message in store.queue().claim(lease=60)] == [b"a"]
        other.symlink_to(path) if link == "symbolic" else other.hardlink_to(path)
        with penstock.open(other) as second:
            assert [message.payload for message in second.queue().claim(2, lease=60)] == [b"b"]
            second.queue().put(b"c")
            assert [message.payload for message in store.queue().claim(2, lease=60)] == [b"c"]
            second.backend.pack("default")  # type: ignore[attr-defined]
    assert os.path.samefile(path, other)
    assert [each.name for each in other.parent.iterdir()] == ["default.tq"]


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_deleting_a_name_of_a_file_leaves_the_others_their_messages_and_leases(tmp_path: Path, link: str) -> None:
    (tmp_path / "a.tq").write_bytes(b"-by hand\n")
    with penstock.open(f"text:{tmp_path}") as store:
        [held] = store.queue("a").claim(lease=60)
        b = tmp_path / "b.tq"
        b.symlink_to(tmp_path / "a.tq") if link == "symbolic" else b.hardlink_to(tmp_path / "a.tq")
        assert store.queue("b").counts()["in_flight"] == 1
        if link == "hard":
            with pytest.raises(penstock.QueueProtected, match="remove the others first"):
                store.delete("a")
        store.delete("b")
        with pytest.raises(penstock.QueueNotFound):
            store.queue("b").put(b"x")
        assert store.queue("a").claim() == []
        held.ack()
        store.delete("a")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["default.tq", "default.tq.mutex"]


def test_a_store_whose_queues_are_one_file_publishes_once(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        store.create("a", filter="kind = 'x'")
        (tmp_path / "b.tq").symlink_to(tmp_path / "a.tq")
        store.publish(b"p", headers={"kind": "x"})
        assert store.queue("a").count() == store.queue("b").count() == 1


# Strays, and disks that fail


def test_what_is_no_file_is_skipped_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open(f"text:{tmp_path}") as store, socket.socket(socket.AF_UNIX) as stray:
        (tmp_path / "folder.tq").mkdir()
        (tmp_path / "%_2.tq").mkdir()
        os.mkfifo(tmp_path / "pipe.tq")
        stray.bind(str(tmp_path / "socket.tq"))
        (tmp_path / "link.tq").symlink_to("nowhere")
        for _ in range(2):
            assert [queue.name for queue in store.queues()] == ["default"]
            store.publish(b"a")
        store.queue().put(b"b")
        with pytest.raises(penstock.QueueNotFound):
            store.queue("pipe").put(b"c")
    for name in ("folder", "%_2", "pipe", "socket"):
        assert caplog.text.count(f"{name}.tq") == 1


def test_what_may_not_be_read_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class GuardedDisk(SystemDisk):
        def open(self, path: StrPath, **how: Any) -> SystemFile:
            if os.path.basename(path).endswith(("locked.tq", "%_2.tq")):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return super().open(path, **how)

    for name in ("locked", "%_2"):
        (tmp_path / f"{name}.tq").write_bytes(b"-a\n")
    with Store("", open_text(f"text:{tmp_path}", disk=GuardedDisk())) as store:
        for _ in range(2):
            assert [queue.name for queue in store.queues()] == ["default"]
            store.publish(b"a")
        store.queue().put(b"b")
        assert [message.payload for message in store.queue().claim(2)] == [b"b"]
        with pytest.raises(penstock.StoreUnavailable, match=r"locked\.tq': permission denied"):
            store.queue("locked").put(b"c")
        store.backend.check()  # type: ignore[attr-defined]
    for name in ("locked", "%_2"):
        assert caplog.text.count(f"{name}.tq") == 1
        assert (tmp_path / f"{name}.tq").read_bytes() == b"-a\n"


@pytest.mark.parametrize("name", ["folder.tq", "pipe.tq"])
def test_a_path_that_is_no_file_is_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tq").mkdir()
    os.mkfifo(tmp_path / "pipe.tq")
    with pytest.raises(penstock.StoreUnavailable, match=f"{name}': this is a"):
        penstock.open(tmp_path / name)


def test_who_waits_is_told_of_an_error_of_the_disk(path: Path) -> None:
    class BlindDisk(FailingDisk):
        def status(self, path: StrPath) -> Status:
            self.check(path)
            return super().status(path)

    disk = BlindDisk()
    backend = open_text(str(path), disk=disk)
    with Store("", backend) as store, ThreadPoolExecutor() as threads:
        waiting = threads.submit(store.queue().claim, wait=60)
        while not backend.find("default").in_line:
            time.sleep(0.001)
        disk.error = errno.EIO
        with pytest.raises(penstock.StoreClosed, match="Input/output error"):
            waiting.result()


def test_a_store_filled_by_puts_can_be_worked_off_by_several_who_have_it_open(tmp_path: Path) -> None:
    with ExitStack() as opened:
        mounted = opened.enter_context(ext4(tmp_path, 6 << 20))
        url = f"text:{mounted / 'store'}"
        (mounted / "ballast").write_bytes(bytes(3 << 20))
        idle, *working = [opened.enter_context(penstock.open(url, sync="never")) for _ in range(4)]
        put = 0
        with suppress(penstock.DiskFull):
            while True:
                put += len(idle.queue().put_many([b"x" * 100] * 10))
        fill(mounted)
        assert put > 1_000
        for number in range(put):
            [message] = working[number % 3].queue().claim(consumer="a host:1234", lease=3600)
            message.ack()
        assert sum(idle.queue().counts().values()) == 0


@pytest.mark.parametrize("many", [2, 1_000])
def test_what_is_acknowledged_together_is_given_to_nobody_again(path: Path, many: int) -> None:
    with penstock.open(path) as store, penstock.open(path) as other:
        queue = store.queue()
        queue.put_many([b"a"] * many)
        assert len(other.queue()) == many
        queue.ack(*queue.claim(many))
        assert path.read_bytes().split(b"\n").count(b"=a") == many
        assert len(other.queue()) == 0
    with penstock.open(path) as again:
        assert again.queue().claim() == []


@pytest.mark.parametrize("acked", [0, 1, 200])
@pytest.mark.parametrize("text", ["", "-by hand\n=done by hand\n# a comment\n"])
def test_packing_never_makes_a_store_larger_and_forgets_no_key(path: Path, acked: int, text: str) -> None:
    path.write_text(text)
    backend = open_text(str(path))
    with Store("", backend) as store:
        queue = store.queue()
        queue.pop()
        ids = queue.put_many([penstock.Draft(b"", key=f"key {number}") for number in range(200)])
        queue.ack(*(queue.claim(acked) if acked else []))
        before = sum(each.stat().st_size for each in path.parent.iterdir())
        freed = backend.pack("default")
        assert sum(each.stat().st_size for each in path.parent.iterdir()) <= before
        assert freed > 0 or not (acked or text)
        assert queue.put_many([penstock.Draft(b"", key=f"key {number}") for number in range(200)]) == ids
    with penstock.open(path) as again:
        assert again.queue().put_many([penstock.Draft(b"", key=f"key {n}") for n in range(200)]) == ids


def test_packing_on_a_full_disk_changes_nothing(path: Path) -> None:
    disk = FailingDisk()
    backend = open_text(str(path), disk=disk)
    with Store("", backend) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        queue.pop()
        before = path.read_bytes()
        disk.error = errno.ENOSPC
        with pytest.raises(penstock.DiskFull):
            backend.pack("default")
        disk.error = 0
        assert path.read_bytes() == before
        assert backend.pack("default") > 0
        assert [message.payload for message in queue.claim(5)] == [b"b"]


def test_a_damaged_line_in_the_mutex_file_ends_no_lease_that_the_queue_still_names(path: Path) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b", b"c"])
        held = [*queue.claim(lease=60), *queue.claim(lease=60)]
    mutex = path.with_name("default.tq.mutex")
    data = bytearray(mutex.read_bytes())
    data[data.index(b'"notes"')] ^= 1
    mutex.write_bytes(data)
    with penstock.open(path) as store:
        queue = store.queue()
        assert [message.payload for message in queue.claim(3)] == [b"c"]
        queue.ack(*[message.receipt for message in held if message.receipt])


@pytest.mark.parametrize("seen", [True, False])
def test_a_file_that_an_editor_replaced_before_it_was_linked_still_has_one_mutex(
    path: Path, tmp_path: Path, seen: bool
) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        [held] = queue.claim(lease=600)
        subprocess.run(["sed", "-i", "s/^-b$/-B/", str(path)], check=True)
        if seen:
            assert queue.counts()["in_flight"] == 1
        other = tmp_path / "other.tq"
        other.hardlink_to(path)
        if not seen:
            with penstock.open(other) as linked, pytest.raises(penstock.StoreUnavailable, match="several names"):
                linked.queue().claim(9)
            assert queue.counts()["in_flight"] == 1
        with penstock.open(other) as linked:
            assert [message.payload for message in linked.queue().claim(9)] == [b"B"]
        held.ack()


def test_a_file_that_was_linked_and_used_by_the_other_name_first_has_that_ones_mutex(
    path: Path, tmp_path: Path
) -> None:
    with penstock.open(path) as store:
        queue, other = store.queue(), tmp_path / "other.tq"
        assert queue.counts()["available"] == 0
        path.unlink()
        path.write_bytes(b"-a\n-b\n")
        other.hardlink_to(path)
        with penstock.open(other) as linked:
            [held] = linked.queue().claim(lease=600)
            assert [message.payload for message in queue.claim(9)] == [b"b"]
            held.ack()
            assert queue.counts()["in_flight"] == 1


def test_a_line_that_a_shell_appends_after_a_put_that_was_cut_off_is_a_message(path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))

    with penstock.open(path) as store:
        store.queue().put(b"a")
    before = path.read_bytes()
    put = [sys.executable, "-m", "penstock", "--store", str(path), "put", "default", "b"]
    done = subprocess.run(put, capture_output=True, text=True, preexec_fn=limited)
    assert "ulimit -f" in done.stderr
    assert path.read_bytes() == before
    for torn in (b"#", b"#payload", b"#payload\n\\id=5ca14a4b90b2596f\n\\recei"):
        path.write_bytes(before + torn)
        with penstock.open(path) as store:
            assert len(store.queue()) == 1
        with path.open("ab") as file:
            file.write(b"-c\n")
        with penstock.open(path) as store:
            assert [message.payload for message in store.queue().messages()] == [b"a", b"c"]


def test_a_lease_that_the_queue_names_outlives_damage_to_any_line_of_the_mutex_file(path: Path) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        queue.release(*queue.claim(2))
        [first, second] = queue.claim(2, lease=60)
        queue.extend(first, lease=600)
        second.fail()
    mutex = path.with_name("default.tq.mutex")
    whole, text = mutex.read_bytes(), path.read_bytes()
    for number in range(1, whole.count(b"\n")):
        lines = whole.split(b"\n")
        lines[number] = lines[number][:-1] + b"?"
        mutex.write_bytes(b"\n".join(lines))
        path.write_bytes(text)
        with penstock.open(path) as store:
            given = [message.payload for message in store.queue().claim(3, lease=60)]
            assert b"a" not in given
            store.queue().ack(first.receipt or "")


def test_a_line_without_its_newline_is_lengthened_for_every_process(path: Path) -> None:
    path.write_bytes(b"-a")
    with penstock.open(path) as store, penstock.open(path) as other:
        assert len(store.queue()) == len(other.queue()) == 1
        for added in (b"-b\n", b"\xef\xbb\xbf-c\n", b"\r\n-d\n"):
            with path.open("ab") as file:
                file.write(added)
            there = [message.payload for message in store.queue().messages()]
            assert [message.payload for message in other.queue().messages()] == there
    assert there == [b"a-b", b"d"]


@pytest.mark.parametrize(
    "operation", ["put", "claim", "pop", "ack", "fail", "release", "extend", "remove", "purge"]
)
def test_an_operation_that_is_refused_has_changed_nothing_and_one_that_may_have_is_not_called_refused(
    path: Path, operation: str
) -> None:
    with penstock.open(path) as store:
        queue = store.queue()
        queue.put(b"x" * 5_000, priority=9)
        queue.put_many([b"a", b"b"])
        [held] = queue.claim(lease=600)
        before = list(queue.messages())
    if (pid := os.fork()) == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY))
            queue = penstock.open(path).queue()
            given: dict[str, list[Any]] = {"put": [b"c"], "claim": [], "pop": [], "purge": [], "remove": [held.id]}
            getattr(queue, operation)(*given.get(operation, [held.receipt]))
        except penstock.StoreUnavailable:
            status = 2
        except penstock.StoreClosed as error:
            status = 3 if "ulimit -f" in str(error) else 4
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with penstock.open(path) as store:
        after = list(store.queue().messages())
    assert (status, after == before) in [(2, True), (3, True), (3, False)]
