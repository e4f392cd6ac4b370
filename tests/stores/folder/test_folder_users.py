"""Other users of a folder store, and a disk that is full."""

import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock import SimulatedClock, Store
from penstock.errors import StoreUnavailable
from penstock.stores.folder import doctor
from tests.stores.errors import ext4, fill
from tests.stores.folder.test_folder_harm import COMMAND, payloads, some_id

NOBODY = 65_534


# Other users


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in which any user may work."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    try:
        yield path / "store"
    finally:
        shutil.rmtree(path)


def as_nobody(shared: Path, work: Callable[[Store], None], clock: SimulatedClock | None = None) -> None:
    """Work on a store as another user, in a child."""
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with penstock.open(f"folder:{shared}", clock=clock) as store:
            work(store)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def prepare(store: Store) -> None:
    store.create("jobs").put(b"mine")
    store.create("other").put(b"other")


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("sticky", [False, True])
def test_files_of_another_user_are_skipped_and_nothing_else_is_affected(
    mode: int, sticky: bool, shared: Path
) -> None:
    as_nobody(shared, prepare)
    names = [f"{part}/jobs:{some_id()}" for part in ("new", "delay", "failed", "done", "remove")]
    files = [shared / name for name in ("queues/jobs/by hand", f"queues/jobs/{some_id()}", *names)]
    for file in files:
        file.write_bytes(b"another's")
        os.utime(file, (1, 1))
        file.chmod(mode)
        if sticky:
            os.chown(file.parent, 0, 0)
            file.parent.chmod(0o1777)

    clock = SimulatedClock()

    def work(store: Store) -> None:
        jobs = store.queue("jobs")
        assert [message.payload for message in jobs.messages()] == [b"mine"]
        assert [message.payload for message in jobs.peek(9)] == [b"mine"]
        [message] = jobs.claim(9)
        message.fail()
        assert jobs.redrive() == 0
        assert payloads(store) == [b"mine"]
        clock.advance(60)
        store.backend.tend()  # type: ignore[attr-defined]
        assert jobs.purge() == 1
        jobs.put(b"more")
        assert payloads(store) == [b"more"]
        doctor.examine(str(shared))

    as_nobody(shared, work, clock)
    assert all(file.read_bytes() == b"another's" for file in files if file.parent.name != "remove")


@pytest.mark.parametrize("sticky", [False, True])
def test_a_file_of_another_user_that_may_be_written_is_popped_and_not_leased(sticky: bool, shared: Path) -> None:
    as_nobody(shared, prepare)
    for name in ("by hand", some_id()):
        file = shared / "queues" / "jobs" / name
        file.write_bytes(b"another's")
        file.chmod(0o666)
    if sticky:
        os.chown(file.parent, 0, 0)
        file.parent.chmod(0o1777)

    def work(store: Store) -> None:
        assert payloads(store) == [b"mine"]
        popped = [store.queue("jobs").pop() for _ in range(2)]
        there = [message.payload for message in popped if message is not None]
        assert there == ([] if sticky else [b"another's"] * 2)

    as_nobody(shared, work)


def test_a_message_that_another_user_has_put_is_left_to_who_may_change_it(shared: Path) -> None:
    as_nobody(shared, prepare)
    with penstock.open(f"folder:{shared}") as store:
        put = store.queue("jobs").put(b"roots", retention=60)
    (shared / "queues" / "jobs" / put).chmod(0o666)

    clock = SimulatedClock()

    def work(store: Store) -> None:
        assert payloads(store) == [b"mine"]
        clock.advance(3_600)
        store.queue("jobs").put(b"more")
        assert b"more" in payloads(store)

    as_nobody(shared, work, clock)


def test_messages_of_another_user_in_a_sticky_folder_are_left_to_who_may_remove_them(shared: Path) -> None:
    clock = SimulatedClock()
    as_nobody(shared, prepare)
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        jobs = store.queue("jobs")
        jobs.put(b"expired", retention=5)
        left = jobs.put(b"left")
    folder = shared / "queues" / "jobs"
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)
    clock.advance(10)

    def work(store: Store) -> None:
        jobs = store.queue("jobs")
        with pytest.raises(StoreUnavailable, match=f"{left}.*permission denied"):
            jobs.remove(jobs.put(b"removed"), left)
        [message] = jobs.claim(9)
        message.release()
        assert jobs.purge() == 1
        jobs.put(b"more")
        assert payloads(store) == [b"more"]

    as_nobody(shared, work, clock)
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        assert b"left" in payloads(store)


def of_root(shared: Path, mode: int, clock: SimulatedClock, *, failed: bool) -> penstock.Message:
    """A message in flight, or one that has failed, which another user may read or write, but not give times."""

    def begin(store: Store) -> None:
        store.create("jobs", max_attempts=1)

    as_nobody(shared, begin, clock)
    with penstock.open(f"folder:{shared}", clock=clock) as store:
        store.queue("jobs").put(b"roots")
        [message] = store.queue("jobs").claim()
        if failed:
            message.fail()
    (shared / ("failed" if failed else "delay") / f"jobs:{message.id}").chmod(mode)
    return message


@pytest.mark.parametrize("mode", [0o666, 0o644])
@pytest.mark.parametrize("how", ["fail", "extend"])
def test_a_lease_that_another_user_may_not_change_stays_as_it_was(how: str, mode: int, shared: Path) -> None:
    clock = SimulatedClock()
    message = of_root(shared, mode, clock, failed=False)

    def work(store: Store) -> None:
        with pytest.raises(StoreUnavailable, match=f"{message.id}.*permission denied"):
            getattr(store.queue("jobs"), how)(message.receipt)
        store.queue("jobs").put(b"more")  # the store goes on

    with penstock.open(f"folder:{shared}", clock=clock) as store:
        as_nobody(shared, work, clock)
        jobs = store.queue("jobs")
        [held] = jobs.messages("in_flight")
        assert (held.state, held.attempts, held.lease_until) == ("in_flight", 1, message.lease_until)
        jobs.fail(message.receipt or "", reason="bad")
        [attempt] = jobs.attempts(message.id)
        assert attempt.reason == "bad"
        assert jobs.redrive() == 1


@pytest.mark.parametrize(("mode", "failed"), [(0o666, False), (0o644, True)])
def test_another_users_message_whose_lease_is_over_or_that_has_failed_is_not_redriven(
    mode: int, failed: bool, shared: Path
) -> None:
    clock = SimulatedClock()
    message = of_root(shared, mode, clock, failed=failed)
    ids = [message.id] if failed else []
    clock.advance(0 if failed else 60)

    def work(store: Store) -> None:
        assert store.queue("jobs").redrive(*ids) == 0
        store.queue("jobs").put(b"more")

    with penstock.open(f"folder:{shared}", clock=clock) as store:
        as_nobody(shared, work, clock)
        assert store.queue("jobs").redrive(*ids) == 1


def test_a_message_that_another_user_may_not_read_is_removed_by_its_id(shared: Path) -> None:
    clock = SimulatedClock()
    message = of_root(shared, 0o600, clock, failed=True)

    def work(store: Store) -> None:
        assert store.queue("jobs").remove(message.id) == 1
        store.queue("jobs").put(b"more")

    as_nobody(shared, work, clock)


def test_a_queue_that_another_user_has_made_is_named_and_the_others_go_on(shared: Path) -> None:
    as_nobody(shared, prepare)
    with penstock.open(f"folder:{shared}") as store:
        store.create("roots").put(b"roots")

    def work(store: Store) -> None:
        with pytest.raises(StoreUnavailable, match=r"settings/roots.*permission denied"):
            store.queue("roots").claim()
        store.backend.tend()  # type: ignore[attr-defined]
        assert payloads(store) == [b"mine"]

    as_nobody(shared, work)


@pytest.mark.parametrize("part", ["queues/jobs", ".penstock/settings/jobs"])
def test_a_queue_that_may_not_be_read_is_named_and_the_others_go_on(part: str, shared: Path) -> None:
    def begin(store: Store) -> None:
        prepare(store)
        store.queue("other").put(b"later", delay=0.001)

    as_nobody(shared, begin)
    os.chown(shared / part, 0, 0)
    (shared / part).chmod(0)

    def work(store: Store) -> None:
        for call in (
            store.queues,
            lambda: store.queue("jobs").claim(),
            lambda: list(store.queue("jobs").peek()),
            lambda: list(store.queue("jobs").messages()),
        ):
            with pytest.raises(StoreUnavailable, match=f"{part}.*permission denied"):
                call()
        with suppress(StoreUnavailable):
            store.backend.tend()  # type: ignore[attr-defined]
        assert payloads(store, "other") == [b"other", b"later"]
        found = doctor.examine(str(shared))
        assert not found.sound

    as_nobody(shared, work)


def test_a_store_that_may_not_be_read_is_named_by_the_doctor(shared: Path) -> None:
    as_nobody(shared, prepare)
    os.chown(shared / ".penstock", 0, 0)
    (shared / ".penstock").chmod(0)

    def look(store: Store) -> None:
        [finding] = doctor.examine(str(shared)).findings
        assert "permission denied" in finding.text

    as_nobody(shared.with_name("another"), look)


# A full disk


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A store that puts have filled, on an ext4 file system of its own."""
    with ext4(tmp_path, 6 << 20) as mounted:
        with penstock.open(f"folder:{mounted / 'store'}", sync="never") as store:
            jobs = store.create("jobs")
            with suppress(penstock.DiskFull):
                while True:
                    jobs.put(b"x" * 3_000)
        fill(mounted)
        yield mounted / "store"


def test_a_store_that_has_used_up_the_files_of_its_disk_can_be_worked_off(tmp_path: Path) -> None:
    with ext4(tmp_path, 16 << 20, "-N", "128") as mounted:
        folder = mounted / "store"
        with penstock.open(f"folder:{folder}") as store:
            jobs = store.create("jobs")
            with suppress(penstock.DiskFull):
                while True:
                    jobs.put(b"a")
            left = jobs.count()
        for _ in range(3):
            assert command(folder, "pop", "jobs").returncode == 0
        with penstock.open(f"folder:{folder}") as store:
            [message] = store.queue("jobs").claim()
            message.fail(reason="long" * 500)
            assert len(payloads(store)) == left - 3
        assert command(folder, "doctor").returncode == 0


def command(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "--store", f"folder:{store}", *arguments], capture_output=True, text=True)


def test_a_full_store_can_be_worked_off_by_processes_that_come_anew(full: Path) -> None:
    assert command(full, "put", "jobs", "more").returncode == 1
    assert command(full, "list").returncode == 0
    popped = command(full, "pop", "jobs")
    assert (popped.returncode, "xxx" in popped.stdout) == (0, True)
    assert command(full, "claim", "jobs").returncode == 0
    purged = command(full, "purge", "jobs", "--yes")
    assert (purged.returncode, purged.stderr) == (0, "")
    assert command(full, "put", "jobs", "more").returncode == 0


def test_a_full_store_can_be_worked_off_many_messages_at_a_time(full: Path) -> None:
    with penstock.open(f"folder:{full}", sync="never") as store:
        jobs = store.queue("jobs")
        count = jobs.count()
        acked = 0
        while claimed := jobs.claim(150, lease=600):
            jobs.fail(*claimed[:20], reason="no")
            jobs.ack(*claimed[20:])
            acked += len(claimed[20:]) or len(claimed)
            if len(claimed) <= 20:
                jobs.ack(*jobs.claim(20))
        assert acked >= count - 20
        assert jobs.counts()["in_flight"] == 0
