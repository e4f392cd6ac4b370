"""A program that opens a store, uses it, and then forks, as servers that load their program first do.

    python -m tests.fork_child URL LOG SCENARIO

What a process was told goes to the log at once, a line in one write each. It ends well if its children do.
"""

import json
import multiprocessing
import os
import sys
import threading

import penstock

CHILDREN, MESSAGES, LEASE = 4, 12, 3_600
_store: penstock.Store
_log = -1


def note(what: str, payload: bytes) -> None:
    os.write(_log, (json.dumps([what, payload.decode(), os.getpid()]) + "\n").encode())


def use(name: str, ending: threading.Event | None = None) -> None:
    """Put and claim; settle every other one that is claimed, and hold the rest."""
    queue = _store.queue()
    number = 0
    while number < MESSAGES or (ending is not None and not ending.is_set()):
        payload = f"{name} {number}".encode()
        queue.put(payload)
        note("put", payload)
        for message in queue.claim(lease=LEASE):
            note("claimed", message.payload)
            if number % 2:
                message.ack()
        number += 1


def use_in_pool(number: int) -> int:
    use(f"pool {number}")
    return os.getpid()


def in_child(name: str) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            use(name)
            _store.close()  # which leaves the parent's as it is
            status = 0
        finally:
            os._exit(status)
    return pid


def wait_for(children: list[int]) -> None:
    for pid in children:
        if (status := os.waitpid(pid, 0)[1]) != 0:
            raise SystemExit(f"a child ended with {status}")


def busy() -> None:
    """Fork while other threads are in the middle of operations."""
    ending = threading.Event()
    threads = [threading.Thread(target=use, args=(f"thread {each}", ending)) for each in range(3)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(3):
            wait_for([in_child(f"child {round_}.{each}") for each in range(CHILDREN)])
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    use("after")


def pool() -> None:
    """A pool of processes that were forked from one which has used the store."""
    with multiprocessing.get_context("fork").Pool(CHILDREN) as processes:
        processes.map(use_in_pool, range(2 * CHILDREN), chunksize=1)
        use("beside")


def preload() -> None:
    """Workers are forked from a program that has the store open; they fork again, and the program goes on."""
    workers = [in_child(f"worker {each}") for each in range(CHILDREN)]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            use("worker with a child of its own")
            wait_for([in_child("grandchild")])
            use("worker again")
            status = 0
        finally:
            os._exit(status)
    use("program")
    wait_for([*workers, pid])
    use("program again")


def killed() -> None:
    """Be killed in the middle of operations, while a child lives on; a line says that it may happen."""
    use("before", None)
    for each in range(3):
        threading.Thread(target=use, args=(f"thread {each}", threading.Event()), daemon=True).start()
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    print("forked", flush=True)  # noqa: T201 - the test waits for this
    os.wait()


def main(url: str, log: str, scenario: str) -> None:
    global _store, _log
    _log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with penstock.open(url) as _store:
        use("first")
        {"busy": busy, "pool": pool, "preload": preload, "killed": killed}[scenario]()


if __name__ == "__main__":
    main(*sys.argv[1:])
