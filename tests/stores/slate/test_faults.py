"""Faults around a slate store: another writer, an unreachable bucket, a full disk."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import StoreLocked, StoreUnreachable
from penstock.contract.kinds import exists
from penstock.contract.store import Store
from penstock.errors import DiskFull
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.store import SlateBackend, open_slate
from tests.stores.slate import loop_disk
from tests.stores.slate.loop_disk import LoopDisk
from tests.stores.slate.servers import S3


def test_a_second_writer_takes_over_and_the_first_is_told(bucket: str) -> None:
    first = penstock.open(bucket, share=False)
    queue = first.queue()
    ids = queue.put_many([b"a", b"b"])
    [held] = queue.claim(lease=600)
    with penstock.open(bucket, share=False) as second:
        for operation in (lambda: queue.put(b"c"), lambda: queue.ack(held), lambda: len(queue), first.queues):
            with pytest.raises(StoreLocked, match=r"another process has opened the store .* and writes it now"):
                operation()
        first.close()
        assert [message.id for message in second.queue().messages()] == ids
        second.queue().ack(held.receipt or "")
    with penstock.open(bucket) as store:
        assert [message.payload for message in store.queue().messages()] == [b"b"]


def test_consumers_that_wait_are_told_that_another_writer_has_taken_over(bucket: str) -> None:
    first = penstock.open(bucket, share=False)
    queue = first.queue()
    with penstock.open(bucket, share=False):
        with pytest.raises(StoreLocked):
            queue.put(b"a")
        with pytest.raises(StoreLocked):
            queue.claim(wait=60)
    first.close()


def test_everything_that_a_fenced_writer_acknowledged_is_there(bucket: str) -> None:
    code = """
import sys, penstock
store = penstock.open(sys.argv[1], share=False)
while True:
    print(store.queue().put(b"x"), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, bucket], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        acknowledged = [first.stdout.readline() for _ in range(5)]
        with penstock.open(bucket, share=False) as second:
            rest, errors = first.communicate()
            acknowledged += rest.splitlines()
            assert b"StoreLocked" in errors or b"Fenced" in errors
            there = {message.id for message in second.queue().messages()}
    assert {line.decode().strip() for line in acknowledged} <= there


def test_a_bucket_out_of_reach_is_an_error_in_time_and_work_goes_on_when_it_is_back(bucket: str, s3: S3) -> None:
    with penstock.open(bucket, share=False) as store:
        queue = store.queue()
        queue.put(b"before")
        backend = store.backend
        assert isinstance(backend, SlateBackend)
        usual, backend._database.timeout = backend._database.timeout, 1.5  # a server that is busy has more time
        s3.pause()
        with pytest.raises(StoreUnreachable, match=r"did not answer in 1.5 seconds; a change may take effect"):
            queue.put(b"meanwhile")
        with pytest.raises(StoreUnreachable):
            queue.claim()
        backend._database.timeout = usual
        s3.resume()
        queue.put(b"after")
        assert [message.payload for message in queue.messages()] == [b"before", b"meanwhile", b"after"]
        assert len(queue.claim(5)) == 3


def test_a_disk_without_space_takes_no_more_messages_but_lets_those_that_are_there_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store("", open_slate(f"slate:{tmp_path}")) as store:
        queue = store.queue()
        queue.put(b"a")
        monkeypatch.setattr(Folder, "free", lambda self: 1_000_000)
        with pytest.raises(DiskFull, match=r"no space left for new messages .* settle messages"):
            queue.put_many([bytes(60_000)] * 200)
        queue.claim()[0].ack()
        monkeypatch.undo()
        queue.put(b"b")
        assert len(queue) == 1


@pytest.mark.long
@pytest.mark.skipif(bool(loop_disk.missing()), reason=loop_disk.missing() or "there can be one")
def test_a_full_disk_is_an_error_in_time_and_work_goes_on_when_there_is_space(tmp_path: Path) -> None:
    disk = LoopDisk(tmp_path)
    try:
        filling = disk.mounted / "filling"
        with Store("", open_slate(f"slate:{disk.mounted / 'store'}", timeout=2)) as store:
            queue = store.queue()
            ids = queue.put_many([bytes(1_000)] * 1_000)
            _fill(filling, leave=40 << 20)
            with pytest.raises(DiskFull, match="nothing was changed"):
                queue.put_many([bytes(1_000)] * 10_000)
            messages = queue.claim(1_000, lease=600)
            _fill(filling, leave=0)
            with pytest.raises(StoreUnreachable, match=r"did not answer in 2 seconds; a change may take effect"):
                _ack_one_by_one(messages)
            filling.unlink()
            _ack_one_by_one(messages)
            more = queue.put(b"more")
            assert [message.id for message in queue.messages()] == [more]
        with Store("", open_slate(f"slate:{disk.mounted / 'store'}")) as store:
            assert [message.id for message in store.queue().messages()] == [more]
            assert more not in ids
    finally:
        disk.close()


def _ack_one_by_one(messages: list[penstock.Message]) -> None:
    for message in messages:
        message.ack()


def _fill(path: Path, leave: int) -> None:
    """Take all the space of a disk but so many bytes."""
    with path.open("ab") as file:
        while True:
            found = os.statvfs(path)
            more = min(found.f_bavail * found.f_frsize - leave, 1 << 20)
            if more <= 0:
                return
            try:
                file.write(bytes(more))
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                return


def test_a_folder_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    with (
        Store("", open_slate(f"slate:{tmp_path}")),
        pytest.raises(StoreLocked, match=f"is open in pid {os.getpid()}: close it there"),
    ):
        open_slate(f"slate:{tmp_path}")


def test_a_system_that_cannot_sync_a_file_system_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.slate.folder._syncfs", None)
    with pytest.raises(penstock.NotSupported, match=r'cannot be made safe: .*sync="never" at your own risk'):
        open_slate(f"slate:{tmp_path}")
    open_slate(f"slate:{tmp_path}", sync="never").close()


def test_a_missing_binding_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slatedb.uniffi._slatedb_uniffi", None)
    with pytest.raises(penstock.NotSupported, match=r"pip install 'penstock\[slate\]'"):
        open_slate(f"slate:{tmp_path}")


def test_a_failed_sync_stops_the_store_and_reopening_finds_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_slate(f"slate:{tmp_path}")
    queue = Store("", backend).queue()
    queue.put(b"acknowledged")

    def fail(self: Folder) -> None:
        raise OSError(5, "Input/output error", "wal")

    monkeypatch.setattr(Folder, "make_durable", fail)
    operations: list[Callable[[], object]] = [
        lambda: queue.put(b"a"),
        lambda: queue.put(b"b"),
        lambda: queue.pop(),
    ]
    for operation in operations:
        with pytest.raises(penstock.StoreClosed, match="Input/output error"):
            operation()
    backend.close()
    monkeypatch.undo()
    with Store("", open_slate(f"slate:{tmp_path}")) as store:
        assert b"acknowledged" in [message.payload for message in store.queue().messages()]


def test_a_bucket_that_cannot_be_reached_is_not_opened(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    for share in (True, False):
        with pytest.raises(StoreUnreachable, match="cannot be used"):
            penstock.open(bucket, timeout=1, share=share)
    with pytest.raises(StoreUnreachable, match="cannot be used"):
        exists(bucket)


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(StoreUnreachable, match="has no bucket 'no-such-bucket': make it"):
        exists("slate:s3://no-such-bucket/queues")
    with pytest.raises(StoreUnreachable, match="has no bucket 'no-such-bucket': make it"):
        penstock.open("slate:s3://no-such-bucket/x")


def test_a_disk_that_refuses_something_at_closing_is_told_by_name_and_nothing_is_lost(tmp_path: Path) -> None:
    store = penstock.open(f"slate:{tmp_path}")
    store.create("jobs").put(b"x")
    in_the_way = tmp_path / ".penstock" / "synced.new"
    in_the_way.mkdir()
    with pytest.raises(penstock.StoreUnavailable, match=r"synced\.new': this is a folder"):
        store.close()
    in_the_way.rmdir()
    with penstock.open(f"slate:{tmp_path}") as store:
        assert len(store.queue("jobs")) == 1
