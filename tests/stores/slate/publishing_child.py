"""A process that publishes and consumes until it is killed.

    python -m tests.stores.slate.publishing_child FOLDER LOG NAME

Everything that it was told goes to the log at once, a line each, which survives the kill.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable

import penstock

QUEUES = {
    "all": {"filter": "kind = 'a' OR kind = 'b'"},
    "again": {"filter": "kind IN ('a', 'b')"},
    "narrow": {"filter": "kind = 'a'", "max_size": 50, "max_attempts": 0},
}


def main(folder: str, log: str, name: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = penstock.open(f"slate:{folder}")

    def tell(*words: str) -> None:
        os.write(descriptor, (" ".join(words) + "\n").encode())

    def publish(number: int) -> None:
        for at in range(sys.maxsize):
            kind = "abc"[at % 3]
            tell("published", kind, store.publish(f"{name} {number} {at}".encode(), headers={"kind": kind}))

    def consume(number: int) -> None:
        queue = store.queue("narrow")
        while True:
            for message in queue.claim(2, lease=0.5, wait=0.1):
                tell("seen", message.id)
                queue.ack(message)
                tell("acked", message.id)

    def put(number: int) -> None:
        while True:
            try:
                store.queue("narrow").put(b"put")
            except penstock.QueueFull:
                threading.Event().wait(0.01)

    def run(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except penstock.LeaseExpired:
            run(work, number)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    for number, work in enumerate((publish, publish, publish, consume, put)):
        threading.Thread(target=run, args=(work, number), daemon=True).start()
    print("ready", flush=True)  # noqa: T201 - the parent waits for this
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
