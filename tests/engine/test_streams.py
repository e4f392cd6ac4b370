"""Streams of journal and slate stores: a batch stays the same across restarts, packing and other readers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.contract.message import Entry
from penstock.contract.operations import Attempts, Claim, Counts, Create, Messages, Put, Remove, Revoke, Update
from penstock.contract.settings import Settings
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.engine.backend import Engine
from penstock.errors import NotSupported, StreamInUse, StreamMismatch, StreamNotFound
from penstock.http.server import serve_in_thread
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.slate.store import SlateBackend, open_slate

READER = reader_name()
GONE = READER.replace(READER.partition("-")[0], "2147483647", 1)  # no process has this id
MANY = 1 << 40
Opening = Callable[..., JournalBackend | SlateBackend]


@pytest.fixture(params=["journal", "slate"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind that has streams."""
    return f"{request.param}:{tmp_path / 'data'}"


@pytest.fixture
def opened(url: str) -> Iterator[Opening]:
    """Opens the store, which is closed when the test ends."""
    kept: list[JournalBackend | SlateBackend] = []

    def open_it(clock: penstock.Clock | None = None) -> JournalBackend | SlateBackend:
        kind, _, folder = url.partition(":")
        kept.append(open_journal(folder, clock=clock) if kind == "journal" else open_slate(url, clock=clock))
        return kept[-1]

    yield open_it
    for backend in kept:
        backend.close()


def put(backend: Engine, count: int, size: int = 4) -> None:
    backend.run(Put("default", [Entry(b"x" * size)] * count))


def ids(streams: Any, batch: int, stream: str = "s") -> list[str]:
    found: list[str] = []
    while page := streams.messages("default", stream, batch, found[-1] if found else "", "", 1_000):
        found += [message.id for message in page]
    return found


@pytest.fixture
def reopened(opened: Opening) -> Callable[[], Engine]:
    """The store, closed and opened again with each call."""
    kept: list[Engine] = []

    def reopen() -> Engine:
        if kept:
            kept.pop().close()
        kept.append(opened())
        return kept[0]

    return reopen


def test_a_batch_is_the_same_until_it_is_settled_and_once_more_after_that(
    reopened: Callable[[], Engine],
) -> None:
    put(reopened(), 3_000)
    reopened().streams().begin("default", "s", READER)
    assert reopened().streams().next("default", "s", READER, 0, 1_500, MANY) == 1
    first = ids(reopened().streams(), 1)
    assert first == [str(seq) for seq in range(1, 1_501)]
    for _ in range(2):
        assert reopened().streams().next("default", "s", READER, 0, 10, MANY) == 1
    assert reopened().streams().next("default", "s", READER, 1, 1_000, MANY) == 2
    assert ids(reopened().streams(), 1) == first
    assert ids(reopened().streams(), 2) == [str(seq) for seq in range(1_501, 2_501)]
    assert reopened().run(Counts("default"))["in_flight"] == 1_000
    assert reopened().streams().next("default", "s", READER, 2, 9_000, MANY) == 3
    with pytest.raises(StreamMismatch, match="what is between is gone"):
        ids(reopened().streams(), 1)
    assert reopened().streams().next("default", "s", READER, 3, 10, MANY) is None
    assert sum(reopened().run(Counts("default")).values()) == 0


@pytest.mark.parametrize("keep_done", [0, None])
def test_packing_keeps_what_may_be_read_again(tmp_path: Path, keep_done: float | None) -> None:
    backend = open_journal(tmp_path / "data")
    backend.create("q", penstock.Settings(keep_done=keep_done, max_attempts=1))
    backend.run(Put("q", [Entry(bytes([number % 256]) * 3_000, number % 3) for number in range(5_000)]))
    streams = backend.streams()
    streams.begin("q", "s", READER)
    assert streams.next("q", "s", READER, 0, 4_000, MANY) == 1
    before = streams.messages("q", "s", 1, "", "", 5_000)
    streams.fail("q", "s", 1, [before[7].id], "odd")
    assert streams.next("q", "s", READER, 1, 500, MANY) == 2
    held = streams.messages("q", "s", 2, "", "", 5_000)

    def check(streams: Any) -> None:
        assert streams.messages("q", "s", 1, "", "", 5_000) == before
        assert streams.messages("q", "s", 2, "", "", 5_000) == held
        rows = streams.read("q", "s", 1, None)
        assert sum(page.live for _, page in rows.pages) == 4_000

    backend.pack("q")
    check(streams)
    backend.close()
    backend = open_journal(tmp_path / "data")
    check(backend.streams())
    backend.pack("q")
    check(backend.streams())
    assert backend.run(Counts("q"))["failed"] == 1
    (tmp_path / "data/.penstock/index").rename(tmp_path / "away")  # so that opening replays all records
    backend.close()
    (tmp_path / "data/.penstock/index").exists() and (tmp_path / "data/.penstock/index").rename(tmp_path / "gone")
    backend = open_journal(tmp_path / "data")
    check(backend.streams())
    backend.streams().settle("q", "s", 2)
    backend.close()


def test_the_doctor_finds_nothing_wrong_with_what_a_stream_holds(tmp_path: Path) -> None:
    backend = open_journal(tmp_path / "data")
    streams = backend.streams()
    backend.run(Put("default", [Entry(b"x", retention=0.001)] * 5))
    put(backend, 5)
    streams.begin("default", "s", READER)
    for start in (0, 1):
        streams.next("default", "s", READER, start, 3, MANY)
    backend.pack("default")
    backend.close()
    examination = examine(str(tmp_path / "data"))
    assert examination.sound
    assert not [found.text for _, found in examination.all_findings() if "lease" in found.text]


def test_what_a_stream_holds_neither_expires_nor_can_be_removed_or_revoked(opened: Opening) -> None:
    clock = penstock.SimulatedClock()
    backend = opened(clock)
    streams = backend.streams()
    [kept, lost] = backend.run(Put("default", [Entry(b"a", retention=60), Entry(b"b", retention=60)]))
    streams.begin("default", "s", READER)
    streams.next("default", "s", READER, 0, 1, MANY)
    clock.advance(100_000)
    assert backend.run(Counts("default")) == {"delayed": 0, "available": 0, "in_flight": 1, "done": 0, "failed": 0}
    assert backend.run(Remove("default", [kept, lost])) == 0
    assert backend.run(Revoke("default", [kept, lost])) == 0
    [message] = backend.run(Messages("default"))
    assert (message.lease_until, message.consumer) == (None, "stream:s")
    streams.fail("default", "s", 1, [kept], "late")
    assert streams.settle("default", "s", 1)
    assert not streams.settle("default", "s", 1)
    assert sum(backend.run(Counts("default")).values()) == 0
    assert ids(streams, 1) == [kept]
    backend.close()


def test_messages_that_processing_rejects_fail_when_the_batch_is_settled(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    put(backend, 4)
    streams.begin("default", "s", READER)
    streams.next("default", "s", READER, 0, 3, MANY)
    streams.fail("default", "s", 1, ["1", "2"], "bad")
    streams.read("default", "s", 1, None)  # a replay
    streams.fail("default", "s", 1, ["2", "4"], "worse")
    assert streams.all()[0].failures == 1
    streams.settle("default", "s", 1)
    assert [message.reason for message in backend.run(Messages("default"))] == ["worse", None]
    assert [each.outcome for each in backend.run(Attempts("default", "2"))] == ["failed"]
    backend.close()


def test_settings_that_change_while_a_stream_reads_apply_when_its_batch_is_settled(opened: Opening) -> None:
    clock = penstock.SimulatedClock(1_000_000)
    backend = opened(clock)
    backend.run(Create("dead", Settings()))
    put(backend, 4)
    streams = backend.streams()
    streams.begin("default", "s", READER)
    streams.next("default", "s", READER, 0, 3, MANY)
    streams.fail("default", "s", 1, ["2"], "bad")
    backend.run(Update("default", {
        "max_attempts": 1, "dead_letter": "dead", "keep_done": None, "retention": 5, "max_size": 1, "delay": 7,
    }))  # fmt: skip
    assert streams.next("default", "s", READER, 1, 3, MANY) == 2
    assert ids(streams, 2) == ["4"]
    states = {each.id: each.state for each in backend.run(Messages("default"))}
    assert states == {"1": "done", "3": "done", "4": "in_flight"}
    [letter] = backend.run(Messages("dead"))
    assert letter.headers == {"penstock.origin": "default", "penstock.reason": "bad"}
    streams.fail("default", "s", 2, ["4"], "odd")
    backend.run(Update("default", {"max_attempts": 2, "backoff": (3, 1, 3), "keep_done": 0}))
    streams.settle("default", "s", 2)
    [back] = backend.run(Messages("default"))
    assert (back.id, back.state, back.visible_at - clock.now()) == ("4", "delayed", 3_000)
    backend.close()


def drained(backend: Engine, run: str, reject: Callable[[str], bool], rows: int) -> list[str]:
    """The batches of a run, with some messages rejected."""
    read: list[str] = []
    streams = backend.streams()
    last = streams.begin("default", "s", READER).settled
    while (batch := streams.next("default", "s", READER, last, rows, MANY, run)) not in (None, last):
        assert batch is not None
        read += (found := ids(streams, batch))
        streams.fail("default", "s", batch, [each for each in found if reject(each)], "no")
        last = batch
        put(backend, 1)  # a message for the next run
    return read


def test_a_run_reads_all_that_is_there_once_whatever_is_rejected(opened: Opening) -> None:
    backend = opened()
    put(backend, 1_000)
    everything = [str(seq) for seq in range(1, 1_001)]
    assert sorted(drained(backend, "one", lambda each: int(each) <= 400, 100), key=int) == everything
    again = drained(backend, "two", lambda each: False, 300)
    assert sorted(again, key=int)[:400] == everything[:400]
    assert len(again) == 410  # and the ten that came meanwhile


def test_a_run_reads_what_the_last_batch_before_it_has_rejected(opened: Opening) -> None:
    clock = penstock.SimulatedClock(1_000_000)
    backend = opened(clock)
    put(backend, 3)
    streams = backend.streams()
    streams.begin("default", "s", READER)
    assert streams.next("default", "s", READER, 0, 10, MANY, "one") == 1
    streams.fail("default", "s", 1, ["2", "3"], "no")
    clock.advance(1)
    assert streams.next("default", "s", READER, 1, 10, MANY, "two") == 2
    assert ids(streams, 2) == ["2", "3"]
    streams.fail("default", "s", 2, ["2"], "no")
    assert streams.next("default", "s", READER, 2, 10, MANY, "two") is None


def test_batches_have_a_groups_messages_in_order_and_consumers_wait_for_them(
    reopened: Callable[[], Engine],
) -> None:
    backend = reopened()
    groups = ["a"] * 6 + ["b", None]
    backend.run(Put("default", [Entry(b"%d" % at, group=group) for at, group in enumerate(groups)]))
    seen, batch = [], 0
    while backend.run(Counts("default"))["available"]:
        backend.streams().begin("default", "s", GONE)
        batch = backend.streams().next("default", "s", GONE, batch, 4, MANY) or 0
        backend = reopened()
        page = backend.streams().messages("default", "s", batch, "", "", 10)
        seen.append([(message.payload.decode(), message.group) for message in page])
        assert backend.run(Claim("default", 9, 30, 0, "me")) == []
    assert seen == [
        [("0", "a"), ("1", "a"), ("6", "b"), ("7", None)],
        [("2", "a"), ("3", "a"), ("4", "a"), ("5", "a")],
    ]


@pytest.mark.parametrize("logged", [True, False])
def test_what_a_run_rejects_of_a_batch_that_it_reads_again_is_for_the_next(opened: Opening, logged: bool) -> None:
    clock = penstock.SimulatedClock(1_000_000)
    backend = opened(clock)
    put(backend, 3)
    backend.streams().begin("default", "s", READER)
    assert backend.streams().next("default", "s", READER, 0, 2, MANY, "one") == 1
    backend.close()
    clock.advance(1)
    backend = opened(clock)
    streams = backend.streams()
    streams.begin("default", "s", READER)
    if not logged:  # else Spark reads it without asking
        assert streams.next("default", "s", READER, 0, 2, MANY, "two") == 1
    streams.read("default", "s", 1, None)
    streams.fail("default", "s", 1, ["1", "2"], "no")
    clock.advance(1)
    assert streams.next("default", "s", READER, 1, 2, MANY, "two") == 2
    assert ids(streams, 2) == ["3"]
    assert streams.next("default", "s", READER, 2, 2, MANY, "two") is None
    assert streams.next("default", "s", READER, 2, 2, MANY, "three") == 3


def test_a_rejected_message_comes_back_after_its_delay_also_after_a_restart(opened: Opening) -> None:
    clock = penstock.SimulatedClock(1_000_000)
    backend = opened(clock)
    put(backend, 3)
    streams = backend.streams()
    streams.begin("default", "s", READER)
    assert streams.next("default", "s", READER, 0, 10, MANY) == 1
    streams.fail("default", "s", 1, ["2"], "busy", 60)
    backend.close()
    backend = opened(clock)
    if isinstance(backend, JournalBackend):
        backend.pack("default")
    backend.close()
    backend = opened(clock)
    clock.advance(5)
    assert backend.streams().settle("default", "s", 1)
    [message] = backend.run(Messages("default", state="delayed"))
    assert (message.id, message.reason, message.visible_at) == ("2", "busy", clock.now() + 60_000)
    clock.advance(60)
    assert backend.run(Counts("default"))["available"] == 1


def test_one_process_reads_a_stream_and_the_next_takes_over_when_it_is_gone(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    put(backend, 2)
    streams.begin("default", "s", READER)
    with pytest.raises(StreamInUse, match="is read by another process"):
        streams.begin("default", "s", GONE)
    with pytest.raises(StreamInUse, match="stop that query"):
        streams.release("default", "s")
    backend.streams().begin("default", "t", GONE)
    assert streams.next("default", "t", GONE, 0, 1, MANY) == 1
    streams.begin("default", "t", READER)
    with pytest.raises(StreamInUse, match="was taken over by another process"):
        streams.next("default", "t", GONE, 0, 1, MANY)
    assert streams.next("default", "t", READER, 0, 1, MANY) == 1
    backend.close()


def test_a_stream_can_be_given_back_and_forgotten(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    put(backend, 5)
    streams.begin("default", "s", GONE)
    assert streams.next("default", "s", GONE, 0, 3, MANY) == 1
    with pytest.raises(StreamInUse, match="holds 3 messages"):
        streams.delete("default", "s")
    assert streams.release("default", "s") == 3
    assert ids(streams, 1) == []
    assert backend.run(Counts("default"))["available"] == 5
    assert streams.next("default", "s", GONE, 1, 3, MANY) == 2
    streams.settle("default", "s", 2)
    streams.delete("default", "s")
    assert streams.all() == []
    with pytest.raises(StreamNotFound, match="`penstock streams` lists those there are"):
        streams.settle("default", "s", 2)
    if isinstance(backend, JournalBackend):
        backend.pack("default")
    backend.close()
    backend = opened()
    backend.streams().begin("default", "s", GONE)
    assert backend.streams().next("default", "s", GONE, 0, 9, MANY) == 3  # no number is used twice
    backend.close()


def test_a_checkpoint_that_does_not_fit_is_refused(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    put(backend, 9)
    streams.begin("default", "s", READER)
    for start in range(3):
        assert streams.next("default", "s", READER, start, 1, MANY) == start + 1
    assert streams.next("default", "s", READER, 1, 1, MANY) == 2  # the last one that was settled, again
    for start, why in ((0, "the checkpoint is new"), (7, "the store is older")):
        with pytest.raises(StreamMismatch, match=why):
            streams.next("default", "s", READER, start, 1, MANY)
    assert streams.next("default", "s", READER, 2, 1, MANY) == 3
    backend.close()


def test_limits_are_kept(opened: Opening) -> None:
    backend = opened()
    streams = backend.streams()
    put(backend, 10, 1_000)
    streams.begin("default", "s", READER)
    assert streams.next("default", "s", READER, 0, 0, MANY) is None
    streams.next("default", "s", READER, 0, 100, 3_500)
    assert len(ids(streams, 1)) == 3
    streams.next("default", "s", READER, 1, 100, 1)
    assert len(ids(streams, 2)) == 1
    backend.close()


def test_other_processes_and_clients_of_a_server_have_the_same_streams(url: str) -> None:
    with penstock.open(url) as store:
        store.queue().put_many(["a", "b", "c"])
        server = serve_in_thread(store)
        try:
            with penstock.open(server.url) as remote:
                streams = Streams(remote.run)
                streams.begin("default", "s", READER)
                assert streams.next("default", "s", READER, 0, 2, MANY) == 1
                assert [message.payload for message in streams.messages("default", "s", 1, "", "", 9)] == [
                    b"a",
                    b"b",
                ]
                local = Streams(store.run)
                assert streams.all() == local.all()
                mine, theirs = local.read("default", "s", 1, None), streams.read("default", "s", 1, None)
                assert [page.place.tolist() for _, page in mine.pages] == [
                    page.place.tolist() for _, page in theirs.pages
                ]
                streams.fail("default", "s", 1, ["1"], "no")
                assert streams.settle("default", "s", 1)
                with pytest.raises(StreamMismatch):
                    streams.settle("default", "s", 9)
            with penstock.open(url) as guest:  # asks the one that has it open already
                streams = Streams(guest.run)
                assert streams.next("default", "s", READER, 1, 2, MANY) == 2
                assert ids(streams, 1) == ["1", "2"]
                assert ids(streams, 2) == ["1", "3"]
        finally:
            server.stop()


@pytest.mark.parametrize("url", ["text:{}", "folder:{}", "memory:"])
def test_other_stores_have_no_streams_and_say_so(tmp_path: Path, url: str) -> None:
    with (
        penstock.open(url.format(tmp_path / "data")) as store,
        pytest.raises(NotSupported, match="has no streams"),
    ):
        Streams(store.run).all()
