"""LiveQueue beyond the conformance suite: Ctrl-C, late alarms, failing storages, the system clock."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.contract.message import Entry
from penstock.engine.memory import MemoryBackend, MemoryStorage
from penstock.rules.ledger import Ledger
from penstock.rules.records import Ack, Claim, Put, Record
from penstock.rules.state import State
from penstock.system.threads import Lock


class InterruptedClock(penstock.SystemClock):
    """A clock whose wait() calls `meanwhile` and then raises KeyboardInterrupt, as Ctrl-C does."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is threading.main_thread():
            self.meanwhile()
            raise KeyboardInterrupt
        return super().wait(event, seconds)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def test_an_interrupted_consumer_leaves_the_line() -> None:
    with penstock.open("memory:", clock=InterruptedClock()) as store:
        queue = store.queue()
        with pytest.raises(KeyboardInterrupt):
            queue.claim(wait=60)
        queue.put(b"a")
        assert queue.counts()["available"] == 1


def test_an_interrupted_consumer_gives_back_what_it_was_just_given() -> None:
    clock = InterruptedClock()
    with penstock.open("memory:", clock=clock) as store:
        queue = store.queue()
        clock.meanwhile = lambda: queue.put(b"a")
        with pytest.raises(KeyboardInterrupt):
            queue.claim(wait=60)
        assert queue.counts()["available"] == 1


def test_a_consumer_interrupted_while_the_store_closes_is_just_interrupted() -> None:
    clock = InterruptedClock()
    store = penstock.open("memory:", clock=clock)
    clock.meanwhile = store.close
    with pytest.raises(KeyboardInterrupt):
        store.queue().claim(wait=60)


class OversleepingClock(penstock.SimulatedClock):
    """A clock whose wait() never times out."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: set[float] = set()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.add(seconds)
        return event.wait()


def test_those_who_wait_come_first_even_if_their_alarm_is_late() -> None:
    clock = OversleepingClock()
    with ThreadPoolExecutor() as pool, penstock.open("memory:", clock=clock) as store:
        queue = store.queue()
        queue.put(b"a", delay=10)
        waiting = pool.submit(queue.claim, wait=60)
        until(lambda: 60 in clock.waits)
        clock.advance(10)
        assert queue.claim() == []
        assert [message.payload for message in waiting.result()] == [b"a"]


class HurryingClock(penstock.SimulatedClock):
    """A clock whose wait() lets the time pass at once, whatever the event."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds if threading.current_thread() is threading.main_thread() else 0)
        return event.is_set()


def test_what_becomes_available_in_the_last_moment_of_a_wait_is_taken() -> None:
    with penstock.open("memory:", clock=HurryingClock()) as store:
        queue = store.queue()
        queue.put(b"a", delay=10)
        assert len(queue.claim(wait=10)) == 1


def test_a_consumer_interrupted_after_its_lease_ended_is_just_interrupted() -> None:
    clock = InterruptedClock()
    with penstock.open("memory:", clock=clock) as store:
        queue = store.queue()

        def meanwhile() -> None:
            queue.put(b"a")
            time.sleep(0.005)

        clock.meanwhile = meanwhile
        with pytest.raises(KeyboardInterrupt):
            queue.claim(lease=0.001, wait=60)
        assert queue.counts()["available"] == 1


def test_waiting_works_on_the_system_clock() -> None:
    with penstock.open("memory:") as store:
        queue = store.queue()
        queue.put(b"a", delay=0.05)
        queue.put(b"b", delay=0.1)
        taken = [queue.pop(wait=60), queue.pop(wait=60)]
        assert [message.payload for message in taken if message] == [b"a", b"b"]
        assert queue.claim(wait=0.01) == []


def test_nobody_is_left_to_wait_after_a_burst() -> None:
    """Producers, consumers that wait, delays and short leases all at once: every message comes out."""
    count, producers, consumers = 300, 4, 8
    with penstock.open("memory:") as store:
        queue = store.create("jobs", max_attempts=0)
        done: list[bytes] = []

        def produce(number: int) -> None:
            for each in range(count // producers):
                queue.put(f"{number}/{each}", delay=(each % 4) / 100, priority=each % 3)

        def consume() -> None:
            while len(done) < count:
                for message in queue.claim(3, lease=0.02, wait=0.2):
                    if message.attempts == 1 and message.payload.endswith(b"7"):
                        continue  # dies with the message; its lease ends
                    try:
                        message.ack()
                    except penstock.LeaseExpired:
                        continue
                    done.append(message.payload)

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
        threads += [threading.Thread(target=consume) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(set(done)) == count
        assert sum(queue.counts().values()) == 0


class StorageBackend(MemoryBackend):
    """A memory store with a storage of the test's own for one queue."""

    def __init__(self, clock: penstock.Clock, storage: MemoryStorage, queue: str = "default") -> None:
        self._storage, self._for = storage, queue
        super().__init__(clock)

    def _new_storage(self, ledger: Ledger, lock: Lock) -> MemoryStorage:
        return self._storage if ledger.name == self._for else super()._new_storage(ledger, lock)


class BurningStorage(MemoryStorage):
    """A storage whose disk fails when asked to write a record of some kind."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: type[Record] | None = None
        self.error: BaseException = OSError("disk on fire")

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        if self.refuses is type(record):
            raise self.error
        super().write(record, entries)


@pytest.fixture
def burning() -> Iterator[tuple[penstock.Store, BurningStorage]]:
    storage = BurningStorage()
    with penstock.Store("memory:", StorageBackend(penstock.SystemClock(), storage)) as store:
        yield store, storage


@pytest.mark.parametrize(
    "error", [OSError("disk on fire"), penstock.StoreCorrupt("disk on fire"), KeyboardInterrupt("disk on fire")]
)
@pytest.mark.parametrize("kind", [Put, Claim, Ack])
def test_a_queue_that_breaks_in_the_middle_of_a_change_stops(
    burning: tuple[penstock.Store, BurningStorage], kind: type[Record], error: BaseException
) -> None:
    store, storage = burning
    storage.error = error
    queue = store.queue()
    queue.put(b"a")
    [message] = queue.claim()
    queue.put(b"b")
    storage.refuses = kind
    operations: dict[type[Record], Callable[[], object]] = {
        Put: lambda: queue.put(b"c"),
        Claim: queue.claim,
        Ack: message.ack,
    }
    with pytest.raises(type(error), match="disk on fire"):
        operations[kind]()
    storage.refuses = None
    for operation in operations.values():
        with pytest.raises(penstock.StoreClosed, match="stopped by an error in the middle of a change"):
            operation()


def test_what_fails_for_a_consumer_in_line_is_told_to_that_consumer(
    burning: tuple[penstock.Store, BurningStorage],
) -> None:
    store, storage = burning
    queue = store.queue()
    storage.refuses = Claim
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(queue.claim, wait=60)
        until(lambda: len(store.backend._queues["default"]._line) == 1)  # type: ignore[attr-defined]
        queue.put(b"a")
        with pytest.raises(OSError, match="disk on fire"):
            waiting.result()


class RecordingStorage(MemoryStorage):
    """A storage that keeps its records, and knows whether its last commit covered all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Record] = []
        self.committed = 0
        self.committers: set[threading.Thread] = set()

    @property
    def written(self) -> int:  # type: ignore[override]
        return len(self.history)

    def write(self, record: Record, entries: Sequence[Entry] = ()) -> None:
        self.history.append(record)
        super().write(record, entries)

    def commit(self, written: int) -> None:
        self.committed = max(self.committed, written)
        self.committers.add(threading.current_thread())


def test_the_storage_is_given_the_whole_history_and_commits_it_before_anyone_is_told() -> None:
    clock = penstock.SimulatedClock()
    storage = RecordingStorage()
    with penstock.Store("memory:", StorageBackend(clock, storage)) as store:
        queue = store.queue()
        operations: list[Callable[[], object]] = [
            lambda: queue.put_many([b"a", b"b", b"c", b"d", b"e", b"f"]),
            lambda: queue.put(b"g", delay=5, key="g"),
            lambda: held.extend(queue.claim(5)),
            lambda: queue.extend(held[0], lease=60),
            lambda: queue.ack(held[0]),
            lambda: queue.fail(held[1], delay=1),
            lambda: queue.release(held[2]),
            lambda: queue.remove(held[3].id),
            lambda: queue.revoke(held[4].id),
            lambda: queue.pop(),
            lambda: clock.advance(3),
            lambda: queue.claim(1, lease=1),
            lambda: clock.advance(30),
            lambda: queue.redrive(),
            lambda: queue.purge(),
        ]
        held: list[penstock.Message] = []
        for operation in operations:
            operation()
            assert storage.committed == len(storage.history)
            replica = State("default", queue.settings)
            for record in storage.history:
                replica.replay(record)
            replica.advance(clock.now())
            assert replica.counts() == queue.counts()


def test_a_consumer_that_waited_and_a_publisher_commit_too() -> None:
    storage = RecordingStorage()
    backend = StorageBackend(penstock.SystemClock(), storage, "orders")
    with ThreadPoolExecutor(1) as pool, penstock.Store("memory:", backend) as store:
        queue = store.create("orders", filter="1 = 1")
        waiting = pool.submit(queue.claim, wait=60)
        until(lambda: len(backend._queues["orders"]._line) == 1)
        store.publish(b"a")
        assert len(waiting.result()) == 1
        assert storage.committed == len(storage.history) == 2
        assert len(storage.committers) == 2


def test_a_repeat_is_answered_only_once_the_first_is_committed() -> None:
    storage = RecordingStorage()
    with penstock.Store("memory:", StorageBackend(penstock.SystemClock(), storage)) as store:
        queue = store.queue()
        queue.put(b"a", key="k")
        [message] = queue.claim()
        message.ack()
        for repeat in (message.ack, lambda: queue.put(b"a", key="k")):
            storage.committed = 0  # as if the first were still on its way to the disk
            repeat()
            assert storage.committed == len(storage.history) == 3


def test_the_bodies_of_messages_that_are_gone_are_freed() -> None:
    storage = MemoryStorage()
    clock = penstock.SimulatedClock()
    with penstock.Store("memory:", StorageBackend(clock, storage)) as store:
        queue = store.queue()
        queue.put_many([penstock.Draft(b"x", retention=10)] * 4)
        queue.ack(*queue.claim())
        queue.pop()
        queue.remove(next(queue.peek()).id)
        assert len(storage._bodies) == 1
        clock.advance(10)
        assert sum(queue.counts().values()) == len(storage._bodies) == 0


def test_a_refusal_by_the_rules_stops_nothing() -> None:
    with penstock.open("memory:") as store:
        queue = store.create("jobs", max_size=1)
        queue.put(b"a")
        for refused in (lambda: queue.put(b"b"), lambda: queue.ack("1.0000000000000000")):
            with pytest.raises(penstock.PenstockError):
                refused()
        assert queue.counts()["available"] == 1


def test_a_receipt_is_taken_in_one_spelling_only_alone_and_beside_others() -> None:
    with penstock.open("memory:") as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        receipts = [message.receipt or "" for message in queue.claim(2)]
        for prefix in ("0", "000", "+", " "):
            wrong = [prefix + receipt for receipt in receipts]
            for some in (wrong, wrong[:1], [receipts[0] + " ", *wrong]):
                with pytest.raises(penstock.LeaseExpired):
                    queue.ack(*some)
        assert queue.counts()["in_flight"] == 2
        queue.ack(*receipts)
