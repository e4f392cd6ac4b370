"""The doctor for folder stores tells states, holders, strays and leftovers; packing unlinks what it says."""

import json
import os
from pathlib import Path
from typing import cast

from click.testing import CliRunner

import penstock
from penstock import SimulatedClock
from penstock.cli import cli
from penstock.contract.examination import Examination
from penstock.stores.folder import doctor
from penstock.stores.folder.backend import FolderBackend
from penstock.stores.folder.doctor import FolderExamination

GONE = "otherhost.0.1-1.1"  # a process of a host that has been silent for long


def examined(folder: Path, clock: SimulatedClock) -> Examination[FolderExamination]:
    before = state_of(folder)
    found = doctor.examine(str(folder), now=clock.now())
    assert state_of(folder) == before
    return found


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    found = [(str(each), each.lstat().st_mtime_ns, each.lstat().st_ino) for each in folder.rglob("*")]
    return sorted(found)


def jobs(found: Examination[FolderExamination]) -> FolderExamination:
    [queue] = [each for each in found.queues if each.name == "jobs"]
    return queue


def test_it_tells_the_states_that_opening_would_show_and_who_holds_what(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{tmp_path}", clock=clock) as store:
        queue = store.create("jobs", max_attempts=2, keep_done=100)
        queue.put_many([b"a", b"b", b"c", b"d"])
        queue.put(b"later", delay=60)
        queue.put(b"soon gone", retention=20)
        first, second = queue.claim(2, lease=30, consumer="me")
        queue.pop()
        (tmp_path / "queues" / "jobs" / "by hand").write_bytes(b"by hand")
        found = jobs(examined(tmp_path, clock))
        assert found.counts == {"delayed": 1, "available": 3, "in_flight": 2, "done": 1, "failed": 0}
        assert sorted((each.id, each.consumer, each.lease_until, each.attempts) for each in found.held) == sorted(
            (each.id, "me", each.lease_until, 1) for each in (first, second)
        )
        assert {Path(each.file).parent.name for each in found.held} == {"delay"}
        assert found.findings == []
        clock.advance(31)
        found = jobs(examined(tmp_path, clock))
        assert [each.text for each in found.findings] == [
            "the leases of 2 messages ended without an ack",
            "1 message expired",
        ]
        clock.advance(1.1)
        assert found.counts == queue.counts()


def test_packing_unlinks_what_the_doctor_says(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{tmp_path}", clock=clock) as store:
        queue = store.create("jobs")
        other = store.create("other")
        other.remove(other.put(b"of another queue"))
        ids = queue.put_many([b"x" * 10 for _ in range(10)])
        queue.put(b"expires", retention=5)
        queue.ack(*queue.claim(4))
        queue.remove(*ids[8:])
        found = jobs(examined(tmp_path, clock))
        assert (found.packing_frees, found.packing_drops) == (20, 2)
        clock.advance(400)
        found = jobs(examined(tmp_path, clock))
        assert (found.packing_frees, found.packing_drops) == (67, 7)
        backend = cast(FolderBackend, store.backend)
        assert backend.pack("jobs") == 67
        assert backend.stored("jobs") == 40
        found = jobs(examined(tmp_path, clock))
        assert (found.packing_frees, found.packing_drops, found.counts["available"]) == (0, 0, 4)
        assert [each.name.partition(":")[0] for each in (tmp_path / "remove").iterdir()] == ["other"]
        assert [message.payload for message in queue.claim(10)] == [b"x" * 10] * 4


def test_what_a_process_has_left_that_is_gone_is_named(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{tmp_path}", clock=clock) as store:
        store.create("jobs").put(b"a")
        [uid] = [message.id for message in store.queue("jobs").messages()]
        left = tmp_path / ".penstock" / "held" / GONE
        left.mkdir()
        (left / f"queues.0.1:jobs:{uid}").touch()
        (left / "abandoned").touch()
        assert [each.text for each in examined(tmp_path, clock).findings] == [
            f"1 message left in the hands of process {GONE}, which is gone",
            "all messages and settings are as they were written",
        ]
    (tmp_path / "new" / f"jobs:{uid}").touch()
    (tmp_path / "remove" / "stray").touch()
    (tmp_path / ".penstock" / "settings" / "jobs.new").touch()
    (tmp_path / ".penstock" / "long" / "other.1-00000000").touch()
    assert [each.text for each in examined(tmp_path, clock).findings] == [
        f"{tmp_path / 'remove' / 'stray'} is skipped: it is no message of a queue, and the reaper leaves it",
        f"1 message left in the hands of process {GONE}, which is gone",
        f"new/jobs:{uid} was not delivered: its put was cut off, or another program has written it",
        ".penstock/settings/jobs.new was being written when a crash came, and never counted",
        "1 long value that no message names",
        "all messages and settings are as they were written",
    ]


def test_the_commands_print_holders_and_what_was_freed(tmp_path: Path) -> None:
    with penstock.open(f"folder:{tmp_path}") as store:
        queue = store.create("jobs")
        queue.put(b"abc")
        queue.remove(queue.put(b"removed"))
        [held] = queue.claim(lease=600, consumer="me")
    arguments = ["--store", f"folder:{tmp_path}"]
    shown = CliRunner().invoke(cli, [*arguments, "doctor"]).output
    assert held.id in shown
    assert "packing frees" in shown
    told = json.loads(CliRunner().invoke(cli, [*arguments, "doctor", "--json"]).output)
    [told_of] = [each for each in told["queues"] if each["name"] == "jobs"]
    assert (told["sound"], told_of["packing_frees"], told_of["held"][0]["consumer"]) == (True, 7, "me")
    packed = CliRunner().invoke(cli, [*arguments, "pack", "jobs", "--json"])
    assert json.loads(packed.output) == [{"queue": "jobs", "before": 10, "after": 3, "freed": 7}]
    assert os.listdir(tmp_path / "remove") == []
