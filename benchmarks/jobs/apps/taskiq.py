"""taskiq on a stream of Redis, which acknowledges a job after it ran; no results."""

import asyncio
import functools
import os

from taskiq_redis import RedisStreamBroker

from benchmarks.jobs import times

broker = RedisStreamBroker(os.environ["JOBS_URL"])


async def job(number: int, put_at: int) -> None:
    times.job(number, put_at)


task = broker.task(task_name="job")(job)


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """The producer's."""
    new = asyncio.new_event_loop()
    new.run_until_complete(broker.startup())
    return new


def put(number: int, put_at: int) -> None:
    loop().run_until_complete(task.kiq(number, put_at))
