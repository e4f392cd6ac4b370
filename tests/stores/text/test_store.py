"""The text store on disk: entries, settings, file names, packing, the mutex file, full disks."""

import base64
import errno
import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Draft, NotSupported, QueueExists, QueueNotFound, QueueProtected, SimulatedClock
from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.stores.text.backend import open_text
from penstock.stores.text.format import parse, parse_one
from penstock.stores.text.variables import body, facts, new_entry, read_head, read_time, write_head, write_time
from penstock.system.files import Data, StrPath, SystemDisk, SystemFile

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_a_message_reads_well(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"text:{tmp_path}", clock=clock) as store:
        id_ = store.queue().put("two\nlines", priority=5, headers={"kind": "image"}, delay=60, key="order 7")
    assert (tmp_path / "default.tq").read_text() == (
        f"-two\n lines\n\\id={id_}\n\\priority=5\n\\received=2023-11-14T22:13:20.000Z\n"
        "\\visible=2023-11-14T22:14:20.000Z\n\\key=order 7\n\\header kind=image\n"
        f"\\attempts=0    \n\\lease={' ' * 41}\n"
    )


@pytest.mark.parametrize("file", ["JOBS.TQ", "Jobs.tQ"])
def test_the_ending_of_a_text_file_may_be_in_capitals(tmp_path: Path, file: str) -> None:
    with penstock.open(tmp_path / file) as store:
        store.queue().put(b"a")
        assert store.queue().name == file[:4]
    assert (tmp_path / file).read_text().startswith("-a\n")
    with penstock.open(f"text:{tmp_path}") as store:
        assert [info.name for info in store.queues()] == [file[:4], "default"]


def test_a_path_through_a_folder_that_is_not_there_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.open("x/../jobs.tq") as store:
        store.queue().put(b"a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.tq", "jobs.tq.mutex"]
    with penstock.open("jobs.tq") as store:
        assert len(store.queue()) == 1
    (tmp_path / "deep" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/inner")
    penstock.open("link/../jobs.tq").close()
    assert (tmp_path / "deep" / "jobs.tq").exists()  # as the system resolves it


def test_a_payload_that_is_no_text_is_base64(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        store.queue().put(b"\xff\x00")
        store.queue().put_many([b"\xfe", b"plain"])
        assert [message.payload for message in store.queue().messages()] == [b"\xff\x00", b"\xfe", b"plain"]
    text = (tmp_path / "default.tq").read_text()
    assert text.startswith(f"-{base64.b64encode(bytes([255, 0])).decode()}\n")
    assert text.count("\\encoding=base64\n") == 2


@given(st.binary() | TEXT.map(str.encode), st.dictionaries(TEXT.filter(bool), TEXT), TEXT)
def test_any_payload_any_headers_and_any_key_come_back(payload: bytes, headers: dict[str, str], key: str) -> None:
    data = new_entry(Entry(payload, -7, headers, key=key, created_at=5), "0123456789abcdef", 10, 20, 30)
    assert parse(b"-before\n" + data + b"-after\n").entries[1].length == len(data)
    entry = parse_one(data, 0)
    assert body(entry, 10) == (payload, headers, 5)
    assert facts(entry)[:7] == ("0123456789abcdef", -7, 10, 20, 30, key, 0)


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=20,
)
@given(st.lists(TEXT, min_size=1, max_size=5))
def test_any_texts_survive_a_store(tmp_path: Path, texts: list[str]) -> None:
    with penstock.open(f"text:{tmp_path}", sync="never") as store:
        store.queue().purge()
        store.queue().put_many(texts)
    with penstock.open(f"text:{tmp_path}", sync="never") as store:
        assert [message.payload.decode() for message in store.queue().claim(10)] == texts


@given(st.integers(0, 253_402_300_799_999))
def test_any_time_comes_back(time: int) -> None:
    assert read_time(write_time(time)) == time
    assert len(write_time(time)) == 24


def test_settings_are_a_comment_at_the_top(tmp_path: Path) -> None:
    given = Settings(max_attempts=3, keep_done=None, filter="kind = 'a\nb'", priorities=(-2, 9), max_lease=0.5,
                     description=" für alle ")  # fmt: skip
    with penstock.open(f"text:{tmp_path}") as store:
        store.create("jobs", **given)
    text = (tmp_path / "jobs.tq").read_text()
    assert text.startswith(
        "# Penstock queue\n\\max_attempts=3\n\\keep_done=forever\n\\filter=\"kind = 'a\\nb'\"\n"
    )
    assert read_head(parse(write_head(given, "odd")).entries) == (given, "odd", [])
    assert write_head(Settings(), None) == b""


def test_a_name_that_a_file_cannot_have_is_said_in_the_file(tmp_path: Path) -> None:
    names = ["Jobs", "jobs", "a/b", "x" * 255]
    with penstock.open(f"text:{tmp_path}") as store:
        for name in names:
            store.create(name).put(name)
    files = sorted(path.name for path in tmp_path.glob("*.tq"))
    assert files == sorted(["default.tq", "Jobs.tq", "jobs%_2.tq", "a%2Fb.tq", f"{'x' * 150}%_2.tq"])
    with penstock.open(f"text:{tmp_path}") as store:
        assert [info.name for info in store.queues()] == sorted([*names, "default"])
        assert [store.queue(name).claim()[0].payload.decode() for name in names] == names


def test_a_file_is_a_store_of_one_queue_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "jobs.tq"
    with penstock.open(path) as store:
        queue = store.queue()
        assert queue.name == store.queue("jobs").name == store.queue("default").name == "jobs"
        queue.put(b"a")
        [message] = queue.claim()
        assert message.queue == "jobs"
        message.ack()
        assert [info.name for info in store.queues()] == ["jobs"]
        with pytest.raises(QueueExists):
            store.create("jobs")
        with pytest.raises(NotSupported, match="is a single queue, 'jobs': open text:"):
            store.create("other")
        with pytest.raises(QueueProtected):
            store.delete("jobs")
        with pytest.raises(QueueNotFound, match=r"no queue 'other': the store '.+' is a single queue"):
            store.queue("other")
    assert path.read_text().startswith("=a\n")
    with penstock.open(f"text:{path}") as store:
        assert store.queue().name == "jobs"


def test_remove_comments_out_and_pack_drops_what_is_over(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        queue = store.create("jobs", max_attempts=1)
        ids = queue.put_many([Draft(b"removed"), Draft(b"done", key="k"), Draft(b"failed"), Draft(b"waiting")])
        queue.remove(ids[0])
        [done, failed] = queue.claim(2)
        failed.fail(reason="no")
        done.ack()
        path = tmp_path / "jobs.tq"
        path.write_text("# mine\n" + path.read_text() + "-person\n")
        before = len(path.read_bytes())
        freed = store.backend.pack("jobs")  # type: ignore[attr-defined]
        text = path.read_text()
        assert freed == before - len(text.encode())
        assert text.startswith("# mine\n# Penstock queue\n\\max_attempts=1\n!failed\n")
        assert [line for line in text.splitlines() if line[0] in "-=!"] == ["!failed", "-waiting", "-person"]
        assert [(each.payload, each.reason) for each in queue.messages("failed")] == [(b"failed", "no")]
        assert queue.put(b"done again", key="k") == ids[1]


def test_done_messages_that_are_still_listed_are_kept_by_pack(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        queue = store.create("jobs", keep_done=60)
        queue.put_many([b"a", b"b"])
        queue.claim()[0].ack()
        assert store.backend.pack("jobs") == 0  # type: ignore[attr-defined]
        assert [message.payload for message in queue.messages("done")] == [b"a"]


def test_odd_lines_are_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("-a\n?b\n")
    with caplog.at_level(logging.WARNING, "penstock"), penstock.open(path) as store:
        for _ in range(3):
            assert len(store.queue()) == 1
    assert ["line 2 is skipped" in record.getMessage() for record in caplog.records] == [True]


def test_the_mutex_file_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.text.storage._COMPACT", 2_000)
    with penstock.open(tmp_path / "jobs.tq", sync="never") as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        for _ in range(300):
            queue.claim(2)[0].release()
            for message in queue.messages("in_flight"):
                queue.remove(message.id)
            queue.put(b"c")
        size = (tmp_path / "jobs.tq.mutex").stat().st_size
    assert size < 200_000
    first, *lines = (tmp_path / "jobs.tq.mutex").read_bytes().splitlines()
    assert first.startswith(b"penstock mutex 1 ")
    assert all(json.loads(line[11:]) for line in lines)


def test_with_interval_a_change_after_a_second_makes_durable_what_was_put_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, synced = SimulatedClock(), list[str]()
    with penstock.open(f"text:{tmp_path}", clock=clock, sync="interval") as store:
        queue = store.queue()
        queue.put(b"first")
        sync = SystemFile.sync

        def noted(file: SystemFile) -> None:
            synced.append(os.path.basename(file.path))
            sync(file)

        monkeypatch.setattr(SystemFile, "sync", noted)  # of the whole file: a write that syncs itself would not do
        queue.put(b"second")
        assert synced == []
        clock.advance(1)
        queue.put(b"third")
        assert synced == ["default.tq"]


class FullDisk(SystemDisk):
    """A disk on which one file cannot grow."""

    full = ""

    def open(self, path: StrPath, **how: Any) -> SystemFile:
        file = super().open(path, **how)

        def refusing(write: Callable[[int, Data], None], offset: int, data: Data) -> None:
            if self.full and os.fspath(path).endswith(self.full) and offset + len(data) > file.size():
                raise OSError(errno.ENOSPC, "no space")
            write(offset, data)

        def refusing_to_append(append: Callable[..., int], data: Data, *, sync: bool = False) -> int:
            if self.full and os.fspath(path).endswith(self.full):
                raise OSError(errno.ENOSPC, "no space")
            return append(data, sync=sync)

        for name in ("write", "write_through"):
            setattr(file, name, partial(refusing, getattr(file, name)))
        setattr(file, "append", partial(refusing_to_append, file.append))  # noqa: B010 - as above
        return file


def test_a_publish_for_which_there_is_no_space_in_one_queue_is_in_none(tmp_path: Path) -> None:
    disk = FullDisk()
    with Store("", open_text(f"text:{tmp_path}", disk=disk)) as store:
        queues = [store.create(name, filter="priority = 1") for name in ("a", "b")]
        disk.full = "b.tq"
        with pytest.raises(penstock.DiskFull, match="nothing was changed: free some"):
            store.publish(b"x", priority=1)
        assert [len(queue) for queue in queues] == [0, 0]
        disk.full = ""
        store.publish(b"y", priority=1)
        assert [message.payload for queue in queues for message in queue.claim(5)] == [b"y", b"y"]


@pytest.mark.parametrize("url", ["text:{}/data", "{}/jobs.tq"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC])
def test_a_disk_that_fails_while_a_store_is_opened_is_named(tmp_path: Path, url: str, code: int) -> None:
    class FailingDisk(SystemDisk):
        def sync_folder(self, path: StrPath) -> None:
            raise OSError(code, os.strerror(code), path)

    with pytest.raises(penstock.StoreUnavailable, match=str(tmp_path)):
        open_text(url.format(tmp_path), disk=FailingDisk())
