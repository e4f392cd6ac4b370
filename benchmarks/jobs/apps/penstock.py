"""Penstock: `python -m benchmarks.jobs.apps.penstock` is the worker, with threads. It opens the store first: who
takes jobs out has the most to do with it.
"""

import os
import struct

import penstock
from benchmarks.jobs import times

CONCURRENCY = 8
_BODY = struct.Struct("=QQ")
store = penstock.open(os.environ["JOBS_URL"])
queue = store.queue()


def put(number: int, put_at: int) -> None:
    queue.put(_BODY.pack(number, put_at))


def put_many(jobs: list[tuple[int, int]]) -> None:
    queue.put_many([_BODY.pack(*each) for each in jobs])


def handle(message: penstock.Message) -> None:
    times.job(*_BODY.unpack(message.payload))


if __name__ == "__main__":
    print("ready", flush=True)
    penstock.work(queue, handle, CONCURRENCY)
