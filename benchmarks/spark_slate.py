"""Spark with the log of a slate store: reading it against plain readers, and routing it with few and many filters.

Routing is measured from the start of the job to the last message on stable storage in its queue, on a log that has
not been routed; every entry goes to one queue, however many there are. All on local[2], in one session.
"""

import functools
import multiprocessing
import os
import shutil
import time
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.harness import Cell, kept_folder
from benchmarks.spark import MESSAGES, _session
from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.stores.slate import snapshot
from penstock.stores.slate.format import decode_metadata, key_u64, log_prefix
from penstock.stores.slate.place import parse
from penstock.stores.slate.snapshot import Snapshot
from penstock.stores.slate.store import open_slate

TOPICS = 1_000
FEW, MANY = 10, 1_000  # filters
BATCH = 5_000
READERS = 2
GROUP = "spark, the log of a slate store"
_COLUMNS = (
    "sequence bigint, headers map<string,string>, priority bigint, received_at timestamp, visible_at timestamp"
)
_warmed: set[str] = set()


@functools.cache
def _log(scratch: Path, queues: int) -> Path:
    """A store with MESSAGES log entries, and queues that share the topics; made once, removed at exit."""
    folder = kept_folder("slate-", scratch)
    with closing(open_slate(f"slate:{folder / 'store'}?router=off", sync="never")) as backend:
        for number in range(queues):
            wanted = ", ".join(f"'topic-{topic}'" for topic in range(number, TOPICS, queues))
            backend.create(f"queue-{number}", Settings(filter=f"topic IN ({wanted})"))
        for start in range(0, MESSAGES, BATCH):
            now = int(time.time() * 1000)
            with backend._log.lock:
                for number in range(start, start + BATCH):
                    headers = {"topic": f"topic-{number * 7919 % TOPICS}", "source": "benchmark"}
                    backend._log.append(Entry(b"a message of the benchmark", headers=headers), now)
            backend._writer.commit(backend._writer.written)
        backend.collect()
    return folder / "store"


def _read(moment: Snapshot, log: str, first: int, end: int, barrier: Barrier) -> None:
    """Decode every entry of a part of the log, without Spark."""
    prefix, count = log_prefix(log), 0
    barrier.wait()
    with closing(snapshot.opened(moment)) as view:
        for some in view.batches(prefix + key_u64(first), prefix + key_u64(end)):
            for _, value in some:
                decode_metadata(value)
                count += 1
    if count != end - first:
        raise RuntimeError(f"{count:,} entries are not {end - first:,}")


def _plain(folder: Path) -> float:
    """Entries per second of parallel readers, each in its own process."""
    url = f"slate:{_log(folder.parents[1], FEW)}"
    moment, log = snapshot.take(url, os.getpid(), objects=False), parse(url).log
    context = multiprocessing.get_context("spawn")
    barrier, half = context.Barrier(READERS + 1), MESSAGES // READERS
    readers = [
        context.Process(target=_read, args=(moment, log, 1 + number * half, 1 + (number + 1) * half, barrier))
        for number in range(READERS)
    ]
    for reader in readers:
        reader.start()
    barrier.wait()
    started = time.perf_counter()
    for reader in readers:
        reader.join()
    elapsed = time.perf_counter() - started
    snapshot.drop(moment)
    if any(reader.exitcode for reader in readers):
        raise RuntimeError("a reader has failed")
    return MESSAGES / elapsed


def _scan(folder: Path) -> float:
    """Entries per second of a query over the whole log."""
    url = f"slate:{_log(folder.parents[1], FEW)}"

    def read() -> int:
        log = (
            _session().read.format("penstock").option("store", url).option("table", "log").schema(_COLUMNS).load()
        )
        (row,) = log.selectExpr("count(headers['topic'])", "sum(sequence)", "max(received_at)").collect()
        return int(row[0])

    if "scan" not in _warmed:
        read()
        _warmed.add("scan")
    started = time.perf_counter()
    if (found := read()) != MESSAGES:
        raise RuntimeError(f"{found:,} entries are not {MESSAGES:,}")
    return MESSAGES / (time.perf_counter() - started)


def _route(queues: int, folder: Path) -> float:
    """Entries per second of routing the whole log."""
    from penstock.spark import jobs

    store = folder / "store"
    shutil.copytree(_log(folder.parents[1], queues), store)
    url = f"slate:{store}?router=off"
    _session()
    started = time.perf_counter()
    summary = jobs.route(_session(), url, available_now=True)
    elapsed = time.perf_counter() - started
    routed = sum(int(count or 0) for _, count in summary.rows)
    if routed != MESSAGES or len(summary.rows) != queues:
        raise RuntimeError(f"{routed:,} messages in {len(summary.rows):,} queues")
    return MESSAGES / elapsed


PLAIN = f"{READERS} plain readers side by side, {MESSAGES:,} entries"
FEW_FILTERS = f"route {MESSAGES:,} entries, {FEW} filters"
CELLS = [
    Cell(PLAIN, GROUP, "ops/s", _plain, "higher", of="limit"),
    Cell(f"Spark, local[2], {MESSAGES:,} entries", GROUP, "ops/s", _scan, "higher", {PLAIN: 0.8}),
    Cell(FEW_FILTERS, GROUP, "ops/s", functools.partial(_route, FEW), "higher"),
    Cell(
        f"route {MESSAGES:,} entries, {MANY:,} filters",
        GROUP,
        "ops/s",
        functools.partial(_route, MANY),
        "higher",
        {FEW_FILTERS: 0.5},
    ),
]
