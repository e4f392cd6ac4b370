"""Procrastinate on PostgreSQL; `python -m benchmarks.jobs.apps.procrastinate` creates its tables."""

import os
import sys

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.jobs import times

working = os.path.basename(sys.argv[0]) == "procrastinate"  # the worker needs a connector for coroutines
connector = PsycopgConnector if working else SyncPsycopgConnector
app = App(connector=connector(conninfo=os.environ["JOBS_URL"]))


async def job(number: int, put_at: int) -> None:
    times.job(number, put_at)


task = app.task(name="job")(job)


def put(number: int, put_at: int) -> None:
    task.defer(number=number, put_at=put_at)


def put_many(jobs: list[tuple[int, int]]) -> None:
    task.batch_defer(*[{"number": number, "put_at": put_at} for number, put_at in jobs])


if not working:
    app.open()
if __name__ == "__main__":
    app.schema_manager.apply_schema()
