"""The folder store: against the bare file operations that a put is made of, in batches, and by many processes.

Payloads are 1 KiB, and every operation is synced before it returns.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import penstock
from benchmarks.harness import Cell
from benchmarks.journal import random_payloads

SECONDS = 1.5  # that a rate is measured for
BATCH = 1_000
SHARED = 400  # messages that processes share
BARE, PUT, PUT_MANY = "bare files, put", "folder, put", "folder, put_many(1,000)"
ALONE, TOGETHER = "folder, claim and ack, 1 process", "folder, claim and ack, 4 processes"
GROUP = "folder"


def _lasting(measure: Callable[[Path], float]) -> Callable[[Path], float]:
    """Measure in a folder that stays until all is done.

    For some minutes after a file was removed, ext4 does not give its inode to another, and looks at each of them
    whenever a file is made: a cell would pay for all files that the cells before it have removed.
    """

    def measured(folder: Path) -> float:
        lasting = Path(tempfile.mkdtemp(prefix="folder-", dir=folder.parents[1]))
        atexit.register(shutil.rmtree, lasting, ignore_errors=True)
        return measure(lasting)

    return measured


def _rate(step: Callable[[], object], operations: int = 1) -> float:
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        step()
        done += operations
    return done / elapsed


def _bare(folder: Path) -> float:
    """Create, write, fsync, rename, fsync both folders."""
    new, queue = folder / "new", folder / "queue"
    new.mkdir()
    queue.mkdir()
    [payload] = random_payloads(1)
    count = 0

    def put() -> None:
        nonlocal count
        count += 1
        name = f"{count:036}"
        file = os.open(new / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.write(file, payload)
        os.fsync(file)
        os.close(file)
        os.rename(new / name, queue / name)
        for path in (queue, new):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)

    return _rate(put)


def _put(folder: Path) -> float:
    with penstock.open(f"folder:{folder}") as store:
        queue, [payload] = store.queue(), random_payloads(1)
        queue.put(payload)
        return _rate(lambda: queue.put(payload))


def _put_many(folder: Path) -> float:
    with penstock.open(f"folder:{folder}") as store:
        queue, payloads = store.queue(), random_payloads(BATCH)
        queue.put(payloads[0])
        return _rate(lambda: queue.put_many(payloads), BATCH)


WORK = """
import os, sys, time, penstock
log = open(sys.argv[2], "w")
with penstock.open(sys.argv[1], peers=int(sys.argv[3])) as store:
    queue = store.queue()
    list(queue.peek())
    print("ready", flush=True)
    sys.stdin.readline()
    while message := next(iter(queue.claim(lease=600)), None):
        message.ack()
        log.write(message.id + "\\n")
    log.write(f"collisions {store.backend.shared.collisions}\\n")
"""


def work(folder: Path, processes: int, messages: int, peers: int) -> tuple[float, int]:
    """Messages per second that processes claim and acknowledge, and how often one came too late for a message."""
    url = f"folder:{folder}"
    with penstock.open(url) as store:
        store.queue().put_many(random_payloads(messages))
    logs = [folder / f"{number}.log" for number in range(processes)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, url, str(log), str(peers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for log in logs
    ]
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()
    started = time.perf_counter()
    for worker in workers:
        assert worker.stdin
        worker.stdin.write(b"\n")
        worker.stdin.close()
    if any(worker.wait() for worker in workers):
        raise RuntimeError("a process failed")
    elapsed = time.perf_counter() - started
    for worker in workers:
        assert worker.stdout
        worker.stdout.close()
    lines = [line for log in logs for line in log.read_text().splitlines()]
    taken = Counter(line for line in lines if not line.startswith("collisions"))
    if len(taken) != messages or set(taken.values()) != {1}:
        raise RuntimeError(f"{len(taken)} of {messages} messages came, one {max(taken.values())} times")
    collisions = sum(int(line.split()[1]) for line in lines if line.startswith("collisions"))
    return messages / elapsed, collisions


def _work(processes: int) -> Callable[[Path], float]:
    return lambda folder: work(folder, processes, SHARED, processes - 1)[0]


CELLS = [
    Cell(BARE, GROUP, "ops/s", _lasting(_bare), "higher", of="limit"),
    Cell(PUT, GROUP, "ops/s", _lasting(_put), "higher", {BARE: 0.7}),
    Cell(PUT_MANY, GROUP, "ops/s", _lasting(_put_many), "higher", {PUT: 5}),
    Cell(ALONE, GROUP, "ops/s", _lasting(_work(1)), "higher"),
    Cell(TOGETHER, GROUP, "ops/s", _lasting(_work(4)), "higher", {ALONE: 1.5}),
]
