"""kill -9 of processes that use a folder store: in the middle of every step, at any moment, and beside others."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock import Draft, Queue
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.stores.folder.backend import open_folder
from penstock.system.files import SystemDisk
from tests.history import History
from tests.kill_child import QUEUE

ROOT = Path(__file__).parents[3]
SETTINGS = Settings(max_size=50, max_attempts=2, keep_done=60)


class KillingDisk(SystemDisk):
    """A disk that kills the process before the operation of a number."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in CHANGING:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return value


CHANGING = frozenset(
    ("open", "rename", "unlink", "mkdir", "rmdir", "sync_folder", "sync_files", "set_attribute", "set_changed")
)


def every_step(queue: Queue, history: History) -> None:
    """Each operation once or twice."""
    history.put(queue, b"first")
    history.put(queue, Draft(b"urgent", priority=-1, headers={"kind": "x" * 2_000}, key="once"))
    history.put(queue, Draft(b"late", delay=100))
    history.put_many(queue, [b"one", Draft(b"two", priority=3), Draft(b"three", delay=100)])
    history.put_many(queue, [Draft(b"a", key="a"), Draft(b"b", key="b")])
    claimed = history.claim(queue, 5, 100)
    history.extend(queue, claimed[0], lease=1_000)
    history.ack(queue, claimed[0])
    history.fail(queue, claimed[1], delay=100, reason="not today")
    history.release(queue, claimed[2])
    history.pop(queue)
    for _ in range(2):
        again = history.claim(queue, 1, 100)
        history.fail(queue, *again, reason="x" * 900)
    history.redrive(queue)
    history.remove(queue, claimed[3].id)
    history.ack(queue, *history.claim(queue, 2))
    history.purge(queue)


def run_until_killed(folder: Path, log: Path, last: int, prepare: Callable[[], object]) -> bool:
    """Whether it was killed before it came to its end."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            prepare()
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            backend = open_folder(str(folder), disk=KillingDisk(last))
            queue = Store("", backend).queue(QUEUE)
            write = lambda line: os.write(descriptor, line.encode())  # noqa: E731
            history = History(penstock.SystemClock().now, SETTINGS, name="child", write=write)
            history.look(queue, reopened=True)
            every_step(queue, history)
            backend.close()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert ended == 0 or os.WTERMSIG(ended) == signal.SIGKILL, f"the child failed at operation {last}"
    return ended != 0


def check_killed_at(folder: Path, last: int) -> bool:
    folder.mkdir()
    store, log = folder / "store", folder / "log"
    with penstock.open(f"folder:{store}") as opened:
        opened.create(QUEUE, **SETTINGS)
    killed = run_until_killed(store, log, last, lambda: None)
    history = History(penstock.SystemClock().now, SETTINGS, name="parent")
    if log.exists():
        with log.open(newline="\n") as lines:
            history.feed(lines)
    with penstock.open(f"folder:{store}") as opened:
        queue = opened.queue(QUEUE)
        history.reopened(queue)
        for receipt in list(history.receipts)[-3:]:
            history.ack(queue, receipt)
        history.put_many(queue, [b"after 1", b"after 2"])
        history.ack(queue, *history.claim(queue, 3))
        history.check(queue)
    assert not list((store / "new").iterdir())
    assert not list((store / ".penstock" / "held").glob("*/*"))
    return killed


def check_steps(tmp_path: Path, numbers: Sequence[int]) -> None:
    for number in numbers:
        try:
            if not check_killed_at(tmp_path / str(number), number):
                return
        except BaseException as error:
            error.add_note(f"killed before operation {number}")
            raise
    pytest.fail("the script has more operations than were tried")


def test_a_process_killed_before_one_in_nine_operations_leaves_a_store_that_keeps_its_promises(
    tmp_path: Path,
) -> None:
    check_steps(tmp_path, range(3, 2_000, 9))


@pytest.mark.long
def test_a_process_killed_before_any_operation_leaves_a_store_that_keeps_its_promises(tmp_path: Path) -> None:
    check_steps(tmp_path, range(1, 2_000))


def test_what_a_killed_process_was_putting_is_finished_or_dropped_by_one_that_has_the_store_open(
    tmp_path: Path,
) -> None:
    seen = set()
    for last in range(1, 200):
        folder = tmp_path / str(last)
        with penstock.open(f"folder:{folder}") as store:
            pid = os.fork()
            if not pid:
                queue = Store("", open_folder(str(folder), disk=KillingDisk(last))).queue()
                queue.put_many([b"%d" % number for number in range(5)])
                os._exit(0)
            _, ended = os.waitpid(pid, 0)
            store.backend.move_due()  # type: ignore[attr-defined]
            seen.add(len(store.queue()))
            assert not list((folder / "new").iterdir()), f"killed before operation {last}"
            assert not list((folder / ".penstock" / "batches").iterdir()), f"killed before operation {last}"
        if ended == 0:
            break
    assert seen == {0, 5}


def use_and_kill(folder: Path, name: str, random: Random, history: History) -> None:
    log, errors = folder / f"{name}.log", folder / f"{name}.errors"
    command = [sys.executable, "-m", "tests.folder_child", str(log), name, str(folder / "store")]
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr) as child,
    ):
        assert child.stdout is not None
        if random.random() < 0.2:
            time.sleep(random.uniform(0, 0.4))
        elif child.stdout.readline() == b"ready\n":
            time.sleep(random.uniform(0.05, 0.6))
        child.kill()
    assert child.returncode == -signal.SIGKILL, errors.read_text()
    if log.exists():
        with log.open(newline="\n") as lines:
            history.feed(lines)


def kill_often(folder: Path, seed: int, kills: int) -> None:
    random = Random(seed)
    settings = Settings(max_size=500, max_attempts=3, keep_done=random.choice([0, 0.3]))
    with penstock.open(f"folder:{folder / 'store'}") as store:
        store.create(QUEUE, **settings)
    history = History(penstock.SystemClock().now, settings, name="parent", prompt=False)
    for number in range(kills):
        try:
            use_and_kill(folder, f"{seed}.{number}", random, history)
            with penstock.open(f"folder:{folder / 'store'}") as store:
                queue = store.queue(QUEUE)
                history.reopened(queue)
                receipts = list(history.receipts)[-200:]
                for receipt in random.sample(receipts, min(20, len(receipts))):
                    random.choice([history.ack, history.fail, history.release, history.extend])(queue, receipt)
                history.ack(queue, *history.claim(queue, 20))
                history.check(queue)
        except BaseException as error:
            error.add_note(f"seed {seed}, kill {number}")
            raise


def test_a_process_with_many_threads_killed_again_and_again_keeps_its_promises(tmp_path: Path) -> None:
    kill_often(tmp_path, 1, 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_hundreds_of_killed_processes_leave_stores_that_keep_their_promises(tmp_path: Path, seed: int) -> None:
    kill_often(tmp_path, seed, 20)


WORK = """
import os, sys, penstock
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with penstock.open(sys.argv[1], peers=int(sys.argv[3])) as store:
    queue = store.queue()
    while True:
        ending = os.path.exists(sys.argv[4])
        claimed = queue.claim(lease=600, wait=0 if ending else 0.1)
        for message in claimed:
            os.write(log, b"claimed " + message.payload + b"\\n")
            message.ack()
            os.write(log, b"acked " + message.payload + b"\\n")
        if ending and not claimed:
            break
"""


@pytest.mark.parametrize("peers", [0, 4])
def test_of_processes_that_share_a_queue_no_two_get_a_message_though_some_are_killed(
    tmp_path: Path, peers: int
) -> None:
    url = f"folder:{tmp_path / 'store'}"
    count, ending = 0, tmp_path / "ending"
    logs = [tmp_path / f"{number}.log" for number in range(5)]
    workers = [
        subprocess.Popen([sys.executable, "-c", WORK, url, str(log), str(peers), str(ending)], cwd=ROOT)
        for log in logs
    ]
    for worker, log in zip(workers[:2], logs[:2], strict=True):
        while not log.exists() or log.stat().st_size < 200:  # the others may be much quicker
            with penstock.open(url) as store:
                if not store.queue().count():
                    store.queue().put_many([str(number) for number in range(count, count + 400)])
                    count += 400
            time.sleep(0.005)
        worker.kill()
    ending.touch()
    codes = [worker.wait() for worker in workers]
    assert codes == [-signal.SIGKILL] * 2 + [0] * 3
    lines = [line for log in logs for line in log.read_text().splitlines()]
    claimed = Counter(line.split()[1] for line in lines if line.startswith("claimed"))
    assert set(claimed.values()) == {1}
    with penstock.open(url) as store:
        left = {message.payload.decode() for message in store.queue().claim(10)}  # of a claim that died
        held = {message.payload.decode() for message in store.queue().messages("in_flight")} - left
    acked = {line.split()[1] for line in lines if line.startswith("acked")}
    assert not left & claimed.keys()
    assert len(held) <= 2
    assert not held & acked
    assert len(left) <= 2
    missing = {str(number) for number in range(count)} - acked - held - left
    assert len(missing) <= 2  # acknowledged, but killed before that was noted
    assert missing <= claimed.keys()


def test_a_redrive_that_was_killed_goes_on_at_the_time_it_began_however_the_clock_is_set_since(
    tmp_path: Path,
) -> None:
    for last in range(1, 1_000):
        clock, folder = penstock.SimulatedClock(), tmp_path / str(last)
        with penstock.open(f"folder:{folder}", clock=clock) as store:
            queue = store.create(QUEUE, max_attempts=1)
            queue.put_many([b"a", b"b"])
            queue.fail(*queue.claim(2))
            clock.advance(600)
        if (pid := os.fork()) == 0:
            Store("", open_folder(str(folder), clock=clock, disk=KillingDisk(last))).queue(QUEUE).redrive()
            os._exit(0)
        killed = os.waitpid(pid, 0)[1] != 0
        clock.jump(-600)
        with penstock.open(f"folder:{folder}", clock=clock) as store:
            redriven = list(store.queue(QUEUE).messages("available"))
            assert [each.visible_at for each in redriven] == [clock.now() + 600_000] * len(redriven)
        if not killed:
            assert len(redriven) == 2
            return
