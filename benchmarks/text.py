"""The text store through the contract, against the raw disk; and how fast its files are read, against `wc -l`.

Payloads are 1 KiB, and every operation is synced before it returns; a put twice, as it is born commented out.
Looks after a shell's append are measured in processor time, on a file of 200,000 lines that a person wrote.
"""

import mmap
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from benchmarks.harness import RAW_APPEND, Cell
from benchmarks.journal import BATCH, PREFILLED, random_payloads, rate
from penstock.stores.text.format import parse, scan
from penstock.stores.text.variables import plain_entries

GROUP, READING, APPENDS = "text, one thread", "text, reading", "text, a look after `echo >>`"
SIZE = 100_000_000  # bytes of the file that is read
BY_HAND, SHELLS = 200_000, 20  # lines of a file, and of those that shells append one by one
PUT, LINES = "text, put", "wc -l of a text queue"


def _put(folder: Path) -> float:
    with penstock.open(f"text:{folder}") as store:
        supply = iter(random_payloads(20 * PREFILLED))
        return rate(lambda: store.queue().put(next(supply)), most=20 * PREFILLED)


def _put_many(folder: Path) -> float:
    with penstock.open(f"text:{folder}") as store:
        queue, payloads = store.queue(), random_payloads(BATCH)
        return rate(lambda: queue.put_many(payloads), BATCH)


def _claim_and_ack(folder: Path) -> float:
    with penstock.open(f"text:{folder}") as store:
        queue = store.queue()
        queue.put_many(random_payloads(PREFILLED))

        def step() -> None:
            [message] = queue.claim()
            message.ack()

        return rate(step, most=PREFILLED)


def _file(folder: Path) -> tuple[Path, int]:
    """A queue of messages as people put them: a line of text and its variables. It is in memory afterwards."""
    texts = [b"resize picture %08d of the holiday in the mountains, please" % number for number in range(1_000)]
    piece = b"".join(plain_entries(texts, ["0123456789abcdef"] * len(texts), 0)[0]).replace(b"#resize", b"-resize")
    path, repeats = folder / "big.tq", SIZE // len(piece) + 1
    with path.open("wb") as file:
        for _ in range(repeats):
            file.write(piece)
    path.read_bytes()
    return path, repeats * len(piece)


def _scan(folder: Path) -> float:
    """Entries as arrays of offsets and control characters."""
    path, size = _file(folder)
    scan(b"-warm\n" * 400_000)
    started = time.perf_counter()
    with path.open("rb") as file:
        starts = scan(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    elapsed = time.perf_counter() - started
    if len(starts.offsets) % 1_000:
        raise RuntimeError("entries were missed")
    return size / elapsed / 1e6


def _parse(folder: Path) -> float:
    """Entries as objects, with their texts and variables."""
    path, size = _file(folder)
    data = path.read_bytes()[: size // 20]
    started = time.perf_counter()
    parse(data)
    return len(data) / (time.perf_counter() - started) / 1e6


def _count_lines(folder: Path) -> float:
    path, size = _file(folder)
    started = time.perf_counter()
    subprocess.run(["wc", "-l", str(path)], check=True, capture_output=True)
    return size / (time.perf_counter() - started) / 1e6


def _after_append(look: Callable[[penstock.Queue], object]) -> Callable[[Path], float]:
    def measure(folder: Path) -> float:
        path = folder / "queue.tq"
        path.write_text("".join(f"-payload {number}\n" for number in range(BY_HAND)))
        with penstock.open(path) as store:
            queue, spent = store.queue(), []
            for number in range(SHELLS):
                subprocess.run(["sh", "-c", 'echo "-payload" >> "$0"', str(path)], check=True)
                started = time.process_time()
                look(queue)
                spent.append(time.process_time() - started)
                if sum(queue.counts().values()) != BY_HAND + number + 1:
                    raise RuntimeError("the line was missed")
        return statistics.median(spent)

    return measure


CELLS = [
    Cell(PUT, GROUP, "ops/s", _put, "higher", against={RAW_APPEND: 0.4}),
    Cell("text, put_many(1,000)", GROUP, "ops/s", _put_many, "higher", against={PUT: 20}),
    Cell("text, claim and ack", GROUP, "ops/s", _claim_and_ack, "higher", against={RAW_APPEND: None}),
    Cell("counts() after an append", APPENDS, "s", _after_append(penstock.Queue.counts), "lower", target=0.05),
    Cell("claim(1) after an append", APPENDS, "s", _after_append(penstock.Queue.claim), "lower", target=0.05),
    Cell("text, offsets of all entries", READING, "MB/s", _scan, "higher", against={LINES: 0.25}),
    Cell("text, all entries", READING, "MB/s", _parse, "higher"),
    Cell(LINES, READING, "MB/s", _count_lines, "higher", of="limit"),
]
