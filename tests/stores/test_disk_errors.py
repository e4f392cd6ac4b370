"""Errors of the system and full disks, in stores that no process owns: named, and nothing else is affected."""

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.contract.store import Store
from penstock.errors import StoreUnavailable
from penstock.http.server import serve_in_thread
from penstock.stores.folder.backend import open_folder
from penstock.stores.text.backend import open_text
from tests.stores.errors import FailingDisk, ask, ext4, fill

COMMAND = [sys.executable, "-m", "penstock"]


@pytest.fixture(params=["text:{}/store", "{}/default.tq", "folder:{}/store"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def store(url: str, disk: FailingDisk) -> Iterator[Store]:
    """A store on a disk that can be told to fail."""
    with opened(url, disk) as store:
        yield store


def opened(url: str, disk: FailingDisk) -> Store:
    folder = url.removeprefix("folder:")
    return Store(url, open_folder(folder, disk=disk) if folder != url else open_text(url, disk=disk))


def payloads(url: str) -> set[bytes]:
    with penstock.open(url) as store:
        return {message.payload for message in store.queue().messages()}


@pytest.mark.parametrize(
    ("error", "words"),
    [(errno.EROFS, "the file system is read-only"), (errno.EACCES, "permission denied"),
     (errno.EFBIG, "the file may not grow.*ulimit -f"), (errno.EMFILE, "too many files open")],
)  # fmt: skip
def test_what_the_system_refuses_is_named_and_the_store_goes_on_once_it_is_allowed(
    store: Store, disk: FailingDisk, error: int, words: str
) -> None:
    queue = store.queue()
    queue.put_many([b"a", b"b"])
    [held] = queue.claim()
    disk.error = error
    for call in (held.ack, queue.claim, queue.pop, lambda: queue.put_many([b"c", b"d"])):
        with pytest.raises(StoreUnavailable, match=words) as refused:
            call()
        assert "the disk failed" not in str(refused.value)
    disk.error = 0
    held.ack()
    queue.put(b"e")
    assert [message.payload for message in queue.claim(9)] == [b"b", b"e"]


@pytest.mark.parametrize(("error", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "permission denied")])
def test_a_server_is_not_ready_while_its_files_cannot_be_written_and_says_why(
    url: str, store: Store, disk: FailingDisk, error: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.queue().put(b"a")
    if url.startswith("text:"):
        Path(url.removeprefix("text:"), "aaa.tq").mkdir()  # which is no reason
    server = serve_in_thread(store)
    try:
        assert ask(f"{server.url}/-/readyz")[0] == 200
        disk.error = error
        assert ask(f"{server.url}/-/readyz")[0] == 503
        caplog.clear()
        assert ask(f"{server.url}/default/messages", b"b")[0] == 503
        assert words in caplog.text
        disk.error = 0
        assert ask(f"{server.url}/-/readyz")[0] == 200
        assert ask(f"{server.url}/default/messages", b"c")[0] == 201
    finally:
        server.stop()
    assert payloads(url) == {b"a", b"c"}


def test_after_an_error_of_the_disk_the_store_stops_and_says_why(
    url: str, store: Store, disk: FailingDisk, caplog: pytest.LogCaptureFixture
) -> None:
    queue = store.queue()
    queue.put_many([b"a", b"b"])
    server = serve_in_thread(store)
    try:
        assert ask(f"{server.url}/-/readyz")[0] == 200
        disk.error = errno.EIO
        with pytest.raises(penstock.StoreClosed, match="Input/output error"):
            queue.claim()
        assert ask(f"{server.url}/-/readyz")[0] == 503
        disk.error = 0
        assert ask(f"{server.url}/-/readyz")[0] == 503
    finally:
        server.stop()
    for call in (queue.claim, lambda: queue.put(b"c"), store.queues, lambda: store.publish(b"d"),
                 lambda: penstock.work(queue, lambda message: None)):  # fmt: skip
        with pytest.raises(penstock.StoreClosed, match="Input/output error"):
            call()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    folder = os.path.dirname(url.rpartition(":")[2])
    assert [folder in error and "Input/output error" in error for error in errors] == [True]
    assert payloads(url) == {b"a", b"b"}
    with penstock.open(url) as again:
        again.queue().put(b"c")
        [message] = again.queue().claim(1)
        message.ack()


SERVE = """
import errno, os
from penstock.cli import main
def fail(name):
    call = getattr(os, name)
    def failing(*arguments):
        if os.path.exists(os.environ["FAIL"]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*arguments)
    setattr(os, name, failing)
fail("fsync")
fail("pwritev")
main()
"""


def test_a_server_ends_with_an_error_when_its_disk_fails(url: str, tmp_path: Path) -> None:
    fail = tmp_path / "fail"
    command = [sys.executable, "-c", SERVE, "--store", url, "serve", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "FAIL": str(fail)}
    ) as server:
        assert server.stdout is not None
        messages = f"{server.stdout.readline().split()[0]}/default/messages"
        assert ask(messages, b"a")[0] == 201
        fail.touch()
        assert ask(messages, b"b")[0] == 503
        _, log = server.communicate()
    assert server.returncode == 1
    assert "Input/output error" in log
    assert b"a" in payloads(url)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_an_error_at_open_is_one_of_ours(url: str, disk: FailingDisk, tmp_path: Path, error: int) -> None:
    disk.error, disk.pattern = error, "probe|locks|mutex"
    with pytest.raises(penstock.PenstockError, match=re.escape(str(tmp_path))) as refused:
        opened(url, disk)
    assert ("the disk failed" in str(refused.value)) == (error == errno.EIO)
    disk.error = 0
    opened(url, disk).close()


def test_a_limit_of_a_file_size_is_named_and_changes_nothing(url: str) -> None:
    with penstock.open(url) as store:
        store.queue().put(b"a")
        done = subprocess.run(
            [*COMMAND, "--store", url, "put", "default", "x" * 5_000], capture_output=True, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096)),
        )  # fmt: skip
        assert done.returncode == 1
        assert "ulimit -f" in done.stderr
        assert [message.payload for message in store.queue().messages()] == [b"a"]
        store.queue().put(b"b")
    assert payloads(url) == {b"a", b"b"}


# A full disk


@pytest.mark.parametrize(
    ("kind", "size", "least"),
    [("text:{}", 3_000, 800), ("{}/default.tq", 3_000, 800), ("text:{}", 100, 800), ("folder:{}", 3_000, 300)],
)
def test_a_store_filled_by_puts_can_be_worked_off(tmp_path: Path, kind: str, size: int, least: int) -> None:
    with ext4(tmp_path, 6 << 20) as mounted:
        url = kind.format(mounted / "store")
        with penstock.open(url, sync="never") as store:
            jobs, put = store.queue(), 0
            for many in (10, 1):
                with suppress(penstock.DiskFull):
                    while True:
                        put += len(jobs.put_many([b"x" * size] * many))
            if not kind.startswith("folder"):
                fill(mounted)
            assert put > least
            for _ in range(put // 2):
                [message] = jobs.claim(consumer="a host:1234")
                assert len(message.payload) == size
                message.ack()
            jobs.fail(*jobs.claim(5), reason="no")
            worked = 0
            while jobs.pop() is not None:
                worked += 1
            assert worked == put - put // 2
        if kind.startswith("folder"):
            assert subprocess.run([*COMMAND, "--store", url, "doctor"], capture_output=True).returncode == 0
