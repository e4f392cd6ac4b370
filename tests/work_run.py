"""Very many messages through four worker processes of one server, with handlers that fail one message in twenty.

One of the processes is killed in the middle and another takes its place. At the end each message is done or failed
exactly as the rules say: python -m tests.work_run [MESSAGES]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import penstock
from penstock import Message
from penstock.workers import Fail
from tests.server_child import ServerChild

PROCESSES, CONCURRENCY, LEASE = 4, 64, 10
MAX_ATTEMPTS = 4
_BATCH = 1000


def is_hopeless(number: int) -> bool:
    return number % 100 == 0


def handler(message: Message) -> None:
    """Four in a hundred fail once or twice, one fails always; a kill may cost each message one attempt more."""
    number = int(message.payload)
    if is_hopeless(number) or (number % 20 == 0 and message.attempts <= 1 + number // 20 % 2):
        raise Fail(f"number {number}")


def run(folder: Path, count: int) -> str:
    """Put the messages, work on them, and check what became of each; how long that took."""
    with ServerChild(folder) as server, penstock.open(server.url) as store:
        jobs = store.create("jobs", max_attempts=MAX_ATTEMPTS, keep_done=None)
        began = time.monotonic()
        for start in range(0, count, _BATCH):
            jobs.put_many([b"%d" % number for number in range(start, min(start + _BATCH, count))])
        put = time.monotonic()
        command = [sys.executable, "-m", "tests.work_run", "--worker", server.url]
        workers = [subprocess.Popen(command) for _ in range(PROCESSES)]
        while jobs.counts()["done"] < count // 2:
            time.sleep(0.1)
        workers[0].kill()
        workers.append(subprocess.Popen(command))
        codes = [worker.wait() for worker in workers]
        worked = time.monotonic()
        assert codes[1:] == [0] * PROCESSES, codes
        while sum(jobs.counts()[state] for state in ("delayed", "available", "in_flight")):  # the killed one's
            penstock.work(jobs, handler, backoff=0, until_empty=True)
            time.sleep(0.1)
        assert server.stop() == 0
    with penstock.open(folder) as store:
        states: dict[int, str] = {}
        for message in store.queue("jobs").messages():
            number = int(message.payload)
            assert number not in states
            states[number] = message.state
    wrong = {number: state for number, state in states.items() if (state == "failed") != is_hopeless(number)}
    assert (len(states), wrong) == (count, {})
    assert set(states.values()) == {"done", "failed"}
    rate = count / (worked - put)
    return f"{count:,} messages put in {put - began:.1f} s, worked on in {worked - put:.1f} s ({rate:,.0f}/s)"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--worker"]:
        with penstock.open(arguments[1]) as store:
            penstock.work(store.queue("jobs"), handler, CONCURRENCY, lease=LEASE, backoff=0, until_empty=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        count = int(arguments[0]) if arguments else 1_000_000
        sys.stdout.write(run(Path(folder) / "store", count) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
