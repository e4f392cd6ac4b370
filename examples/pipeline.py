"""A day's work in a minute: 100,000 events go from Parquet through three queues into an archive and a report.

Spark loads them, all at once. Workers in this process work them off, and some of the work fails. What failed is
driven once more. Then Spark archives what is settled and draws a report. Everything is kept in `penstock-run`.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich import box
from rich.console import Console
from rich.table import Table

import penstock
import penstock.spark
from penstock.spark import jobs

EVENTS = 100_000
WORKERS = 2  # for each queue
FOLDER = Path("penstock-run")
QUEUES = {"orders": 0.01, "images": 0.05, "mails": 0.10}  # and how much of the work fails, for a while
REASONS = ("timeout", "connection reset", "bad gateway")
BROKEN = 0.002  # share of the work that fails however often it is tried
Result = TypeVar("Result")


def main() -> None:
    """The whole pipeline."""
    console = Console()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    events, store, archive, out = (str(FOLDER / name) for name in ("events.parquet", "store", "archive", "report"))
    generate(events)
    with penstock.open(store) as opened:
        for name in QUEUES:
            opened.create(name, max_attempts=3, keep_done=None)
    steps = Steps(console)
    spark = steps.run("start Spark", penstock.spark.session)
    steps.run(f"load {EVENTS:,} events", lambda: load(spark, events, store))
    with penstock.open(store) as opened:
        steps.run("work them off", lambda: work_off(opened))
        failed = sum(opened.queue(name).redrive() for name in QUEUES)
        steps.run(f"once more the {failed:,} that failed", lambda: work_off(opened))
    steps.run("archive what is settled", lambda: jobs.archive(spark, store, archive))
    report = steps.run("draw a report", lambda: jobs.report(spark, store, out, archive=archive))
    archived = jobs.archived(spark, archive).count()
    spark.stop()
    show(console, report)
    assert archived == EVENTS, f"{EVENTS - archived} messages were lost"
    console.print(
        f"All {EVENTS:,} events are accounted for. Look at {out}/report.html, then try:\n"
        f"  .venv/bin/penstock --store {store} list\n"
        f'  .venv/bin/penstock --store {store} sql "SELECT queue, reason, count(*) FROM penstock_attempts '
        "WHERE outcome = 'failed' GROUP BY ALL\"",
        soft_wrap=True,
        highlight=False,
    )


def load(spark: SparkSession, events: str, store: str) -> jobs.Summary:
    """Put each event into the queue of its kind."""
    headers = {"customer": "customer"}
    return jobs.load(
        spark, events, store, payload_json=True, queue_column="kind", priority="urgency", headers=headers
    )


class Steps:
    """Says what is done, and how long it took."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def run(self, what: str, step: Callable[[], Result]) -> Result:
        """Take a step."""
        started = time.perf_counter()
        with self._console.status(what):
            result = step()
        self._console.print(f"{time.perf_counter() - started:6.1f} s  {what}", highlight=False)
        return result


def generate(path: str) -> None:
    """Events of a day."""
    chance = random.Random(7)  # the same story every time
    kinds = chance.choices(list(QUEUES), weights=(5, 2, 3), k=EVENTS)
    events = {
        "number": list(range(EVENTS)),
        "kind": kinds,
        "customer": [f"customer-{int(chance.paretovariate(1.2))}" for _ in kinds],
        "urgency": [chance.choice((0, 5, 5, 9)) for _ in kinds],
        "fate": [fate(chance.random(), QUEUES[kind]) for kind in kinds],
    }
    pq.write_table(pa.table(events), path)


def fate(luck: float, flaky: float) -> str:
    """How the work on an event will go."""
    return "broken" if luck < BROKEN else "flaky" if luck < BROKEN + flaky else "fine"


def work_off(store: penstock.Store) -> None:
    """Work until all queues are empty."""
    workers = [
        threading.Thread(target=work, args=(store.queue(name), f"{name}-{number}"))
        for name in QUEUES
        for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def work(queue: penstock.Queue, name: str) -> None:
    """Claim, work, settle, until the queue has been empty for a while."""
    chance = random.Random(name)
    while messages := queue.claim(100, lease=60, wait=1, consumer=name):
        time.sleep(0.02)  # the work
        done = []
        for message in messages:
            broken = b'"fate":"broken"' in message.payload
            if broken or (b'"fate":"flaky"' in message.payload and chance.random() < 0.5):
                message.fail(delay=0.2, reason=chance.choice(REASONS))
            else:
                done.append(message)
        queue.ack(*done)


def show(console: Console, report: jobs.Summary) -> None:
    """What the report says of each queue."""
    shown = ("queue", "done", "failed", "wait_p50", "wait_p99", "process_p50", "process_p99")
    table = Table(box=box.SIMPLE_HEAD, caption="times in seconds")
    for column in shown:
        table.add_column(column.replace("_", " "), justify="left" if column == "queue" else "right")
    for row in report.as_json()["rows"]:
        cells = [row[column] for column in shown]
        table.add_row(*[f"{cell:.3f}" if isinstance(cell, float) else str(cell or 0) for cell in cells])
    console.print(table)


if __name__ == "__main__":
    main()
