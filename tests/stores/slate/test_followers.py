"""Followers of slate queues: the order of put and published messages, and messages held back for followers."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import SimulatedClock
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Counts, Put
from penstock.contract.settings import Settings
from penstock.contract.stream_operations import Streams
from penstock.errors import QueueFull
from penstock.stores.slate import format as records
from penstock.stores.slate.store import SlateBackend, open_slate
from tests.engine.test_streams import GONE, READER
from tests.stores.slate.test_streams import LARGE, Life

MANY = 1 << 40


@pytest.fixture
def life(tmp_path: Path, clock: SimulatedClock) -> Life:
    made = Life(tmp_path / "data", clock)
    made.backend.create("all", Settings(filter="kind IS NOT NULL"))
    return made


def publish(backend: SlateBackend, kind: str = "a", **more: float) -> int:
    return int(backend.publish(Entry(b"p", headers={"kind": kind}, **more)))  # type: ignore[arg-type]


def put(backend: SlateBackend, queue: str = "all", payload: bytes = b"q") -> int:
    return int(backend.run(Put(queue, [Entry(payload)]))[0])


def settle(backend: SlateBackend, queue: str = "all", count: int = 100) -> None:
    backend.run(Ack(queue, [message.receipt or "" for message in backend.run(Claim(queue, count, 30, 0, "me"))]))


def entered(backend: SlateBackend, after: int = 0, queue: str = "all", follower: str = "f") -> list[int]:
    return [int(message.id) for message in backend.streams().entered(queue, follower, after, MANY, 1_000)]


def kinds(life: Life) -> set[int]:
    return {records.parse_key(key).kind for key in life.rows()}


def test_a_queue_with_a_filter_is_followed_through_what_is_put_and_published(life: Life) -> None:
    backend = life.backend
    before = publish(backend)
    backend.create("late", Settings(filter="kind = 'a'"))
    first = publish(backend)
    settle(backend, "late")
    second = publish(backend)
    assert backend.streams().start("late", "f", "earliest")[0] == second - 1 > before
    numbers = [second, publish(backend), put(backend, "late")]
    publish(backend, "b")
    put(backend, "all")
    numbers += [publish(backend), put(backend, "late")]
    settle(backend, "late")
    assert entered(backend, second - 1, "late") == numbers
    assert first not in numbers
    [message] = backend.streams().entered("late", "f", numbers[-2] - 1, numbers[-2], 9)
    assert (message.payload, message.headers["kind"]) == (b"p", "a")
    life.store.close()
    life.open()
    assert entered(life.backend, second - 1, "late") == numbers  # what was acknowledged, too


def test_what_waits_for_a_full_queue_has_not_entered(life: Life) -> None:
    backend = life.backend
    backend.create("small", Settings(filter="kind = 'a'", max_size=2))
    streams = backend.streams()
    after, gaps = streams.start("small", "f", "latest")
    numbers = [publish(backend) for _ in range(5)]
    assert entered(backend, after, "small") == numbers[:2]
    assert streams.ahead("small", "f", after, gaps, 9, MANY).until == numbers[1]
    settle(backend, "small", 1)
    assert entered(backend, after, "small") == numbers[:3]
    settle(backend, "small")
    settle(backend, "small")
    assert entered(backend, after, "small") == numbers


def test_what_waits_to_be_routed_has_not_entered(tmp_path: Path, clock: SimulatedClock) -> None:
    backend = open_slate(f"slate:{tmp_path / 'data'}?router=off", clock=clock)
    backend.create("all", Settings(filter="kind IS NOT NULL"))
    backend.streams().start("all", "f", "latest")
    first = publish(backend)
    assert entered(backend) == []
    second = put(backend)  # lets in what was published before
    publish(backend)
    assert entered(backend) == [first, second]
    backend.close()


def test_a_published_message_is_lost_with_its_retention_and_only_to_who_had_not_read_it(
    life: Life, clock: SimulatedClock
) -> None:
    backend, streams = life.backend, life.streams
    after, gaps = streams.start("all", "f", "latest")
    first = publish(backend, retention=10)
    settle(backend)
    assert entered(backend, after) == [first]
    clock.advance(20)
    backend.tend()
    assert entered(backend, after) == []
    lost = streams.ahead("all", "f", after, gaps, 9, MANY).lost
    assert lost is not None
    assert (lost.last, lost.messages) == (first, None)
    assert streams.ahead("all", "f", first, gaps, 9, MANY).lost is None
    backend.create("other", Settings(filter="kind = 'z'"))
    after, gaps = streams.start("other", "g", "latest")
    publish(backend, retention=10)
    clock.advance(20)
    backend.tend()
    life.store.close()
    life.open()
    assert life.streams.ahead("other", "g", after, gaps, 9, MANY).lost is None  # none of its own has gone
    assert life.streams.ahead("all", "f", first, gaps, 9, MANY).lost is not None


def test_a_crash_right_after_the_beginning_lets_nothing_go(life: Life, tmp_path: Path) -> None:
    publish(life.backend)
    put(life.backend)
    after, gaps = life.streams.start("all", "f", "latest")
    crashed = tmp_path / "crashed"
    shutil.copytree(life.folder, crashed)
    backend = open_slate(f"slate:{crashed}")
    numbers = [put(backend), publish(backend), put(backend)]
    settle(backend)
    assert backend.streams().ahead("all", "f", after, gaps, 9, MANY).lost is None
    assert entered(backend, after) == numbers
    backend.close()


def test_what_a_named_follower_has_not_read_stays_and_goes_when_it_has(life: Life, clock: SimulatedClock) -> None:
    life.streams.follow("default", "tail", READER, 0)
    numbers = [put(life.backend, "default", payload) for payload in (b"a", LARGE, b"c", b"d")]
    settle(life.backend, "default")
    assert not any(life.backend.run(Counts("default")).values())
    assert life.bodies() == set(numbers)
    after, until = numbers[0] - 1, numbers[-1]
    found = life.streams.entered("default", "f", after, until, 9)
    assert [(int(message.id), message.payload) for message in found] == list(
        zip(numbers, (b"a", LARGE, b"c", b"d"), strict=True)
    )
    life.streams.leave("default", "f")
    life.streams.follow("default", "tail", READER, numbers[1])
    clock.advance(61)
    life.backend.tend()
    assert life.bodies() == set(numbers)  # the last batch may be asked for again
    life.streams.follow("default", "tail", READER, numbers[2])
    clock.advance(61)
    life.backend.tend()
    assert life.bodies() == set(numbers[2:])
    assert not [each for each in (life.folder / "objects").rglob("*") if each.is_file()]
    assert life.streams.ahead("default", "f", numbers[1], 0, 9, MANY).lost is None
    lost = life.streams.ahead("default", "f", numbers[0], 0, 9, MANY).lost
    assert lost is not None
    assert (lost.first, lost.last) == (numbers[1], numbers[1])


def test_nothing_stays_once_followers_are_gone(life: Life, clock: SimulatedClock) -> None:
    life.streams.follow("default", "tail", GONE, 0)
    life.streams.start("default", "f", "earliest")
    for payload in (b"a", LARGE):
        put(life.backend, "default", payload)
    settle(life.backend, "default")
    life.streams.leave("default", "f")
    assert len(life.bodies()) == 2
    life.streams.delete("default", "tail")
    clock.advance(61)
    life.backend.tend()
    assert not life.bodies()
    assert records.HELD_BACK not in kinds(life)
    assert not [each for each in (life.folder / "objects").rglob("*") if each.is_file()]


def test_a_queue_is_deleted_with_what_is_held_back(life: Life) -> None:
    life.streams.follow("all", "tail", GONE, 0)
    numbers = [put(life.backend), publish(life.backend), put(life.backend, payload=LARGE)]
    settle(life.backend)
    assert life.bodies() == set(numbers)
    life.backend.delete("all")
    assert life.bodies() == {numbers[1]}
    assert not {records.HELD_BACK, records.STREAM} & kinds(life)


def test_what_a_stream_has_kept_is_held_back_for_followers_after_that(life: Life) -> None:
    streams = life.streams
    streams.start("default", "f", "earliest")
    numbers = [put(life.backend, "default") for _ in range(4)]
    streams.begin("default", "s", READER)
    for start in (0, 1):
        streams.next("default", "s", READER, start, 1, MANY)
    streams.settle("default", "s", 2)
    assert entered(life.backend, 0, "default") == numbers


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))]
)
def test_followers_miss_nothing_whatever_happens_and_leave_nothing_behind(
    life: Life, clock: SimulatedClock, seed: int
) -> None:
    random, entering, published, read = Random(seed), list[int](), list[int](), list[int]()
    life.backend.create("q", Settings(filter="kind = 'a'", max_size=random.choice([0, 6])))
    after, gaps = life.streams.start("q", "f", "latest")
    life.streams.follow("q", "tail", GONE, after)
    life.streams.begin("q", "s", GONE)
    batch = 0

    def follow() -> None:
        nonlocal after
        ahead = life.streams.ahead("q", "f", after, gaps, random.randint(1, 5), 1 << random.randint(1, 20))
        assert ahead.lost is None
        for _ in range(random.randint(1, 2)):  # as often as it is asked
            page = life.streams.entered("q", "f", after, ahead.until, 100)
            assert len(page) == sum(count for _, count in ahead.parts)
        read.extend(int(message.id) for message in page)
        after = ahead.until
        if random.random() < 0.7:
            life.streams.follow("q", "tail", GONE, after)

    def consume() -> None:
        nonlocal batch
        batch = life.streams.next("q", "s", GONE, batch, random.randint(0, 3), MANY) or batch

    def put_some() -> None:
        with suppress(QueueFull):
            payloads = [random.choice([b"", b"x", LARGE]) for _ in range(random.randint(1, 3))]
            ids = life.backend.run(Put("q", [Entry(payload) for payload in payloads]))
            entering.extend(map(int, ids))

    def publish_one() -> None:
        kind = random.choice("ab")
        published.append(publish(life.backend, kind))
        if kind == "a":
            entering.append(published[-1])

    def reopen() -> None:
        life.store.close()
        life.open()

    steps: list[Callable[[], object]] = [
        follow, follow, consume, put_some, publish_one, lambda: settle(life.backend, "q", 2), reopen,
        lambda: put(life.backend, "default"), lambda: clock.advance(20), lambda: life.backend.tend(),
    ]  # fmt: skip
    for _ in range(60):
        random.choice(steps)()
    while any(life.backend.run(Counts("q"))[state] for state in ("available", "delayed")) or life.backend.lag("q"):
        settle(life.backend, "q")
    while len(read) < len(entering):
        follow()
    assert read == sorted(entering)
    if batch:
        life.streams.settle("q", "s", batch)
    life.streams.leave("q", "f")
    reopen()
    clock.advance(61)
    life.backend.tend()
    for stream in ("tail", "s"):
        life.streams.delete("q", stream)
    settle(life.backend, "default")
    settle(life.backend, "q")
    assert life.bodies() == set(published)
    assert records.HELD_BACK not in kinds(life)


def test_a_bucket_is_followed_like_a_folder(bucket: str) -> None:
    with penstock.open(bucket) as store:
        queue = store.create("jobs")
        streams = Streams(store.run)
        after, gaps = streams.start("jobs", "f", "latest")
        ids = queue.put_many(["a", b"x" * 70_000, "c"])
        queue.ack(*queue.claim(2))
        ahead = streams.ahead("jobs", "f", after, gaps, 9, MANY)
        assert ahead.lost is None
        found = streams.entered("jobs", "f", after, ahead.until, 9)
        assert [message.id for message in found] == ids
        assert [len(message.payload) for message in found] == [1, 70_000, 1]
