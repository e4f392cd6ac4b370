"""Several processes on one text queue: consumers that wait, and readers of the file."""

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import penstock
from penstock.stores.text import TextQueue
from penstock.stores.text.backend import TextBackend

SPAWN = multiprocessing.get_context("spawn")


class Pauses(threading.Event):
    """The pauses of the poller: each ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []
        self.looks = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout or 0)
        self.looks.acquire()
        return self.is_set()

    def set(self) -> None:
        super().set()
        self.looks.release()


def test_what_another_process_puts_is_found_at_the_next_look_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    path, pauses = str(tmp_path / "jobs.tq"), Pauses()
    with penstock.open(path) as store, ThreadPoolExecutor() as threads:
        backend = store.backend
        assert isinstance(backend, TextBackend)
        backend._poller._stopping = pauses
        for number in range(3):
            waiting = threads.submit(store.queue().claim, wait=1000)
            while len(pauses.asked) <= number:
                time.sleep(0.001)
            producer = SPAWN.Process(target=produce, args=(path, str(number), 1))
            producer.start()
            producer.join()
            pauses.looks.release()
            assert [message.payload for message in waiting.result()] == [b"%d" % number]
    assert max(pauses.asked) < 0.1


def test_a_reader_that_follows_the_file_never_sees_half_a_message(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.tq")
    payload = "\n".join(["-whole"] * 50)
    with penstock.open(path) as store:
        producer = SPAWN.Process(target=produce, args=(path, payload, 60))
        producer.start()
        while producer.is_alive():
            assert {entry.text for entry in TextQueue(path)} <= {payload}
        assert len(store.queue()) == 60


def produce(path: str, payload: str, count: int) -> None:
    with penstock.open(path, sync="never") as store:
        for _ in range(count):
            store.queue().put(payload)
