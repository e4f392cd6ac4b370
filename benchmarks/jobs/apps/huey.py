"""Huey on SQLite or Redis without results; a job is taken out before it runs."""

import os

from huey import RedisHuey, SqliteHuey

from benchmarks.jobs import times

url, durable = os.environ["JOBS_URL"], bool(os.environ["JOBS_DURABLE"])
if url.startswith("redis:"):
    huey = RedisHuey("jobs", url=url, results=False)
else:
    huey = SqliteHuey("jobs", filename=url, fsync=durable, results=False)
task = huey.task()(times.job)


def put(number: int, put_at: int) -> None:
    task(number, put_at)
