"""Groups in text queues: a variable of the message, which people write too, and which all processes go by."""

import logging
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

import penstock
from penstock import Draft, Queue, SimulatedClock

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.tq"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def queue(path: Path, clock: SimulatedClock) -> Iterator[Queue]:
    path.write_text("")
    with penstock.open(path, clock=clock) as store:
        yield store.queue()


def claimed(queue: Queue) -> list[str]:
    return [message.payload.decode() for message in queue.claim(100)]


@pytest.mark.parametrize("group", ["Kunde 7", ' "quoted"', "two\nlines", "ends with a space ", "a=b", "ä" * 127])
def test_a_group_is_a_variable_of_its_message(path: Path, queue: Queue, group: str) -> None:
    queue.put(b"x", group=group)
    assert b"\n\\group=" in path.read_bytes()
    with penstock.open(path) as other:
        assert [message.group for message in other.queue().messages()] == [group]


def test_people_write_groups(path: Path, queue: Queue) -> None:
    path.write_text('-1\n\\group=a\n-2\n\\group=a\n-3\n\\group="a"\n-4\n\\group=\n-5\n\\group\n-6\n\\group=b\n')
    assert [message.group for message in queue.messages()] == ["a", "a", "a", None, None, "b"]
    assert claimed(queue) == ["1", "4", "5", "6"]


def test_a_group_that_is_too_long_is_warned_about(
    path: Path, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(f"-1\n\\group={'x' * 256}\n")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert [message.group for message in queue.messages()] == [None]
    assert "line 2 is skipped: group='xxx" in caplog.text


def test_an_edit_changes_groups_and_their_order(path: Path, queue: Queue) -> None:
    queue.put_many([Draft(text, group="a") for text in "1234"])
    [first] = queue.claim()
    path.write_text(path.read_text().replace("-2", "-two").replace("-3", "#3"))
    assert claimed(queue) == []
    first.ack()
    assert claimed(queue) == ["two"]
    path.write_text(path.read_text().replace("\\group=a", "\\group=b"))
    queue.put(b"5", group="a")
    assert claimed(queue) == ["5"]


def test_packing_and_an_update_keep_groups(path: Path, queue: Queue) -> None:
    queue.put_many([Draft(text, group="a") for text in "123"])
    queue.claim()[0].ack()
    [held] = queue.claim()
    queue.update(max_attempts=9)
    assert [message.group for message in queue.messages()] == ["a", "a"]
    assert claimed(queue) == []
    held.ack()
    assert claimed(queue) == ["3"]


def test_without_its_mutex_file_a_lease_still_holds_its_group(path: Path, queue: Queue) -> None:
    queue.put_many([Draft(text, group="a") for text in "12"])
    queue.claim(lease=30)
    path.with_suffix(".tq.mutex").unlink()
    assert claimed(queue) == []


@pytest.mark.parametrize("seed", range(8))
def test_every_process_computes_the_same_order(path: Path, clock: SimulatedClock, seed: int) -> None:
    """Each follows the others' changes line by line; one that opens the store reads it whole."""
    dice = random.Random(seed)
    path.write_text("# Penstock queue\n\\max_attempts=3\n")
    with penstock.open(path, clock=clock) as one, penstock.open(path, clock=clock) as two:
        queues, held = [one.queue(), two.queue()], list[penstock.Message]()
        for number in range(120):
            queue = dice.choice(queues)
            match dice.randrange(10):
                case 0 | 1 | 2:
                    groups = dice.choices([None, "a", "b"], k=dice.randrange(1, 4))
                    queue.put_many([
                        Draft(str(number), dice.randrange(2), group=group, delay=dice.choice([0, 0, 0, 2]))
                        for group in groups
                    ])  # fmt: skip
                case 3 | 4:
                    held += queue.claim(dice.randrange(1, 4), lease=dice.choice([3, 50]))
                case 5 | 6 if held:
                    message = held.pop(dice.randrange(len(held)))
                    settle = dice.choice([queue.ack, queue.ack, queue.fail, queue.release])
                    with suppress(penstock.LeaseExpired):
                        settle(message)
                case 7:
                    queue.pop()
                case 8:
                    there = list(queue.messages())
                    queue.remove(*[message.id for message in there if dice.random() < 0.1])
                    queue.redrive()
                case _:
                    clock.advance(dice.choice([0.5, 1, 3]))
            with penstock.open(path, clock=clock) as third:
                views = [[each.id for each in queue.peek(100)] for queue in (*queues, third.queue())]
            assert views[0] == views[1] == views[2]


def consume(path: str, number: int) -> None:
    with penstock.open(path, sync="never") as store, open(f"{path}.{number}.log", "w") as log:
        queue = store.queue()
        while queue.count():
            messages = queue.claim(2, wait=0.05)
            started = time.monotonic()
            for message in messages:
                print(message.group, int(message.payload), started, time.monotonic(), file=log)
                if int(message.payload) % 5 == number and message.attempts < 3:
                    message.release()
                else:
                    message.ack()


def test_processes_hold_one_message_of_a_group_at_a_time_and_in_order(path: Path) -> None:
    with penstock.open(path) as store:
        store.queue().put_many([Draft(str(number), group="abc"[number % 3]) for number in range(90)])
    processes = [SPAWN.Process(target=consume, args=(str(path), number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    held = [line.split() for log in path.parent.glob("*.log") for line in log.read_text().splitlines()]
    for number, group in enumerate("abc"):
        spans = sorted((float(start), float(end), int(text)) for name, text, start, end in held if name == group)
        assert all(end < start for (_, end, _), (start, _, _) in pairwise(spans)), "two were held at once"
        order = [payload for _, _, payload in spans]
        assert order == sorted(order), "a message came before an earlier one was settled"
        assert sorted(set(order)) == list(range(number, 90, 3))
