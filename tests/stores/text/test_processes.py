"""Several processes at once, readers and writers, some of them killed: nothing is lost, nobody holds another's."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import penstock
from penstock.stores.text import TextQueue
from penstock.stores.text.backend import TextBackend

SPAWN = multiprocessing.get_context("spawn")


def produce(path: str, name: str, count: int) -> None:
    dice = random.Random(name)
    with penstock.open(path, sync="never") as store:
        for number in range(count):
            if dice.random() < 0.3:
                store.queue().put_many([f"{name} {number} a\n-", f"{name} {number} b"])
            else:
                store.queue().put(f"{name} {number}", priority=dice.choice([0, 0, 1]))


def consume(path: str, name: str, log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with penstock.open(path, sync="never") as store:
        while True:
            for message in store.queue().claim(2, lease=1.0, wait=5, consumer=name):
                held: dict[str, object] = {"id": message.id, "from": (message.claimed_at or 0) / 1000}
                held["until"] = (message.lease_until or 0) / 1000
                try:
                    time.sleep(0.001)
                    message.ack()
                    held["until"] = time.time()
                    held["acked"] = message.payload.decode()
                except penstock.LeaseExpired:
                    pass
                os.write(descriptor, (json.dumps(held) + "\n").encode())


def test_many_processes_share_a_file_and_killed_ones_take_nothing_along(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.tq")
    with penstock.open(path):
        pass
    logs = [str(tmp_path / f"{number}.log") for number in range(4)]
    producers = [SPAWN.Process(target=produce, args=(path, f"p{number}", 60)) for number in range(2)]
    consumers = [SPAWN.Process(target=consume, args=(path, f"c{number}", logs[number])) for number in range(3)]
    for each in producers + consumers:
        each.start()
    time.sleep(1.5)
    os.kill(consumers[0].pid or 0, signal.SIGKILL)
    consumers[0] = SPAWN.Process(target=consume, args=(path, "c3", logs[3]))
    consumers[0].start()
    for each in producers:
        each.join()
        assert each.exitcode == 0
    expected = sorted(entry.text for entry in TextQueue(path).entries(processed=True))
    with penstock.open(path) as store:
        while sum(store.queue().counts().values()):
            time.sleep(0.05)
    for each in consumers:
        each.kill()
        each.join()
    held = [json.loads(line) for log in logs if Path(log).exists() for line in Path(log).read_text().splitlines()]
    acked = sorted(each["acked"] for each in held if "acked" in each)
    processed = sorted(entry.text for entry in TextQueue(path).entries(queued=False, processed=True))
    assert processed == expected
    # A consumer that was killed between its ack and its log took the line along, and nothing else.
    assert set(acked) <= set(processed)
    assert len(acked) == len(set(acked)) >= len(processed) - 2
    by_id: dict[str, list[tuple[float, float]]] = {}
    for each in held:
        by_id.setdefault(each["id"], []).append((each["from"], each["until"]))
    for times in by_id.values():
        times.sort()
        assert all(later[0] >= earlier[1] - 0.01 for earlier, later in pairwise(times))


class Pauses(threading.Event):
    """What the thread that looks waits for between two looks: here, until it is told to look."""

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
            producer = SPAWN.Process(target=produce_long, args=(path, str(number), 1))
            producer.start()
            producer.join()
            pauses.looks.release()
            assert [message.payload for message in waiting.result()] == [b"%d" % number]
    assert max(pauses.asked) < 0.1


def test_a_reader_that_follows_the_file_never_sees_half_a_message(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.tq")
    payload = "\n".join(["-whole"] * 50)
    with penstock.open(path) as store:
        producer = SPAWN.Process(target=produce_long, args=(path, payload, 60))
        producer.start()
        while producer.is_alive():
            assert {entry.text for entry in TextQueue(path)} <= {payload}
        assert len(store.queue()) == 60


def produce_long(path: str, payload: str, count: int) -> None:
    with penstock.open(path, sync="never") as store:
        for _ in range(count):
            store.queue().put(payload)
