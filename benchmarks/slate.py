"""The slate store in a folder, durable, against the raw disk and against SlateDB's binding as it is shipped.

Payloads are 1 KiB, and every operation is on stable storage before it returns.
"""

import asyncio
import time
from functools import partial
from pathlib import Path

import penstock
import penstock.aio
from benchmarks.harness import RAW_APPEND, RAW_SEQUENTIAL, Cell
from benchmarks.journal import BATCH, SECONDS, random_payloads, rate
from benchmarks.probes import KIB
from penstock.stores.slate.store import SlateBackend

PRODUCERS = 256
FEW, MANY = 1_000, 1_000_000
GROUP = "slate, in a folder"
AS_SHIPPED = "SlateDB's binding as shipped, batches of 1,000"
TURNS, PER_TURN = 20, 10  # operations whose times are compared
QUEUES = 1_000
ONE_QUEUE = "slate, router, 1 queue with an equality"


def _put_by_producers(folder: Path) -> float:
    """Messages per second of producers that each wait for the commit of their last one."""

    async def measure() -> float:
        payloads = random_payloads(BATCH)
        async with penstock.aio.open(f"slate:{folder}", share=False) as store:
            queue = await store.queue()
            started = time.perf_counter()

            async def produce(number: int) -> int:
                done = 0
                while time.perf_counter() - started < 3 * SECONDS:
                    await queue.put(payloads[(number + done) % BATCH])
                    done += 1
                return done

            done = sum(await asyncio.gather(*map(produce, range(PRODUCERS))))
            return done / (time.perf_counter() - started)

    return asyncio.run(measure())


def _put_many(folder: Path) -> float:
    with penstock.open(f"slate:{folder}", share=False) as store:
        queue, payloads = store.queue(), random_payloads(BATCH)
        return rate(lambda: queue.put_many(payloads), BATCH)


def _as_shipped(folder: Path) -> float:
    """The same batches by the binding's own calls, with a flush each; the binding itself syncs nothing."""
    from slatedb.uniffi import (
        DbBuilder,
        FlushOptions,
        FlushType,
        ObjectStoreBuilder,
        ObjectStoreType,
        Settings,
        WriteBatch,
    )

    async def measure() -> float:
        builder = ObjectStoreBuilder(ObjectStoreType.LOCAL)
        builder.with_config("local_path", str(folder))
        settings = Settings.default()
        settings.set("flush_interval", "null")
        opening = DbBuilder("db", builder.build())
        opening.with_settings(settings)
        database = await opening.build()
        payloads = random_payloads(BATCH)
        done, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < SECONDS:
            batch = WriteBatch()
            for payload in payloads:
                batch.put(done.to_bytes(8), payload)
                done += 1
            await database.write(batch)
            await database.flush_with_options(FlushOptions(flush_type=FlushType.WAL))
        await database.shutdown()
        return done / elapsed

    return asyncio.run(measure())


def _route(queues: int, folder: Path) -> float:
    """Messages per second, from publish to durable delivery into the one queue whose filter matches."""
    with penstock.open(f"slate:{folder}", sync="never", share=False) as store:
        for number in range(queues):
            store.create(f"queue-{number}", filter=f"topic = 'topic-{number}'")

    async def measure() -> float:
        payloads = random_payloads(BATCH)
        async with penstock.aio.open(f"slate:{folder}", share=False) as store:
            started = time.perf_counter()

            async def produce(number: int) -> int:
                done = 0
                while time.perf_counter() - started < 3 * SECONDS:
                    topic = f"topic-{(number + PRODUCERS * done) % queues}"
                    await store.publish(payloads[(number + done) % BATCH], headers={"topic": topic})
                    done += 1
                return done

            done = sum(await asyncio.gather(*map(produce, range(PRODUCERS))))
            elapsed = time.perf_counter() - started
            delivered = sum(info.counts["available"] for info in await store.queues())
            if delivered != done:
                raise RuntimeError(f"{done:,} messages were published, {delivered:,} delivered")
            return done / elapsed

    return asyncio.run(measure())


def _growth(folder: Path) -> float:
    """The time of a claim and its ack with many waiting messages, as a multiple of that with few; in turns."""
    for name, waiting in (("few", FEW), ("many", MANY)):
        with penstock.open(f"slate:{folder / name}", sync="never", share=False) as store:
            payloads = random_payloads(BATCH)
            for _ in range(waiting // BATCH):
                store.queue().put_many(payloads)
    with _settled(folder / "few") as few, _settled(folder / "many") as many:
        seconds = [0.0, 0.0]
        for _ in range(TURNS):
            for at, store in enumerate((few, many)):
                queue = store.queue()
                started = time.perf_counter()
                for _ in range(PER_TURN):
                    [message] = queue.claim()
                    message.ack()
                seconds[at] += time.perf_counter() - started
                queue.put_many([b"." * KIB] * PER_TURN)  # so that as many wait as before
    return seconds[1] / seconds[0]


def _settled(folder: Path) -> penstock.Store:
    """The store, after SlateDB has flushed and compacted everything."""
    store = penstock.open(f"slate:{folder}", share=False)
    backend = store.backend
    assert isinstance(backend, SlateBackend)
    backend.collect()
    tables, before = folder / "db" / "compacted", -1
    while (size := sum(path.stat().st_size for path in tables.iterdir())) != before:
        before = size
        time.sleep(3)  # compaction looks for work every second
    return store


CELLS = [
    Cell(
        f"slate, put, {PRODUCERS} producers",
        GROUP,
        "ops/s",
        _put_by_producers,
        "higher",
        against={RAW_APPEND: 4},
    ),
    Cell(
        "slate, put_many(1,000)",
        GROUP,
        "ops/s",
        _put_many,
        "higher",
        against={AS_SHIPPED: 5, RAW_SEQUENTIAL: None},
        bytes_per_op=KIB,
    ),
    Cell(AS_SHIPPED, GROUP, "ops/s", _as_shipped, "higher", of="peer"),
    Cell(ONE_QUEUE, GROUP, "ops/s", partial(_route, 1), "higher"),
    Cell(
        f"slate, router, {QUEUES:,} queues with one equality each",
        GROUP,
        "ops/s",
        partial(_route, QUEUES),
        "higher",
        against={ONE_QUEUE: 0.5},
    ),
    Cell(f"slate, claim and ack, {MANY:,} waiting", GROUP, f"x that at {FEW:,}", _growth, "lower", target=1.5),
]
