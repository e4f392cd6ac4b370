"""kill -9 of the server under boto3: what was answered holds, before the kill and after the restart."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import BotoCoreError

import penstock
from tests.clients.kit import boto
from tests.harness.children import ServerChild
from tests.harness.scenarios import QUEUE
from tests.http.serving import until

LONG, SHORT = 36_000, 1  # seconds of visibility


class Received(NamedTuple):
    """A message that a client was given."""

    body: str
    receipt: str
    asked: float
    answered: float
    visibility: int


class Traffic:
    """Clients that send, receive and delete, and what they were told."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = Random(seed)
        self.asked: set[str] = set()  # bodies
        self.sent: set[str] = set()  # and answered
        self.received: list[Received] = []
        self.asked_to_delete: set[str] = set()
        self.deleted: set[str] = set()  # and answered
        self.errors: list[BaseException] = []
        self._names = count()
        self._lock = threading.Lock()

    def run(self, stopping: threading.Event) -> None:
        """Until the server is gone."""
        works: list[Callable[[Any, str], None]] = [self._send, self._send, self._take, self._take]
        with ThreadPoolExecutor(len(works)) as threads:
            for work in works:
                threads.submit(self._work, work, stopping)

    def _work(self, work: Callable[[Any, str], None], stopping: threading.Event) -> None:
        with closing(boto(self.url)) as sqs:
            try:
                url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
                while True:
                    work(sqs, url)
            except BotoCoreError as error:
                if not stopping.is_set():
                    self.errors.append(error)
            except BaseException as error:
                self.errors.append(error)

    def _send(self, sqs: Any, url: str) -> None:
        with self._lock:
            bodies = [f"message {next(self._names)}" for _ in range(self.random.choice([1, 10]))]
            self.asked.update(bodies)
        if len(bodies) == 1:
            sqs.send_message(QueueUrl=url, MessageBody=bodies[0])
        else:
            entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
            assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
        with self._lock:
            self.sent.update(bodies)

    def _take(self, sqs: Any, url: str) -> None:
        with self._lock:
            visibility = self.random.choice([LONG, LONG, SHORT])
        asked = time.monotonic()
        answer = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=visibility, WaitTimeSeconds=1
        )
        answered = time.monotonic()
        got = [
            Received(each["Body"], each["ReceiptHandle"], asked, answered, visibility)
            for each in answer.get("Messages", [])
        ]
        with self._lock:
            self.received += got
            chosen = [each for each in got if each.visibility == LONG and self.random.random() < 0.5]
        self.delete(sqs, url, chosen)

    def delete(self, sqs: Any, url: str, received: list[Received]) -> None:
        if not received:
            return
        entries = [{"Id": str(number), "ReceiptHandle": each.receipt} for number, each in enumerate(received)]
        with self._lock:
            self.asked_to_delete.update(each.body for each in received)
        assert not sqs.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed")
        with self._lock:
            self.deleted.update(each.body for each in received)

    def going_on(self, received: int, deleted: int) -> Callable[[], bool]:
        """Whether more was received and deleted since; or it went wrong."""
        return lambda: bool(self.errors) or (len(self.received) > received + 20 and len(self.deleted) > deleted)

    @property
    def held(self) -> list[Received]:
        """What was received for long, and never asked to be deleted."""
        return [
            each for each in self.received if each.visibility == LONG and each.body not in self.asked_to_delete
        ]

    def check(self, found: dict[str, str]) -> None:
        """Hold what the queue has (states by body) to what was told."""
        assert self.sent - self.asked_to_delete <= found.keys() <= self.asked - self.deleted
        assert {each.body for each in self.held} <= {body for body, state in found.items() if state == "in_flight"}
        for first, second in self._deliveries():
            assert second.answered >= first.asked + first.visibility, (first, second)

    def _deliveries(self) -> Iterator[tuple[Received, Received]]:
        by_body: dict[str, list[Received]] = {}
        for each in self.received:
            by_body.setdefault(each.body, []).append(each)
        for deliveries in by_body.values():
            yield from pairwise(sorted(deliveries, key=lambda each: each.answered))


def states(folder: Path) -> dict[str, str]:
    with penstock.open(folder) as store:
        messages = list(store.queue(QUEUE).messages())
    found: dict[str, str] = {each.payload.decode(): each.state for each in messages}
    assert len(found) == len(messages)
    return found


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *[pytest.param(seed, 20, marks=pytest.mark.long) for seed in range(100, 105)]]
)
def test_what_a_killed_server_has_answered_holds(tmp_path: Path, port: int, seed: int, kills: int) -> None:
    folder = tmp_path / "store"
    with penstock.open(folder) as store:
        store.create(QUEUE)
    traffic = Traffic(f"http://127.0.0.1:{port}", seed)
    with ExitStack() as stack:
        for _ in range(kills):
            server = stack.enter_context(ServerChild(folder, "--port", str(port)))
            stopping = threading.Event()
            thread = stack.enter_context(ThreadPoolExecutor(1)).submit(traffic.run, stopping)
            until(traffic.going_on(len(traffic.received), len(traffic.deleted)))
            time.sleep(traffic.random.uniform(0, 0.5))
            stopping.set()
            server.kill()
            thread.result()
            assert traffic.errors == []
            traffic.check(states(folder))

        with ServerChild(folder, "--port", str(port)) as server, closing(boto(server.url)) as sqs:
            url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
            gone = [each for each in traffic.received if each.body in traffic.deleted]
            kept = traffic.held
            for some in (kept, kept, gone):  # receipts of servers that were killed; and all of that again
                for start in range(0, len(some), 10):
                    traffic.delete(sqs, url, some[start : start + 10])
            assert server.stop() == 0
        traffic.check(states(folder))
        assert traffic.held == []
