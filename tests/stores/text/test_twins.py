"""Entries of people that read alike: their order tells which of them a consumer holds, as far as it can."""

from pathlib import Path

import pytest

import penstock
from penstock import LeaseExpired, Message, Queue, SimulatedClock, Store
from tests.stores.text.conftest import Edit, Look, in_place


def claim_only(queue: Queue, numbers: str) -> list[Message]:
    """Claim every message, and give back those whose number is not named."""
    claimed = queue.claim(100)
    held = [message for number, message in enumerate(claimed) if str(number) in numbers]
    queue.release(*[message for message in claimed if message not in held])
    return held


def acked(queue: Queue, held: list[Message]) -> str:
    """Acknowledge every message; Y for each that was still held, n for the others."""
    answers = ""
    for message in held:
        try:
            queue.ack(message.receipt or "")
            answers += "Y"
        except LeaseExpired:
            answers += "n"
    return answers


# Which messages are held, by their numbers; the file after the edit; which leases go on; the file after the acks.
EDITS = {
    "a twin is appended to one": ("-a\n", "0", "-a\n-a\n", "Y", "=a\n-a\n"),
    "a third is appended": ("-a\n-a\n", "01", "-a\n-a\n-a\n", "YY", "=a\n=a\n-a\n"),
    "a third is appended, and the second is held": ("-a\n-a\n", "1", "-a\n-a\n-a\n", "Y", "-a\n=a\n-a\n"),
    "one is inserted further up": ("-x\n-a\n", "1", "-a\n-x\n-a\n", "Y", "-a\n-x\n=a\n"),
    "one is inserted further down": ("-a\n-x\n-y\n", "0", "-a\n-x\n-a\n-y\n", "Y", "=a\n-x\n-a\n-y\n"),
    "the first is removed": ("-a\n-x\n-a\n", "02", "-x\n-a\n", "nY", "-x\n=a\n"),
    "the last is removed": ("-a\n-x\n-a\n", "02", "-a\n-x\n", "Yn", "=a\n-x\n"),
    "the middle one is removed": ("-a\n-x\n-a\n-y\n-a\n", "024", "-a\n-x\n-y\n-a\n", "YnY", "=a\n-x\n-y\n=a\n"),
    "one of three neighbours is removed": ("-a\n-a\n-a\n", "0", "-a\n-a\n", "Y", "=a\n-a\n"),
    "one of two held neighbours is removed": ("-a\n-a\n-x\n", "01", "-a\n-x\n", "nn", "-a\n-x\n"),
    "one of two neighbours is removed, and another further on stays": (
        "-a\n-a\n-x\n-a\n", "013", "-a\n-x\n-a\n", "nnY", "-a\n-x\n=a\n",
    ),
    "one is added above and one below of what is held": (
        "-a\n-held\n-a\n", "012", "-b\n-a\n-held\n-a\n-a\n", "YYY", "-b\n=a\n=held\n=a\n-a\n",
    ),
    "one is removed below, and lines come above": (
        "-a\n-held\n-a\n-y\n-a\n", "0124", "-b\n-a\n-held\n-y\n-a\n", "YYnY", "-b\n=a\n=held\n-y\n=a\n",
    ),
    "all but a comment of the same text are removed": ("-a\n#a\n-x\n", "0", "#a\n-x\n", "n", "#a\n-x\n"),
}  # fmt: skip


@pytest.mark.parametrize("what", EDITS)
def test_leases_stay_with_the_twins_that_order_tells_apart(
    path: Path, queue: Queue, edit: Edit, look_again: Look, what: str
) -> None:
    before, numbers, after, answers, settled = EDITS[what]
    path.write_text(before)
    held = claim_only(queue, numbers)
    edit(path, after)
    seen = look_again()
    assert acked(seen, held) == answers
    assert path.read_text() == settled


def test_a_lease_outlives_any_number_of_twins_that_a_shell_appends(
    path: Path, queue: Queue, look_again: Look
) -> None:
    path.write_text("-a\n-a\n")
    held = queue.claim(2)
    for number in range(5):
        with path.open("a") as file:
            file.write("-a\n")
        assert queue.counts()["available"] == number + 1
    assert acked(look_again(), held) == "YY"
    assert path.read_text() == "=a\n=a\n" + "-a\n" * 5


def test_twins_that_a_shell_has_appended_are_not_forgotten_when_others_are_removed(
    path: Path, queue: Queue, look_again: Look
) -> None:
    path.write_text("-a\n-x\n-a\n")
    [first, _x, _last] = queue.claim(3)
    with path.open("a") as file:
        file.write("-a\n")
    assert queue.counts()["available"] == 1
    in_place(path, "-x\n-a\n-a\n")  # the first one is gone, and there are as many as at first
    seen = look_again()
    with pytest.raises(LeaseExpired):
        seen.ack(first.receipt or "")
    assert path.read_text() == "-x\n-a\n-a\n"


def test_packing_leaves_each_twin_to_its_holder(path: Path, store: Store, clock: SimulatedClock) -> None:
    path.write_text("-a\n-b\n-a\n-c\n-a\n-a\n")
    queue = store.queue()
    held = queue.claim(6)
    queue.ack(held[0], held[3], held[4])
    assert store.backend.pack("jobs") == 9  # type: ignore[attr-defined]
    assert path.read_text() == "-b\n-a\n-a\n"
    with penstock.open(path, clock=clock) as other:
        assert other.queue().counts()["in_flight"] == 3
        other.queue().ack(held[2].receipt or "")
    assert path.read_text() == "-b\n=a\n-a\n"
    queue.ack(held[1], held[5])
    assert path.read_text() == "=b\n=a\n=a\n"
