"""Whether operations cost more as a store grows: in messages of one queue, and in queues that share its messages.

Costs are processor time, which other users of the machine disturb least: of this process for the embedded store,
of the server for HTTP. Payloads have 100 bytes. The stores are filled once, without syncs, and keep their size:
all that is put is also claimed and acknowledged.
"""

import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import penstock
from benchmarks.backlog import python
from benchmarks.brokers.connection import HOST
from benchmarks.brokers.penstock import Penstock
from benchmarks.harness import Cell, kept_folder
from benchmarks.journal import random_payloads
from benchmarks.server import cpu_of
from benchmarks.spark import count_by_state

MESSAGES = (1_000, 100_000, 10_000_000)  # in one queue
QUEUES = (1, 100, 10_000)
SPREAD = 100_000  # messages in all of these queues together
SIZE, BATCH = 100, 1_000
TURNS, PER_TURN = 20, 100  # operations that are measured, PER_TURN of each kind in a row

Measure = Callable[[Path], float]

_FILL = """
import base64, os, sys
import penstock

folder, messages, queues, size, batch = sys.argv[1], *map(int, sys.argv[2:])
payloads = [base64.b64encode(os.urandom(size))[:size] for _ in range(batch)]
with penstock.open(folder, sync="never", share=False) as store:
    for number in range(queues):
        queue, left = store.create(f"queue-{number}"), messages // queues
        while left:
            left -= len(queue.put_many(payloads[:left]))
"""

_RESIDENT = """
import gc, sys
import penstock

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty")) / 1024

before = resident()
with penstock.open(sys.argv[1], sync="never", share=False) as store:
    assert sum(sum(each.counts.values()) for each in store.queues()) >= int(sys.argv[2])
    print(resident() - before)
"""


@functools.cache
def _filled(scratch: Path, messages: int, queues: int) -> Path:
    """A folder whose store has been filled, made once and removed at exit."""
    folder = kept_folder("growth-", scratch)
    python(_FILL, folder / "store", messages, queues, SIZE, BATCH)
    return folder


def _on(messages: int, queues: int, measure: Callable[[Path, int, int], float]) -> Measure:
    """Measure the folder with this many messages in this many queues."""

    def cell(folder: Path) -> float:
        return measure(_filled(folder.parents[1], messages, queues), messages, queues)

    return cell


def _work(operation: str, store: penstock.Store, queues: int, clock: Callable[[], float]) -> float:
    """Microseconds of one operation, after each queue was used once."""
    payload = random_payloads(1, SIZE)[0]
    dice = random.Random(queues)
    every = [store.queue(f"queue-{number}") for number in range(queues)]
    for queue in every:
        queue.put(payload)
        queue.ack(*queue.claim())
    spent = dict.fromkeys(("put", "claim", "ack"), 0.0)
    for _ in range(TURNS):
        some = dice.choices(every, k=PER_TURN)
        started = clock()
        for queue in some:
            queue.put(payload)
        put = clock()
        claimed = [message for queue in some for message in queue.claim(lease=600)]
        claim = clock()
        for message in claimed:
            message.ack()
        spent["put"] += put - started
        spent["claim"] += claim - put
        spent["ack"] += clock() - claim
    return spent[operation] / TURNS / PER_TURN * 1e6


def _embedded(operation: str) -> Callable[[Path, int, int], float]:
    def measure(folder: Path, messages: int, queues: int) -> float:
        with penstock.open(folder / "store", sync="never", share=False) as store:
            return _work(operation, store, queues, time.process_time)

    return measure


def _over_http(operation: str) -> Callable[[Path, int, int], float]:
    def measure(folder: Path, messages: int, queues: int) -> float:
        (folder / "log").unlink(missing_ok=True)  # of the server before, with its address
        with Penstock(folder) as server, penstock.open(f"http://{HOST}:{server.port}") as store:
            [process] = server.processes
            return _work(operation, store, queues, functools.partial(cpu_of, process.pid))

    return measure


def _resident(folder: Path, messages: int, queues: int) -> float:
    return float(python(_RESIDENT, folder / "store", messages))


def _open(folder: Path, messages: int, queues: int) -> float:
    started = time.process_time()
    with penstock.open(folder / "store", share=False) as store:
        found = sum(sum(each.counts.values()) for each in store.queues())
        spent = time.process_time() - started
    if found < messages:
        raise RuntimeError(f"of {messages:,} messages there are {found:,}")
    return spent


def _spark(folder: Path, messages: int, queues: int) -> float:
    started = time.perf_counter()
    found = count_by_state(folder / "store")
    elapsed = time.perf_counter() - started
    if found < messages:
        raise RuntimeError(f"of {messages:,} messages there are {found:,}")
    return elapsed


def _command(*words: str) -> Callable[[Path, int, int], float]:
    """Seconds of a command, from its start to its end."""

    def measure(folder: Path, messages: int, queues: int) -> float:
        command = [sys.executable, "-m", "penstock", "--store", str(folder / "store"), *words]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ})
        return time.perf_counter() - started

    return measure


# What is measured, its unit, and how much of it the largest store may need against the smallest.
KINDS: tuple[tuple[str, str, Callable[[Path, int, int], float], float | None], ...] = (
    *((operation, "µs", _embedded(operation), 1.5) for operation in ("put", "claim", "ack")),
    *((f"HTTP {operation}", "µs", _over_http(operation), 1.5) for operation in ("put", "claim", "ack")),
    ("open", "s", _open, None),
    ("memory", "MB", _resident, None),
    ("Spark, count by state", "s", _spark, None),
    ("pack", "s", _command("pack"), None),
    ("report", "s", _command("report", "--out", "report"), None),
)


def _cells() -> Iterator[Cell]:
    series = (
        ("messages", [(count, count, 1) for count in MESSAGES]),
        ("queues", [(count, SPREAD, count) for count in QUEUES]),
    )
    for word, points in series:
        first = points[0][0]
        for kind, unit, measure, most in KINDS:
            for count, messages, queues in points:
                against = {f"{kind}, {first:,} {word}": most} if count != first else {}
                name = f"{kind}, {count:,} {word}"
                yield Cell(name, f"growth, {word}", unit, _on(messages, queues, measure), "lower", against=against)


CELLS = list(_cells())
