"""RQ without results; its workers fork a process for each job."""

import os

from redis import Redis
from rq import Queue

from benchmarks.jobs import times

queue = Queue(connection=Redis.from_url(os.environ["JOBS_URL"]))


def put(number: int, put_at: int) -> None:
    queue.enqueue(times.job, number, put_at, result_ttl=0)


def put_many(jobs: list[tuple[int, int]]) -> None:
    queue.enqueue_many([queue.prepare_data(times.job, each, result_ttl=0) for each in jobs])
