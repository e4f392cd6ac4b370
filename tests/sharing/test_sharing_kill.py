"""kill -9 of whoever owns a folder that ten processes put into and claim from, again and again.

Nothing that was acknowledged is lost, no message is given to anyone while someone else holds it, and no process
notices: what was not answered is asked again of the next owner.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from tests.sharing_child import QUEUE

ROOT = Path(__file__).parents[2]
PROCESSES = 10


class Process:
    """One of those that share the folder."""

    def __init__(self, folder: Path, logs: Path, name: str) -> None:
        self.log, self.errors = logs / f"{name}.log", logs / f"{name}.errors"
        command = [sys.executable, "-m", "tests.sharing_child", str(folder), str(self.log), name]
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.errors.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode == -signal.SIGKILL, self.errors.read_text()

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0, self.errors.read_text()


class Shared:
    """Processes that share a folder, of which owners are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.logs, self.folder = folder, folder / "store"
        self.count = 0
        self.kills: list[int] = []
        with penstock.open(self.folder) as store:
            store.create(QUEUE, max_attempts=1_000)
        self.processes: list[Process] = []
        self.all: list[Process] = []

    def start(self) -> None:
        while len(self.processes) < PROCESSES:
            self.count += 1
            process = Process(self.folder, self.logs, f"process-{self.count}")
            self.processes.append(process)
            self.all.append(process)
        for process in self.all[-1:]:
            process.wait_until_ready()

    def kill_owner(self) -> None:
        pid = self.owner()
        [process] = [each for each in self.processes if each.process.pid == pid]
        process.kill()
        self.kills.append(time.monotonic_ns())
        self.processes.remove(process)

    def owner(self) -> int:
        """Which of the processes has the lock."""
        while True:
            said = (self.folder / ".penstock" / "lock").read_text().split()
            if said and int(said[1]) in [each.process.pid for each in self.processes]:
                return int(said[1])
            time.sleep(0.005)  # nobody, at this moment

    def run(self, kills: int) -> None:
        try:
            self.start()
            for _ in range(kills):
                time.sleep(self.random.uniform(0.05, 0.5))
                self.kill_owner()
                time.sleep(self.random.uniform(0.2, 0.8))  # without one more that starts, which takes its time
                self.start()
            while self.acknowledged() <= PROCESSES:
                time.sleep(0.05)
            for process in self.processes:
                process.end()
        finally:
            for process in self.processes:
                process.process.kill()
                process.process.communicate()

    def acknowledged(self) -> int:
        """How many messages so far."""
        logs = [process.log.read_bytes() for process in self.all if process.log.exists()]
        return sum(log.count(b'"acknowledged"') for log in logs)

    def check(self) -> None:
        told = [
            json.loads(line)
            for process in self.all
            if process.log.exists()
            for line in process.log.read_text().splitlines()
        ]
        with penstock.open(self.folder, share=False) as store:
            left = [message.payload.decode() for message in store.queue(QUEUE).messages()]
        put = {each["payload"] for each in told if each["what"] == "put"}
        acknowledged = [each["payload"] for each in told if each["what"] == "acknowledged"]
        assert len(acknowledged) > PROCESSES
        # What a killed process was just acknowledging may have left the queue without a word in its log.
        settling = {each["payload"] for each in told if each["what"] == "settling"}
        missing = put - set(acknowledged) - set(left)
        assert missing <= settling
        assert len(missing) <= len(self.kills)
        assert len(acknowledged) == len(set(acknowledged))
        assert len(left) == len(set(left))
        assert not set(left) & set(acknowledged)
        check_leases(told)
        assert sorted(os.listdir(self.folder / ".penstock" / "share")) == []

    def take_overs(self) -> list[float]:
        """The seconds from each kill to the end of the first put that began after it."""
        puts = [
            json.loads(line)
            for process in self.all
            if process.log.exists()
            for line in process.log.read_text().splitlines()
            if '"put"' in line
        ]
        return [
            (min(put["ended"] for put in puts if put["begun"] > killed) - killed) / 1e9 for killed in self.kills
        ]


def check_leases(told: list[dict[str, Any]]) -> None:
    """A message that was claimed again had been settled, or its lease was over."""
    settled_at = {each["receipt"]: each["at"] for each in told if each["what"] == "settling"}
    claims = defaultdict(list)
    for each in told:
        if each["what"] == "claimed":
            claims[each["id"]].append(each)
    for held in claims.values():
        held.sort(key=lambda each: int(each["attempt"]))
        for one, next_one in pairwise(held):
            over = min(one["until"], settled_at.get(one["receipt"], one["until"]))
            assert next_one["at"] >= over, (one, next_one)


def test_ten_processes_share_a_folder_whose_owners_are_killed(tmp_path: Path) -> None:
    shared = Shared(tmp_path, 1)
    shared.run(6)
    shared.check()


@pytest.mark.long
def test_ten_processes_share_a_folder_whose_owners_are_killed_fifty_times(tmp_path: Path) -> None:
    shared = Shared(tmp_path, 2)
    shared.run(50)
    shared.check()
