"""Followers: the messages that enter a queue, in order, page by page, across restarts, owners and servers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Put
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import Lost, Start, reader_name
from penstock.engine import streams as engine_streams
from penstock.engine.backend import Engine
from penstock.engine.streams import fitting, parts_of
from penstock.errors import NotSupported, QueueNotFound
from penstock.http.server import serve_in_thread
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.slate.store import SlateBackend, open_slate
from tests.harness.children import ServerChild

MANY = 1 << 40
START = 1_700_000_000_000
Opening = Callable[[], JournalBackend | SlateBackend]


@pytest.fixture(params=["journal", "slate"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind that can be followed."""
    return f"{request.param}:{tmp_path / 'data'}"


@pytest.fixture
def clock() -> penstock.SimulatedClock:
    return penstock.SimulatedClock(START)


@pytest.fixture
def opened(url: str, clock: penstock.SimulatedClock) -> Iterator[Opening]:
    """The store, closed and opened again with each call."""
    kept: list[JournalBackend | SlateBackend] = []

    def open_it() -> JournalBackend | SlateBackend:
        if kept:
            kept.pop().close()
        kind, _, folder = url.partition(":")
        if kind == "journal":
            kept.append(open_journal(folder, clock=clock, sync="never", segment_size=4_000))
        else:
            kept.append(open_slate(url, clock=clock))
        return kept[-1]

    yield open_it
    for backend in kept:
        backend.close()


def put(backend: Engine, count: int, size: int = 4) -> list[int]:
    return [int(each) for each in backend.run(Put("default", [Entry(b"x" * size)] * count))]


def settle(backend: Engine, count: int) -> None:
    """Settle messages, and let the store remove them from its files."""
    backend.run(
        Ack("default", [message.receipt or "" for message in backend.run(Claim("default", count, 30, 0, "me"))])
    )
    if isinstance(backend, JournalBackend):
        backend.pack("default")


def read(streams: Any, after: int, until: int, follower: str = "f", limit: int = 3) -> list[int]:
    """The numbers of messages between two cursors, page by page."""
    found: list[int] = []
    while page := streams.entered("default", follower, found[-1] if found else after, until, limit):
        assert len(page) <= limit
        found += [int(message.id) for message in page]
    return found


def test_what_enters_is_told_within_limits_and_given_page_by_page_whatever_becomes_of_it(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    after, gaps = streams.start("default", "f", "earliest")
    first = put(backend, 10)
    settle(backend, 4)
    ahead = streams.ahead("default", "f", after, gaps, 7, MANY)
    assert (ahead.until, sum(count for _, count in ahead.parts), ahead.lost) == (first[6], 7, None)
    second = put(backend, 5, 1_000)
    settle(backend, 6)
    settle(backend, 5)
    assert read(streams, after, ahead.until) == first[:7]
    assert streams.ahead("default", "f", after, gaps, 0, 1, ahead.until) == ahead
    rest = streams.ahead("default", "f", ahead.until, gaps, 100, 2_500)
    assert read(streams, ahead.until, rest.until) == [*first[7:], *second[:2]]
    last = streams.ahead("default", "f", rest.until, gaps, 100, 1)
    assert read(streams, rest.until, last.until) == second[2:3]
    put(backend, 3)
    settle(backend, 3)
    everything = streams.ahead("default", "f", last.until, gaps, MANY, MANY)
    assert len(read(streams, last.until, everything.until)) == 5
    assert everything.lost is None
    assert streams.ahead("default", "f", everything.until, gaps, MANY, MANY).parts == []


def test_messages_are_seen_as_they_entered(opened: Opening, clock: penstock.SimulatedClock) -> None:
    backend = opened()
    streams = backend.streams()
    streams.start("default", "f", "latest")
    entries = [
        Entry(b"", 3, headers={"kind": "a"}),
        Entry(b"y" * 70_000, delay=60, created_at=5),
        Entry(b"z", retention=90),
    ]
    ids = backend.run(Put("default", entries))
    backend.run(Claim("default", 3, 30, 0, "me"))
    clock.advance(30)
    seen = streams.entered("default", "f", 0, int(ids[-1]), 9)
    assert [message.id for message in seen] == ids
    assert [message.payload for message in seen] == [b"", b"y" * 70_000, b"z"]
    assert [message.priority for message in seen] == [3, 0, 0]
    assert [message.headers for message in seen] == [{"kind": "a"}, {}, {}]
    assert [message.created_at for message in seen] == [START, 5, START]
    assert [message.received_at for message in seen] == [START] * 3
    assert [message.visible_at for message in seen] == [START, START + 60_000, START]
    assert [message.expires_at for message in seen] == [None, None, START + 90_000]
    assert [message.state for message in seen] == ["available", "delayed", "available"]
    assert {(message.attempts, message.receipt, message.consumer) for message in seen} == {(0, None, None)}


def test_a_start_is_what_is_stored_what_comes_next_or_a_time(
    opened: Opening, clock: penstock.SimulatedClock
) -> None:
    backend = opened()
    numbers = []
    for _ in range(4):
        numbers.append(put(backend, 10))
        clock.advance(1)
    settle(backend, 15)
    streams = opened().streams()

    def first(starting: str | int) -> list[int]:
        after, gaps = streams.start("default", "f", starting)
        assert streams.ahead("default", "f", after, gaps, MANY, MANY).lost is None
        return read(streams, after, streams.ahead("default", "f", after, gaps, 1, MANY).until)

    assert first("earliest") == numbers[1][5:6]
    assert first("latest") == []
    assert first(START + 1_001) == numbers[2][:1]
    assert first(START + 9_000) == []


def test_a_batch_is_the_same_for_who_asks_after_the_store_was_opened_again(opened: Opening) -> None:
    backend = opened()
    numbers = put(backend, 2_500)
    after, gaps = backend.streams().start("default", "f", "earliest")
    ahead = backend.streams().ahead("default", "f", after, gaps, 2_000, MANY)
    backend = opened()
    assert read(backend.streams(), after, ahead.until, limit=900) == numbers[:2_000]
    backend = opened()
    assert backend.streams().ahead("default", "f", after, gaps, 0, 1, ahead.until) == ahead
    assert read(backend.streams(), numbers[700], ahead.until, limit=900) == numbers[701:2_000]


def test_who_is_not_heard_any_longer_loses_what_is_removed_and_is_told(
    opened: Opening, clock: penstock.SimulatedClock
) -> None:
    backend = opened()
    streams = backend.streams()
    numbers = put(backend, 10)
    after, gaps = streams.start("default", "f", "latest")
    numbers += put(backend, 5)
    clock.advance(50)
    streams.ahead("default", "f", after, gaps, 0, 1)  # a heartbeat
    clock.advance(50)
    backend.tend()
    settle(backend, 13)
    assert streams.ahead("default", "f", after, gaps, 100, MANY).lost is None
    clock.advance(61)
    backend.tend()
    settle(backend, 0)
    numbers += put(backend, 1)
    ahead = streams.ahead("default", "f", after, gaps, 100, MANY)
    exactly = isinstance(backend, JournalBackend)
    assert ahead.lost == Lost(numbers[10], numbers[12], 3 if exactly else None)
    assert read(streams, after, ahead.until) == numbers[13:]
    assert streams.ahead("default", "f", numbers[12], gaps, 100, MANY).lost is None
    streams.leave("default", "f")
    streams.leave("default", "f")


def test_one_who_holds_too_much_is_let_go(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened()
    streams = backend.streams()
    after, gaps = streams.start("default", "f", "earliest")
    put(backend, 10)
    assert streams.ahead("default", "f", after, gaps, 1, MANY).until
    settle(backend, 10)
    backend.tend()
    assert streams.ahead("default", "f", after, gaps, 100, MANY).lost is None
    monkeypatch.setattr(engine_streams, "HELD_BACK", 10)
    put(backend, 1)
    settle(backend, 1)
    backend.tend()
    settle(backend, 0)
    assert streams.ahead("default", "f", after, gaps, 100, MANY).lost is not None


def test_two_who_follow_do_not_meet(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    starts = [streams.start("default", follower, "earliest") for follower in "fg"]
    numbers = put(backend, 6)
    streams.ahead("default", "f", numbers[3], 0, MANY, MANY)
    settle(backend, 6)
    assert read(streams, starts[1][0], numbers[-1], "g") == numbers
    assert read(streams, numbers[3], numbers[-1], "f") == numbers[4:]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_taken_from_those_who_go_on_asking_whatever_is_settled_and_packed(
    opened: Opening, seed: int
) -> None:
    random, backend, entered = Random(seed), opened(), list[int]()
    streams = backend.streams()
    seen: dict[str, list[int]] = {"f": [], "g": []}
    ahead_of = {follower: streams.start("default", follower, "earliest") for follower in seen}

    def follow(follower: str) -> None:
        after, gaps = ahead_of[follower]
        ahead = streams.ahead("default", follower, after, gaps, random.randint(1, 40), 1 << random.randint(8, 20))
        assert ahead.lost is None
        seen[follower] += read(streams, after, ahead.until, follower, 30)
        ahead_of[follower] = Start(ahead.until, gaps)

    for _ in range(120):
        step = random.randrange(6)
        if step < 2:
            entered += put(backend, random.randint(1, 60), random.choice([4, 100]))
        elif step < 4:
            settle(backend, random.randint(1, 80))
        else:
            follow("f" if step == 4 or random.random() < 0.6 else "g")
    for follower, numbers in seen.items():
        while len(numbers) < len(entered):
            follow(follower)
        assert numbers == entered


@pytest.mark.parametrize("whose", ["owner", "guest"])
def test_a_server_is_followed_like_the_store_also_one_that_another_process_owns(url: str, whose: str) -> None:
    with penstock.open(url) as store, penstock.open(url) as guest:
        queue = store.queue()
        queue.put("before")
        server = serve_in_thread(store if whose == "owner" else guest)
        try:
            with penstock.open(server.url) as remote:
                streams = Streams(remote.run)
                after, gaps = streams.start("default", "f", "latest")
                numbers = [int(each) for each in queue.put_many(["a", "b", "c"])]
                queue.ack(*queue.claim(4))
                ahead = streams.ahead("default", "f", after, gaps, 2, MANY)
                assert ahead == Streams(store.run).ahead("default", "f", after, gaps, 2, MANY)
                assert read(streams, after, ahead.until) == numbers[:2]
                assert streams.entered("default", "f", after, MANY, 9)[2].payload == b"c"
                assert read(Streams(guest.run), after, numbers[-1]) == numbers
                with pytest.raises(QueueNotFound):
                    streams.start("nobody", "f", "latest")
                streams.leave("default", "f")
        finally:
            server.stop()


def test_a_server_that_is_killed_and_started_again_goes_on_where_it_was_asked(url: str) -> None:
    seen: list[int] = []
    numbers: list[int] = []
    after = gaps = 0
    for turn in range(2):
        with ServerChild(Path(url)) as server, penstock.open(server.url) as store:
            queue, streams = store.queue(), Streams(store.run)
            if not turn:
                after, gaps = streams.start("default", "f", "earliest")
            streams.follow("default", "tail", reader_name(), after)
            numbers += [int(each) for each in queue.put_many([str(turn)] * 50)]
            queue.ack(*queue.claim(40))
            ahead = streams.ahead("default", "f", after, gaps, 30, MANY)
            assert ahead.lost is None
            seen += read(streams, after, ahead.until, limit=20)
            after = ahead.until
            server.kill()
    with ServerChild(Path(url)) as server, penstock.open(server.url) as store:
        seen += read(Streams(store.run), after, numbers[-1], limit=1_000)
    assert seen == numbers


def test_stores_that_have_no_order_cannot_be_followed(tmp_path: Path) -> None:
    for url in (f"text:{tmp_path / 'text'}", f"folder:{tmp_path / 'folder'}", "memory:"):
        with penstock.open(url) as store, pytest.raises(NotSupported):
            Streams(store.run).start("default", "f", "earliest")


@given(st.lists(st.integers(0, 40 << 20), max_size=60), st.integers(0, 70), st.integers(1, 1 << 30))
def test_a_batch_has_its_first_message_and_what_is_within_the_limits(
    sizes: list[int], rows: int, size: int
) -> None:
    count = fitting(sizes, rows, size)
    assert count <= min(len(sizes), rows)
    assert count <= 1 or sum(sizes[:count]) <= size
    assert count == min(len(sizes), rows) or sum(sizes[: count + 1]) > size


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40 << 20))))
def test_parts_are_all_there_is_in_order_and_none_is_large_but_for_one_message(
    steps: list[tuple[int, int]],
) -> None:
    seqs, sizes, seq = [], [], 0
    for step, size in steps:
        seq += step
        seqs.append(seq)
        sizes.append(size)
    parts, at = parts_of(seqs, sizes), 0
    for last, count in parts:
        assert seqs[at + count - 1] == last
        assert count == 1 or sum(sizes[at : at + count]) <= 16 << 20
        at += count
    assert at == len(seqs)
