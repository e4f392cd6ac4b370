"""Groups on folder stores: several processes hand out a group's messages one at a time, in order."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import penstock
from penstock import Draft, SimulatedClock, Store
from penstock.stores.folder import layout
from tests.stores.folder.test_folder_store import bare

SPAWN = multiprocessing.get_context("spawn")
GROUPS = [f"group {number}" for number in range(4)]


def run_all(work: Callable[[str, int], None], folder: Path, count: int) -> None:
    processes = [SPAWN.Process(target=work, args=(str(folder), number)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * count


def logs(folder: Path) -> list[Path]:
    return list(folder.parent.glob("*.jsonl"))


def consume(folder: str, number: int) -> None:
    """Claim and settle until the queue is empty; a line for each time that a message was held."""
    with penstock.open(f"folder:{folder}") as store, open(f"{folder}.{number}.jsonl", "w") as log:
        queue = store.queue("jobs")
        while sum(queue.counts()[state] for state in ("available", "delayed", "in_flight")):
            messages = queue.claim(number + 1, wait=0.05)
            started = time.monotonic()
            for message in messages:
                payload = json.loads(message.payload)
                print(json.dumps([message.group, payload, started, time.monotonic()]), file=log)
                if payload % 5 == number and message.attempts < 3:
                    message.release()
                elif payload % 7 == number and message.attempts == 1:
                    message.fail(delay=0.02)
                else:
                    message.extend(60)
                    message.ack()


def test_processes_hold_one_message_of_a_group_at_a_time_and_in_order(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        store.create("jobs", max_attempts=0)
        store.queue("jobs").put_many(
            [Draft(str(number), group=GROUPS[number % len(GROUPS)]) for number in range(100)]
        )
        store.queue("jobs").put_many([Draft(str(number)) for number in range(100, 120)])
    run_all(consume, folder, 4)
    held = [json.loads(line) for path in logs(folder) for line in path.read_text().splitlines()]
    for number, group in enumerate(GROUPS):
        spans = sorted([start, end, payload] for name, payload, start, end in held if name == group)
        assert all(end < start for (_, end, _), (start, _, _) in pairwise(spans)), "two were held at once"
        order = [payload for _, _, payload in spans]
        assert order == sorted(order), "a message came before an earlier one was settled"
        assert sorted(set(order)) == list(range(number, 100, len(GROUPS)))
    assert {payload for _, payload, _, _ in held} == set(range(120))


def produce_and_consume(folder: str, number: int) -> None:
    """Put into a group of this process's own, and claim what there is of all groups."""
    with penstock.open(f"folder:{folder}", peers=2) as store, open(f"{folder}.{number}.jsonl", "w") as log:
        queue = store.queue("jobs")
        for at in range(30):
            queue.put(str(at), priority=-at, group=GROUPS[number])
            for message in queue.claim(2):
                print(json.dumps([message.group, int(message.payload), time.monotonic()]), file=log)
                message.ack()


def test_messages_that_arrive_while_others_are_claimed_keep_their_order(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        queue = store.create("jobs")
        run_all(produce_and_consume, folder, 3)
        lines = [json.loads(line) for path in logs(folder) for line in path.read_text().splitlines()]
        lines.sort(key=lambda each: each[2])
        claimed = [(group, number) for group, number, _ in lines]
        while message := queue.pop():
            claimed.append((message.group, int(message.payload)))
    for group in GROUPS[:3]:
        assert [number for name, number in claimed if name == group] == list(range(30))


def test_a_message_that_a_process_does_not_know_of_comes_first(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    queue.put(b"of another group", group="b")
    queue.claim()
    with penstock.open(f"folder:{folder}") as other:
        other.queue("jobs").put(b"first", group="a")
    queue.put(b"second", group="a")
    [message] = queue.claim(10)
    assert message.payload == b"first"


def test_a_message_that_another_process_holds_keeps_its_group_waiting(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    queue.put_many([Draft(b"1", group="a"), Draft(b"2", group="a"), Draft(b"3")])
    with penstock.open(f"folder:{folder}") as other:
        [first] = other.queue("jobs").claim()
        assert [message.payload for message in queue.claim(5)] == [b"3"]
        assert queue.claim(5) == []
        first.fail(delay=60)
        assert queue.claim(5) == []
        assert queue.pop() is None


def test_a_message_that_another_process_redrives_comes_first(folder: Path, store: Store) -> None:
    queue = store.create("strict", max_attempts=1)
    queue.put_many([Draft(b"1", group="a"), Draft(b"2", group="a"), Draft(b"3", group="b")])
    queue.claim()[0].fail()
    assert queue.counts()["failed"] == 1
    with penstock.open(f"folder:{folder}") as other:
        other.queue("strict").redrive()
        assert [message.payload for message in queue.claim(5)] == [b"1", b"3"]


def test_a_message_that_is_being_moved_keeps_its_group_waiting_until_it_is_there(
    folder: Path, store: Store
) -> None:
    """As if another process were in the middle of an operation."""
    queue = store.queue("jobs")
    first, _ = queue.put_many([Draft(b"1", group="a"), Draft(b"2", group="a")])
    with penstock.open(f"folder:{folder}") as other:
        private = f"{layout.HELD}/{other.backend.shared.tree.process}"  # type: ignore[attr-defined]
        held = folder / private / layout.held_name(layout.QUEUES, 0, 1, "jobs", first)
        os.rename(folder / "queues" / "jobs" / first, held)
        assert queue.claim(5) == []
        os.rename(held, folder / "queues" / "jobs" / first)
        assert [message.payload for message in queue.claim(5, wait=60)] == [b"1"]


def test_a_group_outlives_the_process_that_was_moving_its_message(folder: Path, store: Store) -> None:
    """A private folder without a process: its messages go back, and only then the group goes on."""
    queue = store.queue("jobs")
    first, _ = queue.put_many([Draft(b"1", group="a"), Draft(b"2", group="a")])
    dead = folder / layout.HELD / "nowhere"
    dead.mkdir()
    os.rename(folder / "queues" / "jobs" / first, dead / layout.held_name(layout.QUEUES, 0, 1, "jobs", first))
    assert queue.claim(5) == []
    (dead / layout.ABANDONED).touch()
    with penstock.open(f"folder:{folder}"):
        assert [message.payload for message in queue.claim(5)] == [b"1"]


def test_the_lock_of_the_groups_is_made_again(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    queue.put_many([Draft(b"1", group="a"), Draft(b"2", group="a")])
    (folder / layout.LOCKS / "jobs:groups").unlink()
    assert [message.payload for message in queue.claim(5, wait=60)] == [b"1"]
    assert (folder / layout.LOCKS / "jobs:groups").exists()


def test_a_group_is_an_attribute_that_its_checksum_covers(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    first, second = queue.put_many([Draft(b"1", group="ä" * 127), Draft(b"2", group="ä" * 127)])
    path = folder / "queues" / "jobs" / first
    assert os.getxattr(path, "user.penstock.group").decode() == "ä" * 127
    os.setxattr(path, "user.penstock.group", b"other")
    [message] = queue.claim(5)
    assert message.id == second
    assert (folder / layout.DAMAGED / f"jobs:{first}").exists()


def test_files_that_people_drop_have_no_group(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    queue.put(b"held", group="a")
    queue.claim()
    (folder / "queues" / "jobs" / "mine").write_bytes(b"dropped")
    [message] = queue.claim(wait=60)
    assert (message.payload, message.group) == (b"dropped", None)


def test_a_queue_without_groups_claims_without_a_lock(folder: Path, store: Store) -> None:
    queue = store.queue("jobs")
    queue.put(b"x")
    queue.claim()[0].ack()
    assert not (folder / layout.LOCKS / "jobs:groups").exists()


def test_without_attributes_groups_are_refused_by_name() -> None:
    queue = bare().queue()
    with pytest.raises(penstock.NotSupported, match="group: the file system of '/data' has no user extended"):
        queue.put(b"x", group="a")
    assert sum(queue.counts().values()) == 0


def test_the_longest_values_have_room_beside_a_group(folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        queue = store.create("jobs", max_attempts=0)
        queue.put(b"x", 1 << 62, {"a": "b" * 580}, group="g" * 255, retention=1_000_000, created_at=1)
        for _ in range(12):
            [message] = queue.claim(consumer="c" * 200)
            message.fail(reason="r" * 590)
        [message] = queue.claim()
        assert (message.group, message.reason, message.attempts) == ("g" * 255, "r" * 590, 13)
