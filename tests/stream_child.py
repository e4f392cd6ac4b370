"""A process that puts messages into a queue and reads it as a stream, until it is killed.

    python -m tests.stream_child URL LOG NAME

What it puts, and every batch that it reads, goes to the log at once, in one write each: that survives a kill. Like
Spark it says that it has come to a batch only once that is written down, and begins there when it starts.
"""

import json
import os
import sys
import threading
from random import Random

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name

QUEUE, STREAM = "jobs", "s"


def committed(log: str) -> int:
    """The last batch that was certainly read, as the log says; a line that a kill has cut off does not count."""
    with open(log) as lines:
        told = [json.loads(line) for line in lines if line.endswith("\n")]
    return max([each["committed"] for each in told if "committed" in each], default=0)


def main(url: str, log: str, name: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    random, lock = Random(name), threading.Lock()

    def note(**told: object) -> None:
        with lock:
            os.write(descriptor, (json.dumps(told) + "\n").encode())

    start = committed(log)
    with penstock.open(url) as store:
        queue, streams, reader = store.queue(QUEUE), Streams(store.run), reader_name()

        def produce() -> None:
            number = 0
            while True:
                payloads = [f"{name} {number} {each}" for each in range(random.choice([1, 9, 60]))]
                queue.put_many(payloads)
                note(put=payloads)
                number += 1

        streams.begin(QUEUE, STREAM, reader)
        threading.Thread(target=produce, daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            batch = streams.next(QUEUE, STREAM, reader, start, random.choice([5, 100, 2_000]), 1 << 30)
            if batch is None:
                continue
            streams.read(QUEUE, STREAM, batch, None)
            payloads, after = [], ""
            while page := streams.messages(QUEUE, STREAM, batch, after, "", 1_000):
                payloads += [message.payload.decode() for message in page]
                after = page[-1].id
            note(batch=batch, payloads=payloads)
            failed = random.random() < 0.1
            if failed:
                streams.fail(QUEUE, STREAM, batch, [after], "odd")
            note(committed=batch, failed=payloads[-1:] if failed else [])
            start = batch


if __name__ == "__main__":
    main(*sys.argv[1:])
