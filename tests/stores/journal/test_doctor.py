"""The doctor of journal stores: every kind of finding, made for real, and that looking changes nothing."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock import Draft, SimulatedClock, Store
from penstock.stores.journal import format as kestrel
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.doctor import Examination, Finding, QueueExamination, examine
from penstock.stores.journal.reading import read_groups
from penstock.stores.journal.store import open_journal
from penstock.system.files import SystemDisk
from tests.simulated_disk import SimulatedDisk
from tests.stores.journal.journals import NOW, VECTORS, flip, item, written


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every name in a folder, with the content and when it was changed."""
    return {
        str(path.relative_to(folder)): (b"" if path.is_dir() else path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def examined(folder: Path, now: int | None = NOW, **arguments: Any) -> Examination[QueueExamination]:
    before = everything(folder)
    examination = examine(folder, now=now, **arguments)
    assert everything(folder) == before
    return examination


def jobs_of(examination: Examination[QueueExamination]) -> QueueExamination:
    [queue] = [queue for queue in examination.queues if queue.name == "jobs"]
    return queue


def found(examination: Examination[QueueExamination], words: str) -> Finding:
    """The one finding that has these words."""
    [finding] = [each for _, each in examination.all_findings() if words in each.text]
    return finding


def closed(folder: Path, *payloads: bytes) -> Path:
    """A store that was closed, with a group for each payload."""
    with penstock.open(folder, clock=SimulatedClock()) as store:
        jobs = store.create("jobs")
        for payload in payloads:
            jobs.put(payload)
    return folder


def killed(folder: Path, *payloads: bytes, segment_size: int = 1 << 20) -> Path:
    """The same as a kill leaves it: a copy of the folder of an open store."""
    backend = open_journal(folder / "alive", clock=SimulatedClock(), segment_size=segment_size)
    with Store("alive", backend) as store:
        jobs = store.create("jobs")
        for payload in payloads:
            jobs.put(payload)
        shutil.copytree(folder / "alive", folder / "killed")
    return folder / "killed"


def groups(file: Path) -> list[tuple[int, int]]:
    """Where each group of a file starts and ends."""
    with SystemDisk().open(file) as opened:
        return [(start, start + group.length) for start, group in read_groups(opened, opened.size(), 0)]


def packed(folder: Path, *removed: str) -> int:
    """Pack the queue, without some messages; the bytes it freed."""
    with penstock.open(folder, clock=SimulatedClock()) as store:
        store.queue("jobs").remove(*removed)
        freed: int = store.backend.pack("jobs")  # type: ignore[attr-defined]
    return freed


def payloads(folder: Path, **arguments: Any) -> list[bytes]:
    with penstock.open(folder, clock=SimulatedClock(), **arguments) as store:
        return [message.payload for message in store.queue("jobs").messages()]


# What is there


def test_a_store_that_was_closed_is_sound_and_its_messages_are_counted_by_state(tmp_path: Path) -> None:
    with penstock.open(tmp_path, clock=SimulatedClock()) as store:
        jobs = store.create("jobs", max_attempts=1, keep_done=60)
        jobs.put_many([b"done", b"failed", b"held", Draft(b"later", delay=60), b"waits"])
        done, failed, _ = jobs.claim(3)
        done.ack()
        failed.fail(reason="no")
        store.queue().put(b"x")
        counts = jobs.counts()
    examination = examined(tmp_path)
    assert examination.sound
    assert examination.holder is None
    assert {queue.name for queue in examination.queues} == {"default", "jobs"}
    jobs_found = jobs_of(examination)
    assert jobs_found.counts == counts == dict.fromkeys(counts, 1)
    assert (jobs_found.files, jobs_found.groups) == (1, 4)
    assert jobs_found.bytes == (tmp_path / "jobs").stat().st_size
    assert {each.severity for _, each in examination.all_findings()} == {"ok"}
    assert found(examination, "4 groups and 5 messages, all of them whole")


def test_files_and_groups_are_counted_over_rotation_and_packing(tmp_path: Path) -> None:
    backend = open_journal(tmp_path, clock=SimulatedClock(), segment_size=400)
    with Store("rotating", backend) as store:
        jobs = store.create("jobs")
        for number in range(20):
            jobs.put(b"%d" % number)
        rotated = len(list(tmp_path.glob("jobs*")))
    assert rotated > 3
    before = jobs_of(examined(tmp_path))
    assert (before.files, before.groups) == (rotated, 20)
    with Store("packing", open_journal(tmp_path, clock=SimulatedClock())) as store:
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        store.queue("jobs").put(b"more")
    after = jobs_of(examined(tmp_path))
    assert (after.files, after.groups, after.counts["available"]) == (2, 3, 21)


def test_leases_and_messages_whose_time_is_over_show_as_of_now(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(tmp_path, clock=clock) as store:
        jobs = store.create("jobs", max_attempts=2)
        jobs.put_many([b"a", b"b", b"c", Draft(b"gone", retention=5), Draft(b"later", delay=5)])
        jobs.claim(2, lease=5)
        jobs.claim(1, lease=50)
    early, late = examined(tmp_path, clock.now() + 4_999), examined(tmp_path, clock.now() + 5_000)
    assert jobs_of(early).counts == {"delayed": 1, "available": 1, "in_flight": 3, "done": 0, "failed": 0}
    assert all(finding.severity == "ok" for _, finding in early.all_findings())
    assert jobs_of(late).counts == {"delayed": 0, "available": 3, "in_flight": 1, "done": 0, "failed": 0}
    assert found(late, "the leases of 2 messages ended without an ack").severity == "note"
    assert found(late, "1 message expired").severity == "note"
    assert late.sound


def test_a_clock_that_is_behind_the_journal_is_noted(tmp_path: Path) -> None:
    closed(tmp_path, b"x")
    assert "look at the machine's clock" in found(examined(tmp_path, NOW - 90_000), "90 s ahead of the clock").next


def test_what_packing_would_free_is_about_what_it_frees(tmp_path: Path) -> None:
    with penstock.open(tmp_path, clock=SimulatedClock()) as store:
        jobs = store.create("jobs")
        jobs.put_many([Draft(b"x" * 3_000, headers={"kind": "test"}) for _ in range(2_000)])
        jobs.ack(*jobs.claim(1_500))
    examination = examined(tmp_path)
    estimate = jobs_of(examination).packing_frees
    assert "`penstock pack jobs`" in found(examination, "packing would free about").next
    assert packed(tmp_path) == pytest.approx(estimate, rel=0.01)
    assert jobs_of(examined(tmp_path)).packing_frees < 1_000


def test_a_folder_that_is_not_there_is_a_problem_and_is_not_made(tmp_path: Path) -> None:
    examination = examined(tmp_path / "missing")
    assert not examination.sound
    assert "check the name" in found(examination, "there is no folder").next
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_bytes(b"")
    assert not examine(tmp_path / "file").sound


def test_an_empty_folder_stays_empty_and_an_unknown_dialect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"none of doc, 2\.x"):
        examine(tmp_path, dialect="3.x")  # type: ignore[arg-type]
    examination = examined(tmp_path)
    assert examination.sound
    assert found(examination, "Penstock never opened this folder").severity == "note"
    assert not examination.queues


# Ends


def test_a_kill_leaves_a_store_that_is_sound_but_was_not_closed(tmp_path: Path) -> None:
    folder = killed(tmp_path, b"a", b"b")
    examination = examined(folder)
    assert examination.sound
    assert found(examination, "the store was not closed").severity == "note"
    assert jobs_of(examination).counts["available"] == 2


def tear_off(file: Path, start: int, end: int) -> None:
    os.truncate(file, end - 3)


def leave_filling(file: Path, start: int, end: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: start + 60] + b"\x01" * (len(data) - start - 60))


@pytest.mark.parametrize("tear", [tear_off, leave_filling])
def test_a_torn_end_is_a_note_until_opening_has_moved_it(
    tmp_path: Path, tear: Callable[[Path, int, int], None]
) -> None:
    folder = killed(tmp_path, b"a", b"b", b"c")
    start, end = groups(folder / "jobs")[-1]
    tear(folder / "jobs", start, end)
    examination = examined(folder)
    finding = found(examination, "that are no whole group")
    assert examination.sound
    assert (finding.severity, finding.file, finding.offset) == ("note", str(folder / "jobs"), start)
    assert jobs_of(examination).counts["available"] == 2
    assert payloads(folder) == [b"a", b"b"]
    again = examined(folder)
    assert found(again, "bytes that could not be read were once moved to").severity == "note"
    assert jobs_of(again).counts["available"] == 2


@pytest.mark.parametrize("cut", [5, 0])
def test_an_end_that_is_missing_from_a_store_that_was_closed_is_a_problem(tmp_path: Path, cut: int) -> None:
    closed(tmp_path, b"a", b"b", b"c")
    start, _ = groups(tmp_path / "jobs")[-1]
    os.truncate(tmp_path / "jobs", start + cut)
    examination = examined(tmp_path)
    assert not examination.sound
    [problem] = [each for each in jobs_of(examination).findings if each.severity == "problem"]
    assert "2 messages can be saved from before that place, 0 from after it" in problem.text
    with pytest.raises(penstock.StoreCorrupt):
        payloads(tmp_path)


# Damage


def test_damage_in_the_middle_says_what_can_be_saved_and_the_advice_works(tmp_path: Path) -> None:
    folder = killed(tmp_path, b"a", b"b", b"c", b"d", b"e")
    start, end = groups(folder / "jobs")[2]
    flip(folder / "jobs", (start + end) // 2)
    examination = examined(folder)
    finding = found(examination, f"jobs is damaged at offset {start}, where group 3 should be")
    assert not examination.sound
    assert (finding.severity, finding.file, finding.offset) == ("problem", str(folder / "jobs"), start)
    assert "2 messages can be saved from before that place, 2 from after it" in finding.text
    assert f"`truncate -s {start} jobs` and remove .penstock/clean" in finding.next
    with pytest.raises(penstock.StoreCorrupt):
        payloads(folder)
    os.truncate(folder / "jobs", start)
    (folder / ".penstock" / "clean").unlink(missing_ok=True)
    assert payloads(folder) == [b"a", b"b"]
    assert examined(folder).sound


def test_what_was_settled_after_the_damage_need_not_be_saved(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with penstock.open(tmp_path / "alive", clock=SimulatedClock(), share=False) as store:
        jobs = store.create("jobs")
        for payload in (b"a", b"b", b"c", b"d"):
            jobs.put(payload)
        jobs.ack(*jobs.claim(2))
        jobs.pop()
        jobs.put(b"e")
        shutil.copytree(tmp_path / "alive", folder)
    flip(folder / "jobs", groups(folder / "jobs")[1][0] + 70)
    assert found(examined(folder), "0 messages can be saved from before that place, 2 from after it")


def test_a_flipped_byte_in_a_body_that_a_snapshot_hides_is_found_and_the_advice_works(tmp_path: Path) -> None:
    closed(tmp_path, b"aaaaaaaa", b"bbbbbbbb", b"cccccccc")
    data = (tmp_path / "jobs").read_bytes()
    flip(tmp_path / "jobs", data.index(b"bbbbbbbb"))
    examination = examined(tmp_path)
    finding = found(examination, "1 message (2) cannot be read any more")
    assert finding.severity == "problem"
    assert "`penstock remove jobs 2`, then `penstock pack jobs`" in finding.next
    assert jobs_of(examination).counts["available"] == 3
    with pytest.raises(penstock.StoreCorrupt):
        payloads(tmp_path)
    packed(tmp_path, "2")
    assert payloads(tmp_path) == [b"aaaaaaaa", b"cccccccc"]
    assert examined(tmp_path).sound


def test_damage_that_hits_no_message_is_still_a_problem(tmp_path: Path) -> None:
    with penstock.open(tmp_path, clock=SimulatedClock()) as store:
        jobs = store.create("jobs")
        jobs.put(b"settled")
        jobs.put(b"waits")
        jobs.pop()
    flip(tmp_path / "jobs", (tmp_path / "jobs").read_bytes().index(b"settled"))
    finding = found(examined(tmp_path), "no message is damaged")
    assert finding.severity == "problem"
    packed(tmp_path)
    assert examined(tmp_path).sound


def test_a_file_that_is_missing_in_between_is_a_problem(tmp_path: Path) -> None:
    folder = killed(tmp_path, *[b"%d" % number for number in range(12)], segment_size=400)
    rotated = sorted(folder.glob("jobs.*"))
    lost = len(groups(rotated[1]))
    rotated[1].unlink()
    examination = examined(folder)
    finding = found(examination, "a file of this journal, or a part of one, is missing")
    kept = len(groups(rotated[0]))
    assert f"{kept} messages can be saved from before that place, {12 - kept - lost} from after it" in finding.text
    with pytest.raises(penstock.StoreCorrupt):
        payloads(folder)


def test_a_packed_file_without_its_end_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with penstock.open(tmp_path / "alive", clock=SimulatedClock(), share=False) as store:
        store.create("jobs").put_many([b"x" * 3_000_000, b"y" * 3_000_000, b"z"])
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        shutil.copytree(tmp_path / "alive", folder)
    [pack] = folder.glob("jobs.*")
    os.truncate(pack, groups(pack)[1][0])
    finding = found(examined(folder), "has lost its end")
    assert finding.severity == "problem"
    assert "1 message can be saved" in finding.text


def test_a_folder_in_the_place_of_a_journal_is_a_problem(tmp_path: Path) -> None:
    closed(tmp_path)
    (tmp_path / "jobs").unlink(missing_ok=True)
    (tmp_path / "jobs").mkdir()
    assert found(examined(tmp_path), "a file cannot be read: Is a directory").severity == "problem"


@pytest.mark.parametrize("name", ["queues/jobs", "store"])
def test_a_damaged_file_of_the_subfolder_is_a_problem(tmp_path: Path, name: str) -> None:
    with penstock.open(tmp_path, clock=SimulatedClock()) as store:
        store.create("old")
        store.create("jobs").put(b"x")
        store.delete("old")
    flip(tmp_path / ".penstock" / name, 10)
    examination = examined(tmp_path)
    finding = found(examination, "its checksum is wrong")
    assert (finding.severity, finding.file) == ("problem", str(tmp_path / ".penstock" / name))
    assert jobs_of(examination).counts["available"] == 1
    with pytest.raises(penstock.StoreCorrupt):
        payloads(tmp_path)


def test_a_snapshot_that_does_not_hold_is_a_note(tmp_path: Path) -> None:
    closed(tmp_path, b"a", b"b")
    index = tmp_path / ".penstock" / "index" / "jobs"
    whole = index.read_bytes()
    flip(index, 20)
    assert found(examined(tmp_path), "the snapshot of the queue's index is not whole").severity == "note"
    index.write_bytes(whole)
    packed(tmp_path, "1")
    index.write_bytes(whole)
    examination = examined(tmp_path)
    assert found(examination, "is of another time than the journal").file == str(index)
    assert examination.sound


def small_world() -> SimulatedDisk:
    """A closed store with a little of everything, on a simulated disk."""
    disk = SimulatedDisk(Random(0))
    with Store("small", open_journal("data", clock=SimulatedClock(), disk=disk, segment_size=600)) as store:
        jobs = store.create("jobs", keep_done=60)
        for number in range(3):
            jobs.put(b"%d" % number * 20, headers={"kind": "test"})
        jobs.ack(*jobs.claim())
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        for number in range(3, 8):
            jobs.put(b"%d" % number * 20)
        jobs.claim(2)
    return disk


def variants(disk: SimulatedDisk, closed: bool) -> Iterator[tuple[str, SimulatedDisk]]:
    """The disk with one byte changed, for every third byte of each file."""
    if not closed:
        disk = disk.if_it_crashed(Random(0), "everything")
        disk.unlink("data/.penstock/clean")
        for name in disk.listdir("data/.penstock/index"):
            disk.unlink(f"data/.penstock/index/{name}")
    for path, content in sorted(disk.files().items()):
        for position in range(0, len(content), 3):
            copy = disk.if_it_crashed(Random(0), "everything")
            with copy.open(path) as file:
                file.write(position, bytes([content[position] ^ 1 << position % 8]))
                file.sync()
            yield f"{path} at {position}", copy


def listing(disk: SimulatedDisk) -> dict[str, dict[str, int]] | None:
    """What an opened store shows; None if it, or one of its messages, is damaged."""
    try:
        with Store("again", open_journal("data", clock=SimulatedClock(), disk=disk)) as store:
            for info in store.queues():
                list(store.queue(info.name).messages())
            return {info.name: info.counts for info in store.queues()}
    except penstock.StoreCorrupt:
        return None


@pytest.mark.parametrize("closed", [True, False])
def test_whatever_byte_is_damaged_the_doctor_says_beforehand_what_opening_will_say(closed: bool) -> None:
    refused = 0
    for name, disk in variants(small_world(), closed):
        before = disk.files()
        examination = examine("data", disk, now=NOW)
        assert disk.files() == before, name
        opened = listing(disk)
        refused += opened is None
        if examination.sound:
            counts = {queue.name: queue.counts for queue in examination.queues}
            assert opened is not None, name
            assert {queue: opened[queue] for queue in counts} == counts, name
        elif opened is not None:  # it opens all the same, thanks to its snapshot, and no message is hit
            assert found(examination, "no message is damaged"), name
    assert refused > 100


# Leftovers


def test_a_temporary_file_is_a_note_until_opening_has_removed_it(tmp_path: Path) -> None:
    closed(tmp_path, b"a")
    (tmp_path / "jobs~~1700000000000").write_bytes(b"half a pack")
    (tmp_path / "other~~1700000000000").write_bytes(b"")
    examination = examined(tmp_path)
    assert examination.sound
    assert found(examination, "jobs~~1700000000000 is a temporary file").next == "nothing: opening removes it"
    assert found(examination, "other~~1700000000000 is a temporary file").next == "remove it"
    payloads(tmp_path)
    assert not (tmp_path / "jobs~~1700000000000").exists()


def test_dead_files_beside_a_packed_one_are_notes_until_opening_has_removed_them(tmp_path: Path) -> None:
    closed(tmp_path, b"a", b"b")
    dead = (tmp_path / "jobs").read_bytes()
    packed(tmp_path, "1")
    [pack] = tmp_path.glob("jobs.*")
    pack.rename(f"{pack}.pack")
    pack.write_bytes(dead)
    (tmp_path / "jobs.5").write_bytes(dead)
    examination = examined(tmp_path)
    assert examination.sound
    for name in ("jobs.5", pack.name):
        assert found(examination, f"{name} is dead").severity == "note"
    assert found(examination, f"{pack.name}.pack was packed, and then came a crash").severity == "note"
    assert jobs_of(examination).counts["available"] == 1
    assert payloads(tmp_path) == [b"b"]
    assert {each.severity for _, each in examined(tmp_path).all_findings()} == {"ok"}


def test_unfinished_files_of_the_subfolder_and_a_damaged_mark_of_closing_are_notes(tmp_path: Path) -> None:
    closed(tmp_path, b"a")
    flip(tmp_path / ".penstock" / "clean", 3)
    for name in ("clean.new", "queues/jobs.new", "index/jobs.new"):
        (tmp_path / ".penstock" / name).write_bytes(b"half")
    examination = examined(tmp_path)
    assert examination.sound
    texts = [each.text for _, each in examination.all_findings()]
    assert len([text for text in texts if "was being written when a crash came" in text]) == 3
    assert found(examination, "the mark that the store was closed is damaged").severity == "note"
    assert payloads(tmp_path) == [b"a"]


def test_the_remains_of_a_deleted_queue_are_a_note_until_opening_has_removed_them(tmp_path: Path) -> None:
    closed(tmp_path, b"a")
    catalog = Catalog(str(tmp_path), SystemDisk())
    catalog.keep("jobs", replace(catalog.entries()["jobs"], deleted=True))
    (tmp_path / "jobs.5").write_bytes(b"")
    examination = examined(tmp_path)
    assert examination.sound
    assert found(examination, "queue jobs was deleted, but not all of its files").severity == "note"
    assert "jobs" not in [queue.name for queue in examination.queues]
    with penstock.open(tmp_path) as store:
        assert [info.name for info in store.queues()] == ["default"]
    assert not list(tmp_path.glob("jobs*"))


def test_a_file_that_would_stop_a_kestrel_is_a_note_and_a_folder_is_nothing(tmp_path: Path) -> None:
    closed(tmp_path, b"a")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / ".hidden").write_text("hello")
    (tmp_path / "folder").mkdir()
    examination = examined(tmp_path)
    for name in ("notes.txt", ".hidden"):
        assert found(examination, f"{name} is no journal").severity == "note"
    assert "folder" not in [queue.name for queue in examination.queues]
    assert examination.sound


# Kestrel


def test_a_folder_that_kestrel_left_is_explained_before_it_is_adopted(tmp_path: Path) -> None:
    (tmp_path / "jobs.100").write_bytes(written(item(b"a"), item(b"b")))
    (tmp_path / "jobs").write_bytes(written(kestrel.Remove(), item(b"c")))
    examination = examined(tmp_path)
    assert examination.sound
    assert found(examination, "it has nothing but journals of another program").severity == "note"
    assert found(examination, "another program, as Kestrel, wrote 4 entries, which brought 2 messages")
    assert jobs_of(examination).counts["available"] == 2
    assert not (tmp_path / ".penstock").exists()
    assert payloads(tmp_path) == [b"b", b"c"]
    assert found(examined(tmp_path), "2 groups and 2 messages, all of them whole")


def test_what_kestrel_appended_to_a_journal_of_ours_is_explained(tmp_path: Path) -> None:
    closed(tmp_path, b"a", b"b")
    with (tmp_path / "jobs").open("ab") as file:
        file.write(written(kestrel.ConfirmRemove(1), item(b"c")))
    examination = examined(tmp_path)
    assert found(examination, "wrote 2 entries, which brought 1 message and took 1 message of ours")
    assert jobs_of(examination).counts["available"] == 2
    assert payloads(tmp_path) == [b"b", b"c"]


def test_what_cannot_be_read_of_kestrels_journal_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(written(item(b"a"), item(b"b"))[:-1])
    examination = examined(tmp_path)
    finding = found(examination, "cannot be read from offset 22 on")
    assert (finding.severity, finding.offset) == ("problem", 22)
    assert jobs_of(examination).counts["available"] == 1
    assert payloads(tmp_path) == [b"a"]


@pytest.mark.parametrize(
    "vector", [each for each in VECTORS["vectors"] if each["files"]], ids=lambda vector: vector["name"]
)
def test_of_every_published_journal_the_doctor_sees_what_opening_makes_of_it(
    tmp_path: Path, vector: dict[str, Any]
) -> None:
    for name, content in vector["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    dialect: kestrel.Dialect = "2.x" if vector["dialect"] == "2.x" else "doc"
    counts = {queue.name: queue.counts for queue in examined(tmp_path, dialect=dialect).queues}
    with penstock.open(tmp_path, clock=SimulatedClock(), dialect=dialect) as store:
        opened = {info.name: info.counts for info in store.queues()}
    assert {name: opened[name] for name in counts} == counts


# A store that is open


def test_a_store_that_another_process_has_open_is_examined_and_the_process_named(tmp_path: Path) -> None:
    code = (
        "import sys, penstock; store = penstock.open(sys.argv[1], share=False);"
        "jobs = store.create('jobs');"
        "jobs.put(b'a'); jobs.claim(lease=3600); jobs.put(b'b'); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin
    assert holder.stdout
    with holder, holder.stdin:
        holder.stdout.readline()
        examination = examined(tmp_path, None)
        assert examination.holder == f"pid {holder.pid}"
        finding = found(
            examination, f"the store is open in pid {holder.pid}: the end of a journal may be in motion"
        )
        assert finding.severity == "note"
        assert examination.sound
        assert jobs_of(examination).counts == {
            "delayed": 0, "available": 1, "in_flight": 1, "done": 0, "failed": 0,
        }  # fmt: skip
    assert examined(tmp_path, None).holder is None


def test_a_torn_end_of_a_store_that_is_open_may_only_be_in_motion(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put_many([b"a"])
        with (tmp_path / "jobs").open("r+b") as file:
            start, _ = groups(tmp_path / "jobs")[0]
            file.seek(start + 60)
            file.write(b"\x01" * 20)
        assert found(examine(tmp_path), "the store is open, and may just write there").severity == "note"


def test_a_store_at_work_is_found_sound_all_the_time(tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            jobs.put_many([b"x" * 50] * 3)
            jobs.ack(*jobs.claim(3 if number % 100 else 1_000))
            if number % 10 == 0:
                store.backend.pack("jobs")  # type: ignore[attr-defined]
            if number % 35 == 0:
                store.create("other").put(b"x")
                store.delete("other")

    with Store("busy", open_journal(tmp_path, sync="never", segment_size=2_000)) as store:
        jobs = store.create("jobs")
        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(60):
                examination = examine(tmp_path)
                assert examination.sound, examination.all_findings()
                assert examination.holder == f"pid {os.getpid()}"
        finally:
            stop.set()
            worker.join()


@pytest.mark.parametrize("pack", [False, True])
def test_messages_of_groups_are_examined_like_others(tmp_path: Path, pack: bool) -> None:
    backend = open_journal(tmp_path, clock=SimulatedClock(NOW))
    with Store("", backend) as store:
        queue = store.create("jobs", max_attempts=1)
        queue.put_many([Draft(b"x", group=group) for group in ("a", "a", None, "b")])
        queue.fail(queue.claim(3)[0])
        queue.redrive()
        if pack:
            backend.pack("jobs")
    examination = examined(tmp_path)
    assert examination.sound
    assert jobs_of(examination).counts == {"delayed": 0, "available": 2, "in_flight": 2, "done": 0, "failed": 0}
