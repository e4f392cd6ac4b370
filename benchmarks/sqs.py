"""SQS with boto3 as the client: against Penstock's own calls by the server's CPU, and against moto's server.

Bodies are 1 KiB. Penstock syncs a message before it answers; moto's server keeps it in memory. boto3 itself takes
longer than either server for a small request, so what a server costs is told by its CPU, which is the same however
slow the client is. One at a time it is also told what such clients get: one, and CLIENTS in PROCESSES processes,
which share the machine's cores with the server. What the server can do shows with thin clients, as many as those
with which ElasticMQ measured what it publishes (one at a time, small messages, in memory).
"""

import itertools
import json
import multiprocessing
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, ClassVar

import boto3
from botocore.config import Config

import penstock
from benchmarks.brokers import Penstock
from benchmarks.brokers.connection import HOST, Claimed, Connection, Refused
from benchmarks.brokers.penstock import response
from benchmarks.brokers.process import Broker
from benchmarks.harness import RAW_APPEND, Cell
from benchmarks.journal import random_payloads
from benchmarks.server import PREFILLED, consume, cpu_of, put, visit

QUEUE, BATCH, LEASE = "default", 10, 600
BATCHES, SINGLE, WARM_UP = 50, 200, 10  # steps of a measurement, and before it
CLIENTS, PROCESSES, SECONDS = 8, 2, 3.0  # of boto3 at the same time
THIN, ELASTICMQ = 20, 2_540  # connections, and messages a second: https://github.com/softwaremill/elasticmq


class Moto(Broker):
    """moto's server: what many people test against."""

    name, package, connection = "moto server", "moto", Connection

    def start(self) -> None:
        self.spawn(sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port))
        self.await_ready()


class SqsConnection(Connection):
    """SQS in JSON as thinly as the brokers' protocols, with heads that differ, as those of SDKs do."""

    batches = False  # of more than ten messages
    _numbers = itertools.count()

    async def greet(self) -> None:
        await self._ask("CreateQueue", QueueName=QUEUE)

    async def put(self, body: bytes) -> None:
        await self._ask("SendMessage", QueueUrl=QUEUE, MessageBody=body.hex()[: len(body)])

    async def claim(self, wait: int = 0) -> Claimed | None:
        told = await self._ask("ReceiveMessage", QueueUrl=QUEUE, WaitTimeSeconds=wait)
        for message in told.get("Messages", []):
            return message["ReceiptHandle"].encode(), message["Body"].encode()
        return None

    async def ack(self, token: bytes) -> None:
        await self._ask("DeleteMessage", QueueUrl=QUEUE, ReceiptHandle=token.decode())

    async def _ask(self, action: str, **members: object) -> dict[str, Any]:
        body = json.dumps(members)
        head = (
            f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
            "Content-Type: application/x-amz-json-1.0\r\n"
            "Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sqs/aws4_request, "
            f"SignedHeaders=host;x-amz-target, Signature={next(self._numbers):064x}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        status, _, answer = await self.link.ask((head + body).encode(), response)
        if status != b"200":
            raise Refused(answer.decode(errors="replace"))
        told: dict[str, Any] = json.loads(answer)
        return told


class OverSqs(Penstock):
    connection: ClassVar[type[Connection]] = SqsConnection


class Client(ABC):
    """A program that uses a queue. Each call is one request."""

    @abstractmethod
    def __init__(self, url: str) -> None:
        """Connect."""

    @abstractmethod
    def send(self, bodies: list[str]) -> object:
        """Put these messages."""

    @abstractmethod
    def receive(self, count: int) -> list[Any]:
        """Claim messages; what settles them."""

    @abstractmethod
    def delete(self, receipts: list[Any]) -> None:
        """Settle messages."""

    @abstractmethod
    def close(self) -> None:
        """End the connections."""


class Boto(Client):
    """boto3, batches or single messages."""

    def __init__(self, url: str) -> None:
        self._sqs = boto3.client(
            "sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="any",
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip
        self._queue = self._sqs.create_queue(QueueName=QUEUE)["QueueUrl"]

    def send(self, bodies: list[str]) -> object:
        if len(bodies) == 1:
            return self._sqs.send_message(QueueUrl=self._queue, MessageBody=bodies[0])
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        return self._sqs.send_message_batch(QueueUrl=self._queue, Entries=entries)

    def receive(self, count: int) -> list[Any]:
        answer = self._sqs.receive_message(
            QueueUrl=self._queue, MaxNumberOfMessages=count, VisibilityTimeout=LEASE
        )
        return [message["ReceiptHandle"] for message in answer["Messages"]]

    def delete(self, receipts: list[Any]) -> None:
        if len(receipts) == 1:
            self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=receipts[0])
            return
        entries = [{"Id": str(number), "ReceiptHandle": each} for number, each in enumerate(receipts)]
        self._sqs.delete_message_batch(QueueUrl=self._queue, Entries=entries)

    def close(self) -> None:
        self._sqs.close()


class Own(Client):
    """Penstock's client of the same server."""

    def __init__(self, url: str) -> None:
        self._store = penstock.open(url)
        self._queue = self._store.queue(QUEUE)

    def send(self, bodies: list[str]) -> object:
        return self._queue.put_many(bodies)

    def receive(self, count: int) -> list[Any]:
        return self._queue.claim(count, lease=LEASE)

    def delete(self, receipts: list[Any]) -> None:
        self._queue.ack(*receipts)

    def close(self) -> None:
        self._store.close()


Steps = list[Callable[[], object]]
Prepare = Callable[[Client, int, int], Steps]  # so many steps of so many messages each


def _bodies(size: int) -> Iterator[list[str]]:
    texts = itertools.cycle([payload.hex()[:1024] for payload in random_payloads(200)])
    while True:
        yield list(itertools.islice(texts, size))


def _sending(client: Client, steps: int, size: int) -> Steps:
    bodies = _bodies(size)
    return [lambda: client.send(next(bodies))] * steps


def _receiving(client: Client, steps: int, size: int) -> Steps:
    _fill(client, steps * size)
    return [lambda: _whole(client.receive(size), size)] * steps


def _deleting(client: Client, steps: int, size: int) -> Steps:
    _fill(client, steps * size)
    received = [_whole(client.receive(size), size) for _ in range(steps)]
    return [lambda: client.delete(received.pop())] * steps


def _consuming(client: Client, steps: int, size: int) -> Steps:
    _fill(client, steps * size)
    return [lambda: client.delete(_whole(client.receive(size), size))] * steps


def _fill(client: Client, count: int) -> None:
    bodies = _bodies(BATCH)
    for _ in range(0, count, BATCH):
        client.send(next(bodies))


def _whole(received: list[Any], count: int) -> list[Any]:
    if len(received) != count:
        raise RuntimeError(f"of {count} messages {len(received)} came")
    return received


def _cpu(
    broker: type[Broker], client: type[Client], prepare: Prepare, steps: int = BATCHES, size: int = BATCH
) -> Callable[[Path], float]:
    """Microseconds of the server's CPU for a message."""

    def measure(folder: Path) -> float:
        with broker(folder) as running, closing(client(f"http://{HOST}:{running.port}")) as user:
            todo = prepare(user, WARM_UP + steps, size)
            for step in todo[:WARM_UP]:
                step()
            (process,) = running.processes
            before = cpu_of(process.pid)
            for step in todo[WARM_UP:]:
                step()
            return (cpu_of(process.pid) - before) / (steps * size) * 1e6

    return measure


def _rate(broker: type[Broker], prepare: Prepare) -> Callable[[Path], float]:
    """Messages a second, one after the other."""

    def measure(folder: Path) -> float:
        with broker(folder) as running, closing(Boto(f"http://{HOST}:{running.port}")) as user:
            steps = prepare(user, WARM_UP + SINGLE, 1)
            for step in steps[:WARM_UP]:
                step()
            started = time.perf_counter()
            for step in steps[WARM_UP:]:
                step()
            return SINGLE / (time.perf_counter() - started)

    return measure


Turn = Callable[[Client, list[str]], None]


def _send_one(client: Client, body: list[str]) -> None:
    client.send(body)


def _pass_one_on(client: Client, body: list[str]) -> None:
    """Send a message, receive one and delete it."""
    client.send(body)
    client.delete(_whole(client.receive(1), 1))


def _crowd(broker: type[Broker], turn: Turn) -> Callable[[Path], float]:
    """Turns a second of many clients at the same time."""

    def measure(folder: Path) -> float:
        spawned = multiprocessing.get_context("spawn")
        begun = spawned.Barrier(CLIENTS)
        with broker(folder) as running, ProcessPoolExecutor(PROCESSES, spawned, _join, (begun,)) as processes:
            share = partial(_share, turn)
            return sum(processes.map(share, [f"http://{HOST}:{running.port}"] * PROCESSES)) / SECONDS

    return measure


_barriers: list[Barrier] = []  # of this process, for all clients


def _join(begun: Barrier) -> None:
    _barriers.append(begun)


def _share(turn: Turn, url: str) -> int:
    """The turns of the clients of one process."""
    count = CLIENTS // PROCESSES
    with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
        clients = [stack.enter_context(closing(Boto(url))) for _ in range(count)]
        return sum(threads.map(partial(_turns, turn), clients))


def _turns(turn: Turn, client: Client) -> int:
    """How often a client comes to its turn in so many seconds, once all have begun."""
    bodies = _bodies(1)
    for _ in range(WARM_UP):
        turn(client, next(bodies))
    _barriers[0].wait()
    end, done = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        turn(client, next(bodies))
        done += 1
    return done


def _cells() -> Iterator[Cell]:
    group, unit = f"SQS, server's CPU for a message of {BATCH}", "µs"
    for what, own, prepare, target in (
        ("send", "put", _sending, 1.5),
        ("receive", "claim", _receiving, 1.5),
        ("delete", "ack", _deleting, None),
    ):
        against = {f"own {own}, CPU": target, f"moto server, {what}, CPU": None}
        yield Cell(f"SQS {what}, CPU", group, unit, _cpu(Penstock, Boto, prepare), "lower", against)
        yield Cell(f"own {own}, CPU", group, unit, _cpu(Penstock, Own, prepare), "lower")
        yield Cell(f"moto server, {what}, CPU", group, unit, _cpu(Moto, Boto, prepare), "lower", of="peer")
    group = "SQS, one message at a time by one client"
    for what, prepare in (("send", _sending), ("receive and delete", _consuming)):
        one = f"{what} one, CPU"
        against = {f"moto server, {one}": 1 / 3}
        yield Cell(f"SQS {one}", group, unit, _cpu(Penstock, Boto, prepare, SINGLE, 1), "lower", against)
        yield Cell(f"moto server, {one}", group, unit, _cpu(Moto, Boto, prepare, SINGLE, 1), "lower", of="peer")
        against = {f"moto server, {what}": 3, RAW_APPEND: None}
        yield Cell(f"SQS {what}", group, "ops/s", _rate(Penstock, prepare), "higher", against)
        yield Cell(f"moto server, {what}", group, "ops/s", _rate(Moto, prepare), "higher", of="peer")
    group = f"SQS, one message at a time by {CLIENTS} clients of boto3 in {PROCESSES} processes"
    for what, turn in (("send", _send_one), ("send, receive and delete", _pass_one_on)):
        crowd = f"{CLIENTS} clients {what}"
        against = {f"moto server, {crowd}": 3, RAW_APPEND: None}
        yield Cell(f"SQS {crowd}", group, "ops/s", _crowd(Penstock, turn), "higher", against)
        yield Cell(f"moto server, {crowd}", group, "ops/s", _crowd(Moto, turn), "higher", of="peer")
    group = f"SQS, one message at a time by {THIN} thin clients"
    for what, scenario in (("send", put(THIN, 1)), ("receive and delete", consume(THIN, 1, PREFILLED))):
        name, measure = f"SQS {THIN} thin clients {what}", visit(OverSqs, scenario)
        yield Cell(name, group, "ops/s", measure, "higher", {RAW_APPEND: None}, target=ELASTICMQ)


CELLS = list(_cells())
