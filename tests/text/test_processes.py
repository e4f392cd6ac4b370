"""Several processes at once, readers and writers, some of them killed: nothing is lost, nobody holds another's."""

import json
import multiprocessing
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import penstock
from penstock.text import TextQueue

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
                held = {"id": message.id, "from": time.time(), "until": (message.lease_until or 0) / 1000}
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
        each.join(60)
        assert each.exitcode == 0
    expected = sorted(entry.text for entry in TextQueue(path).entries(processed=True))
    with penstock.open(path) as store:
        end = time.monotonic() + 30
        while sum(store.queue().counts().values()) and time.monotonic() < end:
            time.sleep(0.05)
        assert sum(store.queue().counts().values()) == 0
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


def test_a_consumer_in_another_process_is_woken_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    path, log = str(tmp_path / "jobs.tq"), str(tmp_path / "log")
    with penstock.open(path) as store:
        consumer = SPAWN.Process(target=consume, args=(path, "c", log))
        consumer.start()
        try:
            delays = []
            for number in range(6):
                time.sleep(0.3 if number else 2)
                store.queue().put(str(number))
                put_at = time.time()
                while not Path(log).exists() or len(Path(log).read_text().splitlines()) <= number:
                    assert time.time() < put_at + 10
                    time.sleep(0.005)
                delays.append(json.loads(Path(log).read_text().splitlines()[-1])["from"] - put_at)
        finally:
            consumer.kill()
            consumer.join()
    assert sorted(delays)[2] < 0.1  # in the middle: the machine may be busy


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
