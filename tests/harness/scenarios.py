"""Scenarios: the programs of processes that tests kill, or tell to end.

    python -m tests.harness.scenarios SCENARIO LOG ARGUMENTS

It prints "ready" when it has begun. What it was told goes to the log.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import penstock
from penstock import Draft, Queue, Store
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.workers import Fail
from tests.harness.children import Log, noted
from tests.harness.workers import workers
from tests.history import History

QUEUE, STREAM = "jobs", "s"


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def in_thread(work: Callable[..., object], *arguments: object) -> None:
    """Work in a thread; its error ends the process."""

    def run() -> None:
        try:
            work(*arguments)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()


def open_alone(url: str, options: dict[str, Any]) -> Store:
    """Open a store that this process does not share; a journal may have options that users do not have."""
    if "segment_size" in options:
        from penstock.stores.journal.store import open_journal

        return Store(url, open_journal(url.removeprefix("journal:"), **options))
    return penstock.open(url, share=False, **options)


TENDING: dict[str, Callable[[Any], object]] = {
    "journal": lambda backend: backend.pack(QUEUE),
    "text": lambda backend: backend.pack(QUEUE),
    "slate": lambda backend: backend.collect(),
    "folder": lambda backend: backend.tend(),
}


def settings_told(logs: Path) -> Path:
    """Where processes note which settings they were told of: not on the store's disk, which may lose power."""
    return logs / "settings"


def use(log: Log, name: str, url: str, options: str) -> None:
    """Use a queue from many threads while the store is tended."""
    kind = url.partition(":")[0]
    store = open_alone(url, json.loads(options))
    queue = store.queue(QUEUE)
    history = History(penstock.SystemClock().now, queue.settings, name=name, write=log.write)
    history.look(queue, reopened=True)

    def tend(random: Random) -> None:
        told = Log(settings_told(log.path.parent))
        while True:
            time.sleep(random.choice([0, 0.05, 0.2]))
            TENDING[kind](store.backend)
            number = int(queue.settings.description or 0) + 1
            told.note(description=int(queue.update(description=str(number)).description))

    lowest_priority = 255 if kind == "slate" else -(2**63)
    for worker in workers(history, name, lowest_priority):
        in_thread(worker.run, queue)
    in_thread(tend, Random(name))
    ready()
    threading.Event().wait()


def share(log: Log, name: str, url: str) -> None:
    """Put, claim and acknowledge in a store that others have open too, until stdin ends."""
    random, ending = Random(name), threading.Event()

    def end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=end, daemon=True).start()
    with penstock.open(url) as store:
        queue = store.queue(QUEUE)
        ready()
        number = 0
        while not ending.is_set():
            payload = f"{name} {number}"
            queue.put(payload, key=payload)
            log.note(what="put", payload=payload)
            number += 1
            lease = random.choice([0.2, 30])
            for message in queue.claim(random.choice([1, 1, 3]), lease=lease, wait=random.choice([0, 0.02])):
                log.note(
                    what="claimed", id=message.id, receipt=message.receipt, attempt=message.attempts,
                    at=message.claimed_at, until=message.lease_until,
                )  # fmt: skip
                if random.random() < 0.1:
                    continue  # forgotten
                payload, now = message.payload.decode(), time.time_ns() // 1_000_000
                log.note(what="settling", receipt=message.receipt, payload=payload, at=now)
                try:
                    if random.random() < 0.2:
                        message.release()
                    else:
                        message.ack()
                        log.note(what="acknowledged", payload=payload)
                except penstock.LeaseExpired:
                    log.note(what="lost", receipt=message.receipt)


def committed(log: Path) -> int:
    """The last batch that was certainly read, as the log says."""
    return max([each["committed"] for each in noted(log) if "committed" in each], default=0)


def payloads_of(streams: Streams, batch: int) -> list[str]:
    found, after = list[str](), ""
    while page := streams.messages(QUEUE, STREAM, batch, after, "", 1_000):
        found += [message.payload.decode() for message in page]
        after = page[-1].id
    return found


def stream(log: Log, name: str, url: str, path: str) -> None:
    """Put messages and read them as a stream. Like Spark it commits a batch only once that is written down."""
    random, start = Random(name), committed(Path(path))
    with penstock.open(url) as store:
        queue, streams, reader = store.queue(QUEUE), Streams(store.run), reader_name()

        def produce() -> None:
            number = 0
            while True:
                payloads = [f"{name} {number} {each}" for each in range(random.choice([1, 9, 60]))]
                queue.put_many(payloads)
                log.note(put=payloads)
                number += 1

        streams.begin(QUEUE, STREAM, reader)
        in_thread(produce)
        ready()
        while True:
            batch = streams.next(QUEUE, STREAM, reader, start, random.choice([5, 100, 2_000]), 1 << 30)
            if batch is None:
                continue
            streams.read(QUEUE, STREAM, batch, None)
            payloads = payloads_of(streams, batch)
            log.note(batch=batch, payloads=payloads)
            failed = payloads[-1:] if random.random() < 0.1 else []
            if failed:
                last = streams.messages(QUEUE, STREAM, batch, "", "", len(payloads))[-1]
                streams.fail(QUEUE, STREAM, batch, [last.id], "odd")
            log.note(committed=batch, failed=failed)
            start = batch


DYING, PLACES = "dying", ("dying", "other", "dead")
GROUPS = ("a", "a", "b", "c", None)  # of the messages of a put


def move(log: Log, name: str, url: str) -> None:
    """Move messages between PLACES, by hand, as dead letters and back, and acknowledge some, from many threads."""
    with penstock.open(url) as store:
        queues = [store.queue(place) for place in PLACES]
        dying, _, dead = queues

        def produce() -> None:
            for number in range(sys.maxsize):
                payloads = [f"{name} {number} {each}" for each in range(5)]
                log.note(putting=payloads)
                dying.put_many([Draft(each, group=group) for each, group in zip(payloads, GROUPS, strict=True)])
                log.note(put=payloads)
                while sum(map(len, queues)) > 100:
                    time.sleep(0.01)

        def carry(number: int) -> None:
            random = Random(f"{name} {number}")
            while True:
                source, target = random.sample(queues, 2)
                waiting = [message.id for message in source.peek(20)]
                source.move(target.name, *random.sample(waiting, len(waiting) // 2))
                dead.redrive()

        def consume() -> None:
            for number in range(sys.maxsize):
                for message in dying.claim(3, wait=0.1):
                    if number % 4:
                        message.fail(reason="odd")
                        continue
                    log.note(acking=message.payload.decode())
                    message.ack()
                    log.note(acked=message.payload.decode())

        in_thread(produce)
        in_thread(carry, 1)
        in_thread(carry, 2)
        in_thread(consume)
        ready()
        threading.Event().wait()


ROUTED: dict[str, dict[str, Any]] = {
    "all": {"filter": "kind = 'a' OR kind = 'b'"},
    "again": {"filter": "kind IN ('a', 'b')"},
    "narrow": {"filter": "kind = 'a'", "max_size": 50, "max_attempts": 0},
}


def publish(log: Log, name: str, url: str) -> None:
    """Publish to the queues ROUTED, and consume."""
    store = penstock.open(url)
    narrow = store.queue("narrow")

    def produce(number: int) -> None:
        for at in range(sys.maxsize):
            kind = "abc"[at % 3]
            published = store.publish(f"{name} {number} {at}".encode(), headers={"kind": kind})
            log.note(published=published, kind=kind)

    def consume() -> None:
        while True:
            for message in narrow.claim(2, lease=0.5, wait=0.1):
                log.note(seen=message.id)
                try:
                    narrow.ack(message)
                except penstock.LeaseExpired:
                    break
                log.note(acked=message.id)

    def put() -> None:
        while True:
            try:
                narrow.put(b"put")
            except penstock.QueueFull:
                time.sleep(0.01)

    for number in range(3):
        in_thread(produce, number)
    in_thread(consume)
    in_thread(put)
    ready()
    threading.Event().wait()


def is_hopeless(number: int) -> bool:
    return number % 100 == 0


def handle(message: penstock.Message) -> None:
    """Four in a hundred fail once or twice, one fails always; a kill may cost each message one attempt more."""
    number = int(message.payload)
    if is_hopeless(number) or (number % 20 == 0 and message.attempts <= 1 + number // 20 % 2):
        raise Fail(f"number {number}")


def work(log: Log, url: str) -> None:
    """Work on a queue until it is empty."""
    with penstock.open(url) as store:
        penstock.work(store.queue(QUEUE), handle, 64, lease=10, backoff=0, until_empty=True)


CHILDREN, MESSAGES, LEASE = 4, 12, 3_600
_store: Store  # inherited by children
_log: Log


def fork(log: Log, url: str, how: str) -> None:
    """Open a store, use it, and then fork, as servers that load their program first do."""
    global _store, _log
    _log = log
    with penstock.open(url) as _store:
        _use("first")
        {"busy": _busy, "pool": _pool, "preload": _preload, "killed": _killed}[how]()


def _use(name: str, ending: threading.Event | None = None) -> None:
    """Put and claim; settle every other message that is claimed, and hold the rest."""
    queue: Queue = _store.queue()
    number = 0
    while number < MESSAGES or (ending is not None and not ending.is_set()):
        payload = f"{name} {number}"
        queue.put(payload)
        _log.note(put=payload)
        for message in queue.claim(lease=LEASE):
            _log.note(claimed=message.payload.decode())
            if number % 2:
                message.ack()
        number += 1


def _in_child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            _store.close()  # which leaves the parent's as it is
            status = 0
        finally:
            os._exit(status)
    return pid


def _wait_for(children: list[int]) -> None:
    for pid in children:
        if (status := os.waitpid(pid, 0)[1]) != 0:
            raise SystemExit(f"a child ended with {status}")


def _busy() -> None:
    """Fork while other threads are in the middle of operations."""
    ending = threading.Event()
    threads = [threading.Thread(target=_use, args=(f"thread {each}", ending)) for each in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(3):
            _wait_for([_in_child(lambda at=f"{turn}.{each}": _use(f"child {at}")) for each in range(CHILDREN)])  # type: ignore[misc]
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    _use("after")


def _pool() -> None:
    """A pool of processes that were forked from one which has used the store."""
    with multiprocessing.get_context("fork").Pool(CHILDREN) as processes:
        processes.map(_use, [f"pool {number}" for number in range(2 * CHILDREN)], chunksize=1)
        _use("beside")


def _preload() -> None:
    """Workers are forked from a program that has the store open; they fork again, and the program goes on."""

    def parent() -> None:
        _use("worker with a child of its own")
        _wait_for([_in_child(lambda: _use("grandchild"))])
        _use("worker again")

    children = [_in_child(lambda each=each: _use(f"worker {each}")) for each in range(CHILDREN)]  # type: ignore[misc]
    children.append(_in_child(parent))
    _use("program")
    _wait_for(children)
    _use("program again")


def _killed() -> None:
    """Be killed in the middle of operations, while a child lives on."""
    _use("before")
    for each in range(3):
        in_thread(_use, f"thread {each}", threading.Event())
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    ready()
    os.wait()


SCENARIOS: dict[str, Callable[..., None]] = {
    scenario.__name__: scenario for scenario in (use, share, stream, move, publish, work, fork)
}


if __name__ == "__main__":
    what, path, *arguments = sys.argv[1:]
    SCENARIOS[what](Log(path), *arguments)
