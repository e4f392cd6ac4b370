"""The simulated disk catches the classic mistakes, and passes code that is right."""

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import TypeVar

import pytest

from penstock.system.files import Disk, replace_file, write_hint
from tests.simulated_disk import Keep, SimulatedCrash, SimulatedDisk, SimulatedFile

SEEDS = range(500)
ERRORS = [errno.EIO, errno.ENOSPC]
KEEPS: tuple[Keep, ...] = ("nothing", "some", "everything")
Scenario = Callable[[SimulatedDisk], object]
Seen = TypeVar("Seen")


def nothing(disk: SimulatedDisk) -> None:
    pass


def put(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    with disk.open(path, create=True) as file:
        file.append(data)
        if sync:
            file.sync()


def content(disk: Disk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    with disk.open(path) as file:
        return file.read(0, file.size())


def after_power_cut(scenario: Scenario, look: Callable[[SimulatedDisk], Seen], keep: Keep = "some") -> set[Seen]:
    """All that `look` finds when the power goes at the end of the scenario."""
    seen = set()
    for seed in SEEDS:
        disk = SimulatedDisk(Random(seed))
        scenario(disk)
        seen.add(look(disk.after_crash(Random(seed), keep)))
    return seen


def careless_and_careful(
    scenario: Callable[[SimulatedDisk, bool], object], path: str
) -> tuple[set[bytes | None], set[bytes | None]]:
    """Contents of a file after a power cut: without the step that makes it durable, and with it."""

    def found(careful: bool) -> set[bytes | None]:
        return after_power_cut(lambda disk: scenario(disk, careful), lambda disk: content(disk, path))

    return found(False), found(True)


def crashes(scenario: Scenario, before: Scenario = nothing) -> Iterator[SimulatedDisk]:
    """The disk after a crash in each operation of the scenario, and after the last one."""
    disk = SimulatedDisk(Random(0))
    before(disk)
    first = disk.operations + 1
    scenario(disk)
    for number in range(first, disk.operations + 1):
        for seed in SEEDS:
            disk = SimulatedDisk(Random(seed))
            before(disk)
            disk.crash_at = number
            with pytest.raises(SimulatedCrash):
                scenario(disk)
            yield disk.after_crash(Random(seed))
    for seed in SEEDS:
        disk = SimulatedDisk(Random(seed))
        before(disk)
        scenario(disk)
        yield disk.after_crash(Random(seed))


def failures(scenario: Scenario, before: Scenario = nothing) -> Iterator[SimulatedDisk]:
    """The disk after each operation of the scenario failed in turn, and the scenario with it."""
    disk = SimulatedDisk(Random(0))
    before(disk)
    first = disk.operations + 1
    scenario(disk)
    for number in range(first, disk.operations + 1):
        for seed in SEEDS:
            disk = SimulatedDisk(Random(seed))
            before(disk)
            disk.fail_at(number, ERRORS[seed % 2])
            with pytest.raises(OSError, match=r"Input/output|No space") as failure:
                scenario(disk)
            assert failure.value.errno == ERRORS[seed % 2]
            yield disk


def test_a_rename_without_syncing_the_file_loses_its_content() -> None:
    def replace(disk: SimulatedDisk, sync: bool) -> None:
        put(disk, "/settings.new", b"new", sync=sync)
        disk.rename("/settings.new", "/settings")
        disk.sync_folder("/")

    careless, careful = careless_and_careful(replace, "/settings")
    assert {b"", b"n", b"\0\0w", b"new"} < careless
    assert careful == {b"new"}


def test_a_new_file_without_syncing_its_folder_is_lost() -> None:
    def create(disk: SimulatedDisk, sync_folder: bool) -> None:
        put(disk, "/file", b"data")
        if sync_folder:
            disk.sync_folder("/")

    careless, careful = careless_and_careful(create, "/file")
    assert careless == {None, b"data"}
    assert careful == {b"data"}


def test_a_new_folder_without_syncing_its_parent_is_lost_with_all_that_was_synced_in_it() -> None:
    def create(disk: SimulatedDisk, sync_parent: bool) -> None:
        disk.mkdir("/queue")
        put(disk, "/queue/message", b"data")
        disk.sync_folder("/queue")
        if sync_parent:
            disk.sync_folder("/")

    careless, careful = careless_and_careful(create, "/queue/message")
    assert careless == {None, b"data"}
    assert careful == {b"data"}


def test_an_unlink_or_rmdir_without_syncing_the_folder_is_undone() -> None:
    def remove(disk: SimulatedDisk, sync_folder: bool) -> None:
        disk.mkdir("/folder")
        put(disk, "/file", b"data")
        disk.sync_folder("/")
        disk.unlink("/file")
        disk.rmdir("/folder")
        if sync_folder:
            disk.sync_folder("/")

    def look(disk: SimulatedDisk) -> tuple[bytes | None, bool]:
        return content(disk, "/file"), disk.exists("/folder")

    either = {(b"data", True), (b"data", False), (None, True), (None, False)}
    assert after_power_cut(lambda disk: remove(disk, sync_folder=False), look) == either
    assert after_power_cut(lambda disk: remove(disk, sync_folder=True), look) == {(None, False)}


@pytest.mark.parametrize("error", ERRORS)
def test_a_sync_that_failed_looks_like_success_when_repeated_but_the_data_is_lost(error: int) -> None:
    def append(disk: SimulatedDisk, failing: bool) -> None:
        put(disk, "/journal", b"old ")
        disk.sync_folder("/")
        file = disk.open("/journal")
        file.append(b"new")
        if failing:
            disk.fail_at(disk.operations + 1, error)
            with pytest.raises(OSError, match=r"Input/output|No space"):
                file.sync()
        file.sync()
        assert file.read(0, 7) == b"old new"

    def look(disk: SimulatedDisk) -> bytes | None:
        return content(disk, "/journal")

    found = after_power_cut(lambda disk: append(disk, failing=True), look)
    assert {b"old ", b"old new", b"old n", b"old \0\0w"} < found
    assert after_power_cut(lambda disk: append(disk, failing=True), look, "everything") == found
    assert after_power_cut(lambda disk: append(disk, failing=False), look) == {b"old new"}


def test_what_is_written_again_after_a_failed_sync_is_durable_after_the_next() -> None:
    def append(disk: SimulatedDisk) -> None:
        file = disk.open("/journal", create=True)
        disk.sync_folder("/")
        file.append(b"data")
        disk.fail_at(disk.operations + 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.truncate(0)
        file.write(0, b"data")
        file.sync()

    assert after_power_cut(append, lambda disk: content(disk, "/journal")) == {b"data"}


def test_a_folder_sync_that_failed_looks_like_success_when_repeated_but_the_names_are_lost() -> None:
    def create(disk: SimulatedDisk, failing: bool) -> None:
        put(disk, "/file", b"data")
        if failing:
            disk.fail_at(disk.operations + 1, errno.EIO)
            with pytest.raises(OSError, match="Input/output"):
                disk.sync_folder("/")
        disk.sync_folder("/")
        assert disk.listdir("/") == ["file"]

    careful, careless = careless_and_careful(create, "/file")
    assert careless == {None, b"data"}
    assert careful == {b"data"}


def test_a_truncation_that_was_not_synced_is_undone_and_old_bytes_come_back_after_new_ones() -> None:
    def cut_and_append(disk: SimulatedDisk, sync: bool) -> None:
        put(disk, "/journal", b"good torn")
        disk.sync_folder("/")
        file = disk.open("/journal")
        file.truncate(5)
        if sync:
            file.sync()
        file.append(b"ok")

    careless, careful = careless_and_careful(cut_and_append, "/journal")
    assert {b"good torn", b"good okrn", b"good ", b"good ok"} < careless
    for seen in careful:
        assert seen is not None
        assert seen.startswith(b"good ")
        assert set(seen[5:]) <= set(b"ok\0")


def test_an_append_is_torn_at_every_byte_unless_synced() -> None:
    record = b"record"

    def append(disk: SimulatedDisk, sync: bool) -> None:
        put(disk, "/journal", record, sync=sync)
        disk.sync_folder("/")

    careless, careful = careless_and_careful(append, "/journal")
    assert careless > {record[:size] for size in range(len(record) + 1)}
    assert careful == {record}


def test_an_append_is_torn_in_every_shape_unless_synced() -> None:
    shapes = {
        "lost": rb"",
        "beginning": rb"x{1,999}",
        "end": rb"(?=.{1000}$)\0+x+",
        "inside": rb"(?!.{1000}$)\0+x+",
        "hole": rb"(?=.{1000}$)x+\0+x+",
        "zeros": rb"(?=.{1000}$)x+\0+",
        "whole": rb"x{1000}",
    }

    def append(disk: SimulatedDisk, sync: bool) -> None:
        put(disk, "/journal", b"x" * 1000, sync=sync)
        disk.sync_folder("/")

    def look(disk: SimulatedDisk) -> tuple[str, ...]:
        seen = content(disk, "/journal") or b""
        return tuple(name for name, shape in shapes.items() if re.fullmatch(shape, seen, re.DOTALL))

    found = after_power_cut(lambda disk: append(disk, sync=False), look)
    assert found >= {(name,) for name in shapes}
    assert after_power_cut(lambda disk: append(disk, sync=True), look) == {("whole",)}


def test_a_later_write_survives_an_earlier_one_unless_that_was_synced() -> None:
    def write_twice(disk: SimulatedDisk, sync: bool) -> None:
        file = disk.open("/journal", create=True)
        disk.sync_folder("/")
        file.append(b"A")
        if sync:
            file.sync()
        file.append(b"B")

    careless, careful = careless_and_careful(write_twice, "/journal")
    assert careless == {b"", b"A", b"AB", b"\0", b"\0B", b"A\0", b"\0\0"}
    assert careful == {b"A", b"A\0", b"AB"}


def test_an_overwrite_of_one_byte_is_old_or_new() -> None:
    def mark(disk: SimulatedDisk) -> None:
        put(disk, "/queue", b"-message\n")
        disk.sync_folder("/")
        disk.open("/queue").write(0, b"=")

    assert after_power_cut(mark, lambda disk: content(disk, "/queue")) == {b"-message\n", b"=message\n"}


def test_syncing_the_source_folder_before_the_target_can_lose_a_renamed_file() -> None:
    def before(disk: SimulatedDisk) -> None:
        disk.mkdir("/new")
        disk.mkdir("/queue")
        disk.sync_folder("/")
        put(disk, "/new/message", b"data")
        disk.sync_folder("/new")

    def move(disk: SimulatedDisk, first: str, second: str) -> None:
        disk.rename("/new/message", "/queue/message")
        disk.sync_folder(first)
        disk.sync_folder(second)

    def look(disk: SimulatedDisk) -> tuple[bytes | None, bytes | None]:
        return content(disk, "/new/message"), content(disk, "/queue/message")

    lost, not_moved, moved, both = (None, None), (b"data", None), (None, b"data"), (b"data", b"data")
    source_first = {look(disk) for disk in crashes(lambda disk: move(disk, "/new", "/queue"), before)}
    target_first = {look(disk) for disk in crashes(lambda disk: move(disk, "/queue", "/new"), before)}
    assert source_first == {lost, not_moved, moved}
    assert target_first == {not_moved, moved, both}


def test_a_rename_that_was_not_synced_is_done_or_not_and_never_half() -> None:
    def move(disk: SimulatedDisk, target: str) -> None:
        disk.mkdir("/folder")
        put(disk, "/a", b"data")
        disk.sync_folder("/")
        disk.rename("/a", target)

    def names(disk: SimulatedDisk) -> tuple[str, ...]:
        return tuple(sorted(disk.listdir("/") + disk.listdir("/folder")))

    either = {("a", "folder"), ("b", "folder")}
    assert after_power_cut(lambda disk: move(disk, "/b"), names) == either
    assert after_power_cut(lambda disk: move(disk, "/folder/b"), names) == either


def test_a_change_of_a_name_never_outlives_the_one_it_builds_on() -> None:
    def rotate(disk: SimulatedDisk) -> None:
        put(disk, "/journal", b"old")
        disk.sync_folder("/")
        disk.rename("/journal", "/journal.1")
        put(disk, "/journal", b"new")

    def look(disk: SimulatedDisk) -> tuple[bytes | None, bytes | None]:
        return content(disk, "/journal.1"), content(disk, "/journal")

    assert after_power_cut(rotate, look) == {(None, b"old"), (b"old", None), (b"old", b"new")}


def test_two_names_of_one_file_are_still_one_file_after_a_crash() -> None:
    def pin(disk: SimulatedDisk) -> None:
        put(disk, "/segment", b"data", sync=False)
        disk.link("/segment", "/pin")
        disk.sync_folder("/")

    def look(disk: SimulatedDisk) -> bool:
        with disk.open("/segment") as file:
            file.append(b"more")
        return content(disk, "/segment") == content(disk, "/pin")

    assert after_power_cut(pin, look) == {True}


def test_replace_file_leaves_old_or_new_content_wherever_it_crashes() -> None:
    def before(disk: SimulatedDisk) -> None:
        put(disk, "/settings", b"the old content")
        disk.sync_folder("/")

    def careless(disk: SimulatedDisk) -> None:
        with disk.open("/settings") as file:
            file.truncate(0)
            file.write(0, b"the new content")
            file.sync()

    def safe(disk: SimulatedDisk) -> None:
        replace_file(disk, "/settings", b"the new content")

    whole = {b"the old content", b"the new content"}
    assert {content(disk, "/settings") for disk in crashes(careless, before)} > whole | {b""}
    assert {content(disk, "/settings") for disk in crashes(safe, before)} == whole
    assert {content(disk, "/settings") for disk in crashes(safe)} == {None, b"the new content"}


def test_replace_file_is_durable_once_it_returned_even_over_what_a_crash_left_behind() -> None:
    def interrupted_and_repeated(disk: SimulatedDisk) -> None:
        replace_file(disk, "/settings", b"first")
        put(disk, "/settings.new", b"what a crash left behind", sync=False)
        replace_file(disk, "/settings", b"second")

    def look(disk: SimulatedDisk) -> bytes | None:
        return content(disk, "/settings")

    assert after_power_cut(interrupted_and_repeated, look) == {b"second"}


def test_replace_file_that_fails_leaves_old_or_new_content_and_no_temporary_also_after_a_crash() -> None:
    def before(disk: SimulatedDisk) -> None:
        replace_file(disk, "/settings", b"old")

    running, restarted = set(), set()
    for disk in failures(lambda disk: replace_file(disk, "/settings", b"new"), before):
        assert disk.listdir("/") == ["settings"]
        running.add(content(disk, "/settings"))
        restarted.add(content(disk.after_crash(disk.random), "/settings"))
    assert running == restarted == {b"old", b"new"}


def test_the_operation_that_crashes_happened_or_not_and_the_machine_is_off_after_it() -> None:
    happened = set()
    for seed in SEEDS:
        disk = SimulatedDisk(Random(seed))
        file = disk.open("/file", create=True)
        disk.crash_at = 2
        with pytest.raises(SimulatedCrash, match="operation 2: sync_folder /"):
            disk.sync_folder("/")
        for call in (file.size, file.sync, file.close, lambda disk=disk: disk.exists("/file")):
            with pytest.raises(SimulatedCrash, match="the machine is off"):
                call()
        happened.add(disk.after_crash(Random(seed), keep="nothing").exists("/file"))
    assert happened == {False, True}


def test_a_crash_is_not_swallowed_by_a_handler_of_exceptions() -> None:
    def careless(disk: SimulatedDisk) -> None:
        with suppress(Exception):
            disk.mkdir("/folder")

    disk = SimulatedDisk(Random(0))
    disk.crash_at = 1
    with pytest.raises(SimulatedCrash):
        careless(disk)


def test_the_extremes_are_that_nothing_or_everything_unsynced_is_kept() -> None:
    def work(disk: SimulatedDisk) -> None:
        put(disk, "/file", b"old")
        disk.sync_folder("/")
        put(disk, "/file", b" and new", sync=False)
        put(disk, "/another", b"new")
        disk.unlink("/another")
        disk.rename("/file", "/renamed")

    def look(disk: SimulatedDisk) -> tuple[bytes | None, ...]:
        return content(disk, "/file"), content(disk, "/renamed"), content(disk, "/another")

    assert after_power_cut(work, look, "nothing") == {(b"old", None, None)}
    assert after_power_cut(work, look, "everything") == {(None, b"old and new", None)}


def test_handles_and_locks_are_gone_after_a_crash_and_held_before() -> None:
    disk = SimulatedDisk(Random(0))
    file = disk.open("/lock", create=True)
    disk.sync_folder("/")
    assert file.lock()
    assert not disk.open("/lock").lock()
    after = disk.after_crash(Random(0))
    with pytest.raises(SimulatedCrash):
        file.size()
    assert after.open("/lock").lock()


def test_a_failing_write_leaves_any_beginning_and_other_failing_operations_change_nothing() -> None:
    beginnings = set()
    for disk in failures(lambda disk: disk.open("/file", create=True).append(b"data")):
        beginnings.add(content(disk, "/file"))
    assert beginnings == {None, b"", b"d", b"da", b"dat", b"data"}

    def before(disk: SimulatedDisk) -> None:
        disk.mkdir("/folder")
        put(disk, "/a", b"data")

    changes: list[Scenario] = [
        lambda disk: disk.mkdir("/b"),
        lambda disk: disk.rmdir("/folder"),
        lambda disk: disk.link("/a", "/b"),
        lambda disk: disk.rename("/a", "/b"),
        lambda disk: disk.unlink("/a"),
    ]
    for change in changes:
        for disk in failures(change, before):
            assert sorted(disk.listdir("/")) == ["a", "folder"]


def test_a_failure_comes_once_and_the_next_try_works() -> None:
    disk = SimulatedDisk(Random(0))
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.mkdir("/folder")
    disk.mkdir("/folder")


def test_a_full_disk_takes_the_beginning_that_fits_and_all_again_when_space_is_freed() -> None:
    disk = SimulatedDisk(Random(0))
    disk.capacity = 10
    put(disk, "/old", b"123456")
    file = disk.open("/journal", create=True)
    with pytest.raises(OSError, match="No space") as full:
        file.append(b"abcdefgh")
    assert full.value.errno == errno.ENOSPC
    assert file.read(0, 8) == b"abcd"
    file.write(0, b"ABCD")
    file.sync()
    reader = disk.open("/old")
    disk.unlink("/old")
    with pytest.raises(OSError, match="No space"):
        file.append(b"efgh")
    reader.close()
    assert file.append(b"efgh") == 4
    with pytest.raises(OSError, match="No space"):
        disk.after_crash(Random(0), keep="everything").open("/journal").append(b"ijk")


def test_reserved_space_is_the_files_own_and_does_not_change_its_size() -> None:
    disk = SimulatedDisk(Random(0))
    disk.capacity = 10
    journal, other = disk.open("/journal", create=True), disk.open("/other", create=True)
    journal.append(b"ab")
    journal.reserve(6)
    assert journal.size() == 2
    assert disk.room() == 4
    with pytest.raises(OSError, match="No space"):
        other.append(b"12345")
    assert other.read(0, 5) == b"1234"
    assert journal.append(b"cdef") == 2
    with pytest.raises(OSError, match="No space"):
        journal.append(b"g")
    assert journal.read(0, 7) == b"abcdef"


def test_a_reservation_that_does_not_fit_is_refused_and_a_smaller_one_changes_nothing() -> None:
    disk = SimulatedDisk(Random(0))
    file = disk.open("/journal", create=True)
    file.reserve(1_000_000)  # there is no limit yet
    file.truncate(0)
    disk.capacity = 10
    file.reserve(4)
    with pytest.raises(OSError, match="No space") as full:
        file.reserve(11)
    assert full.value.errno == errno.ENOSPC
    assert disk.room() == 6
    file.reserve(2)
    assert disk.room() == 6
    file.reserve(10)
    assert disk.room() == 0


def test_reserved_space_survives_a_crash_and_goes_with_a_truncation_or_the_file() -> None:
    def reserve() -> tuple[SimulatedDisk, SimulatedFile]:
        disk = SimulatedDisk(Random(0))
        disk.capacity = 10
        file = disk.open("/journal", create=True)
        disk.sync_folder("/")
        file.append(b"ab")
        file.reserve(6)
        return disk, file

    disk, _ = reserve()
    for keep in KEEPS:
        assert disk.after_crash(Random(0), keep).room() == 4
    disk, file = reserve()
    file.truncate(2)
    assert disk.room() == 8
    disk, file = reserve()
    disk.unlink("/journal")
    assert disk.room() == 4
    file.close()
    assert disk.room() == 10


def test_a_failing_reservation_reserves_nothing_and_one_that_crashes_did_or_did_not() -> None:
    def before(disk: SimulatedDisk) -> None:
        disk.capacity = 10
        disk.open("/journal", create=True)
        disk.sync_folder("/")

    def reserve(disk: SimulatedDisk) -> None:
        disk.open("/journal").reserve(6)

    assert {disk.room() for disk in failures(reserve, before)} == {10}
    assert {disk.room() for disk in crashes(reserve, before)} == {4, 10}


def test_a_power_cut_that_does_not_happen_leaves_the_disk_as_it_is() -> None:
    def work(disk: SimulatedDisk, asked: bool) -> tuple[bytes | None, ...]:
        outcomes = []
        put(disk, "/file", b"old")
        disk.sync_folder("/")
        put(disk, "/file", b" and new", sync=False)
        disk.rename("/file", "/renamed")
        if asked:
            outcomes = [
                content(disk.if_it_crashed(Random(0), keep), "/file") for keep in ("nothing", "everything")
            ]
            assert outcomes == [b"old", None]
        disk.sync_folder("/")
        return tuple(content(disk.after_crash(Random(seed)), "/renamed") for seed in SEEDS)

    assert work(SimulatedDisk(Random(0)), True) == work(SimulatedDisk(Random(0)), False)


def test_a_disk_knows_whether_a_power_cut_would_lose_anything() -> None:
    disk = SimulatedDisk(Random(0))
    known = [disk.is_synced()]
    disk.mkdir("/folder")
    known.append(disk.is_synced())
    disk.sync_folder("/")
    known.append(disk.is_synced())
    file = disk.open("/folder/file", create=True)
    known.append(disk.is_synced())
    disk.sync_folder("/folder")
    known.append(disk.is_synced())
    file.append(b"data")
    known.append(disk.is_synced())
    file.sync()
    known.append(disk.is_synced())
    assert known == [True, False, True, False, True, False, True]


def test_all_files_can_be_looked_at_without_an_operation() -> None:
    disk = SimulatedDisk(Random(0))
    disk.mkdir("/folder")
    put(disk, "/folder/file", b"data", sync=False)
    put(disk, "/gone", b"data")
    disk.unlink("/gone")
    operations = disk.operations
    assert disk.files() == {"/folder/": b"", "/folder/file": b"data"}
    assert disk.operations == operations


def test_a_file_that_nobody_refers_to_is_closed_and_unlocked_without_an_operation() -> None:
    disk = SimulatedDisk(Random(0))
    disk.capacity = 10
    file = disk.open("/file", create=True)
    assert file.lock()
    file.append(b"data")
    disk.unlink("/file")
    assert disk.room() == 6
    del file
    assert disk.room() == 10
    assert disk.operations == 4


def test_who_wants_to_wait_before_an_operation_keeps_nobody_else_from_theirs() -> None:
    disk = SimulatedDisk(Random(0))
    called = []

    def before_operation(name: str, path: str) -> None:
        if threading.current_thread() is threading.main_thread():
            called.append((disk.operations, name, path))
            other = threading.Thread(target=disk.exists, args=("/other",))
            other.start()
            other.join()

    disk.before_operation = before_operation
    disk.open("/file", create=True).append(b"data")
    assert called == [(0, "open", "/file"), (2, "append", "/file")]
    assert disk.trace[::2] == [(1, "exists", "/other"), (3, "exists", "/other")]


def test_every_call_is_a_numbered_operation_in_the_trace() -> None:
    disk = SimulatedDisk(Random(0))
    replace_file(disk, "/settings", b"data")
    with pytest.raises(FileNotFoundError):
        disk.open("/gone")
    assert disk.operations == 9
    assert disk.trace == [
        (1, "unlink", "/settings.new"),
        (2, "status", "/settings"),
        (3, "open", "/settings.new"),
        (4, "write", "/settings.new"),
        (5, "sync", "/settings.new"),
        (6, "close", "/settings.new"),
        (7, "rename", "/settings.new -> /settings"),
        (8, "sync_folder", "/"),
        (9, "open", "/gone"),
    ]


def test_a_listing_is_in_any_order() -> None:
    disk = SimulatedDisk(Random(0))
    for name in ("a", "b", "c"):
        disk.mkdir(name)
    assert len({tuple(disk.listdir("/")) for _ in SEEDS}) == 6


def test_threads_can_share_the_disk() -> None:
    disk = SimulatedDisk(Random(0))
    file = disk.open("/journal", create=True)

    def append(byte: bytes) -> list[int]:
        return [file.append(byte) for _ in range(200)]

    with ThreadPoolExecutor(4) as threads:
        offsets = [offset for written in threads.map(append, [b"a", b"b", b"c", b"d"]) for offset in written]
    assert sorted(offsets) == list(range(800))
    assert disk.operations == 801
    assert Counter(file.read(0, 800)) == Counter(b"abcd" * 200)


def test_the_same_seed_has_the_same_outcome_and_others_have_others() -> None:
    names = [f"/{number}" for number in range(9)]

    def work(disk: SimulatedDisk) -> None:
        for number, name in enumerate(names * 9):
            file = disk.open(name, create=True)
            try:
                file.append(b"0123456789" * number)
                file.sync()
            except OSError:
                disk.rename(name, names[number - 1])

    def outcome(seed: int) -> tuple[list[str], list[bytes | None]]:
        disk = SimulatedDisk(Random(seed))
        disk.fail_at(21, errno.EIO)
        disk.crash_at = 40
        with pytest.raises(SimulatedCrash):
            work(disk)
        after = disk.after_crash(Random(seed))
        return after.listdir("/"), [content(after, name) for name in names]

    outcomes = [outcome(seed) for seed in SEEDS]
    assert outcomes == [outcome(seed) for seed in SEEDS]
    assert len({str(outcome) for outcome in outcomes}) > len(SEEDS) // 2


def test_a_hint_is_old_new_or_torn_but_never_what_an_interrupted_one_left_behind() -> None:
    found = set()
    for seed in range(300):
        disk = SimulatedDisk(Random(seed))
        with disk.open("/hint.new", create=True) as left:  # a crash came before the rename, long ago
            left.write(0, b"stale")
            left.sync()
        disk.sync_folder("/")
        write_hint(disk, "/hint", b"fresh")
        crashed = disk.after_crash(Random(seed))
        if crashed.exists("/hint"):
            with crashed.open("/hint") as file:
                found.add(file.read(0, file.size()))
    assert b"fresh" in found
    assert b"stale" not in found
