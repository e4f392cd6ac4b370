"""A queue with all that a queue can have, and how it goes on in a copy of its store."""

from typing import Any

import penstock
from penstock import Draft
from penstock.errors import NotSupported

SETTINGS: dict[str, Any] = {
    "max_attempts": 2, "keep_done": None, "lease": 900, "delay": 7, "backoff": (3_600, 2, 7_200),
    "labels": {"team": "Straße"},
}  # fmt: skip


def takes_dead_letters(store: penstock.Store) -> bool:
    """Whether a queue of the store can have a dead_letter."""
    try:
        store.create("with-dead-letters", dead_letter="default")
    except NotSupported:
        return False
    store.delete("with-dead-letters")
    return True


def fill(store: penstock.Store, dead_letters: bool = True) -> str:
    """Make queues `jobs` and `dead`; the receipt of the message in flight."""
    dead = store.create("dead", keep_done=None)
    jobs = store.create("jobs", **SETTINGS, dead_letter="dead" if dead_letters else None)
    groups = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 7: "a"}
    jobs.put_many([Draft(b"%d" % number, delay=0, group=groups.get(number)) for number in range(1, 8)])
    for number in (1, 2):  # the first is done; the second waits for its retry, and holds its group
        [message] = jobs.claim()
        assert message.payload == b"%d" % number
        (jobs.ack if number == 1 else jobs.fail)(message)
    [held] = jobs.claim()
    assert held.payload == b"4"
    for _ in range(2):
        [message] = jobs.claim()
        assert message.payload == b"6"
        jobs.fail(message, delay=0, reason="no luck")
    assert jobs.claim() == []
    assert dead.count() == int(dead_letters)
    return held.receipt or ""


def check(store: penstock.Store, receipt: str | None, dead_letters: bool = True) -> None:
    """The copy goes on as the store would. Without a receipt, the message in flight has arrived as available."""
    jobs, dead = store.queue("jobs"), store.queue("dead")
    assert {name: jobs.settings[name] for name in SETTINGS} == SETTINGS
    assert jobs.settings.dead_letter == ("dead" if dead_letters else None)
    states = {message.payload: (message.state, message.group, message.attempts) for message in jobs.messages()}
    held = ("available", "b", 1) if receipt is None else ("in_flight", "b", 1)
    assert states == {
        b"1": ("done", "a", 1), b"2": ("delayed", "a", 1), b"3": ("available", "a", 0), b"4": held,
        b"5": ("available", "b", 0), b"7": ("available", "a", 0),
        **({} if dead_letters else {b"6": ("failed", None, 2)}),
    }  # fmt: skip
    if receipt is None:
        [message] = jobs.claim(5)
        assert (message.payload, message.attempts) == (b"4", 2)
        receipt = message.receipt or ""
    assert jobs.claim(5) == []
    jobs.ack(receipt)
    [five] = jobs.claim(5)
    assert five.payload == b"5"
    five.ack()
    if dead_letters:
        [letter] = dead.messages()
        assert letter.headers == {"penstock.origin": "jobs", "penstock.reason": "no luck"}
        assert dead.redrive() == 1
        [back] = jobs.claim(5)
        assert (back.payload, back.headers, back.attempts) == (b"6", {}, 1)
        for message in (back, *jobs.claim()):
            jobs.fail(message, delay=0, reason="no luck again")
        [again] = jobs.claim()
        jobs.fail(again, reason="no luck again")
        assert [letter.headers["penstock.reason"] for letter in dead.messages()] == ["no luck again"]
