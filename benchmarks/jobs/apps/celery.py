"""Celery without results. Durable: a job is acknowledged after it ran, and RabbitMQ confirms puts."""

import os

from celery import Celery

from benchmarks.jobs import times

app = Celery("jobs", broker=os.environ["JOBS_URL"])
app.conf.task_ignore_result = True
if os.environ["JOBS_DURABLE"]:
    app.conf.task_acks_late = True
    if os.environ["JOBS_URL"].startswith("amqp"):
        app.conf.broker_transport_options = {"confirm_publish": True}

task = app.task(name="job")(times.job)


def put(number: int, put_at: int) -> None:
    task.delay(number, put_at)
