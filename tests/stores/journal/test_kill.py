"""kill -9: a process that uses a journal store is killed at any moment, again and again on the same folder.

Afterwards the store must show exactly what its history allows, and a reader that knows Kestrel's document and
nothing else must see exactly the messages that were not acknowledged away.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import Queue
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.stores.journal import replay
from tests.history import History
from tests.kill_child import EXPIRING, QUEUE, Options

ROOT = Path(__file__).parents[3]


class Series:
    """Processes that use one folder, one after the other."""

    kind = "journal"

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.logs = folder
        self.options = Options(
            str(folder / "store"),
            sync=self.random.choice(["always", "always", "interval", "never"]),
            dialect=self.random.choice(["doc", "doc", "2.x"]),
            segment_size=self.random.choice([10_000, 100_000, 64 << 20]),
            kind=self.kind,
        )
        self.place()
        self.settings = Settings(max_size=500, max_attempts=3, keep_done=self.random.choice([0, 0.3]))
        with self.open() as store:
            store.create(QUEUE, **self.settings)
        self.history = History(penstock.SystemClock().now, self.settings, name="parent")

    def place(self) -> None:
        """Another place than usual, before anything is there."""

    def open(self) -> Store:
        return Store("", self.options.open())

    def run(self, kills: int) -> None:
        for number in range(kills):
            try:
                self.use_and_kill(number)
                if number + 1 == kills or self.random.random() < 0.5:  # else the next one recovers it
                    self.look()
            except BaseException as error:
                error.add_note(f"seed {self.seed}, kill {number}, {self.options}")
                raise

    def use_and_kill(self, number: int) -> None:
        name = f"{self.seed}.{number}"
        log, errors = self.logs / f"{name}.log", self.logs / f"{name}.errors"
        command = [sys.executable, "-m", "tests.kill_child", str(log), name, self.options.to_text()]
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr) as child,
        ):
            assert child.stdout is not None
            if self.random.random() < 0.2:
                time.sleep(self.random.uniform(0, 0.4))  # while it starts, opens the store, or just began
            elif child.stdout.readline() == b"ready\n":  # nothing if it died
                time.sleep(self.random.uniform(0.05, 0.6))
            child.kill()
        assert child.returncode == -signal.SIGKILL, errors.read_text()
        if log.exists():
            with log.open(newline="\n") as lines:
                self.history.feed(lines)
            os.unlink(log)

    def look(self) -> None:
        with self.open() as store:
            queue = store.queue(QUEUE)
            assert queue.settings == self.settings
            self.history.reopened(queue)
            listed = not_acknowledged(queue)
        self.read_by_the_document(listed)
        with self.open() as store:
            queue = store.queue(QUEUE)
            self.history.reopened(queue)
            self.try_again(queue)
            self.history.check(queue)
            listed = not_acknowledged(queue)
        self.read_by_the_document(listed)

    def read_by_the_document(self, listed: Counter[bytes]) -> None:
        read = replay(self.options.folder, QUEUE, self.options.dialect)
        assert read.broken is None
        payloads = Counter([*read.queue, *read.open.values()])
        # What expires is gone for us at once, for other readers when that is next written.
        missing = [payload for payload in listed - payloads if not payload.startswith(EXPIRING)]
        left_over = [payload for payload in payloads - listed if not payload.startswith(EXPIRING)]
        assert (missing, left_over) == ([], [])

    def try_again(self, queue: Queue) -> None:
        """Use receipts and keys of the process that was killed; the history knows what must come of it."""
        history, random = self.history, self.random
        receipts = list(history.receipts)[-200:]
        for receipt in random.sample(receipts, min(20, len(receipts))):
            random.choice([history.ack, history.fail, history.release, history.extend])(queue, receipt)
        for draft in random.sample(history.keyed[-100:], min(10, len(history.keyed))):
            try:
                history.put(queue, draft)
            except penstock.QueueFull:
                continue
        history.ack(queue, *history.claim(queue, 20))
        history.claim(queue, 5)


def not_acknowledged(queue: Queue) -> Counter[bytes]:
    return Counter(message.payload for message in queue.messages() if message.state != "done")


def kill_often(folder: Path, seeds: Iterable[int], kills: int, series: type[Series] = Series) -> None:
    def run(seed: int) -> None:
        (folder / str(seed)).mkdir()
        series(folder / str(seed), seed).run(kills)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, seeds))


def test_a_killed_process_leaves_a_store_that_keeps_its_promises(tmp_path: Path) -> None:
    kill_often(tmp_path, [4, 5, 6], 10)


@pytest.mark.long
@pytest.mark.parametrize("part", range(13))
def test_a_thousand_killed_processes_leave_stores_that_keep_their_promises(tmp_path: Path, part: int) -> None:
    kill_often(tmp_path, range(100 + 4 * part, 104 + 4 * part), 20)
