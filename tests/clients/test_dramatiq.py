"""dramatiq with the broker of dramatiq_sqs: actors, retries, delays and dead letters."""

from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq
from dramatiq_sqs import SQSBroker

from tests.clients import table
from tests.clients.conftest import Service
from tests.clients.kit import credentials, tapped


@contextmanager
def working(broker: SQSBroker) -> Iterator[None]:
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=1000)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def test_actors_work_and_what_fails_is_tried_again_and_then_put_aside(service: Service) -> None:
    with tapped(service.url) as tap:
        broker = SQSBroker(
            namespace="dramatiq",
            dead_letter=True,
            middleware=[dramatiq.middleware.Retries(max_retries=1, min_backoff=1000, max_backoff=1000)],
            tags={"team": "a"},
            endpoint_url=tap.url,
            **credentials(),
        )
        sums: list[int] = []
        attempts: list[str] = []

        def add(a: int, b: int) -> None:
            sums.append(a + b)

        def fail(name: str) -> None:
            attempts.append(name)
            if name == "always" or attempts.count(name) == 1:
                raise RuntimeError(name)

        adding = dramatiq.actor(broker=broker, queue_name="jobs")(add)
        failing = dramatiq.actor(broker=broker, queue_name="jobs")(fail)
        adding.send(2, 3)
        adding.send_with_options(args=(20, 3), delay=1000)
        failing.send("once")
        failing.send("always")
        with working(broker):
            broker.join("jobs")
        assert sums == [5, 23]
        assert sorted(attempts) == ["always", "always", "once", "once"]
        assert service.store.queue("dramatiq_jobs_dlq").counts()["available"] == 1
        broker.sqs.meta.client.close()
    table.check("dramatiq", tap.done)
