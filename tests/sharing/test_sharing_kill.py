"""kill -9 of the owner of a folder that ten processes put into and claim from, again and again.

Nothing that was acknowledged is lost, no message is given to anyone while someone else holds it, and no process
notices: what was not answered is asked again of the next owner.
"""

import os
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from tests.harness.children import Child, noted, scenario
from tests.harness.scenarios import QUEUE

PROCESSES = 10


class Shared:
    """Processes that share a folder, of which owners are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.logs, self.folder = folder, folder / "store"
        self.count = self.kills = 0
        with penstock.open(self.folder) as store:
            store.create(QUEUE, max_attempts=1_000)
        self.processes: list[Child] = []

    def told(self) -> list[dict[str, Any]]:
        return noted(*sorted(self.logs.glob("*.log")))

    def start(self, stack: ExitStack) -> None:
        while len(self.processes) < PROCESSES:
            self.count += 1
            name = f"process-{self.count}"
            child = scenario("share", self.logs / f"{name}.log", name, str(self.folder))
            self.processes.append(stack.enter_context(child))
        self.processes[-1].wait_until_ready()

    def kill_owner(self) -> None:
        pid = self.owner()
        [process] = [each for each in self.processes if each.process.pid == pid]
        process.kill()
        self.kills += 1
        self.processes.remove(process)

    def owner(self) -> int:
        """The process that has the lock."""
        while True:
            said = (self.folder / ".penstock" / "lock").read_text().split()
            if said and int(said[1]) in [each.process.pid for each in self.processes]:
                return int(said[1])
            time.sleep(0.005)  # no process has it at this moment

    def run(self, kills: int) -> None:
        with ExitStack() as stack:
            self.start(stack)
            for _ in range(kills):
                time.sleep(self.random.uniform(0.05, 0.5))
                self.kill_owner()
                time.sleep(self.random.uniform(0.2, 0.8))  # without one more that starts, which takes its time
                self.start(stack)
            while sum(each["what"] == "acknowledged" for each in self.told()) <= PROCESSES:
                time.sleep(0.05)
            for process in self.processes:
                process.end()

    def check(self) -> None:
        told = self.told()
        with penstock.open(self.folder, share=False) as store:
            left = [message.payload.decode() for message in store.queue(QUEUE).messages()]
        put = {each["payload"] for each in told if each["what"] == "put"}
        acknowledged = [each["payload"] for each in told if each["what"] == "acknowledged"]
        assert len(acknowledged) > PROCESSES
        # A message whose ack was in progress at a kill may be gone without an entry in the log.
        settling = {each["payload"] for each in told if each["what"] == "settling"}
        missing = put - set(acknowledged) - set(left)
        assert missing <= settling
        assert len(missing) <= self.kills
        assert len(acknowledged) == len(set(acknowledged))
        assert len(left) == len(set(left))
        assert not set(left) & set(acknowledged)
        check_leases(told)
        assert sorted(os.listdir(self.folder / ".penstock" / "share")) == []


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


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_ten_processes_share_a_folder_whose_owners_are_killed(tmp_path: Path, kills: int) -> None:
    shared = Shared(tmp_path, kills)
    shared.run(kills)
    shared.check()
