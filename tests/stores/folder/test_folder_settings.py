"""Changes of settings in a folder store: one file is replaced, and every process reads it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock import QueueFull, Settings, SimulatedClock, Store


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def opened(folder: Path, clock: SimulatedClock) -> Store:
    return penstock.open(f"folder:{folder}", clock=clock)


def test_other_processes_go_by_them_and_keep_what_they_hold(tmp_path: Path, clock: SimulatedClock) -> None:
    with opened(tmp_path, clock) as store, opened(tmp_path, clock) as other:
        jobs, theirs = store.create("jobs", max_attempts=3), other.queue("jobs")
        jobs.put_many([b"a", b"b"])
        [held] = theirs.claim(lease=100)
        jobs.update(max_attempts=1, max_size=2, keep_done=60)
        clock.advance(2)  # what they know may be a second old
        assert theirs.settings == jobs.settings == Settings(max_attempts=1, max_size=2, keep_done=60)
        with pytest.raises(QueueFull):
            theirs.put(b"c")
        theirs.ack(held)
        theirs.fail(*theirs.claim())
        assert theirs.counts() == jobs.counts()
        assert jobs.counts() == {"delayed": 0, "available": 0, "in_flight": 0, "done": 1, "failed": 1}


def test_consumers_of_other_processes_go_on_waiting(tmp_path: Path) -> None:
    with penstock.open(f"folder:{tmp_path}") as store, penstock.open(f"folder:{tmp_path}") as other:
        jobs = store.create("jobs")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(other.queue("jobs").claim, wait=600)
            while not other.backend.find("jobs").line:  # type: ignore[attr-defined]
                pass
            jobs.update(max_size=5)
            jobs.put(b"x")
            assert [message.payload for message in waiting.result()] == [b"x"]


def test_what_was_done_and_not_kept_does_not_come_back_and_its_ack_can_be_repeated(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    with opened(tmp_path, clock) as store:
        jobs = store.create("jobs")
        jobs.put_many([b"a", b"b"])
        first, second = jobs.claim(2)
        jobs.ack(first)
        jobs.update(keep_done=10)
        jobs.ack(second)
        clock.advance(11)
        assert list(jobs.messages()) == []
        jobs.update(keep_done=None)
        assert list(jobs.messages()) == []
        jobs.ack(first, second)
    assert not [path for path in (tmp_path / "done").iterdir() if ":" in path.name]


@pytest.mark.parametrize("place", ["settings", "kept"])
def test_both_copies_have_them_with_their_checksum(tmp_path: Path, clock: SimulatedClock, place: str) -> None:
    with opened(tmp_path, clock) as store:
        store.create("jobs").update(max_size=7, priorities=(0, 9))
    content = json.loads((tmp_path / ".penstock" / place / "jobs").read_text())
    assert (content["settings"]["max_size"], content["settings"]["priorities"]) == (7, [0, 9])
    assert content["deleted"] is False
    assert len(content["sum"]) == 8


def test_a_queue_that_somebody_made_by_hand_can_have_settings(tmp_path: Path, clock: SimulatedClock) -> None:
    with opened(tmp_path, clock):
        pass
    (tmp_path / "queues" / "byhand").mkdir()
    for _ in range(2):
        with opened(tmp_path, clock) as store:
            assert store.queue("byhand").update(max_size=7) == Settings(max_size=7)
