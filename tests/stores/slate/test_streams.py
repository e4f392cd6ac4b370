"""Streams in a slate store's database: bodies kept for their batches, and records removed with them."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import Draft, SimulatedClock, Store
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Counts, Messages, Purge, Put, Redrive
from penstock.contract.settings import Settings
from penstock.contract.stream_operations import Streams
from penstock.engine.backend import Engine
from penstock.stores.journal.store import open_journal
from penstock.stores.slate import extensions
from penstock.stores.slate import format as records
from penstock.stores.slate.format import InFlight
from penstock.stores.slate.store import open_slate
from tests.engine.test_streams import GONE, MANY, READER
from tests.stores.slate import document
from tests.stores.slate.test_store import START, write

LARGE = b"x" * 70_000


class Life:
    """A store that is closed and opened again."""

    def __init__(self, folder: Path, clock: SimulatedClock) -> None:
        self.folder = folder
        self._clock = clock
        self.open()

    def open(self) -> None:
        self.backend = open_slate(f"slate:{self.folder}", clock=self._clock)
        self.store = Store("", self.backend)
        self.streams = self.backend.streams()

    def rows(self) -> dict[bytes, bytes]:
        """Everything in the database; the store is closed, and open again after that."""
        self.store.close()
        found = dict(document.rows(self.folder))
        self.open()
        return found

    def bodies(self) -> set[int]:
        """Messages that have a payload and a log entry in the database; no other message has attempts."""
        kinds = {records.PAYLOAD: set[int](), records.LOG: set[int](), records.ATTEMPTS: set[int]()}
        for key in map(records.parse_key, self.rows()):
            if key.kind in kinds:
                kinds[key.kind].add(key.number)
        assert kinds[records.PAYLOAD] == kinds[records.LOG] >= kinds[records.ATTEMPTS]
        return kinds[records.PAYLOAD]

    def objects(self) -> set[str]:
        return {each.name for each in (self.folder / "objects").iterdir()}

    def next(self, start: int, rows: int, stream: str = "s", queue: str = "default") -> int | None:
        self.streams.begin(queue, stream, READER)
        return self.streams.next(queue, stream, READER, start, rows, MANY)

    def payloads(self, batch: int, stream: str = "s", queue: str = "default") -> list[bytes]:
        return [each.payload for each in self.streams.messages(queue, stream, batch, "", "", 1_000)]


@pytest.fixture
def life(tmp_path: Path, clock: SimulatedClock) -> Iterator[Life]:
    life = Life(tmp_path / "data", clock)
    yield life
    life.store.close()


def test_a_settled_batch_has_its_bodies_until_the_next_is_settled(life: Life) -> None:
    ids = [int(each) for each in life.store.queue().put_many(["a", LARGE, "c", "d", LARGE])]
    assert life.next(0, 2) == 1
    assert life.next(1, 2) == 2
    assert life.bodies() == set(ids)
    assert life.objects() == {str(ids[1]), str(ids[4])}
    assert life.payloads(1) == [b"a", LARGE]
    assert life.next(2, 1) == 3
    assert life.bodies() == set(ids[2:])
    assert life.objects() == {str(ids[4])}
    assert life.payloads(2) == [b"c", b"d"]
    assert life.next(3, 0) is None
    assert life.bodies() == {ids[4]}
    assert life.payloads(3) == [LARGE]
    life.streams.begin("default", "s", READER)
    assert not any(life.backend.run(Counts("default")).values())


def test_a_message_that_comes_back_and_is_read_by_another_stream_stays_for_both(life: Life) -> None:
    [message] = life.store.queue().put_many([LARGE])
    life.next(0, 1)
    life.streams.fail("default", "s", 1, [message], "once more")
    life.streams.settle("default", "s", 1)
    assert life.next(0, 1, "t") == 2
    life.streams.settle("default", "t", 2)
    for stream, batch, attempts in (("s", 1, 1), ("t", 2, 2)):
        [seen] = life.streams.messages("default", stream, batch, "", "", 9)
        assert (seen.attempts, seen.payload) == (attempts, LARGE)
    life.store.queue().put_many(["b", "c"])
    assert life.next(1, 1) == 3
    life.streams.settle("default", "s", 3)
    assert int(message) in life.bodies()
    assert life.payloads(2, "t") == [LARGE]
    assert life.next(2, 1, "t") == 4
    life.streams.settle("default", "t", 4)
    assert int(message) not in life.bodies()
    assert life.objects() == set()


def test_what_a_stream_forgets_goes_with_it(life: Life) -> None:
    life.store.queue().put_many(["a", "b"])
    life.streams.begin("default", "s", GONE)
    life.streams.next("default", "s", GONE, 0, 2, MANY)
    life.streams.settle("default", "s", 1)
    assert len(life.bodies()) == 2
    life.streams.delete("default", "s")
    assert life.bodies() == set()
    assert [key for key in map(records.parse_key, life.rows()) if key.stream] == []
    assert life.next(0, 9) is None
    life.store.queue().put("c")
    assert life.next(0, 9) == 2  # no number is used twice


def test_what_is_to_fail_is_known_after_a_restart_and_forgotten_with_the_batch(life: Life) -> None:
    ids = life.store.queue().put_many(["x"] * 3_000)
    life.next(0, 2_500)
    life.streams.fail("default", "s", 1, [ids[0], ids[2_000]], "odd")
    life.streams.fail("default", "s", 1, [ids[2_000], ids[7]], None)

    def failures() -> dict[int, str | None]:
        found = {}
        for key, value in life.rows().items():
            if records.parse_key(key).kind == records.FAILURES:
                for message, failure in extensions.decode_failures(value).items():
                    found[message] = failure.reason
        return found

    assert failures() == {int(ids[0]): "odd", int(ids[7]): None, int(ids[2_000]): None}
    assert life.streams.all()[0].failures == 3
    life.streams.read("default", "s", 1, None)
    assert failures() == {}
    life.streams.fail("default", "s", 1, [ids[3]], "again")
    life.rows()
    assert life.streams.settle("default", "s", 1)
    assert failures() == {}
    assert {each.id: each.reason for each in life.store.queue().messages() if each.attempts} == {ids[3]: "again"}


def test_published_messages_stay_while_a_stream_holds_or_keeps_them_and_go_after_that(
    life: Life, clock: SimulatedClock
) -> None:
    life.store.create("news", filter="size >= 0")
    first, large = int(life.store.publish("a", retention=60)), int(life.store.publish(LARGE, retention=60))
    assert life.next(0, 9, queue="news") == 1

    def later() -> set[int]:
        clock.advance(1_000)
        life.backend.tend()
        return life.bodies()

    assert later() == {first, large}
    assert life.payloads(1, queue="news") == [b"a", LARGE]
    life.streams.settle("news", "s", 1)
    assert not any(life.backend.run(Counts("news")).values())
    assert later() == {first, large}
    assert life.payloads(1, queue="news") == [b"a", LARGE]
    assert life.objects() == {str(large)}
    other = int(life.store.publish("b", retention=10))
    life.next(1, 9, queue="news")
    life.streams.settle("news", "s", 2)
    assert later() == {other}
    assert life.objects() == set()


def test_who_claimed_a_published_message_is_known_of_all_queues_and_streams(life: Life) -> None:
    for name in ("a", "b"):
        life.store.create(name, filter="size > 0")
    ids = [int(life.store.publish(b"%d" % number)) for number in range(5)]
    life.store.queue("a").claim(3, consumer="host:1")
    life.next(0, 9, queue="b")
    rows = life.rows()
    expected = [["host:1", "stream:s"]] * 3 + [["stream:s"]] * 2
    assert [records.decode_attempts(rows[records.attempts_key(each)]) for each in ids] == expected


def test_a_deleted_queue_takes_its_streams_along(life: Life) -> None:
    life.store.create("jobs", keep_done=60).put_many(["a", LARGE, "c", "d"])
    life.next(0, 2, queue="jobs")
    life.next(1, 1, queue="jobs")
    life.streams.fail("jobs", "s", 2, ["3"], "no")
    life.store.delete("jobs")
    assert life.bodies() == set()
    assert [key for key in map(records.parse_key, life.rows()) if key.queue == "jobs"] == []
    assert life.streams.all() == []
    life.store.create("jobs")
    assert life.streams.all() == []


def test_what_a_crash_has_left_of_a_deleted_queue_is_removed_with_its_streams(life: Life) -> None:
    life.store.create("jobs").put_many(["a", "b", "c", "d"])
    life.next(0, 2, queue="jobs")
    life.next(1, 1, queue="jobs")
    life.streams.fail("jobs", "s", 2, ["3"], "no")
    life.store.close()
    write(life.folder, [(records.queue_key(kind, "jobs"), None) for kind in (records.CONFIG, records.SETTINGS)])
    life.open()
    assert life.bodies() == set()
    assert [key for key in map(records.parse_key, life.rows()) if key.queue == "jobs"] == []


def test_a_message_that_another_program_holds_without_an_end_comes_back(life: Life) -> None:
    [message] = life.store.queue().put_many(["a"])
    life.store.close()
    held = records.encode_active([], [InFlight(int(message), 0, START, 0, 1)])
    write(life.folder, [(records.queue_key(records.ACTIVE, "default"), held)])
    life.open()
    assert life.backend.run(Counts("default"))["available"] == 1
    assert [each.payload for each in life.store.queue().claim()] == [b"a"]


def test_who_knows_only_the_document_sees_the_batch_in_flight_and_who_has_it(life: Life) -> None:
    [message] = map(int, life.store.queue().put_many([Draft("a", priority=7)]))
    life.next(0, 1)
    rows = life.rows()
    assert records.decode_active(rows[b"\x01\x02default\x00"]) == ([], [InFlight(message, 7, START, 0, 1)])
    assert records.decode_attempts(rows[records.attempts_key(message)]) == ["stream:s"]


def listed(backend: Engine) -> list[tuple[object, ...]]:
    queue = backend.run(Messages("q"))
    return [(each.payload, each.state, each.attempts, each.reason, each.consumer, each.group) for each in queue]


def batch(streams: Streams, stream: str, number: int) -> list[tuple[object, ...]]:
    try:
        found = streams.messages("q", stream, number, "", "", 10_000)
    except penstock.PenstockError as error:
        return [(type(error),)]
    return [
        (each.payload, each.priority, each.attempts, each.expires_at, each.reason, each.group) for each in found
    ]


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20)]])
def test_whatever_is_done_a_slate_store_has_the_batches_that_a_journal_has(tmp_path: Path, seed: int) -> None:
    """Two stores are told the same, and the one is closed and opened all the time."""
    random, clocks = Random(seed), [SimulatedClock(START), SimulatedClock(START)]
    settings = Settings(max_attempts=2, keep_done=random.choice([0, 50]))
    backends: list[Engine] = [
        open_slate(f"slate:{tmp_path / 'slate'}", clock=clocks[0]),
        open_journal(tmp_path / "journal", clock=clocks[1]),
    ]
    for backend in backends:
        backend.create("q", settings)
    starts, made, numbers = {"s": 0, "t": 0}, 0, [0]

    def done(act: str, stream: str, choice: Random) -> list[object]:
        results: list[object] = []
        state = choice.getstate()
        for backend in backends:
            choice.setstate(state)
            streams = backend.streams()
            try:
                results.append(does(act, backend, streams, stream, choice))
            except penstock.PenstockError as error:
                results.append(type(error))
        return results

    def does(act: str, backend: Engine, streams: Streams, stream: str, choice: Random) -> object:
        if act == "put":
            entries = [
                Entry(
                    b"%d" % (made + number),
                    choice.choice([0, 0, 3]),
                    retention=choice.choice([0, 0, 40]),
                    group=choice.choice([None, None, "a", "b"]),
                )
                for number in range(choice.choice([1, 5, 40]))
            ]
            return len(backend.run(Put("q", entries)))
        if act == "next":
            streams.begin("q", stream, GONE)
            found = streams.next("q", stream, GONE, starts[stream], choice.choice([1, 7, 30]), MANY)
            return found, found and batch(streams, stream, found)
        if act == "fail":
            held = streams.messages("q", stream, starts[stream] + 1, "", "", 10_000)
            some = [each.id for each in held if choice.random() < 0.3]
            streams.fail("q", stream, starts[stream] + 1, some, choice.choice(["odd", None]))
            return len(some), [each.failures for each in streams.all()]
        if act == "take":
            taken = backend.run(Claim("q", 2, 5, 0, "me"))
            backend.run(Ack("q", [each.receipt or "" for each in taken]))
            return [each.payload for each in taken]
        if act == "read":
            return sum(page.live for _, page in streams.read("q", stream, max(numbers), None).pages)
        if act == "remove":
            return backend.run(Purge("q")) if choice.random() < 0.2 else backend.run(Redrive("q", None))
        return getattr(streams, act)("q", stream)

    acts = ["put"] * 4 + ["next"] * 6 + ["fail"] * 3 + ["take", "read", "release", "delete", "remove"]
    for _ in range(150):
        act, stream = random.choice(acts), random.choice("st")
        slate, journal = done(act, stream, random)
        assert slate == journal, act
        if act == "put":
            made += 40
        if act == "next" and isinstance(slate, tuple) and slate[0] is not None:
            starts[stream] = slate[0]
            numbers = [*numbers, slate[0]][-4:]
        if act == "delete" and slate is None:
            starts[stream] = 0
        seconds = random.choice([0, 0, 1, 20])
        for clock in clocks:
            clock.advance(seconds)
        if random.random() < 0.3:
            backends[0].close()
            backends[0] = open_slate(f"slate:{tmp_path / 'slate'}", clock=clocks[0])
        assert listed(backends[0]) == listed(backends[1])
        infos = [[each._replace(since=None) for each in backend.streams().all()] for backend in backends]
        assert infos[0] == infos[1]
        for number in numbers:
            assert batch(backends[0].streams(), stream, number) == batch(backends[1].streams(), stream, number)
    for backend in backends:
        backend.close()
