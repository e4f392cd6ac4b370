"""kill -9 of processes that use a folder store: what others find of it, and what they finish."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import penstock
from tests.harness.children import ROOT, is_killed_before

QUEUE = "jobs"


def test_what_a_killed_process_was_putting_is_finished_or_dropped_by_one_that_has_the_store_open(
    tmp_path: Path,
) -> None:
    seen = set()
    for last in range(1, 200):
        folder = tmp_path / str(last)
        url = f"folder:{folder}"

        def put(url: str = url) -> None:
            penstock.open(url).queue().put_many([b"%d" % number for number in range(5)])

        with penstock.open(url) as store:
            killed = is_killed_before(last, put)
            store.backend.move_due()  # type: ignore[attr-defined]
            seen.add(len(store.queue()))
            assert not list((folder / "new").iterdir()), f"killed before operation {last}"
            assert not list((folder / ".penstock" / "batches").iterdir()), f"killed before operation {last}"
        if not killed:
            break
    assert seen == {0, 5}


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
        clock, url = penstock.SimulatedClock(), f"folder:{tmp_path / str(last)}"
        with penstock.open(url, clock=clock) as store:
            queue = store.create(QUEUE, max_attempts=1)
            queue.put_many([b"a", b"b"])
            queue.fail(*queue.claim(2))
            clock.advance(600)

        def redrive(url: str = url, clock: penstock.SimulatedClock = clock) -> None:
            penstock.open(url, clock=clock).queue(QUEUE).redrive()

        killed = is_killed_before(last, redrive)
        clock.jump(-600)
        with penstock.open(url, clock=clock) as store:
            redriven = list(store.queue(QUEUE).messages("available"))
            assert [each.visible_at for each in redriven] == [clock.now() + 600_000] * len(redriven)
        if not killed:
            assert len(redriven) == 2
            return
