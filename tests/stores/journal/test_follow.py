"""Following a queue: every message once, in order, while files are rotated and packed under its feet."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Purge, Put, Remove
from penstock.contract.streams import reader_name
from penstock.stores.journal.follow import Follower
from penstock.stores.journal.store import JournalBackend, open_journal


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[JournalBackend]:
    opened = open_journal(tmp_path / "data", sync="never", segment_size=4_000)
    yield opened
    opened.close()


@pytest.fixture
def follower(backend: JournalBackend) -> Iterator[Follower]:
    made = Follower(backend.folder, "default", os.getpid())
    yield made
    made.close()


def put(backend: JournalBackend, count: int) -> None:
    for _ in range(count):
        backend.run(Put("default", [Entry(b"x" * 100)]))


def take(follower: Follower) -> list[int]:
    """What there is, as a reader takes it."""
    follower.fill(10_000)
    seqs = follower.entries.seq.tolist()
    if seqs:
        follower.forget(seqs[-1])
    return seqs


def test_messages_are_seen_once_in_order_also_those_that_are_gone(
    backend: JournalBackend, follower: Follower
) -> None:
    put(backend, 30)
    follower.follow(0)
    backend.run(
        Ack("default", [message.receipt or "" for message in backend.run(Claim("default", 20, 30, 0, "me"))])
    )
    assert take(follower) == list(range(1, 31))
    assert take(follower) == []
    backend.run(Put("default", [Entry(b"y")] * 500))
    assert take(follower) == list(range(31, 531))
    assert not follower.lost


def test_packing_takes_nothing_from_one_who_follows(backend: JournalBackend, follower: Follower) -> None:
    follower.follow(0)
    put(backend, 50)
    follower.fill(1)  # it has seen the files, and not read them
    for _ in range(3):
        put(backend, 50)
        follower.fill(10_000)
        backend.run(Purge("default"))
        backend.pack("default")
    assert take(follower) == list(range(1, 201))
    put(backend, 10)
    assert take(follower) == list(range(201, 211))
    assert not follower.lost


@pytest.mark.parametrize("pack", [False, True])
def test_groups_are_seen_in_files_and_in_packed_ones(
    backend: JournalBackend, follower: Follower, pack: bool
) -> None:
    if not pack:
        follower.follow(0)
    groups = [None, *"ab", None, None, *"aba", None]
    for start in (0, 3, 5):
        backend.run(Put("default", [Entry(b"x", group=group) for group in groups[start : start + 3]]))
    put(backend, 40)
    if pack:
        backend.pack("default")
        follower.follow(0)
    put(backend, 1)
    backend.run(Put("default", [Entry(b"x", group="z")]))
    expected = [*groups[0:3], *groups[3:6], *groups[5:8], *[None] * 41, "z"]
    follower.fill(10_000)
    for after in (0, 2, 5):
        follower.forget(after)
        assert [message.group for message in follower.messages(after, 100, 100)] == expected[after:]
        pages = follower.entries.pages(after, 100)
        assert [page.group(at) for _, page in pages for at in range(page.live)] == expected[after:]


def test_what_was_packed_away_before_it_was_seen_is_known_to_be_lost(backend: JournalBackend) -> None:
    put(backend, 20)
    backend.run(Remove("default", [str(seq) for seq in range(5, 9)]))
    backend.pack("default")
    put(backend, 5)
    follower = Follower(backend.folder, "default", os.getpid())
    follower.follow(2)
    assert take(follower) == [3, 4, *range(9, 26)]
    follower.close()
    follower = Follower(backend.folder, "default", os.getpid())
    follower.follow(2)
    follower.fill(10_000)
    assert follower.lost == [(5, 8)]
    follower.close()
    backend.run(Purge("default"))
    backend.pack("default")
    put(backend, 1)
    follower = Follower(backend.folder, "default", os.getpid())
    follower.follow(10)
    follower.fill(10_000)
    assert (follower.lost, follower.entries.seq.tolist()) == ([(11, 25)], [26])
    follower.close()


def test_a_start_is_earliest_latest_or_a_time(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock(1_000_000)
    backend = open_journal(tmp_path / "data", clock=clock)
    follower = Follower(backend.folder, "default", os.getpid())
    assert (follower.earliest(), follower.latest()) == ((0, 1), 0)
    for _ in range(4):
        put(backend, 10)
        clock.advance(1)
    assert (follower.earliest()[0], follower.latest()) == (0, 40)
    assert [follower.entered_before(1_000_000 + later)[0] for later in (0, 1, 1_001, 9_000)] == [0, 10, 20, 40]
    backend.run(Remove("default", [str(seq) for seq in range(1, 16)]))
    backend.pack("default")
    follower.close()
    follower = Follower(backend.folder, "default", os.getpid())
    assert (follower.earliest(), follower.latest()) == ((15, 41), 40)
    assert [follower.entered_before(1_000_000 + later)[0] for later in (1_001, 2_001, 9_000)] == [20, 30, 40]
    follower.close()
    backend.close()


def test_packing_waits_for_one_who_follows_under_a_name(backend: JournalBackend) -> None:
    put(backend, 100)
    streams = backend.streams()
    streams.follow("default", "tail", reader_name(), 40)
    backend.run(Purge("default"))
    assert backend.pack("default") == 0
    [info] = streams.all()
    assert (info.mode, info.batch, info.lag) == ("follow", 40, 60)
    assert backend.stored("default") > 10_000
    streams.follow("default", "tail", reader_name(), 100)
    backend.pack("default")
    assert backend.stored("default") < 5_000


def test_a_new_file_in_the_place_of_one_that_was_read_is_seen(backend: JournalBackend, follower: Follower) -> None:
    follower.follow(0)
    seen: list[int] = []
    for _ in range(10):  # packing removes files that were read, and file systems give their inodes to new ones
        put(backend, 60)
        seen += take(follower)
        backend.run(Purge("default"))
        backend.pack("default")
    assert seen == list(range(1, 601))
    assert not follower.lost
