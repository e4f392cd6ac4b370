"""Dramatiq on Redis; it acknowledges a job after it ran."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.jobs import times

dramatiq.set_broker(RedisBroker(url=os.environ["JOBS_URL"]))
task = dramatiq.actor(times.job)


def put(number: int, put_at: int) -> None:
    task.send(number, put_at)
