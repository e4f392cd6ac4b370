"""Forks: a store that was open before is the child's too, and neither takes anything from the other."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock

URLS = {
    "journal": "{}/store",
    "slate": "slate:{}/store",
    "text": "text:{}/store",
    "tq": "{}/default.tq",
    "folder": "folder:{}/store",
}


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param].format(tmp_path)


@contextmanager
def program(url: str, log: Path, scenario: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.fork_child", url, str(log), scenario]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check_history(url: str, log: Path) -> None:
    """No message that was put is missing, none was given to two."""
    noted: dict[str, Counter[str]] = {"put": Counter(), "claimed": Counter()}
    for line in log.read_text().splitlines():
        what, payload, _ = json.loads(line)
        noted[what][payload] += 1
    assert [payload for payload, times in noted["claimed"].items() if times > 1] == []
    with penstock.open(url) as store:
        queue = store.queue()
        waiting = Counter(message.payload.decode() for message in queue.messages("available"))
        held = Counter(message.payload.decode() for message in queue.messages("in_flight"))
        assert noted["put"] - noted["claimed"] == waiting
        assert held - noted["claimed"] == Counter()
        queue.put(b"afterwards")


@pytest.mark.parametrize("scenario", ["busy", "pool", "preload"])
def test_children_use_a_store_that_their_parent_has_open_as_if_it_were_theirs(
    url: str, tmp_path: Path, scenario: str
) -> None:
    log = tmp_path / "log"
    with program(url, log, scenario) as process:
        assert process.wait() == 0
    check_history(url, log)


def test_a_child_holds_nothing_of_a_parent_that_was_killed(url: str, tmp_path: Path) -> None:
    for number in range(3):
        with program(url, tmp_path / f"log {number}", "killed") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "forked\n"
            process.kill()
            with penstock.open(url) as store:
                store.queue().put(b"after")
                assert store.queue().claim()


def test_a_child_that_closes_a_store_closes_its_own(url: str) -> None:
    with penstock.open(url) as store:
        queue = store.queue()
        [held] = (queue.put(b"a"), queue.claim())[1]
        if (pid := os.fork()) == 0:
            store.close()
            try:
                queue.put(b"b")
            except penstock.StoreClosed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        held.ack()
        queue.put(b"c")
        assert [message.payload for message in queue.messages()] == [b"c"]


def test_what_a_parent_has_claimed_its_child_can_settle(url: str) -> None:
    with penstock.open(url) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        [first, second] = queue.claim(2)
        if (pid := os.fork()) == 0:
            first.ack()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        second.ack()
        assert list(queue.messages()) == []


def test_a_memory_store_is_refused_in_a_child_whose_puts_nobody_would_see() -> None:
    with penstock.open("memory:"), penstock.open("memory:shared") as store:
        queue = store.queue()
        queue.put(b"a")
        if (pid := os.fork()) == 0:
            try:
                queue.put(b"b")
            except penstock.StoreClosed:
                with penstock.open("memory:shared") as other:
                    os._exit(0 if other.queue().count() == 0 else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert queue.count() == 1
