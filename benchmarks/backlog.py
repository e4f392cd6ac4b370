"""The journal store with a million messages waiting: memory, reopening, and whether operations cost more."""

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import penstock
from benchmarks.harness import Cell, kept_folder
from benchmarks.journal import random_payloads
from benchmarks.probes import KIB, MIB

FEW, MANY, BATCH = 1_000, 1_000_000, 1_000
SIZE, SMALL_SIZE = KIB, 100  # bytes of a payload
TURNS, PER_TURN = 50, 100  # operations whose CPU time is compared

Measure = Callable[[Path], float]

_RESIDENT = """
import base64, gc, os, sys
import penstock

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty")) * 1024

folder, waiting, batch, size = sys.argv[1], *map(int, sys.argv[2:])
drafts = [penstock.Draft(base64.b64encode(os.urandom(size))[:size], number % 10) for number in range(batch)]
with penstock.open(os.path.join(folder, "warm")) as store:
    store.queue().put_many(drafts)
with penstock.open(os.path.join(folder, "store")) as store:
    before = resident()
    for _ in range(waiting // batch):
        store.queue().put_many(drafts)
    print((resident() - before) / waiting)
"""

_FILL = """
import base64, itertools, os, signal, sys
import penstock

folder, ending, waiting, batch, size = *sys.argv[1:3], *map(int, sys.argv[3:])
payloads = [base64.b64encode(os.urandom(size))[:size] for _ in range(1000)]
batches = itertools.cycle([payloads[at : at + batch] for at in range(0, 1000, batch)])
store = penstock.open(folder, sync="never", share=False)
queue = store.queue()
for _ in range(waiting // batch):
    queue.put_many(next(batches))
if ending == "after kill -9":
    os.kill(os.getpid(), signal.SIGKILL)
store.close()
"""


def python(code: str, *arguments: object, exit_code: int = 0) -> str:
    """The output of a new Python process."""
    ran = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    if ran.returncode != exit_code:
        raise RuntimeError(f"the process ended with {ran.returncode}: {ran.stderr.strip()}")
    return ran.stdout


def _resident(folder: Path) -> float:
    return float(python(_RESIDENT, folder, MANY, BATCH, SMALL_SIZE))


@functools.cache
def _filled(scratch: Path, batch: int, ending: str) -> Path:
    """A folder that a process has filled with messages, made once and removed at exit."""
    folder = kept_folder("filled-", scratch)
    exit_code = -signal.SIGKILL if ending == "after kill -9" else 0
    python(_FILL, folder, ending, MANY, batch, SIZE, exit_code=exit_code)
    return folder


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _read(folder: Path) -> float:
    """The seconds for reading and checksumming the journal files: the least that recovery must do."""
    started = time.perf_counter()
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                checksum = 0
                while block := file.read(MIB):
                    checksum = zlib.crc32(block, checksum)
    return time.perf_counter() - started


def _reopen(batch: int, ending: str) -> Measure:
    """The time of opening a store, as a multiple of reading its files; on a copy: opening may change it."""

    def measure(folder: Path) -> float:
        copy = folder / "store"
        shutil.copytree(_filled(folder.parents[1], batch, ending), copy)
        _sync(copy)  # else the disk would write the copy during this measurement and the next
        _read(copy)  # into the page cache, for both measurements
        reading = _read(copy)
        started = time.perf_counter()
        with penstock.open(copy) as store:
            counts = store.queue().counts()
            opening = time.perf_counter() - started
        if counts["available"] != MANY:
            raise RuntimeError(f"of {MANY:,} messages there are {counts}")
        return opening / reading

    return measure


def _growth(operation: str) -> Measure:
    """The CPU time of an operation with many waiting messages, as a multiple of that with few; without syncs."""

    def measure(folder: Path) -> float:
        with _waiting(folder / "few", FEW) as few, _waiting(folder / "many", MANY) as many:
            seconds = [0.0, 0.0]
            for _ in range(TURNS):
                for at, store in enumerate((few, many)):
                    seconds[at] += _cpu_times(store.queue())[operation]
        return seconds[1] / seconds[0]

    return measure


def _waiting(folder: Path, count: int) -> penstock.Store:
    store = penstock.open(folder, sync="never")
    payloads = random_payloads(BATCH, SMALL_SIZE)
    for _ in range(count // BATCH):
        store.queue().put_many(payloads)
    return store


def _cpu_times(queue: penstock.Queue) -> dict[str, float]:
    """CPU seconds of puts and claims, one at a time; all are acknowledged, so the queue keeps its length."""
    payloads = random_payloads(PER_TURN, SMALL_SIZE)
    started = time.process_time()
    for payload in payloads:
        queue.put(payload)
    put = time.process_time()
    claimed = [queue.claim()[0] for _ in payloads]
    end = time.process_time()
    queue.ack(*claimed)
    return {"put": put - started, "claim": end - put}


GROUP = "journal, 1,000,000 waiting"


def _reopening() -> Iterator[Cell]:
    for batch, how, targets in ((BATCH, "in thousands", (1, 3)), (1, "one by one", (3, 8))):
        for ending, target in zip(("clean", "after kill -9"), targets, strict=True):
            name = f"journal, reopen, put {how}, {ending}"
            yield Cell(name, GROUP, "x read+crc32", _reopen(batch, ending), "lower", target=target)


CELLS = [
    Cell("journal, memory", GROUP, "bytes/message", _resident, "lower", target=100),
    *_reopening(),
    *(
        Cell(f"journal, CPU of {operation}", GROUP, "x that at 1,000", _growth(operation), "lower", target=1.3)
        for operation in ("put", "claim")
    ),
]
