"""A process that shares a folder with others, and may own it: it puts, claims and acknowledges until told to end.

    python -m tests.sharing_child FOLDER LOG NAME

What it was told goes to the log at once, in one write each: that survives a kill.
"""

import json
import os
import sys
import threading
import time
from random import Random

import penstock

QUEUE = "jobs"


def main(folder: str, log: str, name: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    random, ending = Random(name), threading.Event()

    def note(what: str, **told: object) -> None:
        os.write(descriptor, (json.dumps({"what": what, **told}) + "\n").encode())

    def end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=end, daemon=True).start()
    with penstock.open(folder) as store:
        queue = store.queue(QUEUE)
        print("ready", flush=True)  # noqa: T201 - the parent waits for this
        number = 0
        while not ending.is_set():
            payload, begun = f"{name} {number}", time.monotonic_ns()
            queue.put(payload, key=payload)
            note("put", payload=payload, begun=begun, ended=time.monotonic_ns())
            number += 1
            lease = random.choice([0.2, 30])
            for message in queue.claim(random.choice([1, 1, 3]), lease=lease, wait=random.choice([0, 0.02])):
                note(
                    "claimed", id=message.id, receipt=message.receipt, attempt=message.attempts,
                    at=message.claimed_at, until=message.lease_until,
                )  # fmt: skip
                if random.random() < 0.1:
                    continue  # forgotten
                payload = message.payload.decode()
                note("settling", receipt=message.receipt, payload=payload, at=time.time_ns() // 1_000_000)
                try:
                    if random.random() < 0.2:
                        message.release()
                    else:
                        message.ack()
                        note("acknowledged", payload=payload)
                except penstock.LeaseExpired:
                    note("lost", receipt=message.receipt)


if __name__ == "__main__":
    main(*sys.argv[1:])
