"""Settings that change: the journal decides, `queues/FILE` says the same, and whoever only looks sees it."""

import json
from pathlib import Path

import pytest

from penstock import Settings, SimulatedClock, Store
from penstock.stores.journal import backup
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.format import AddX, encode
from penstock.stores.journal.packing import Result, Round, build_order
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.files import ReadingDisk, SystemDisk

MADE = Settings(max_attempts=2, keep_done=100)
CHANGED = Settings(max_attempts=9, keep_done=None, priorities=(0, 9), filter="size > 1", description="für alle")


def opened(folder: Path, clock: SimulatedClock) -> tuple[JournalBackend, Store]:
    backend = open_journal(folder, clock=clock)
    return backend, Store(str(folder), backend)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def folder(tmp_path: Path, clock: SimulatedClock) -> Path:
    """A queue whose settings changed after a message was done by the old ones, closed."""
    folder = tmp_path / "data"
    _, store = opened(folder, clock)
    jobs = store.create("jobs", **MADE)
    jobs.put_many([b"one", b"two"])
    jobs.pop()
    jobs.update(**CHANGED)
    store.close()
    return folder


def known(folder: Path) -> dict[str, object]:
    """What the settings file of the queue says."""
    content: dict[str, object] = json.loads((folder / ".penstock/queues/jobs").read_bytes().partition(b"\n")[0])
    return content


def test_the_file_says_with_which_settings_replay_begins_and_with_which_it_ends(folder: Path) -> None:
    content = known(folder)
    assert content["begins_with"] == {**MADE.stored(), "priorities": None}
    assert content["settings"] == {**CHANGED.stored(), "priorities": [0, 9]}


def test_who_looks_without_the_lock_sees_them(folder: Path, clock: SimulatedClock) -> None:
    view = StoreSnapshot(str(folder), ReadingDisk(), clock.now())
    assert view.settings()["jobs"] == view.settings("jobs")["jobs"] == CHANGED
    seen = view.view("jobs", ReadingDisk().open, lambda path: None)
    assert seen is not None
    assert seen.contents.settings == CHANGED
    assert {finding.severity for finding in examine(str(folder)).findings} <= {"ok", "note"}


def test_a_backup_has_them(folder: Path, tmp_path: Path, clock: SimulatedClock) -> None:
    backup(folder, tmp_path / "copy", clock=clock)
    _, store = opened(tmp_path / "copy", clock)
    assert store.queue("jobs").settings == CHANGED
    assert store.queue("jobs").counts()["done"] == 1
    store.close()


@pytest.mark.parametrize("together", [False, True])
def test_a_packed_journal_begins_with_them_and_an_empty_one_shrinks_to_nothing(
    folder: Path, clock: SimulatedClock, together: bool
) -> None:
    backend, store = opened(folder, clock)

    def pack() -> None:
        if not together:
            backend.pack("jobs")
            return
        with Round(backend, ["jobs"]) as packing:
            built = [build_order(order, SystemDisk(), 0) for order in packing.begin()]
            packing.swap([each for each in built if isinstance(each, Result)])

    store.queue("jobs").purge()
    clock.advance(1_000)
    pack()
    assert "begins_with" not in known(folder)
    assert 0 < backend.stored("jobs") < 1_000
    assert store.queue("jobs").settings == CHANGED
    pack()
    assert backend.stored("jobs") == 0
    store.queue("jobs").update(max_size=5)
    store.close()
    _, store = opened(folder, clock)
    assert store.queue("jobs").settings == Settings(**{**CHANGED, "max_size": 5})
    store.close()


def test_a_file_that_a_crash_has_left_behind_is_mended_by_opening(folder: Path, clock: SimulatedClock) -> None:
    """The record was synced, and the file was not written."""
    path = folder / ".penstock/queues/jobs"
    _, store = opened(folder, clock)
    before = path.read_bytes()
    store.queue("jobs").update(max_size=7)
    after = path.read_bytes()
    store.close()
    path.write_bytes(before)
    _, store = opened(folder, clock)
    assert store.queue("jobs").settings.max_size == 7
    assert path.read_bytes() == after
    store.close()


def test_they_stay_when_kestrel_has_rewritten_the_journal(folder: Path, clock: SimulatedClock) -> None:
    (folder / "jobs").write_bytes(encode(AddX(clock.now(), 0, b"new")))
    for _ in range(2):
        _, store = opened(folder, clock)
        assert store.queue("jobs").settings == CHANGED
        assert [message.payload for message in store.queue("jobs").messages()] == [b"new"]
        store.close()
