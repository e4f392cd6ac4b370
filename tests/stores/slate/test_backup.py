"""`penstock backup` of a slate store: a copy of one moment, whole or not there, while traffic runs."""

import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock import InvalidArgument, NotSupported, PenstockError
from penstock.cli import cli
from penstock.contract.message import Plain
from penstock.errors import StoreCorrupt
from penstock.stores.slate.backups import backup
from penstock.stores.slate.doctor import examine
from penstock.stores.slate.folder import Folder
from penstock.stores.slate.loads import Frame, Load
from penstock.stores.slate.store import open_slate
from penstock.wire.frames import encode_entries
from tests.stores.slate.test_doctor import filled


def contents(url: str) -> dict[str, list[tuple[str, bytes, str]]]:
    with penstock.open(url, share=False) as store:
        return {
            info.name: [(each.id, each.payload, each.state) for each in store.queue(info.name).messages()]
            for info in store.queues()
        }


def test_a_copy_is_a_store_with_the_same_messages(tmp_path: Path) -> None:
    url, dest = f"slate:{tmp_path / 'store'}", tmp_path / "copy"
    filled(url)
    made = backup(url, dest)
    assert made.queues["orders"]["available"] == 2
    assert sorted(os.listdir(tmp_path)) == ["copy", "store"]
    expected = contents(url)
    assert contents(f"slate:{dest}") == expected
    with penstock.open(f"slate:{dest}", share=False) as store:
        orders = store.queue("orders")
        for number in range(5):  # two of them are there, the others follow from the log
            [message] = orders.claim(wait=60)
            assert message.payload == b"%d" % number
            message.ack()
        store.publish(b"new", headers={"type": "order"})
        store.backend.collect()  # type: ignore[attr-defined]
    with penstock.open(f"slate:{dest}", share=False) as store:
        assert [message.payload for message in store.queue("orders").messages()] == [b"new"]
    assert examine(f"slate:{dest}").sound
    assert contents(url) == expected


def test_copies_that_are_made_while_traffic_runs_are_whole_and_of_one_moment(tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        for name in ("a", "b"):
            store.create(name, filter="1 = 1")
        jobs = store.create("jobs")
        stop = threading.Event()
        acknowledged: list[str] = []

        def publish() -> None:
            while not stop.is_set():
                acknowledged.append(store.publish(os.urandom(200)))

        def work() -> None:
            while not stop.is_set():
                jobs.put_many([os.urandom(70_000), b"small"])
                for message in jobs.claim(2):
                    message.ack()

        threads = [threading.Thread(target=each) for each in (publish, publish, work)]
        for thread in threads:
            thread.start()
        try:
            before = []
            for number in range(4):
                while len(acknowledged) < 30 * (number + 1):
                    stop.wait(0.01)
                before.append(len(acknowledged))
                backup(url, tmp_path / f"copy-{number}")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    for number, count in enumerate(before):
        with penstock.open(f"slate:{tmp_path / f'copy-{number}'}", share=False) as copy:
            first, second = ([message.id for message in copy.queue(name).messages()] for name in ("a", "b"))
            assert first == second == sorted(first, key=int)
            assert set(acknowledged[:count]) <= set(first)
            assert len([message.payload for message in copy.queue("jobs").messages()]) in (0, 1, 2)


def test_a_load_that_counts_and_has_not_arrived_is_in_the_copy(tmp_path: Path) -> None:
    folder, dest = tmp_path / "store", tmp_path / "copy"
    backend = open_slate(f"slate:{folder}")
    Folder(str(folder), "never").stage("load", "0", encode_entries(Plain([b"1", b"2"])))
    backend.loads._put_frames = lambda progress: None  # type: ignore[method-assign]
    backend.loads.commit(Load("load", [Frame("default", "0", 2, 2)], {}, None))
    backup(f"slate:{folder}", dest)
    backend.close()
    assert [payload for _, payload, _ in contents(f"slate:{dest}")["default"]] == [b"1", b"2"]
    assert Folder(str(dest), "never").list_loads() == []


def test_damage_is_found_and_there_is_no_copy(tmp_path: Path) -> None:
    folder, dest = tmp_path / "store", tmp_path / "copy"
    filled(f"slate:{folder}")
    [large] = (folder / "objects").iterdir()
    large.unlink()
    with pytest.raises(StoreCorrupt, match="the copy is damaged: 1 large payloads are missing"):
        backup(f"slate:{folder}", dest)
    assert os.listdir(tmp_path) == ["store"]
    assert backup(f"slate:{folder}", dest, verify=False).queues["jobs"]["available"] == 3


def test_what_is_in_the_way_is_left_alone(tmp_path: Path, bucket: str) -> None:
    url, dest = f"slate:{tmp_path / 'store'}", tmp_path / "copy"
    filled(url)
    dest.mkdir()
    (dest / "mine").touch()
    with pytest.raises(PenstockError, match="is not empty"):
        backup(url, dest)
    with pytest.raises(InvalidArgument, match="inside of the store"):
        backup(url, tmp_path / "store" / "copy")
    with pytest.raises(NotSupported, match=r"turn on versioning, .* or copy the messages with `penstock convert"):
        backup(bucket, tmp_path / "other")
    with pytest.raises(PenstockError, match="there is no store"):
        backup(f"slate:{tmp_path / 'nowhere'}", tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["copy", "store"]


def test_the_command_says_what_it_has_copied(tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    filled(url)
    said = CliRunner().invoke(cli, ["--store", url, "backup", str(tmp_path / "copy")])
    assert said.exit_code == 0, said.output
    assert "3 queues" in said.output
    told = CliRunner().invoke(cli, ["--store", url, "backup", str(tmp_path / "again"), "--json"])
    queues = {each["queue"]: each["counts"]["available"] for each in json.loads(told.output)["queues"]}
    assert queues == {"default": 0, "jobs": 3, "orders": 2}
