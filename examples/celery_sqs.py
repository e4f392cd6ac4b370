"""Celery on Penstock's queues: the server speaks Amazon SQS, so Celery needs no plug-in.

    penstock serve --port 8390                    keeps the queue in ./penstock-data
    python examples/celery_sqs.py worker          a worker; kill -9 it as often as you like
    python examples/celery_sqs.py ask 10          ten tasks

A task that was asked for is on stable storage. With acks_late it is taken off the queue once it is done, so a task
whose worker died is done by another, when its visibility timeout is over. With tokens on, leave `any:any@` out of
the address and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to anything, AWS_SESSION_TOKEN to the token.
"""

import os
import sys
import time

from celery import Celery

app = Celery("thumbnails", broker=os.environ.get("BROKER", "sqs://any:any@localhost:8390"))
app.conf.update(
    broker_transport_options={
        "is_secure": False,  # True: https
        "region": "us-east-1",
        "visibility_timeout": 60,  # longer than a task, and than the countdown of a retry
        "wait_time_seconds": 20,
        "polling_interval": 0,  # the server answers as soon as there is a task
    },
    task_default_queue="thumbnails",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,  # results need a backend of their own
    worker_enable_remote_control=False,  # which SQS has no way for
    worker_redirect_stdouts=False,
)


@app.task(bind=True, name="resize", autoretry_for=(OSError,), max_retries=3, default_retry_delay=1)
def resize(task, image: str) -> None:  # type: ignore[no-untyped-def]  # Celery has no types
    """Make a thumbnail: fails the first time for the image of number 7."""
    if image == "image7.jpg" and not task.request.retries:
        raise OSError("the disk of the images is busy")
    time.sleep(0.01)
    print(f"resized {image}, attempt {task.request.retries + 1}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        app.worker_main(["worker", "--concurrency", "2", "--loglevel", "ERROR", *sys.argv[2:]])
    else:
        for number in range(int(sys.argv[2])):
            resize.delay(f"image{number}.jpg")
        print(f"asked for {sys.argv[2]} thumbnails")
