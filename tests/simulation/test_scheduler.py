"""The scheduler itself: one at a time, by the seed alone, and always to an end."""

import threading
from functools import partial
from random import Random

import pytest

from penstock.system.threads import Lock
from tests.simulated_disk import SimulatedCrash, SimulatedDisk
from tests.simulation.scheduler import Deadlock, ScheduledClock, Scheduler

SEEDS = range(100)


def simulated(seed: int) -> tuple[Scheduler, SimulatedDisk]:
    scheduler, disk = Scheduler(Random(seed)), SimulatedDisk(Random(seed))
    scheduler.join_disk(disk)
    return scheduler, disk


def append(disk: SimulatedDisk, path: str, times: int = 5) -> None:
    with disk.open(path, create=True) as file:
        for _ in range(times):
            file.append(b"data")


def test_the_same_seed_has_the_same_trace_and_others_have_others() -> None:
    def trace(seed: int) -> tuple[list[tuple[str, str, str]], list[tuple[int, str, str]]]:
        scheduler, disk = simulated(seed)
        lock = scheduler.rlock()

        def share() -> None:
            for _ in range(3):
                with lock, lock:
                    append(disk, "/shared", 2)

        for number in range(3):
            scheduler.start(f"own {number}", partial(append, disk, f"/{number}"))
            scheduler.start(f"shared {number}", share)
        scheduler.run(share)
        return scheduler.trace, disk.trace

    traces = [trace(seed) for seed in SEEDS]
    assert traces == [trace(seed) for seed in SEEDS]
    assert len({str(each) for each in traces}) == len(SEEDS)


def test_the_baton_changes_hands_before_an_operation_and_nowhere_between() -> None:
    def play(seed: int) -> str:
        scheduler, disk = simulated(seed)
        steps: list[str] = []

        def work(name: str) -> None:
            steps.append(name)
            steps.append(name)
            disk.exists("/")
            steps.append(name)
            steps.append(name)

        scheduler.start("a", partial(work, "a"))
        scheduler.start("b", partial(work, "b"))
        scheduler.run()
        return "".join(steps)

    all_orders = {"aaaabbbb", "aabbaabb", "aabbbbaa", "bbaaaabb", "bbaabbaa", "bbbbaaaa"}
    assert {play(seed) for seed in range(300)} == all_orders


def test_a_lock_keeps_others_out_while_its_holder_is_interrupted() -> None:
    def play(seed: int) -> None:
        scheduler, disk = simulated(seed)
        lock = scheduler.lock()
        inside: list[str] = []

        def work(name: str) -> None:
            for _ in range(3):
                with lock:
                    inside.append(name)
                    disk.exists("/")
                    assert inside == [name]
                    inside.clear()

        for name in "abc":
            scheduler.start(name, partial(work, name))
        scheduler.run()

    for seed in SEEDS:
        play(seed)


def test_a_lock_is_a_gate_that_another_actor_opens() -> None:
    def play(seed: int) -> list[int]:
        scheduler, disk = simulated(seed)
        gate = scheduler.lock()
        gate.acquire()
        passed: list[int] = []

        def wait() -> None:
            gate.acquire()
            passed.append(disk.operations)

        def open_gate() -> None:
            disk.exists("/")
            gate.release()

        scheduler.start("waiting", wait)
        scheduler.start("opening", open_gate)
        scheduler.run()
        return passed

    assert [play(seed) for seed in SEEDS] == [[1]] * len(SEEDS)


def test_a_lock_that_is_free_does_not_always_go_to_who_comes_first() -> None:
    def play(seed: int) -> str:
        scheduler = Scheduler(Random(seed))
        lock = scheduler.lock()
        order: list[str] = []

        def work(name: str) -> None:
            with lock:
                order.append(name)

        scheduler.start("b", partial(work, "b"))
        scheduler.run(partial(work, "a"))
        return "".join(order)

    assert {play(seed) for seed in SEEDS} == {"ab", "ba"}


def test_who_joins_another_goes_on_after_its_end() -> None:
    def play(seed: int) -> None:
        scheduler, disk = simulated(seed)

        def parent() -> None:
            scheduler.start("child", partial(append, disk, "/file")).join()
            assert disk.trace[-1][1] == "close"
            disk.exists("/")

        scheduler.start("parent", parent)
        scheduler.run()
        assert disk.trace[-1][1] == "exists"

    for seed in SEEDS:
        play(seed)


def test_a_deadlock_says_who_waits_for_what() -> None:
    before = threading.active_count()

    def play(seed: int) -> str:
        scheduler, disk = simulated(seed)
        left, right = scheduler.lock(), scheduler.lock()

        def work(one: Lock, other: Lock) -> None:
            with one:
                disk.exists("/")
                with other:
                    disk.exists("/")

        scheduler.start("alice", partial(work, left, right))
        scheduler.start("bob", partial(work, right, left))
        try:
            scheduler.run()
        except Deadlock as error:
            return str(error)
        return "lucky"

    seen = {play(seed) for seed in SEEDS} - {"lucky"}
    (message,) = seen
    assert message.startswith("nobody can go on: main waits for the end of all, alice waits for lock 2 of test_")
    assert ", which bob has, bob waits for lock 1 of test_scheduler.py:" in message
    assert message.endswith(", which alice has")
    assert threading.active_count() == before


def test_a_plain_lock_that_is_taken_twice_is_a_deadlock_and_a_reentrant_one_is_fine() -> None:
    scheduler = Scheduler(Random(0))

    def twice(lock: Lock) -> None:
        with lock, lock:
            pass

    scheduler.run(partial(twice, scheduler.rlock()))
    with pytest.raises(Deadlock, match=r"main waits for lock 2 of .*, which main has"):
        scheduler.run(partial(twice, scheduler.lock()))


def test_a_reentrant_lock_is_free_once_it_was_released_as_often_as_taken() -> None:
    scheduler = Scheduler(Random(0))
    lock = scheduler.rlock()
    lock.acquire()
    lock.acquire()
    lock.release()
    lock.release()
    with pytest.raises(RuntimeError, match="released by one who does not hold it"):
        lock.release()


def test_after_a_crash_all_come_to_their_end_also_those_who_wait() -> None:
    before = threading.active_count()

    def play(seed: int) -> None:
        scheduler, disk = simulated(seed)
        lock, never = scheduler.lock(), scheduler.lock()
        never.acquire()

        def work() -> None:
            while True:
                with lock:
                    disk.exists("/")
                assert not disk.off

        def wait() -> None:
            never.acquire()
            pytest.fail("the gate opened")

        actors = [scheduler.start(f"working {number}", work) for number in range(3)]
        actors.append(scheduler.start("waiting", wait))
        actors.append(scheduler.start("joining", actors[-1].join))
        disk.crash_at = 20
        with pytest.raises(SimulatedCrash):
            scheduler.run(work)
        assert all(actor.ended for actor in actors)
        with pytest.raises(SimulatedCrash):
            scheduler.start("late", work)

    for seed in SEEDS:
        play(seed)
    assert threading.active_count() == before


def test_an_error_of_an_actor_ends_all_others_and_is_raised() -> None:
    scheduler, disk = simulated(0)

    def work() -> None:
        while True:
            disk.exists("/")

    def stumble() -> None:
        disk.exists("/")
        raise ValueError("stumbled")

    scheduler.start("working", work)
    scheduler.start("stumbling", stumble)
    with pytest.raises(ValueError, match="stumbled"):
        scheduler.run(work)


def test_threads_that_are_no_actors_may_take_what_is_free() -> None:
    scheduler, disk = simulated(0)
    free, taken = scheduler.lock(), scheduler.lock()
    taken.acquire()
    errors: list[str] = []

    def stray() -> None:
        with free:
            disk.exists("/")
        try:
            taken.acquire()
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=stray, name="stray")
    thread.start()
    thread.join()
    assert disk.operations == 1
    assert not scheduler.trace
    assert [error.partition(" of ")[0] for error in errors] == ["stray is no actor, so it cannot wait for lock 2"]


def test_who_waits_on_the_clock_goes_on_when_the_event_is_set_or_the_time_has_passed() -> None:
    def play(seed: int) -> set[tuple[str, bool, float]]:
        scheduler, disk = simulated(seed)
        clock, event = ScheduledClock(scheduler), threading.Event()
        woken: set[tuple[str, bool, float]] = set()

        def wait(name: str, seconds: float, event: threading.Event) -> None:
            woken.add((name, clock.wait(event, seconds), clock.monotonic()))

        def let_time_pass() -> None:
            for _ in range(10):
                scheduler.wait(lambda: True, "")
                disk.exists("/")
                clock.advance(1)
            event.set()

        scheduler.start("hasty", partial(wait, "hasty", 0, threading.Event()))
        scheduler.start("patient", partial(wait, "patient", 60, event))
        scheduler.run(let_time_pass)
        return woken

    for seed in SEEDS:
        assert ("patient", True, 10) in play(seed)
