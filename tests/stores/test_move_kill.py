"""A process that moves messages is killed before a change of a file: each message is in exactly one queue."""

from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock import Draft
from tests.harness.children import is_killed_before

KINDS = ["text"]
QUEUES = ("jobs", "later", "dead")
ALL = Counter([b"a", b"b", b"c", b"d"])


def move(url: str) -> None:
    """Messages move by hand, fail for good, and go back."""
    with penstock.open(url) as store:
        jobs = store.queue("jobs")
        jobs.move("later", *[message.id for message in jobs.messages()][2:])
        store.queue("later").move("jobs", next(store.queue("later").messages()).id)
        jobs.fail(*jobs.claim(9), reason="no")
        store.queue("dead").redrive()


def is_killed_at(kind: str, folder: Path, number: int) -> bool:
    """Kill the process before its change of that number, and look where the messages are."""
    url = f"{kind}:{folder}"
    with penstock.open(url) as store:
        store.create("dead")
        store.create("later")
        jobs = store.create("jobs", max_attempts=1, dead_letter="dead")
        jobs.put_many([b"a", Draft(b"b", group="g"), Draft(b"c", group="g"), b"d"])
        killed = is_killed_before(number, lambda: move(url))
        queues = [store.queue(name) for name in (QUEUES, QUEUES[::-1])[number % 2]]
        found = Counter(message.payload for queue in queues for message in queue.messages())
        assert found == ALL, f"killed before change {number}: {found}"
        assert not store.queue("jobs").counts()["failed"]
        acked = Counter[bytes]()
        for queue in queues:
            while claimed := queue.claim(9):
                queue.ack(*claimed)
                acked.update(message.payload for message in claimed)
        left = Counter(message.payload for queue in queues for message in queue.messages())
    assert acked + left == ALL  # the killed process holds some, and what is behind them in their group
    return killed


def check(kind: str, folder: Path, numbers: range) -> None:
    for number in numbers:
        if not is_killed_at(kind, folder / str(number), number):
            return
    pytest.fail("the process makes more changes than were tried")


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_killed_before_some_changes_leaves_each_message_in_one_queue(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, range(5, 3_000, 13))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_killed_before_any_change_leaves_each_message_in_one_queue(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, range(1, 3_000))
