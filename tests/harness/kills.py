"""Kill tests: processes of a store are killed at moments that a seed chooses, and the store is checked."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock import Draft, Queue, Store
from penstock.contract.settings import Settings
from penstock.stores.folder import layout
from penstock.stores.journal import replay
from penstock.stores.text.format import parse
from penstock.stores.text.variables import body
from tests.harness.children import Child, Log, is_killed_before, noted, scenario
from tests.harness.scenarios import DYING, PLACES, QUEUE, open_alone, settings_told
from tests.harness.workers import EXPIRING
from tests.history import History
from tests.stores.slate import document

# Readers that know the document of a format and nothing else: the payloads of messages that are not done.


def _in_journal(folder: Path, options: dict[str, Any]) -> list[bytes]:
    read = replay(folder, QUEUE, options["dialect"])
    assert read.broken is None
    return [*read.queue, *read.open.values()]


def _in_text(folder: Path, options: dict[str, Any]) -> list[bytes]:
    found = parse((folder / f"{QUEUE}.tq").read_bytes())
    assert not found.problems
    return [body(entry, 0)[0] for entry in found.entries if entry.control in "-!"]


def _in_slate(folder: Path, options: dict[str, Any]) -> list[bytes]:
    found = document.payloads(str(folder))[QUEUE]
    return [*found["active"], *found["failed"]]


def _in_folder(folder: Path, options: dict[str, Any]) -> list[bytes]:
    assert not list((folder / layout.NEW).iterdir())
    assert not list((folder / layout.HELD).glob("*/*"))
    places = ((layout.QUEUES, "*/*"), (layout.DELAY, "*"), (layout.FAILED, "*"))
    return [path.read_bytes() for place, pattern in places for path in (folder / place).glob(pattern)]


READERS: dict[str, Callable[[Path, dict[str, Any]], list[bytes]]] = {
    "journal": _in_journal,
    "text": _in_text,
    "slate": _in_slate,
    "folder": _in_folder,
}


class Series:
    """Processes that use one store, one after the other, each killed."""

    def __init__(self, kind: str, folder: Path, seed: int, store: Path | None = None, **options: Any) -> None:
        self.kind, self.logs, self.seed, self.random = kind, folder, seed, Random(seed)
        self.folder = store or folder / "store"
        self.url = f"{kind}:{self.folder}"
        self.options: dict[str, Any] = {"sync": self.random.choice(["always", "always", "interval", "never"])}
        if kind == "journal":
            self.options["dialect"] = self.random.choice(["doc", "doc", "2.x"])
            self.options["segment_size"] = self.random.choice([10_000, 100_000, 64 << 20])
        self.options |= options
        self.settings = Settings(max_size=500, max_attempts=3, keep_done=self.random.choice([0, 0.3]))
        with self.open() as opened:
            opened.create(QUEUE, **self.settings)
        # What a process puts into a folder takes effect after the time that it says: others may come before it.
        now, prompt = penstock.SystemClock().now, kind != "folder"
        self.history = History(now, self.settings, name="parent", prompt=prompt)

    def open(self) -> Store:
        return open_alone(self.url, self.options)

    def run(self, kills: int) -> None:
        for number in range(kills):
            try:
                self.use_and_kill(f"{self.seed}.{number}")
                if number + 1 == kills or self.random.random() < 0.5:  # else the next one recovers it
                    self.look()
            except BaseException as error:
                error.add_note(f"seed {self.seed}, kill {number}, {self.url} {self.options}")
                raise

    def use_and_kill(self, name: str) -> None:
        log = self.logs / f"{name}.log"
        with scenario("use", log, name, self.url, json.dumps(self.options)) as child:
            if self.random.random() < 0.2:
                time.sleep(self.random.uniform(0, 0.4))  # while it starts, opens the store, or just began
            elif child.read_line():  # nothing if it died
                time.sleep(self.random.uniform(0.05, 0.6))
            self.strike(child)
        feed(self.history, log)

    def strike(self, child: Child) -> None:
        child.kill()

    def look(self) -> None:
        with self.open() as store:
            queue = store.queue(QUEUE)
            description = queue.settings.description  # counts the changes
            assert queue.settings == replace(self.settings, description=description)
            told = [each["description"] for each in noted(settings_told(self.logs))]
            assert told == sorted(told)
            assert int(description or 0) >= max(told, default=0)
            self.history.reopened(queue)
            listed = not_done(queue)
        self.read_by_the_document(listed)
        with self.open() as store:
            queue = store.queue(QUEUE)
            self.history.reopened(queue)
            self.try_again(queue)
            self.history.check(queue)
            listed = not_done(queue)
        self.read_by_the_document(listed)

    def read_by_the_document(self, listed: Counter[bytes]) -> None:
        read = Counter(READERS[self.kind](self.folder, self.options))
        # What expires is gone for us at once, for other readers when that is next written.
        missing = [payload for payload in listed - read if not payload.startswith(EXPIRING)]
        left_over = [payload for payload in read - listed if not payload.startswith(EXPIRING)]
        assert (missing, left_over) == ([], [])

    def try_again(self, queue: Queue) -> None:
        """Use receipts and keys of the process that was killed; the history knows what must come of it."""
        history, random = self.history, self.random
        receipts = list(history.receipts)[-200:]
        for receipt in random.sample(receipts, min(20, len(receipts))):
            random.choice([history.ack, history.fail, history.release, history.extend])(queue, receipt)
        for draft in random.sample(history.keyed[-100:], min(10, len(history.keyed))):
            try:
                history.put(queue, draft)
            except penstock.QueueFull:
                continue
        history.ack(queue, *history.claim(queue, 20))
        history.claim(queue, 5)


def not_done(queue: Queue) -> Counter[bytes]:
    return Counter(message.payload for message in queue.messages() if message.state != "done")


def feed(history: History, log: Path) -> None:
    """Add the log of a killed process to a history."""
    if log.exists():
        with log.open(newline="\n") as lines:
            history.feed(lines)
        log.unlink()


class MoveSeries:
    """Processes that move messages between the queues of one store, one after the other, each killed."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.url, self.logs, self.seed, self.random = url, folder, seed, Random(seed)
        self.moved = 0
        with penstock.open(url) as store:
            for place in PLACES[1:]:
                store.create(place)
            store.create(DYING, max_attempts=1, dead_letter=PLACES[-1])

    def run(self, kills: int) -> None:
        for number in range(kills):
            log = self.logs / f"{self.seed}.{number}.log"
            with scenario("move", log, log.stem, self.url) as child:
                child.wait_until_ready()
                time.sleep(self.random.uniform(0.1, 1))
                self.strike(child)
            self.look()

    def strike(self, child: Child) -> None:
        child.kill()

    def look(self) -> None:
        """Each message is in exactly one queue, unless it was acknowledged."""
        told = noted(*self.logs.glob("*.log"))
        putting, put = ({each for note in told for each in note.get(what, ())} for what in ("putting", "put"))
        acking, acked = ({note[what] for note in told if what in note} for what in ("acking", "acked"))
        with penstock.open(self.url) as store:
            listed = Counter[str]()
            for place in PLACES:
                messages = list(store.queue(place).messages())
                there = [message.payload.decode() for message in messages]
                listed.update(there)
                held = Counter(each.group for each in messages if each.group and each.state == "in_flight")
                assert set(held.values()) <= {1}, "two messages of a group are in flight"
                self.moved += len(there) if place != DYING else 0
            assert not store.queue(DYING).counts()["failed"]
        assert set(listed.values()) <= {1}, "a message is in two queues"
        assert not listed.keys() & acked, "a message that was acknowledged is back"
        assert put - listed.keys() <= acking, "a message is lost"
        assert listed.keys() <= putting


# Killed before a single step.

STEP_SETTINGS = Settings(max_size=50, max_attempts=2, keep_done=60)


def every_step(queue: Queue, history: History) -> None:
    """Each operation once or twice."""
    history.put(queue, b"first")
    history.put(queue, Draft(b"urgent", priority=-1, headers={"kind": "x" * 2_000}, key="once"))
    history.put(queue, Draft(b"late", delay=100))
    history.put_many(queue, [b"one", Draft(b"two", priority=3), Draft(b"three", delay=100)])
    history.put_many(queue, [Draft(b"a", key="a"), Draft(b"b", key="b")])
    claimed = history.claim(queue, 5, 100)
    history.extend(queue, claimed[0], lease=1_000)
    history.ack(queue, claimed[0])
    history.fail(queue, claimed[1], delay=100, reason="not today")
    history.release(queue, claimed[2])
    history.pop(queue)
    for _ in range(2):
        again = history.claim(queue, 1, 100)
        history.fail(queue, *again, reason="x" * 900)
    history.redrive(queue)
    history.remove(queue, claimed[3].id)
    history.ack(queue, *history.claim(queue, 2))
    history.purge(queue)


def is_killed_at_step(kind: str, folder: Path, number: int) -> bool:
    """Let a process do every step, killed before its change of that number, and hold the store to its history."""
    url, log, now = f"{kind}:{folder}", folder.with_suffix(".log"), penstock.SystemClock().now
    with penstock.open(url) as store:
        store.create(QUEUE, **STEP_SETTINGS)

    def use() -> None:
        with penstock.open(url) as store:
            history = History(now, STEP_SETTINGS, name="child", write=Log(log).write)
            history.look(store.queue(QUEUE), reopened=True)
            every_step(store.queue(QUEUE), history)

    killed = is_killed_before(number, use)
    history = History(now, STEP_SETTINGS, name="parent")
    feed(history, log)
    with penstock.open(url) as store:
        queue = store.queue(QUEUE)
        history.reopened(queue)
        for receipt in list(history.receipts)[-3:]:
            history.ack(queue, receipt)
        history.put_many(queue, [b"after 1", b"after 2"])
        history.ack(queue, *history.claim(queue, 3))
        history.check(queue)
        listed = not_done(queue)
    assert Counter(READERS[kind](folder, {})) == listed
    return killed
