"""The journal store through the contract, against the raw disk and against its peers.

Payloads are 1 KiB, and every operation is synced before it returns.
"""

import base64
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal

import penstock
from benchmarks import peers
from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL, Cell
from benchmarks.probes import KIB

SECONDS = 0.7  # of a measurement
PREFILLED = 2_000  # messages to consume one at a time
BATCH, BATCHES = 1_000, 50
THREADS, QUEUES = 16, 100


class Popping(peers.Peer):
    """The journal store, used like peers without acknowledgement: one durable step takes a message out."""

    def __init__(self, folder: Path, sync: Literal["always", "never"] = "always") -> None:
        self.store = penstock.open(folder, sync=sync)
        self.queue = self.store.queue()

    def put(self, payload: bytes) -> object:
        return self.queue.put(payload)

    def consume(self) -> bytes | None:
        message = self.queue.pop()
        return None if message is None else message.payload

    def close(self) -> None:
        self.store.close()


class Acking(Popping):
    """The journal store, used like peers with acknowledgement: claim and ack are two durable steps."""

    def consume(self) -> bytes | None:
        for message in self.queue.claim():
            message.ack()
            return message.payload
        return None


Make = Callable[[Path], peers.Peer]
Measure = Callable[[Path], float]


def random_payloads(count: int, size: int = KIB) -> list[bytes]:
    """Random ASCII: neither a compressing file system nor a queue that keeps text gains an advantage."""
    text = base64.b64encode(os.urandom(count * size))
    return [text[at : at + size] for at in range(0, count * size, size)]


def rate(step: Callable[[], object], operations: int = 1, most: float = math.inf) -> float:
    """Operations per second; a step makes `operations` of them. Ends after SECONDS, or `most` operations."""
    done, started = 0, time.perf_counter()
    while True:
        step()
        done += operations
        elapsed = time.perf_counter() - started
        if elapsed >= SECONDS or done >= most:
            return done / elapsed


def _rate_of_threads(step: Callable[[random.Random], object], leave: Callable[[], object]) -> float:
    """Steps per second of all threads together; each thread has its own random numbers."""
    started: list[float] = []
    ready = threading.Barrier(THREADS, action=lambda: started.append(time.perf_counter()))

    def work(number: int) -> int:
        dice, done = random.Random(number), 0
        ready.wait()
        try:
            while time.perf_counter() - started[0] < SECONDS:
                step(dice)
                done += 1
        finally:
            leave()
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(work, range(THREADS)))
        return done / (time.perf_counter() - started[0])


# One message at a time


def _put(make: Make) -> Measure:
    def measure(folder: Path) -> float:
        supply = itertools.cycle(random_payloads(BATCH))
        with closing(make(folder)) as queue:
            return rate(lambda: queue.put(next(supply)))

    return measure


def _consume(make: Make) -> Measure:
    def measure(folder: Path) -> float:
        with closing(make(folder)) as queue:
            for payload in random_payloads(PREFILLED):
                queue.put(payload)

            def step() -> None:
                if queue.consume() is None:
                    raise RuntimeError("the queue has lost messages")

            return rate(step, most=PREFILLED)

    return measure


def _put_by_threads(make: Make) -> Measure:
    def measure(folder: Path) -> float:
        payloads = random_payloads(BATCH)
        with closing(make(folder)) as queue:
            return _rate_of_threads(lambda dice: queue.put(dice.choice(payloads)), queue.leave)

    return measure


def _put_by_threads_on_many_queues(folder: Path) -> float:
    with penstock.open(folder) as store:
        queues = [store.create(f"queue-{number}") for number in range(QUEUES)]
        payloads = random_payloads(BATCH)
        return _rate_of_threads(lambda dice: dice.choice(queues).put(dice.choice(payloads)), lambda: None)


# Processor time of one message at a time, without syncs: what Penstock itself costs


def _cpu_of_put(folder: Path) -> float:
    payloads = random_payloads(PREFILLED)
    with closing(Popping(folder, sync="never")) as queue:
        return _cpu(queue.put, payloads)


def _cpu_of_consuming(kind: type[Popping]) -> Measure:
    def measure(folder: Path) -> float:
        payloads = random_payloads(PREFILLED)
        with closing(kind(folder, sync="never")) as queue:
            for payload in payloads:
                queue.put(payload)
            return _cpu(lambda _: queue.consume(), payloads)

    return measure


def _cpu(step: Callable[[bytes], object], payloads: Sequence[bytes]) -> float:
    """Microseconds of processor time of a step."""
    started = time.process_time()
    for payload in payloads:
        step(payload)
    return (time.process_time() - started) / len(payloads) * 1e6


# Batches


def _put_many(folder: Path) -> float:
    with penstock.open(folder) as store:
        queue, payloads = store.queue(), random_payloads(BATCH)
        return rate(lambda: queue.put_many(payloads), BATCH)


def _claim_and_ack_many(folder: Path) -> float:
    with penstock.open(folder) as store:
        queue, payloads = store.queue(), random_payloads(BATCH)
        for _ in range(BATCHES):
            queue.put_many(payloads)

        def step() -> None:
            messages = queue.claim(BATCH)
            if sum(len(message.payload) for message in messages) != BATCH * KIB:
                raise RuntimeError("the queue has lost messages")
            queue.ack(*messages)

        return rate(step, BATCH, most=BATCHES * BATCH)


# The cells

ONE, TOGETHER, BULK = "journal, one thread", "journal, 16 threads", "journal, batches of 1,000"
CPU = "journal, processor time without syncs"


def _compared(
    what: str,
    group: str,
    measure: Callable[[Make], Measure],
    ours: Make,
    others: Mapping[str, Make],
    of_raw: float,
    of_others: float,
) -> Iterator[Cell]:
    """The cell of the journal store with its targets, and a cell of each peer."""
    against = {RAW_APPEND: of_raw} | {f"{name}, {what}": of_others for name in others}
    yield Cell(f"journal, {what}", group, "ops/s", measure(ours), "higher", against)
    for name, make in others.items():
        yield Cell(f"{name}, {what}", group, "ops/s", measure(make), "higher", of="peer")


def _in_bulk(what: str, measure: Measure, of_raw: float) -> Cell:
    against = {RAW_SEQUENTIAL: of_raw}
    return Cell(f"journal, {what}", BULK, "ops/s", measure, "higher", against, bytes_per_op=KIB)


CELLS = [
    *_compared("put", ONE, _put, Popping, peers.EVERY, of_raw=0.8, of_others=0.9),
    *_compared("pop", ONE, _consume, Popping, peers.WITHOUT_ACK, of_raw=0.85, of_others=0.9),
    *_compared("claim and ack", ONE, _consume, Acking, peers.WITH_ACK, of_raw=0.45, of_others=0.9),
    *_compared("put, 16 threads", TOGETHER, _put_by_threads, Popping, peers.EVERY, of_raw=3, of_others=2.5),
    Cell(
        "journal, put, 16 threads on 100 queues",
        TOGETHER,
        "ops/s",
        _put_by_threads_on_many_queues,
        "higher",
        against={RAW_APPEND: 2},
    ),
    Cell("journal, processor time of put", CPU, "µs", _cpu_of_put, "lower"),
    Cell("journal, processor time of pop", CPU, "µs", _cpu_of_consuming(Popping), "lower"),
    Cell("journal, processor time of claim and ack", CPU, "µs", _cpu_of_consuming(Acking), "lower"),
    _in_bulk("put_many(1,000)", _put_many, of_raw=0.3),
    _in_bulk("claim(1,000) and ack", _claim_and_ack_many, of_raw=0.2),
]
