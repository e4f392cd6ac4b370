"""Tasks of a Celery worker: `celery -A tests.clients.celery_tasks worker`. Each notes what it does in a file."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from tests.harness.children import Log

app = Celery("tests", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport_options={
        "is_secure": False,
        "region": "us-east-1",
        "visibility_timeout": 3,
        "wait_time_seconds": 1,
        "polling_interval": 0,
    },
    task_default_queue="tasks",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
log = Log(os.environ["TASKS_LOG"])


@app.task
def add(a: int, b: int) -> None:
    log.note(sum=a + b)


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> None:
    log.note(attempt=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0)


@app.task
def timed(asked: float) -> None:
    log.note(after=time.time() - asked)


@app.task(acks_late=True, reject_on_worker_lost=True)
def held(until: str) -> None:
    """Runs until the file is there."""
    log.note(held="begun")
    while not Path(until).exists():
        time.sleep(0.05)
    log.note(held="done")
