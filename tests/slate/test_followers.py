"""Following queues of a slate store: the order of what is put and published, and what stays for followers."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import SimulatedClock
from penstock.errors import QueueFull
from penstock.message import Entry
from penstock.settings import Settings
from penstock.slate import format as records
from penstock.slate.followed import Held, Marks, decode_held, decode_marks, encode_held, encode_marks
from penstock.slate.opening import open_slate
from penstock.slate.store import SlateKeeper
from tests.slate.test_store import START
from tests.slate.test_streams import LARGE, Life
from tests.test_streams import GONE, READER

MANY = 1 << 40
NUMBERS = st.integers(0, 2**64 - 1)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(START)


@pytest.fixture
def life(tmp_path: Path, clock: SimulatedClock) -> Life:
    made = Life(tmp_path / "data", clock)
    made.keeper.create("all", Settings(filter="kind IS NOT NULL"))
    return made


def publish(keeper: SlateKeeper, kind: str = "a", **more: float) -> int:
    return int(keeper.publish(Entry(b"p", headers={"kind": kind}, **more)))  # type: ignore[arg-type]


def put(keeper: SlateKeeper, queue: str = "all", payload: bytes = b"q") -> int:
    return int(keeper.put(queue, [Entry(payload)])[0])


def settle(keeper: SlateKeeper, queue: str = "all", count: int = 100) -> None:
    keeper.ack(queue, [message.receipt or "" for message in keeper.claim(queue, count, 30, 0, "me")])


def entered(keeper: SlateKeeper, after: int = 0, queue: str = "all", follower: str = "f") -> list[int]:
    return [int(message.id) for message in keeper.streams().entered(queue, follower, after, MANY, 1_000)]


def kinds(life: Life) -> set[int]:
    return {records.parse_key(key).kind for key in life.rows()}


def test_a_queue_with_a_filter_is_followed_through_what_is_put_and_published(life: Life) -> None:
    keeper = life.keeper
    before = publish(keeper)
    keeper.create("late", Settings(filter="kind = 'a'"))
    first = publish(keeper)
    settle(keeper, "late")
    second = publish(keeper)
    assert keeper.streams().start("late", "f", "earliest")[0] == second - 1 > before
    numbers = [second, publish(keeper), put(keeper, "late")]
    publish(keeper, "b")
    put(keeper, "all")
    numbers += [publish(keeper), put(keeper, "late")]
    settle(keeper, "late")
    assert entered(keeper, second - 1, "late") == numbers
    assert first not in numbers
    [message] = keeper.streams().entered("late", "f", numbers[-2] - 1, numbers[-2], 9)
    assert (message.payload, message.headers["kind"]) == (b"p", "a")
    life.store.close()
    life.open()
    assert entered(life.keeper, second - 1, "late") == numbers  # what was acknowledged, too


def test_what_waits_for_a_full_queue_has_not_entered(life: Life) -> None:
    keeper = life.keeper
    keeper.create("small", Settings(filter="kind = 'a'", max_size=2))
    streams = keeper.streams()
    after, gaps = streams.start("small", "f", "latest")
    numbers = [publish(keeper) for _ in range(5)]
    assert entered(keeper, after, "small") == numbers[:2]
    assert streams.ahead("small", "f", after, gaps, 9, MANY).until == numbers[1]
    settle(keeper, "small", 1)
    assert entered(keeper, after, "small") == numbers[:3]
    settle(keeper, "small")
    settle(keeper, "small")
    assert entered(keeper, after, "small") == numbers


def test_what_waits_to_be_routed_has_not_entered(tmp_path: Path, clock: SimulatedClock) -> None:
    keeper = open_slate(f"slate:{tmp_path / 'data'}?router=off", clock=clock)
    keeper.create("all", Settings(filter="kind IS NOT NULL"))
    keeper.streams().start("all", "f", "latest")
    first = publish(keeper)
    assert entered(keeper) == []
    second = put(keeper)  # lets in what was published before
    publish(keeper)
    assert entered(keeper) == [first, second]
    keeper.close()


def test_a_published_message_is_lost_with_its_retention_and_only_to_who_had_not_read_it(
    life: Life, clock: SimulatedClock
) -> None:
    keeper, streams = life.keeper, life.streams
    after, gaps = streams.start("all", "f", "latest")
    first = publish(keeper, retention=10)
    settle(keeper)
    assert entered(keeper, after) == [first]
    clock.advance(20)
    keeper.tend()
    assert entered(keeper, after) == []
    lost = streams.ahead("all", "f", after, gaps, 9, MANY).lost
    assert lost is not None
    assert (lost.last, lost.messages) == (first, None)
    assert streams.ahead("all", "f", first, gaps, 9, MANY).lost is None
    keeper.create("other", Settings(filter="kind = 'z'"))
    after, gaps = streams.start("other", "g", "latest")
    publish(keeper, retention=10)
    clock.advance(20)
    keeper.tend()
    life.store.close()
    life.open()
    assert life.streams.ahead("other", "g", after, gaps, 9, MANY).lost is None  # none of its own has gone
    assert life.streams.ahead("all", "f", first, gaps, 9, MANY).lost is not None


def test_a_crash_right_after_the_beginning_lets_nothing_go(life: Life, tmp_path: Path) -> None:
    publish(life.keeper)
    put(life.keeper)
    after, gaps = life.streams.start("all", "f", "latest")
    crashed = tmp_path / "crashed"
    shutil.copytree(life.folder, crashed)
    keeper = open_slate(f"slate:{crashed}")
    numbers = [put(keeper), publish(keeper), put(keeper)]
    settle(keeper)
    assert keeper.streams().ahead("all", "f", after, gaps, 9, MANY).lost is None
    assert entered(keeper, after) == numbers
    keeper.close()


def test_what_a_named_follower_has_not_read_stays_and_goes_when_it_has(life: Life, clock: SimulatedClock) -> None:
    life.streams.follow("default", "tail", READER, 0)
    numbers = [put(life.keeper, "default", payload) for payload in (b"a", LARGE, b"c", b"d")]
    settle(life.keeper, "default")
    assert not any(life.keeper.counts("default").values())
    assert life.bodies() == set(numbers)
    after, until = numbers[0] - 1, numbers[-1]
    found = life.streams.entered("default", "f", after, until, 9)
    assert [(int(message.id), message.payload) for message in found] == list(
        zip(numbers, (b"a", LARGE, b"c", b"d"), strict=True)
    )
    life.streams.leave("default", "f")
    life.streams.follow("default", "tail", READER, numbers[1])
    clock.advance(61)
    life.keeper.tend()
    assert life.bodies() == set(numbers)  # the last batch may be asked for again
    life.streams.follow("default", "tail", READER, numbers[2])
    clock.advance(61)
    life.keeper.tend()
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
        put(life.keeper, "default", payload)
    settle(life.keeper, "default")
    life.streams.leave("default", "f")
    assert len(life.bodies()) == 2
    life.streams.delete("default", "tail")
    clock.advance(61)
    life.keeper.tend()
    assert not life.bodies()
    assert records.HELD_BACK not in kinds(life)
    assert not [each for each in (life.folder / "objects").rglob("*") if each.is_file()]


def test_a_queue_is_deleted_with_what_is_held_back(life: Life) -> None:
    life.streams.follow("all", "tail", GONE, 0)
    numbers = [put(life.keeper), publish(life.keeper), put(life.keeper, payload=LARGE)]
    settle(life.keeper)
    assert life.bodies() == set(numbers)
    life.keeper.delete("all")
    assert life.bodies() == {numbers[1]}
    assert not {records.HELD_BACK, records.STREAM} & kinds(life)


def test_what_a_stream_has_kept_is_held_back_for_followers_after_that(life: Life) -> None:
    streams = life.streams
    streams.start("default", "f", "earliest")
    numbers = [put(life.keeper, "default") for _ in range(4)]
    streams.begin("default", "s", READER)
    for start in (0, 1):
        streams.next("default", "s", READER, start, 1, MANY)
    streams.settle("default", "s", 2)
    assert entered(life.keeper, 0, "default") == numbers


@given(
    st.builds(Marks, NUMBERS, NUMBERS, NUMBERS), st.builds(Held, st.integers(0, 2**32 - 1), st.integers(0, 255))
)
def test_records_are_read_as_they_were_written(marks: Marks, held: Held) -> None:
    assert decode_marks(encode_marks(marks)) == marks
    assert decode_held(encode_held(held)) == held


@pytest.mark.parametrize("seed", range(8))
def test_followers_miss_nothing_whatever_happens_and_leave_nothing_behind(
    life: Life, clock: SimulatedClock, seed: int
) -> None:
    random, entering, published, read = Random(seed), list[int](), list[int](), list[int]()
    life.keeper.create("q", Settings(filter="kind = 'a'", max_size=random.choice([0, 6])))
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
            entering.extend(map(int, life.keeper.put("q", [Entry(payload) for payload in payloads])))

    def publish_one() -> None:
        kind = random.choice("ab")
        published.append(publish(life.keeper, kind))
        if kind == "a":
            entering.append(published[-1])

    def reopen() -> None:
        life.store.close()
        life.open()

    steps: list[Callable[[], object]] = [
        follow, follow, consume, put_some, publish_one, lambda: settle(life.keeper, "q", 2), reopen,
        lambda: put(life.keeper, "default"), lambda: clock.advance(20), lambda: life.keeper.tend(),
    ]  # fmt: skip
    for _ in range(60):
        random.choice(steps)()
    while any(life.keeper.counts("q")[state] for state in ("available", "delayed")) or life.keeper.lag("q"):
        settle(life.keeper, "q")
    while len(read) < len(entering):
        follow()
    assert read == sorted(entering)
    if batch:
        life.streams.settle("q", "s", batch)
    life.streams.leave("q", "f")
    reopen()
    clock.advance(61)
    life.keeper.tend()
    for stream in ("tail", "s"):
        life.streams.delete("q", stream)
    settle(life.keeper, "default")
    settle(life.keeper, "q")
    assert life.bodies() == set(published)
    assert records.HELD_BACK not in kinds(life)


def test_a_bucket_is_followed_like_a_folder(bucket: str) -> None:
    with penstock.open(bucket) as store:
        queue = store.create("jobs")
        streams = store._keeper.streams()
        after, gaps = streams.start("jobs", "f", "latest")
        ids = queue.put_many(["a", b"x" * 70_000, "c"])
        queue.ack(*queue.claim(2))
        ahead = streams.ahead("jobs", "f", after, gaps, 9, MANY)
        assert ahead.lost is None
        found = streams.entered("jobs", "f", after, ahead.until, 9)
        assert [message.id for message in found] == ids
        assert [len(message.payload) for message in found] == [1, 70_000, 1]
