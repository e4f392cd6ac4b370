"""Dead letters of queues that a load has made: it counts already, so nothing about them is refused."""

import threading
from pathlib import Path

import pytest

import penstock
from penstock import PenstockError, Settings, SimulatedClock
from penstock.contract.loads import Loads
from penstock.contract.message import Entry
from penstock.contract.operations import Claim, Counts, Fail, Put
from penstock.engine.memory import MemoryBackend


def failed(backend: MemoryBackend, queue: str) -> int:
    return backend.run(Counts(queue))["failed"]


def put_and_fail(backend: MemoryBackend, queue: str) -> None:
    backend.run(Put(queue, [Entry(b"a")]))
    [message] = backend.run(Claim(queue))
    backend.run(Fail(queue, [message.receipt or ""]))


def test_messages_wait_as_failed_for_a_dead_letter_queue_that_comes_later() -> None:
    backend = MemoryBackend(SimulatedClock())
    backend.create("jobs", Settings(max_attempts=1, dead_letter="dead"), of_load=True)
    put_and_fail(backend, "jobs")
    assert failed(backend, "jobs") == 1
    backend.create("dead", Settings(), of_load=True)
    assert failed(backend, "jobs") == 0
    assert backend.run(Counts("dead"))["available"] == 1


def test_a_queue_that_is_its_own_dead_letter_queue_keeps_its_failed_messages() -> None:
    backend = MemoryBackend(SimulatedClock())
    backend.create("jobs", Settings(max_attempts=1, dead_letter="jobs"), of_load=True)
    put_and_fail(backend, "jobs")
    assert failed(backend, "jobs") == 1


def test_a_closed_store_waits_for_no_lease() -> None:
    before = set(threading.enumerate())
    backend = MemoryBackend(SimulatedClock())
    backend.create("dead", Settings())
    backend.create("jobs", Settings(max_attempts=1, dead_letter="dead"))
    backend.run(Put("jobs", [Entry(b"a")]))
    backend.run(Claim("jobs"))
    [alarm] = set(threading.enumerate()) - before
    backend.close()
    alarm.join()


@pytest.mark.parametrize("kind", ["journal", "slate"])
def test_a_load_cannot_make_chains_of_dead_letters(kind: str, tmp_path: Path) -> None:
    with penstock.open(f"{kind}:{tmp_path / 'store'}") as store:
        loads = Loads(store.run)
        store.create("dead")
        store.create("jobs", dead_letter="dead")
        for queues, why in (
            ({"a": Settings(dead_letter="jobs")}, "has a dead_letter itself"),
            ({"a": Settings(dead_letter="b"), "b": Settings(dead_letter="a")}, "has a dead_letter itself"),
            ({"a": Settings(dead_letter="a")}, "is the queue itself"),
            ({"a": Settings(dead_letter="none")}, "no queue 'none'"),
        ):
            with pytest.raises(PenstockError, match=why):
                loads.begin(queues)
        loads.commit(loads.begin({"a": Settings(dead_letter="b"), "b": Settings()}), [], None)
        assert store.queue("a").settings.dead_letter == "b"
