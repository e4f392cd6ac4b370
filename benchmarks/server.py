"""The server over HTTP, against the brokers that people use today.

Payloads are 1 KiB and everything is durable. Each visit starts its broker afresh in an empty folder, so that none
runs beside another; the load comes from this process, with asyncio, one request outstanding per connection.
"""

import asyncio
import itertools
import math
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

import penstock
import penstock.aio
from benchmarks.brokers import EVERY, Broker, Penstock
from benchmarks.brokers.connection import Claimed, Connection
from benchmarks.harness import RAW_APPEND, Cell
from benchmarks.journal import random_payloads
from benchmarks.probes import KIB

SECONDS, WARM_UP = 1.0, 0.2  # of a measurement, and before it
MANY, FEW = 64, 4  # connections: for single messages, and for batches
BATCH = 100
PREFILLED, PREFILLED_BATCHES = 5_000, 300  # messages and batches to consume
PREFILLED_BY_CLIENT = 60_000
SAMPLES, UNTIMED = 300, 20
PARKING = 0.002  # seconds until a consumer's request has reached the broker
IDLE, IDLE_WAIT, IDLE_SECONDS = 5_000, 60, 10
PATIENCE = 120  # seconds after which a broker counts as hung

Scenario = Callable[[Broker], Awaitable[float]]
Step = Callable[[Connection], Awaitable[object]]


def visit(broker: type[Broker], scenario: Scenario) -> Callable[[Path], float]:
    """Start the broker, measure, and stop it."""

    def measure(folder: Path) -> float:
        with broker(folder) as running:

            async def measured() -> float:
                async with asyncio.timeout(PATIENCE):
                    return await scenario(running)

            return uvloop.run(measured())

    return measure


async def _connect(broker: Broker, count: int, holds: int = 0, rings: bool = False) -> list[Connection]:
    """`count` connections, opened one after the other: a broker need not survive a thousand at once."""
    return [await broker.connection.open(broker.port, holds=holds, rings=rings) for _ in range(count)]


async def _rate(
    connections: Sequence[Connection], step: Step, operations: int, seconds: float, most: float = math.inf
) -> float:
    """Operations per second; a step makes `operations` of them. Ends after `seconds`, or at `most` begun."""
    begun, started = 0, time.perf_counter()

    async def work(connection: Connection) -> None:
        nonlocal begun
        while begun < most and time.perf_counter() - started < seconds:
            begun += operations
            await step(connection)
        await connection.flush()

    await asyncio.gather(*map(work, connections))
    return begun / (time.perf_counter() - started)


# Throughput


def _putting(batch: int) -> Step:
    """A step that puts one message, or a batch."""
    payloads = random_payloads(1_000)
    supply = itertools.cycle([payloads[at : at + batch] for at in range(0, len(payloads), batch)])
    if batch == 1:
        return lambda connection: connection.put(next(supply)[0])
    return lambda connection: connection.put_many(next(supply))


def _consuming(batch: int) -> Step:
    """A step that claims and acknowledges one message, or a batch."""

    async def one(connection: Connection) -> None:
        claimed = await connection.claim()
        _check([claimed] if claimed else [], 1)
        assert claimed
        await connection.ack(claimed[0])

    async def many(connection: Connection) -> None:
        claimed = await connection.claim_many(batch)
        _check(claimed, batch)
        await connection.ack_many([token for token, _ in claimed])

    return one if batch == 1 else many


def _check(claimed: Sequence[Claimed], count: int) -> None:
    if len(claimed) != count or any(len(body) != KIB for _, body in claimed):
        raise RuntimeError(f"of {count} messages {len(claimed)} came: the broker has lost some")


def put(connections: int, batch: int) -> Scenario:
    async def scenario(broker: Broker) -> float:
        producers, step = await _connect(broker, connections), _putting(batch)
        await _rate(producers, step, batch, WARM_UP)
        return await _rate(producers, step, batch, SECONDS)

    return scenario


def consume(connections: int, batch: int, prefilled: int) -> Scenario:
    async def scenario(broker: Broker) -> float:
        # Every connection consumes once to warm up, and some brokers push it another batch at the end.
        await _fill(broker, prefilled + 2 * connections * batch)
        broker.settle()
        consumers, step = await _connect(broker, connections, holds=batch), _consuming(batch)
        await asyncio.gather(*map(step, consumers))
        return await _rate(consumers, step, batch, SECONDS, most=prefilled)

    return scenario


async def _fill(broker: Broker, count: int) -> None:
    batch = BATCH if broker.connection.batches else 1
    producers = await _connect(broker, FEW if batch > 1 else MANY)
    await _rate(producers, _putting(batch), batch, PATIENCE, most=count)
    for each in producers:
        each.close()


# Our own client


def _calling(coroutines: bool, call: str) -> Callable[[Path], float]:
    """Operations per second of MANY callers of one client: threads, or coroutines."""

    def measure(folder: Path) -> float:
        with Penstock(folder) as running:
            url = f"http://127.0.0.1:{running.port}"
            if coroutines:
                return uvloop.run(_by_coroutines(url, call))
            with penstock.open(url) as store:
                return _by_threads(store.queue(), call)

    return measure


def _by_threads(queue: penstock.Queue, call: str) -> float:
    (payload,) = random_payloads(1)
    _prefill(queue.put_many, call)

    def put() -> None:
        queue.put(payload)

    def consume_one() -> None:
        (claimed,) = queue.claim()
        claimed.ack()

    step = put if call == "put" else consume_one
    started = time.perf_counter()
    end = started + SECONDS

    def live(_: int) -> int:
        count = 0
        while time.perf_counter() < end:
            step()
            count += 1
        return count

    with ThreadPoolExecutor(MANY) as threads:
        return sum(threads.map(live, range(MANY))) / (time.perf_counter() - started)


async def _by_coroutines(url: str, call: str) -> float:
    (payload,) = random_payloads(1)
    async with await penstock.aio.open(url) as store:
        queue = await store.queue()
        for drafts in _prefilling(call):
            await queue.put_many(drafts)

        async def put() -> None:
            await queue.put(payload)

        async def consume_one() -> None:
            (claimed,) = await queue.claim()
            await claimed.ack()

        step = put if call == "put" else consume_one
        started = time.perf_counter()
        end = started + SECONDS

        async def live() -> int:
            count = 0
            while time.perf_counter() < end:
                await step()
                count += 1
            return count

        return sum(await asyncio.gather(*(live() for _ in range(MANY)))) / (time.perf_counter() - started)


def _prefilling(call: str) -> Iterator[list[bytes]]:
    """Batches of messages to be consumed: more than a second's."""
    for _ in range(0 if call == "put" else PREFILLED_BY_CLIENT // 1_000):
        yield random_payloads(1_000)


def _prefill(put_many: Callable[[list[bytes]], object], call: str) -> None:
    for drafts in _prefilling(call):
        put_many(drafts)


# Latency


def _latency(percent: int) -> Scenario:
    """Seconds from before a put until a consumer that waits has the message, at this percentile."""

    async def scenario(broker: Broker) -> float:
        (producer,) = await _connect(broker, 1, rings=True)
        (consumer,) = await _connect(broker, 1, holds=1, rings=True)
        payloads = itertools.cycle(random_payloads(100))
        times = [await _delivery(producer, consumer, next(payloads)) for _ in range(UNTIMED + SAMPLES)]
        return statistics.quantiles(times[UNTIMED:], n=100)[percent - 1]

    return scenario


async def _delivery(producer: Connection, consumer: Connection, payload: bytes) -> float:
    async def receive() -> tuple[Claimed | None, float]:
        return await consumer.claim(wait=5), time.perf_counter()

    receiving = asyncio.create_task(receive())
    await asyncio.sleep(PARKING)
    started = time.perf_counter()
    await producer.put(payload)
    claimed, arrived = await receiving
    if claimed is None or claimed[1] != payload:
        raise RuntimeError("another message came than the one that was put")
    await consumer.ack(claimed[0])
    return arrived - started


# Idle consumers


async def _wait_in_vain(server: Broker, seconds: float) -> tuple[float, float]:
    """Growth of the server's memory by IDLE long polls, in bytes, and its CPU seconds while all wait."""
    (first,) = await _connect(server, 1)
    await first.put(b"first")
    claimed = await first.claim()
    assert claimed
    await first.ack(claimed[0])

    (process,) = server.processes
    before = _resident(process.pid)
    consumers = await _connect(server, IDLE)
    waiting = [asyncio.create_task(each.claim(wait=IDLE_WAIT)) for each in consumers]
    await asyncio.sleep(1)  # until the server has seen them all
    cpu = cpu_of(process.pid)
    await asyncio.sleep(seconds)
    cpu, grown = cpu_of(process.pid) - cpu, _resident(process.pid) - before
    if any(each.done() for each in waiting):
        raise RuntimeError("not every long poll waits")
    for each in waiting:
        each.cancel()
    return grown, cpu


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used, threads that have ended included."""
    return time.clock_gettime(~pid << 3 | 2)  # the number of its CPU clock, as clock_getcpuclockid(3) makes it


def _allow_files(count: int) -> None:
    """Raise the limit of open files, for this process and the server that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


async def _idle_memory(server: Broker) -> float:
    grown, _ = await _wait_in_vain(server, seconds=0)
    return grown / 1e6


async def _idle_cpu(server: Broker) -> float:
    _, cpu = await _wait_in_vain(server, IDLE_SECONDS)
    return cpu


def _idle(scenario: Scenario) -> Callable[[Path], float]:
    def measure(folder: Path) -> float:
        _allow_files(IDLE + 1_000)
        return visit(Penstock, scenario)(folder)

    return measure


# The cells

SINGLE, BULK = f"server, {MANY} connections", f"server, batches of {BATCH}"
LATENCY, WAITING = "server, put to a waiting consumer", f"server, {IDLE:,} idle long polls"

Targets = Mapping[str, float | None]
INSTALLED = [broker for broker in EVERY if broker.program()]
BATCHING = [broker for broker in INSTALLED if broker.connection.batches]


def _targets(what: str, brokers: Sequence[type[Broker]], each: float, **others: float | None) -> Targets:
    """The target for each broker; `others` by class, as for Redis, which keeps everything in memory."""
    return {f"{broker.name}, {what}": others.get(broker.__name__, each) for broker in brokers}


def _rates(
    what: str, group: str, scenario: Scenario, brokers: Sequence[type[Broker]], against: Targets
) -> Iterator[Cell]:
    """The cell of the server with its targets, and a cell of each broker."""
    yield Cell(
        f"server, {what}", group, "ops/s", visit(Penstock, scenario), "higher", {RAW_APPEND: None, **against}
    )
    for broker in brokers:
        yield Cell(f"{broker.name}, {what}", group, "ops/s", visit(broker, scenario), "higher", of="peer")


def _latencies(percent: int, target: float) -> Iterator[Cell]:
    what, scenario = f"latency, {percent}%", _latency(percent)
    # A classic queue hands a message out before it is synced, so that is no latency of a durable message.
    against = _targets(what, INSTALLED, target, RabbitClassic=None)
    yield Cell(f"server, {what}", LATENCY, "s", visit(Penstock, scenario), "lower", against)
    for broker in INSTALLED:
        yield Cell(f"{broker.name}, {what}", LATENCY, "s", visit(broker, scenario), "lower", of="peer")


def _cells() -> Iterator[Cell]:
    what = f"put, {MANY} connections"
    against = _targets(what, INSTALLED, 1, RedisStream=0.25, RedisList=None)
    yield from _rates(what, SINGLE, put(MANY, 1), INSTALLED, against)

    single = f"claim and ack, {MANY} connections"
    against = _targets(single, INSTALLED, 0.4, RedisStream=None, RedisList=None)
    yield from _rates(single, SINGLE, consume(MANY, 1, PREFILLED), INSTALLED, against)

    for call in ("put", "claim and ack"):
        against = {f"{broker.name}, {call}, {MANY} connections": 1.0 for broker in INSTALLED}
        for kind in ("coroutines", "threads"):
            measured = _calling(kind == "coroutines", call)
            yield Cell(f"our client, {call}, {MANY} {kind}", SINGLE, "ops/s", measured, "higher", against)

    what = f"put {BATCH} at once"
    yield from _rates(what, BULK, put(FEW, BATCH), BATCHING, _targets(what, BATCHING, 1))

    what = f"claim and ack {BATCH} at once"
    against = {**_targets(single, INSTALLED, 2), **dict.fromkeys(_targets(what, BATCHING, 2))}
    yield from _rates(what, BULK, consume(FEW, BATCH, PREFILLED_BATCHES * BATCH), BATCHING, against)

    for percent in (50, 99):
        yield from _latencies(percent, 2.5)

    yield Cell("server, idle memory", WAITING, "MB", _idle(_idle_memory), "lower", target=60)
    yield Cell(f"server, idle CPU in {IDLE_SECONDS} s", WAITING, "s", _idle(_idle_cpu), "lower")


CELLS = list(_cells())
