"""The core without a disk: the ledger alone, the memory store against a bare heap, memory, and import time."""

import functools
import heapq
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from benchmarks.harness import Cell
from penstock.contract.message import Draft, Entry
from penstock.contract.settings import Settings
from penstock.rules.ledger import Ledger

NOW = 1_700_000_000_000
SMALL, LARGE = 1_000, 1_000_000
BATCH = 1_000
PAYLOAD = bytes(100)
HEAP = "bare heapq of tuples, put/claim/ack in batches of 1,000"


@functools.cache
def _filled(waiting: int) -> Ledger:
    """A ledger with `waiting` messages of ten priorities, shared by all cells of its size."""
    ledger = Ledger("bench", Settings())
    for _ in range(waiting // BATCH):
        ledger.put([Entry(b"", number % 10) for number in range(BATCH)], NOW)
    return ledger


def _one_at_a_time(operation: str, waiting: int) -> Callable[[Path], float]:
    """The rate of put, claim or ack of single messages, in a ledger that keeps its length."""

    def measure(_: Path) -> float:
        ledger = _filled(waiting)
        seconds = dict.fromkeys(("put", "claim", "ack"), 0.0)
        entries = [[Entry(b"", number % 10)] for number in range(BATCH)]
        rounds = 20
        for nonce in range(rounds):
            started = time.perf_counter()
            for entry in entries:
                ledger.put(entry, NOW)
            put = time.perf_counter()
            claims = [ledger.claim(1, 30, "bench", nonce, NOW) for _ in range(BATCH)]
            claimed = time.perf_counter()
            receipts = [[(claim.seqs[0], nonce)] for claim in claims if claim]
            settling = time.perf_counter()
            for receipt in receipts:
                ledger.ack(receipt, NOW)
            acked = time.perf_counter()
            seconds["put"] += put - started
            seconds["claim"] += claimed - put
            seconds["ack"] += acked - settling
            ledger.state.gone.clear()
        return rounds * BATCH / seconds[operation]

    return measure


def _memory_store(_: Path) -> float:
    """Operations per second; put, claim and ack of a message are three."""
    with penstock.open("memory:") as store:
        queue = store.queue()
        payloads = [PAYLOAD] * BATCH
        rounds = 100
        started = time.perf_counter()
        for _round in range(rounds):
            queue.put_many(payloads)
            queue.ack(*queue.claim(BATCH))
        return 3 * rounds * BATCH / (time.perf_counter() - started)


def _claim_and_ack(groups: int, per: int) -> Callable[[Path], float]:
    """Messages per second that are claimed and acked, so many at a time, in a memory store full of messages."""

    def measure(_: Path) -> float:
        with penstock.open("memory:") as store:
            queue = store.queue()
            for first in range(0, LARGE, BATCH):
                numbers = range(first, first + BATCH)
                queue.put_many(
                    [Draft(PAYLOAD, group=f"customer-{at % groups}" if groups else None) for at in numbers]
                )
            count = 100_000
            started = time.perf_counter()
            for _round in range(count // per):
                queue.ack(*queue.claim(per))
            return count / (time.perf_counter() - started)

    return measure


def _bare_heap(_: Path) -> float:
    """The least work of any Python queue with priorities and leases."""
    heap: list[tuple[int, int, bytes]] = []
    leases: dict[int, tuple[int, bytes]] = {}
    rounds, seq = 100, 0
    started = time.perf_counter()
    for _round in range(rounds):
        for _item in range(BATCH):
            seq += 1
            heapq.heappush(heap, (0, seq, PAYLOAD))
        claimed = []
        for _item in range(BATCH):
            _priority, number, payload = heapq.heappop(heap)
            leases[number] = (NOW, payload)
            claimed.append((number, payload))
        for number, _payload in claimed:
            del leases[number]
    return 3 * rounds * BATCH / (time.perf_counter() - started)


_RESIDENT = """
import gc, sys
from penstock.rules.ledger import Ledger
from penstock.contract.message import Entry
from penstock.contract.settings import Settings

def resident():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty")) * 1024

def put(ledger, first):
    ledger.put([Entry(b"", at % 10, group=GROUP) for at in range(first, first + 1000)], 0)

put(Ledger("warm", Settings()), 0)
before = resident()
ledger = Ledger("bench", Settings())
for first in range(0, 1_000_000, 1000):
    put(ledger, first)
print((resident() - before) / 1_000_000)
"""
_ALONE = _RESIDENT.replace("GROUP", "None")
_IN_GROUPS = _RESIDENT.replace("GROUP", 'f"customer-{at % 100_000}"')

_IMPORT = """
import time
started = time.perf_counter()
import penstock
print(time.perf_counter() - started)
"""


def _in_a_fresh_process(code: str) -> Callable[[Path], float]:
    def measure(_: Path) -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)

    return measure


def _name(operation: str, waiting: int) -> str:
    return f"ledger {operation}, {waiting:,} waiting"


def _waiting(how: str, groups: str) -> str:
    return f"memory store, claim/ack {how}, 1,000,000 waiting{groups}"


CELLS = [
    *(
        Cell(_name(operation, SMALL), "ledger", "ops/s", _one_at_a_time(operation, SMALL), "higher")
        for operation in ("put", "claim", "ack")
    ),
    *(
        Cell(
            _name(operation, LARGE),
            "ledger",
            "ops/s",
            _one_at_a_time(operation, LARGE),
            "higher",
            against={_name(operation, SMALL): 1 / 1.2},
        )
        for operation in ("put", "claim", "ack")
    ),
    Cell(
        "ledger, 1,000,000 waiting",
        "ledger",
        "bytes/message",
        _in_a_fresh_process(_ALONE),
        "lower",
        target=100,
    ),
    Cell(
        "ledger, 1,000,000 waiting in 100,000 groups",
        "ledger",
        "bytes/message",
        _in_a_fresh_process(_IN_GROUPS),
        "lower",
        target=140,
    ),
    Cell(HEAP, "memory store", "ops/s", _bare_heap, "higher", of="limit"),
    Cell(
        "memory store, put_many/claim/ack in batches of 1,000",
        "memory store",
        "ops/s",
        _memory_store,
        "higher",
        against={HEAP: None},
        target=300_000,
    ),
    *(
        cell
        for per, how in ((1, "one at a time"), (100, "in batches of 100"))
        for cell in (
            Cell(_waiting(how, ""), "memory store", "messages/s", _claim_and_ack(0, per), "higher"),
            Cell(
                _waiting(how, " in 100,000 groups"),
                "memory store",
                "messages/s",
                _claim_and_ack(100_000, per),
                "higher",
                against={_waiting(how, ""): 1 / 1.5},
            ),
        )
    ),
    Cell("import penstock", "start", "s", _in_a_fresh_process(_IMPORT), "lower", target=0.15),
]
