"""Held queues catch up with the log: each message once, in order, without delaying other queues."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import QueueFull, Store
from penstock.stores.slate import routing
from penstock.stores.slate.log import Log, Published
from tests.harness.children import Child

ENTRIES = 200  # ten steps


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "STEP", 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with penstock.open(f"slate:{tmp_path / 'store'}", share=False) as opened:
        yield opened


def publish(store: Store, count: int, first: int = 0) -> list[bytes]:
    """Publish numbers, and put messages that no filter may see; the even numbers, which filtered queues get."""
    for number in range(first, first + count):
        store.publish(b"%d" % number, headers={"even": str(number % 2 == 0)})
        if number % 10 == 0:
            store.queue().put(b"direct", headers={"even": "True"})
    return [b"%d" % number for number in range(first, first + count) if number % 2 == 0]


def lag(store: Store, queue: str) -> int:
    [lag] = [info.lag for info in store.queues() if info.name == queue]
    assert lag is not None
    return lag


def wait_until_caught_up(store: Store, queue: str) -> None:
    pause = threading.Event()
    while lag(store, queue):
        pause.wait(0.01)


def payloads(store: Store, queue: str) -> list[bytes]:
    return [message.payload for message in store.queue(queue).messages()]


class Gate:
    """Stops the thread that reads the stored log after some entries, until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.reached, self.opened, self._left = threading.Event(), threading.Event(), after
        stored = Log.stored

        def slow(log: Log, start: int, end: int) -> Iterator[tuple[int, Published | None]]:
            for each in stored(log, start, end):
                self._left -= 1
                if self._left < 0:
                    self.reached.set()
                    self.opened.wait()
                yield each

        monkeypatch.setattr(Log, "stored", slow)


def test_a_queue_that_starts_at_the_beginning_has_everything_once_and_in_order(store: Store) -> None:
    expected = publish(store, ENTRIES)
    store.create("late", filter="even = 'True'", start="beginning")
    wait_until_caught_up(store, "late")
    assert payloads(store, "late") == expected
    more = publish(store, 10, ENTRIES)
    assert payloads(store, "late") == expected + more


def test_others_publish_and_consume_while_a_queue_catches_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = store.create("other", filter="even = 'True'")
    expected = publish(store, ENTRIES)
    gate = Gate(monkeypatch, after=100)
    late = store.create("late", filter="even = 'True'", start="beginning")
    gate.reached.wait()
    assert 0 < lag(store, "late") < ENTRIES + ENTRIES // 10
    expected += publish(store, 50, ENTRIES)
    assert len(other) == len(expected)
    other.claim()[0].ack()
    late.claim()[0].ack()
    with pytest.raises(
        QueueFull, match="'late' is catching up with published messages, which nothing may overtake"
    ):
        late.put(b"put")
    gate.opened.set()
    wait_until_caught_up(store, "late")
    assert payloads(store, "late") == expected[1:]
    late.put(b"put")
    assert payloads(store, "late") == [*expected[1:], b"put"]


def test_queues_catch_up_side_by_side_also_while_messages_are_published(store: Store) -> None:
    expected = publish(store, ENTRIES)
    for number in range(5):
        store.create(f"late-{number}", filter="even = 'True'", start="beginning")
    expected += publish(store, ENTRIES, ENTRIES)
    for number in range(5):
        wait_until_caught_up(store, f"late-{number}")
        assert payloads(store, f"late-{number}") == expected


def test_a_queue_that_was_full_gets_all_of_it_once_there_is_room(store: Store) -> None:
    narrow = store.create("narrow", filter="even = 'True'", max_size=30)
    expected = publish(store, ENTRIES)
    found: list[bytes] = []
    while len(found) < len(expected):
        for message in narrow.claim(30, wait=60):
            found.append(message.payload)
            message.ack()
    assert found == expected
    wait_until_caught_up(store, "narrow")
    assert payloads(store, "narrow") == []


def test_a_queue_is_deleted_while_it_catches_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, ENTRIES)
    gate = Gate(monkeypatch, after=100)
    store.create("late", filter="even = 'True'", start="beginning")
    gate.reached.wait()
    store.delete("late")
    gate.opened.set()
    store.create("again", filter="even = 'True'", start="beginning")
    wait_until_caught_up(store, "again")
    assert len(store.queue("again")) == ENTRIES // 2


def test_a_store_that_is_closed_meanwhile_goes_on_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"slate:{tmp_path / 'store'}"
    with penstock.open(url, share=False) as store:
        expected = publish(store, ENTRIES)
        gate = Gate(monkeypatch, after=100)
        store.create("late", filter="even = 'True'", start="beginning")
        gate.reached.wait()
        assert lag(store, "late")
        gate.opened.set()
    with penstock.open(url, share=False) as store:
        wait_until_caught_up(store, "late")
        assert payloads(store, "late") == expected


_CATCHES_UP = """
import sys, threading, penstock
from penstock.stores.slate import routing
routing.STEP = 20
store = penstock.open(sys.argv[1])
store.create("late", filter="even = 'True'", start="beginning") if sys.argv[2] == "0" else None
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_process_that_is_killed_in_the_middle_of_it_has_left_nothing_out_and_nothing_twice(
    tmp_path: Path,
) -> None:
    url = f"slate:{tmp_path / 'store'}"
    with penstock.open(url, sync="never") as store:
        expected = publish(store, 2_000)
    for turn in range(4):
        command = [sys.executable, "-c", _CATCHES_UP, url, str(turn)]
        with Child(command, tmp_path / "errors") as child:
            child.wait_until_ready()
            child.kill()
    with penstock.open(url) as store:
        wait_until_caught_up(store, "late")
        assert payloads(store, "late") == expected
