"""A thousand messages of mixed priorities, four workers, some work that fails: what Penstock makes of it.

On disk, every step synced, in a temporary folder that is gone afterwards.
"""

import random
import tempfile
import threading
import time
from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table

import penstock

MESSAGES = 1_000
WORKERS = 4
PRIORITIES = {"urgent": 0, "normal": 5, "bulk": 9}
FLAKY, BROKEN = 0.10, 0.02  # share of the messages that fail at their first attempt, and at every one


def main() -> None:
    """Put, work off, and tell."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        run(folder)
        with penstock.open(folder) as store:  # again, as the next process would
            show(store.queue("jobs"))


def run(folder: str) -> None:
    """Put a thousand jobs and work them off, then close the store."""
    chance = random.Random(7)  # the same story every time
    started = time.perf_counter()
    with penstock.open(folder) as store:
        queue = store.create("jobs", max_attempts=3, keep_done=None, description="a thousand small jobs")
        queue.put_many(draft(number, chance) for number in range(MESSAGES))
        workers = [threading.Thread(target=work, args=(queue, f"worker-{number}")) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print(f"{MESSAGES:,} messages, {WORKERS} workers, {time.perf_counter() - started:.1f} s")


def draft(number: int, chance: random.Random) -> penstock.Draft:
    """A job: how urgent it is, and how it will go."""
    kind = chance.choice(list(PRIORITIES))
    luck = chance.random()
    fate = "broken" if luck < BROKEN else "flaky" if luck < BROKEN + FLAKY else "fine"
    return penstock.Draft(f"job {number}", PRIORITIES[kind], {"kind": kind, "fate": fate})


def work(queue: penstock.Queue, name: str) -> None:
    """Claim, work, settle, until the queue has been empty for a while."""
    while messages := queue.claim(10, lease=30, wait=0.2, consumer=name):
        for message in messages:
            time.sleep(0.001)  # the work
            fate = message.headers["fate"]
            if fate == "broken" or (fate == "flaky" and message.attempts == 1):
                message.fail(delay=0.05, reason=f"{fate} job")
            else:
                message.ack()


def show(queue: penstock.Queue) -> None:
    """A table of what happened."""
    done, failed = list(queue.messages("done")), list(queue.messages("failed"))
    table = Table(title="What the store holds, closed and opened again", box=box.SIMPLE_HEAD)
    for column in ("priority", "kind", "done", "at 2nd attempt", "failed", "median place"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    order = {
        message.id: place for place, message in enumerate(sorted(done, key=lambda each: each.settled_at or 0), 1)
    }
    for kind, priority in PRIORITIES.items():
        mine = [message for message in done if message.priority == priority]
        places = sorted(order[message.id] for message in mine)
        table.add_row(
            str(priority),
            kind,
            f"{len(mine):,}",
            str(sum(message.attempts > 1 for message in mine)),
            str(sum(message.priority == priority for message in failed)),
            f"{places[len(places) // 2]:,}",
        )
    console = Console()
    console.print(table)
    shares = Counter(message.consumer for message in done)
    console.print("Done by", ", ".join(f"{name}: {count}" for name, count in sorted(shares.items())))
    for reason, count in Counter(message.reason for message in failed).items():
        console.print(f"Failed after {queue.settings.max_attempts} attempts: {count} x {reason!r}")
    assert len(done) + len(failed) == MESSAGES, "a message was lost"
    console.print(
        "Every message is accounted for. Next: read examples/first_run.py, or try '.venv/bin/penstock --help'."
    )


if __name__ == "__main__":
    main()
