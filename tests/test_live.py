"""What only a queue in this process can be made to do: interruptions, and time as the system has it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.live.alarm import Alarm


class InterruptedClock(penstock.SystemClock):
    """Ctrl-C while a consumer waits, after something else has happened."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is threading.main_thread():
            self.meanwhile()
            raise KeyboardInterrupt
        return super().wait(event, seconds)


def test_an_interrupted_consumer_leaves_the_line() -> None:
    with penstock.open("memory:", clock=InterruptedClock()) as store:
        queue = store.queue()
        with pytest.raises(KeyboardInterrupt):
            queue.claim(wait=60)
        queue.put(b"a")
        assert queue.counts()["available"] == 1


def test_an_interrupted_consumer_gives_back_what_it_was_just_given() -> None:
    clock = InterruptedClock()
    with penstock.open("memory:", clock=clock) as store:
        queue = store.queue()
        clock.meanwhile = lambda: queue.put(b"a")
        with pytest.raises(KeyboardInterrupt):
            queue.claim(wait=60)
        assert queue.counts()["available"] == 1


def test_a_consumer_interrupted_while_the_store_closes_is_just_interrupted() -> None:
    clock = InterruptedClock()
    store = penstock.open("memory:", clock=clock)
    clock.meanwhile = store.close
    with pytest.raises(KeyboardInterrupt):
        store.queue().claim(wait=60)


class OversleepingClock(penstock.SimulatedClock):
    """Nobody is woken by time, only by others."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait()


def test_those_who_wait_come_first_even_if_their_alarm_is_late() -> None:
    clock = OversleepingClock()
    with ThreadPoolExecutor() as pool, penstock.open("memory:", clock=clock) as store:
        queue = store.queue()
        queue.put(b"a", delay=10)
        waiting = pool.submit(queue.claim, wait=60)
        time.sleep(0.05)
        clock.advance(10)
        assert queue.claim() == []
        assert [message.payload for message in waiting.result()] == [b"a"]


def test_waiting_works_on_the_system_clock() -> None:
    with penstock.open("memory:") as store:
        queue = store.queue()
        queue.put(b"a", delay=0.05)
        queue.put(b"b", delay=0.1)
        taken = [queue.pop(wait=60), queue.pop(wait=60)]
        assert [message.payload for message in taken if message] == [b"a", b"b"]
        assert queue.claim(wait=0.01) == []


def test_nobody_is_left_to_wait_after_a_burst() -> None:
    """Producers, consumers that wait, delays and short leases all at once: every message comes out."""
    count, producers, consumers = 300, 4, 8
    with penstock.open("memory:") as store:
        queue = store.create("jobs", max_attempts=0)
        done: list[bytes] = []

        def produce(number: int) -> None:
            for each in range(count // producers):
                queue.put(f"{number}/{each}", delay=(each % 4) / 100, priority=each % 3)

        def consume() -> None:
            while len(done) < count:
                for message in queue.claim(3, lease=0.02, wait=0.2):
                    if message.attempts == 1 and message.payload.endswith(b"7"):
                        continue  # dies with the message; its lease ends
                    try:
                        message.ack()
                    except penstock.LeaseExpired:
                        continue
                    done.append(message.payload)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
        threads += [threading.Thread(target=consume) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(set(done)) == count
        assert sum(queue.counts().values()) == 0


def test_an_alarm_calls_in_the_order_of_time_and_rests_when_done() -> None:
    clock = penstock.SimulatedClock()
    alarm = Alarm(clock)
    called: list[str] = []
    alarm.at(clock.now() + 2_000, lambda: called.append("later"))
    alarm.at(clock.now() + 1_000, lambda: called.append("sooner"))
    clock.advance(1)
    while called != ["sooner"]:
        time.sleep(0.001)
    clock.advance(1)
    while called != ["sooner", "later"]:
        time.sleep(0.001)
    while any(thread.name == "penstock-alarm" for thread in threading.enumerate()):
        time.sleep(0.001)
    alarm.at(clock.now(), lambda: called.append("again"))
    while len(called) < 3:
        time.sleep(0.001)


def test_a_wait_that_is_longer_than_the_system_can_count_is_no_error() -> None:
    event = threading.Event()
    event.set()
    assert penstock.SystemClock().wait(event, 1e12)
