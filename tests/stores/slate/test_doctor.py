"""`penstock doctor` on slate stores: sound stores, notes on what opening repairs, and problems for people."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import cli
from penstock.contract.examination import Examination
from penstock.stores.slate.doctor import SlateQueue, examine
from penstock.stores.slate.folder import Folder


def filled(url: str) -> None:
    with penstock.open(url, share=False) as store:
        jobs = store.create("jobs", keep_done=None)
        store.create("orders", filter="type = 'order'", max_size=2)
        jobs.put_many([b"12345", b"6" * 70_000, b"done"])
        jobs.put(b"first", priority=0)
        jobs.claim(1)[0].ack()
        for number in range(5):
            store.publish(b"%d" % number, headers={"type": "order"})


def problems(found: Examination[SlateQueue]) -> list[str]:
    return [finding.text for _, finding in found.all_findings() if finding.severity == "problem"]


def notes(found: Examination[SlateQueue]) -> list[str]:
    return [finding.text for _, finding in found.all_findings() if finding.severity == "note"]


def test_a_store_that_was_closed_is_sound_and_its_queues_are_told(url: str) -> None:
    filled(url)
    found = examine(url)
    assert found.sound, problems(found)
    assert notes(found) == []
    assert {queue.name: (sum(queue.counts.values()), queue.lag) for queue in found.queues} == {
        "default": (0, None),
        "jobs": (4, None),
        "orders": (2, 3),
    }
    [jobs] = [queue for queue in found.queues if queue.name == "jobs"]
    assert jobs.bytes == 70_000 + 5 + 4 + 5


def test_a_store_that_is_open_is_looked_at_as_it_is(url: str) -> None:
    filled(url)
    with penstock.open(url) as store:
        store.queue().put(b"new")
        found = examine(url)
        assert found.sound, problems(found)
        assert {queue.name: sum(queue.counts.values()) for queue in found.queues}["default"] == 1


def test_the_command_tells_people_and_programs(tmp_path: Path) -> None:
    filled(f"slate:{tmp_path / 'store'}")
    said = CliRunner().invoke(cli, ["--store", f"slate:{tmp_path / 'store'}", "doctor"])
    assert said.exit_code == 0, said.output
    assert "orders" in said.output
    assert "ok       store:" in said.output
    told = CliRunner().invoke(cli, ["--store", f"slate:{tmp_path / 'store'}", "doctor", "--json"])
    assert '"sound": true' in told.output
    missing = CliRunner().invoke(cli, ["--store", f"slate:{tmp_path / 'nowhere'}", "doctor"])
    assert missing.exit_code == 1
    assert "no store at" in missing.output
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    filled(f"slate:{folder}")
    before = sorted(path for path in folder.rglob("*") if path.is_file())
    examine(f"slate:{folder}")
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("kind", ["wal", "compacted"])
def test_a_flipped_byte_is_found(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "store"
    filled(f"slate:{folder}")
    if kind == "compacted":
        with penstock.open(f"slate:{folder}", share=False) as store:
            store.backend.collect()  # type: ignore[attr-defined]
    path = max((folder / "db" / kind).iterdir(), key=lambda each: each.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    found = examine(f"slate:{folder}")
    if kind == "compacted":
        assert not found.sound
    else:  # of the log only its end may be like that, and was then never acknowledged
        assert any(path.name in text for text in problems(found) + notes(found))


def test_a_large_payload_that_is_missing_is_found_and_one_too_many_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    filled(f"slate:{folder}")
    [large] = (folder / "objects").iterdir()
    large.rename(folder / "objects" / "999")
    found = examine(f"slate:{folder}")
    assert problems(found) == [f"1 large payloads are missing, {os.path.join('objects', large.name)} for example"]
    assert notes(found) == ["1 large payloads belong to messages that are gone, or were never committed"]


def test_what_a_crash_has_left_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    filled(f"slate:{folder}")
    (folder / "db" / "wal" / "00000000000000009999.sst#1").write_bytes(b"half")
    Folder(str(folder), "never").stage("0-0-1767225600000.0123456789abcdef", "a-0", b"sent")
    found = examine(f"slate:{folder}")
    assert found.sound, problems(found)
    assert notes(found) == [
        "1 files were being written when the process that had the store ended",
        "load 0-0-1767225600000.0123456789abcdef was abandoned by a process that has ended",
    ]
