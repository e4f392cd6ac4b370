"""A process that uses a queue of a store on disk from many threads until it is killed.

    python -m tests.kill_child LOG NAME OPTIONS

Everything that it asks and is told goes to the log at once, in one write each: what was written survives the kill.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random

import penstock
from penstock import Draft, Message, Queue
from penstock.contract.store import Store
from penstock.stores.journal.format import Dialect
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.slate.store import SlateBackend, open_slate
from penstock.stores.text.backend import TextBackend, open_text
from tests.history import History

QUEUE = "jobs"
EXPIRING = b"expiring "  # how the payloads of messages begin that may go by themselves


@dataclass
class Options:
    """How a store is opened."""

    folder: str
    sync: str
    dialect: Dialect
    segment_size: int
    kind: str = "journal"

    def open(self) -> JournalBackend | TextBackend | SlateBackend:
        if self.kind == "text":
            return open_text(f"text:{self.folder}", sync=self.sync)
        if self.kind == "slate":
            return open_slate(f"slate:{self.folder}", sync=self.sync)
        return open_journal(self.folder, sync=self.sync, dialect=self.dialect, segment_size=self.segment_size)

    def to_text(self) -> str:
        return json.dumps(asdict(self))


class Child:
    def __init__(
        self, backend: JournalBackend | TextBackend | SlateBackend, queue: Queue, history: History, name: str
    ) -> None:
        self.backend = backend
        self.other_priority = 255 if isinstance(backend, SlateBackend) else -(2**63)
        self.queue = queue
        self.history = history
        self.name = name

    def start(self) -> None:
        work = [*[self.produce] * 3, *[self.consume] * 3, self.tend, self.pack]
        for number, each in enumerate(work):
            threading.Thread(target=self._run, args=(each, f"{self.name} {number}"), daemon=True).start()

    def _run(self, work: Callable[[Random, str], None], name: str) -> None:
        try:
            work(Random(name), name)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def produce(self, random: Random, name: str) -> None:
        number = 0
        while True:
            drafts = [
                self._draft(random, f"{name} {number} {each}") for each in range(random.choice([1, 1, 2, 9]))
            ]
            number += 1
            try:
                if random.random() < 0.1 and self.history.keyed:
                    self.history.put(self.queue, random.choice(self.history.keyed))
                elif len(drafts) == 1:
                    self.history.put(self.queue, drafts[0])
                else:
                    self.history.put_many(self.queue, drafts)
            except penstock.QueueFull:
                time.sleep(0.005)

    def _draft(self, random: Random, name: str) -> Draft:
        text = name.encode()
        retention = random.choice([None] * 5 + [0.05, 5])
        if retention:
            text = EXPIRING + text
        return Draft(
            # Long ones, because a kill cuts off a write, if any, only between pages.
            text + b"." * random.choice([0] * 60 + [300, 3_000] * 20 + [1_000_000]),
            priority=random.choice([0, 0, 0, 7, self.other_priority]),
            headers=random.choice([None, None, {"kind": "test", "empty": ""}]),
            delay=random.choice([0] * 8 + [0.02] * 4 + [2]),
            retention=retention,
            key=name if random.random() < 0.3 else None,
            created_at=random.choice([None, None, 1]),
        )

    def consume(self, random: Random, name: str) -> None:
        held: list[Message] = []
        settle: list[Callable[[Queue, Message], object]] = [
            *[self.history.ack] * 6,
            self.history.release,
            self.history.extend,
            lambda queue, message: self.history.fail(queue, message, delay=random.choice([0, 0.02]), reason="no"),
        ]
        while True:
            choice = random.random()
            if choice < 0.1:
                self.history.pop(self.queue, wait=random.choice([0, 0.02]))
            elif choice < 0.2 and len(held) > 3:
                many, held = held[:3], held[3:]
                self.history.ack(self.queue, *many)
            elif choice < 0.7 and held:
                random.choice(settle)(self.queue, held.pop(random.randrange(len(held))))
            elif choice < 0.72:
                held.clear()  # a consumer that forgets
            else:
                lease, wait = random.choice([0.01, 0.2, 2, 30]), random.choice([0, 0.02])
                held += self.history.claim(self.queue, random.choice([1, 1, 5]), lease, wait)

    def tend(self, random: Random, name: str) -> None:
        while True:
            time.sleep(random.uniform(0, 0.02))
            choice = random.random()
            ids = list(self.history.receipts.values())[-50:]
            if choice < 0.05:
                self.history.redrive(self.queue)
            elif choice < 0.5 and ids:
                self.history.redrive(self.queue, random.choice(ids))
            elif ids:
                self.history.remove(self.queue, *random.choices(ids, k=random.choice([1, 1, 3])))

    def pack(self, random: Random, name: str) -> None:
        while True:
            time.sleep(random.choice([0, 0.05, 0.2]))
            if isinstance(self.backend, SlateBackend):
                self.backend.collect()
            else:
                self.backend.pack(QUEUE)


def main(log: str, name: str, options: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    backend = Options(**json.loads(options)).open()
    queue = Store("", backend).queue(QUEUE)
    history = History(
        penstock.SystemClock().now,
        queue.settings,
        name=name,
        write=lambda line: os.write(descriptor, line.encode()),
    )
    history.look(queue, reopened=True)
    Child(backend, queue, history, name).start()
    print("ready", flush=True)  # noqa: T201 - the parent waits for this
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
