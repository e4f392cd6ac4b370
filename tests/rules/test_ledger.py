"""The rules of a queue, checked against a naive model of them on random histories."""

import random
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.contract.message import STATES, Entry
from penstock.contract.settings import Settings
from penstock.errors import (
    InvalidPriority,
    PayloadTooLarge,
    QueueFull,
    StoreCorrupt,
    StreamInUse,
    StreamMismatch,
    StreamNotFound,
)
from penstock.rules.ledger import Ledger, Receipt
from penstock.rules.records import (
    Ack,
    Claim,
    Extend,
    Fail,
    Pop,
    Put,
    Record,
    Redrive,
    Release,
    Remove,
    StreamClaim,
    StreamDelete,
    StreamSettle,
)
from penstock.rules.rows import COLUMNS
from penstock.rules.state import State
from penstock.rules.streams import Run
from tests.model import Model

START = 1_700_000_000_000
SETTINGS = st.builds(
    Settings,
    max_size=st.sampled_from([0, 0, 5, 40]),
    max_attempts=st.sampled_from([0, 1, 2, 5]),
    keep_done=st.sampled_from([0, 0, 2, 600, None]),
    priorities=st.sampled_from([None, None, (-2, 1)]),
    max_lease=st.sampled_from([5, 43_200]),
    retention=st.sampled_from([0, 0, 60]),
    backoff=st.sampled_from([None, None, (0.5, 3, 10)]),
)
REFUSALS = (StreamInUse, StreamMismatch, StreamNotFound)
STREAMS = st.sampled_from(["night", "night", "day"])
READERS = st.sampled_from(["first", "first", "second"])
DURATIONS = st.sampled_from([0, 1, 500, 1_000, 5_000, 30_000, 120_000])  # milliseconds
DRAFTS = st.tuples(
    st.sampled_from([0, 0, 0, 1, -1, -2, 2]),
    st.sampled_from([0, 0, 0, 1, 1_000, 20_000]),
    st.sampled_from([None, None, None, 0, 1, 4_000, 30_000]),
    st.sampled_from([None, None, None, "a", "b", "c"]),
    st.sampled_from([None, None, None, "red", "blue"]),
)


class LedgerAgreesWithModel(RuleBasedStateMachine):
    """A ledger, a naive model, and a second ledger that sees nothing but the records of the first."""

    @initialize(settings=SETTINGS)
    def start(self, settings: Settings) -> None:
        self.now = START
        self.ledger = Ledger("q", settings)
        self.replica = State("q", settings, 1)
        self.model = Model(settings)
        self.model.advance(self.now)
        self.nonces = 0
        self.receipts: list[tuple[int, int]] = []

    def record(self, record: Record | None) -> None:
        if record is not None:
            self.replica.replay(record)

    @rule(milliseconds=st.one_of(st.integers(0, 3), DURATIONS, st.integers(0, 700_000)))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.model.advance(self.now)

    @rule(drafts=st.lists(DRAFTS, min_size=1, max_size=6))
    def put(self, drafts: list[tuple[int, int, int | None, str | None, str | None]]) -> None:
        entries = [
            Entry(b"", priority, None, delay / 1000, None if kept is None else kept / 1000, key, group=group)
            for priority, delay, kept, key, group in drafts
        ]
        expected = self.model.put(drafts)
        if expected == "full":
            with pytest.raises(QueueFull):
                self.ledger.put(entries, self.now)
        elif expected == "priority":
            with pytest.raises(InvalidPriority):
                self.ledger.put(entries, self.now)
        else:
            admission = self.ledger.put(entries, self.now)
            self.record(admission.record)
            assert list(admission.seqs) == expected

    @rule(count=st.integers(1, 3_000), groups=st.sampled_from([0, 0, 0, 1, 7, 1_000]))
    def put_many_at_once(self, count: int, groups: int) -> None:
        self.put([(0, 0, None, None, str(number % groups) if groups else None) for number in range(count)])

    @rule(n=st.integers(1, 8), lease=DURATIONS.filter(bool))
    def claim(self, n: int, lease: int) -> None:
        self.nonces += 1
        record = self.ledger.claim(n, lease / 1000, "worker", self.nonces, self.now)
        self.record(record)
        claimed = record.seqs if record else []
        assert claimed == self.model.claim(n, lease, self.nonces)
        self.receipts += [(seq, self.nonces) for seq in claimed]

    @rule(n=st.integers(10, 2_500), lease=DURATIONS.filter(bool))
    def claim_many(self, n: int, lease: int) -> None:
        self.claim(n, lease)

    @rule(how=st.sampled_from(["ack", "ack", "fail", "release"]), data=st.data())
    def settle_a_whole_claim(self, how: str, data: st.DataObject) -> None:
        if not self.receipts:
            return
        nonce = data.draw(st.integers(max(1, self.nonces - 3), self.nonces))
        receipts = [receipt for receipt in self.receipts if receipt[1] == nonce]
        cut = data.draw(st.integers(0, len(receipts)))
        self.settle_these(how, receipts[cut:] if data.draw(st.booleans()) else receipts[:cut], 0, "broken")

    @rule(settings=SETTINGS)
    def update(self, settings: Settings) -> None:
        record = self.ledger.update(settings, self.now)
        assert (record is None) == (settings == self.model.settings)
        self.record(record)
        self.model.update(settings)

    @rule()
    def pop(self) -> None:
        record = self.ledger.pop("worker", self.now)
        self.record(record)
        assert (record.seqs if record else []) == self.model.pop()

    @rule(
        how=st.sampled_from(["ack", "ack", "fail", "release"]),
        data=st.data(),
        delay=st.none() | DURATIONS,
        reason=st.sampled_from([None, "broken"]),
    )
    def settle(self, how: str, data: st.DataObject, delay: int | None, reason: str | None) -> None:
        self.settle_these(how, self.some_receipts(data), delay, reason)

    def settle_these(
        self, how: str, receipts: list[tuple[int, int]], delay: int | None, reason: str | None
    ) -> None:
        result: tuple[Record | None, list[Receipt]]
        if how == "ack":
            result = self.ledger.ack(receipts, self.now)
        elif how == "fail":
            result = self.ledger.fail(receipts, None if delay is None else delay / 1000, reason, self.now)
        else:
            result = self.ledger.release(receipts, self.now)
        self.record(result[0])
        # Receipts are remembered for at least five minutes: beyond that a repeat may be told either.
        remembered = [(seq, nonce) for seq, nonce, _, at in self.model.settled if self.now > at + 300_000]
        lost = [
            receipt for receipt in self.model.settle(how, receipts, delay, reason) if receipt not in remembered
        ]
        assert [receipt for receipt in result[1] if receipt not in remembered] == lost

    @rule(data=st.data(), lease=DURATIONS.filter(bool))
    def extend(self, data: st.DataObject, lease: int) -> None:
        receipts = self.some_receipts(data)
        record, lost = self.ledger.extend(receipts, lease / 1000, self.now)
        self.record(record)
        assert lost == self.model.extend(receipts, lease)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.integers(0, self.model.next_seq + 1), max_size=5))
        record = self.ledger.remove(seqs, self.now)
        self.record(record)
        assert set(record.seqs if record else []) == self.model.remove(seqs)

    @rule(data=st.data())
    def remove_a_long_stretch(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.model.next_seq))
        seqs = [seq for seq in range(first, first + 2_000) if seq % 97]
        record = self.ledger.remove(seqs, self.now)
        self.record(record)
        assert set(record.seqs if record else []) == self.model.remove(seqs)

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        in_flight = [item.seq for item in self.model.items if self.model.state(item) == "in_flight"]
        known = st.sampled_from(in_flight) if in_flight else st.nothing()
        seqs = data.draw(st.lists(known | st.integers(0, self.model.next_seq), max_size=5))
        record = self.ledger.revoke(seqs, self.now)
        self.record(record)
        assert set(record.seqs if record else []) == self.model.revoke(seqs)

    @rule(data=st.data(), everything=st.booleans())
    def redrive(self, data: st.DataObject, everything: bool) -> None:
        seqs = None if everything else data.draw(st.lists(st.integers(0, self.model.next_seq), max_size=5))
        record = self.ledger.redrive(seqs, self.now)
        self.record(record)
        assert set(record.seqs if record else []) == self.model.redrive(seqs)

    @rule()
    def purge(self) -> None:
        record = self.ledger.purge(self.now)
        self.record(record)
        assert set(record.seqs if record else []) == self.model.purge()

    @rule(stream=STREAMS, reader=READERS)
    def a_process_reads_a_stream(self, stream: str, reader: str) -> None:
        self.told(self.model.begin(stream, reader), lambda: self.ledger.streams.begin(stream, reader, self.now))

    @rule(stream=st.sampled_from(["night", "tail"]), reader=READERS, position=st.integers(0, 50))
    def a_process_follows(self, stream: str, reader: str, position: int) -> None:
        self.told(
            self.model.follow(stream, reader, position),
            lambda: self.ledger.streams.follow(stream, reader, position, self.now),
        )
        behind = any(at < self.model.next_seq - 1 for _, at in self.model.followers.values())
        assert self.ledger.streams.is_followed() == self.replica.streams.is_followed() == behind

    @rule(stream=STREAMS, reader=READERS, n=st.one_of(st.integers(1, 8), st.integers(1, 2_500)), data=st.data())
    def a_stream_goes_on(self, stream: str, reader: str, n: int, data: st.DataObject) -> None:
        known = self.model.streams.get(stream)
        latest = [] if known is None else [number for number, _ in known.settled[-2:]]
        if known is not None and known.held is not None:
            latest += [known.held[0]] * 2
        start = data.draw(st.sampled_from([0, *latest, self.model.batches + 1]))
        self.nonces += 1
        run = None
        if data.draw(st.booleans()):
            since = self.now - data.draw(st.sampled_from([0, 1, 100]))
            run = Run("run", since, data.draw(st.integers(1, self.model.next_seq)))
        limits = (run.since, run.below) if run else ()
        expected = self.model.next_batch(stream, reader, start, n, self.nonces, *limits)
        try:
            settled, offered = self.ledger.streams.offer(stream, reader, start, self.now)
        except REFUSALS:
            assert expected == "no"
            return
        self.record(settled)
        if offered is None:
            due = self.ledger.streams.due(stream, n, run) if run else []
            claim = self.ledger.streams.claim(stream, n, self.nonces, self.now, run)
            assert run is None or due == (claim.seqs if claim else [])
            self.record(claim)
            offered = claim and claim.batch
        assert (None if expected is None else expected[0]) == offered

    @rule(stream=STREAMS, back=st.integers(0, 2))
    def a_batch_is_read(self, stream: str, back: int) -> None:
        batch = max(0, self.latest(stream) - back)
        expected = self.model.read_batch(stream, batch)
        try:
            self.record(self.ledger.streams.read(stream, batch, self.now))
        except REFUSALS:
            assert expected == "no"
            return
        for state in (self.ledger, self.replica):
            rows = state.streams.rows_of(stream, batch)
            assert rows is not None
            assert list(rows.with_state(None)) == expected
            assert all(rows[seq][0].place[rows[seq][1]] == 0 for seq in expected)

    @rule(stream=STREAMS, data=st.data(), reason=st.sampled_from([None, "bad"]), delay=st.sampled_from([0, 0, 5]))
    def messages_of_a_batch_are_to_fail(
        self, stream: str, data: st.DataObject, reason: str | None, delay: int
    ) -> None:
        batch = max(0, self.latest(stream) + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        seqs = data.draw(st.lists(st.integers(0, self.model.next_seq), max_size=8))
        self.told(
            self.model.fail_some(stream, batch, seqs, reason, delay),
            lambda: self.ledger.streams.fail(stream, batch, seqs, reason, self.now, delay),
        )

    @rule(stream=STREAMS, data=st.data())
    def a_batch_is_settled(self, stream: str, data: st.DataObject) -> None:
        batch = max(0, self.latest(stream) + data.draw(st.sampled_from([0, 0, 0, 1, -1])))
        self.told(
            self.model.settle_batch(stream, batch), lambda: self.ledger.streams.settle(stream, batch, self.now)
        )

    @rule(stream=STREAMS)
    def a_batch_is_given_back(self, stream: str) -> None:
        self.told(self.model.release_batch(stream), lambda: self.ledger.streams.release(stream, self.now))

    @rule(stream=STREAMS)
    def a_stream_is_forgotten(self, stream: str) -> None:
        expected = self.model.delete_stream(stream)
        try:
            for record in self.ledger.streams.delete(stream, self.now):
                self.record(record)
        except REFUSALS:
            assert expected == "no"
        else:
            assert expected is None

    def latest(self, stream: str) -> int:
        known = self.model.streams.get(stream)
        if known is None:
            return 1
        return known.held[0] if known.held is not None else known.settled[-1][0] if known.settled else 0

    def told(self, expected: str | None, operation: Callable[[], Record | None]) -> None:
        try:
            self.record(operation())
        except REFUSALS:
            assert expected == "no"
        else:
            assert expected is None

    @rule()
    def a_snapshot_is_loaded(self) -> None:
        """The replica goes on from a copy of the state, as a store does that was opened again."""
        if self.replica.streams:
            return
        self.replica.advance(self.now)
        snapshot = self.replica.snapshot()
        loaded = State("q", self.model.settings, 1)
        for first, page in snapshot.pages:
            loaded.load_page(first, page)
        loaded.load(snapshot)
        loaded.gone = self.replica.gone
        self.replica = loaded

    @invariant()
    def everyone_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        expected = {item.seq: self.described(item) for item in self.model.items}
        for state in (self.ledger.state, self.replica):
            state.advance(self.now)
            assert state.counts() == self.model.counts()
            assert {seq: description(state, seq) for seq in state.listed(None, 0, 10**9)} == expected
            streams = self.model.streams.items()
            holding = [(name, len(stream.held[1]) if stream.held else 0) for name, stream in streams]
            expected_streams = sorted(holding + [(name, 0) for name in self.model.followers])
            assert [(each.stream, each.messages) for each in self.ledger.streams.all()] == expected_streams
            assert state.peek(5) == [item.seq for item in self.model.next(5)]
            assert state.available() == len(self.model.next(len(self.model.items)))

    @invariant()
    def the_gone_are_those_that_were_put_and_are_not_there(self) -> None:
        if hasattr(self, "ledger"):
            there = {item.seq for item in self.model.items}
            assert sorted(self.ledger.state.gone) == [
                seq for seq in range(1, self.model.next_seq) if seq not in there
            ]

    def described(self, item: Any) -> tuple[Any, ...]:
        state = self.model.state(item)
        ends_at = item.lease_until or 0 if state == "in_flight" else item.settled_at
        return (
            state, item.priority, item.visible_at, item.expires_at,
            item.attempts, item.nonce, ends_at, item.reason,
        )  # fmt: skip

    def some_receipts(self, data: st.DataObject) -> list[tuple[int, int]]:
        known = st.sampled_from(self.receipts[-20:]) if self.receipts else st.nothing()
        forged = st.tuples(st.integers(0, self.model.next_seq), st.integers(0, self.nonces + 1))
        return data.draw(st.lists(st.one_of(known, known, known, forged), max_size=6))


def description(state: State, seq: int) -> tuple[Any, ...]:
    page, at = state.rows.locate(seq)
    name = STATES[page.state[at] - 1]
    claims = page.for_claims(at) if page.claims else None
    settled = name in ("in_flight", "done", "failed")
    return (
        name,
        page.priority[at],
        page.visible_at[at],
        page.expires_at[at] or None,
        page.attempts[at],
        claims.nonce[at] if claims and name == "in_flight" else None,
        claims.ends_at[at] if claims and settled else None,
        claims.reason[at] if claims else None,
    )


TestLedgerAgreesWithModel = LedgerAgreesWithModel.TestCase
TestLedgerAgreesWithModel.settings = hypothesis_settings(max_examples=150, stateful_step_count=40, deadline=None)


class LongHistories(LedgerAgreesWithModel):
    pass


TestLongHistories = pytest.mark.long(LongHistories.TestCase)
TestLongHistories.settings = hypothesis_settings(max_examples=300, stateful_step_count=100, deadline=None)


def test_a_stream_goes_on_without_messages_that_another_program_took() -> None:
    ledger = ledger_with(3)
    ledger.streams.begin("night", "me", START)
    ledger.streams.claim("night", 3, 1, START)
    ledger.streams.fail("night", 1, [2], "no", START)
    ledger.state.replay(Remove(START, [2]))
    assert ledger.streams.info("night").messages == 2
    ledger.streams.settle("night", 1, START)
    assert ledger.state.counts() == dict.fromkeys(STATES, 0)


def ledger_with(count: int, **settings: Any) -> Ledger:
    ledger = Ledger("q", Settings(**settings))
    if count:
        ledger.put([Entry(b"")] * count, START)
    return ledger


def test_a_payload_larger_than_the_queue_takes_is_refused_and_nothing_is_put() -> None:
    ledger = ledger_with(0, max_payload=3)
    with pytest.raises(PayloadTooLarge, match="4 bytes; queue 'q' takes at most 3"):
        ledger.put([Entry(b"abc"), Entry(b"abcd")], START)
    assert ledger.state.next_seq == 1
    assert ledger.state.available() == 0


def test_groups_whose_messages_are_gone_leave_no_memory_behind() -> None:
    ledger = ledger_with(0, max_attempts=1)
    for round_ in range(200):
        ledger.put([Entry(b"", group=f"{round_}-{number % 10}") for number in range(100)], START)
        claim = ledger.claim(10, 30, "worker", round_, START)
        assert claim is not None
        assert len(claim.seqs) == 10
        ledger.fail([(seq, round_) for seq in claim.seqs], 0, "no", START)
        ledger.redrive(None, START)  # demotes the heads that have become available
        ledger.purge(START)
        ledger.state.gone.clear()
    assert not ledger.state.groups
    assert ledger.state.available() == 0
    assert entries_kept(ledger) < 3_000


def test_a_batch_of_a_stream_has_the_messages_of_a_group_in_order_and_the_next_batch_goes_on() -> None:
    ledger = ledger_with(0)
    ledger.put([Entry(b"", group="a" if number < 5 else "b") for number in range(10)], START)
    ledger.streams.begin("night", "me", START)
    first = ledger.streams.claim("night", 4, 1, START)
    assert first is not None
    assert first.seqs == [1, 6, 2, 3]
    assert ledger.claim(10, 30, "worker", 2, START) is None  # both groups have messages in flight
    ledger.streams.settle("night", 1, START)
    second = ledger.streams.claim("night", 10, 3, START)
    assert second is not None
    assert second.seqs == [4, 7, 5, 8, 9, 10]


@pytest.mark.parametrize("apart", [0, 2_000], ids=["in one page", "in two pages"])
def test_a_head_waits_for_a_member_behind_it_that_is_in_flight_after_a_reload_too(apart: int) -> None:
    ledger = ledger_with(0, max_attempts=1)
    for group in ("a", *[None] * apart, "a", "b"):
        ledger.put([Entry(b"", 0 if group else 9, group=group)], START)
    first = ledger.claim(1, 30, "worker", 1, START)
    assert first is not None
    ledger.fail([(seq, 1) for seq in first.seqs], 0, "no", START)
    second = ledger.claim(1, 30, "worker", 2, START)
    assert second is not None
    assert second.seqs == [2 + apart]
    ledger.redrive(first.seqs, START)
    loaded = State("q", ledger.settings, 1)
    snapshot = ledger.state.snapshot()
    for number, page in snapshot.pages:
        loaded.load_page(number, page)
    loaded.load(snapshot)
    for state in (ledger.state, loaded):
        assert state.peek(1) == [3 + apart]
        assert state.available() == 1 + apart
        state.apply(Ack(START, second.seqs))
        assert state.peek(2) == [1, 3 + apart]
        assert state.available() == 2 + apart


def test_more_priorities_than_there_are_lanes_keep_their_order() -> None:
    ledger = ledger_with(0)
    priorities = [(number * 7919) % 1000 - 500 for number in range(1000)] * 2
    ledger.put([Entry(b"", priority) for priority in priorities], START)
    claim = ledger.claim(2000, 30, "worker", 1, START)
    assert claim is not None
    assert claim.seqs == sorted(range(1, 2001), key=lambda seq: (priorities[seq - 1], seq))


def test_a_million_leases_that_ended_early_leave_no_memory_behind() -> None:
    ledger = ledger_with(100)
    for nonce in range(10_000):
        claim = ledger.claim(100, 43_200, "worker", nonce, START + nonce)
        assert claim is not None
        ledger.release([(seq, nonce) for seq in claim.seqs], START + nonce)
    assert len(ledger.state.deadlines.heap) < 2_000
    assert ledger.state.ready.entries < 2_000


def entries_kept(ledger: Ledger) -> int:
    """Everything that could pile up in an index, however few messages are there."""
    return ledger.state.ready.entries + len(ledger.state.deadlines.heap) + 1_000 * len(ledger.state.rows._pages)


@pytest.mark.parametrize("how", ["expire", "expire and claim", "pop", "purge", "remove", "fail and redrive"])
def test_messages_that_are_gone_leave_no_memory_behind(how: str) -> None:
    ledger = ledger_with(0, retention=1 if how.startswith("expire") else 86_400, max_attempts=1)
    for second in range(200):
        now = START + second * 2_000
        seqs = ledger.put([Entry(b"", priority) for priority in range(100)], now).seqs
        if how == "expire and claim":
            ledger.claim(1, 30, "worker", second, now)
        elif how == "pop":
            for _ in seqs:
                ledger.pop("worker", now)
        elif how == "purge":
            ledger.purge(now)
        elif how == "remove":
            ledger.remove(seqs, now)
        elif how == "fail and redrive":
            for nonce in (0, 1):
                claim = ledger.claim(1_000, 30, "worker", nonce, now)
                assert claim is not None
                ledger.fail([(seq, nonce) for seq in claim.seqs], 0, "no", now)
                ledger.redrive(None, now)
            ledger.purge(now)
        ledger.state.gone.clear()
    assert entries_kept(ledger) < 6_000


def test_an_empty_queue_costs_little_after_its_first_message() -> None:
    ledger = ledger_with(1)
    ledger.claim(1, 30, "worker", 1, START)
    ledger.ack([(1, 1)], START)
    [(_, page)] = ledger.state.rows.pages()
    assert page.claims is not None
    assert len(page.claims.nonce) < 10


def test_settled_receipts_are_forgotten_some_time_after_five_minutes() -> None:
    ledger = ledger_with(10_000)
    claim = ledger.claim(10_000, 30, "worker", 1, START)
    assert claim is not None
    receipts = [(seq, 1) for seq in claim.seqs]
    for start in range(0, 10_000, 1_000):
        ledger.ack(receipts[start : start + 1_000], START)
    assert ledger.ack(receipts, START + 300_000)[1] == []
    assert len(ledger.ack(receipts, START + 360_001)[1]) == 10_000
    assert not ledger.state.receipts.minutes


def test_survivors_of_long_gone_neighbours_are_found_and_cost_little() -> None:
    ledger = ledger_with(100_000)
    ledger.remove([seq for seq in range(1, 100_001) if seq % 1000], START)
    assert ledger.state.listed(None, 0, 1000) == list(range(1000, 100_001, 1000))
    assert sum(len(page.state) for _, page in ledger.state.rows.pages()) < 2_000
    claim = ledger.claim(1000, 30, "worker", 5, START)
    assert claim is not None
    assert claim.seqs == list(range(1000, 100_001, 1000))
    assert ledger.ack([(seq, 5) for seq in claim.seqs], START)[1] == []
    assert ledger.state.counts() == dict.fromkeys(STATES, 0)


def test_a_queue_may_start_at_any_number() -> None:
    ledger = Ledger("q", Settings(), first=1_000_003)
    assert list(ledger.put([Entry(b"")] * 1500, START).seqs) == list(range(1_000_003, 1_001_503))
    assert ledger.state.listed("available", 0, 2) == [1_000_003, 1_000_004]


def test_a_store_may_leave_numbers_out() -> None:
    ledger = ledger_with(3)
    ledger.state.replay(Put(START, 10, [0], [START], [0], {}))
    ledger.state.replay(Put(START, 5_000, [0, 0], [START] * 2, [0, 0], {}))
    assert ledger.state.listed(None, 0, 9) == [1, 2, 3, 10, 5_000, 5_001]
    assert list(ledger.put([Entry(b"")], START).seqs) == [5_002]


@pytest.mark.parametrize(
    "record",
    [
        Put(START, 1, [0], [START], [0], {}),
        Claim(START, [3], START + 30_000, "worker", 1),
        Pop(START, [3], "worker"),
        Ack(START, [2]),
        Ack(START, [9]),
        Fail(START, [2], START, None),
        Release(START, [3]),
        Extend(START, [3], START + 30_000),
        Remove(START, [4]),
        Redrive(START, [1]),
        StreamClaim(START, "night", 1, [2], 1),
        StreamSettle(START, "night", 1),
        StreamDelete(START, "night"),
    ],
)
def test_a_history_that_contradicts_itself_is_found_out(record: Record) -> None:
    """Message 1 is in flight, 2 and 3 are available."""
    ledger = ledger_with(3)
    ledger.claim(1, 30, "worker", 1, START)
    with pytest.raises(StoreCorrupt, match="history of queue 'q' contradicts itself: " + type(record).__name__):
        ledger.state.replay(record)


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 2), st.booleans()), max_size=60))
def test_messages_that_come_late_under_a_lower_number_take_their_place(
    arrivals: list[tuple[int, int, bool]],
) -> None:
    ledger = Ledger("q", Settings())
    there: dict[int, int] = {}
    seen: set[int] = set()
    for number, priority, removed in arrivals:
        if number in seen:
            continue
        seen.add(number)
        ledger.admit(number, priority, 0, 0, 0, 1)
        there[number] = priority
        if removed:
            ledger.remove([min(there)], 1)
            del there[min(there)]
    assert ledger.state.counts()["available"] == len(there)
    assert ledger.state.listed(None, 0, 100) == sorted(there)
    assert [first for first, _ in ledger.state.pages()] == sorted(first for first, _ in ledger.state.pages())
    expected = sorted(there, key=lambda number: (there[number], number))
    assert ledger.state.peek(100) == expected
    claim = ledger.claim(100, 30, "me", 7, 2)
    assert (claim.seqs if claim else []) == expected
    assert ledger.ack([(number, 7) for number in expected], 3)[1] == []
    assert ledger.state.size() == 0


@pytest.mark.parametrize("gap", [1, 2, 7, 200, 3000])
def test_many_messages_with_numbers_of_their_own_are_let_in_as_one_by_one(gap: int) -> None:
    chance = random.Random(gap)
    together, alone = (Ledger("jobs", Settings(), first=chance.randrange(1, 3)) for _ in range(2))
    alone.state.rows.skip_to(together.state.next_seq)
    now = 1_000
    for _ in range(5):
        numbers = [1 + chance.randrange(gap) for _ in range(chance.randrange(50, 900))]
        seqs = list(accumulate(numbers, initial=together.state.next_seq))
        priority = [chance.choice((0, 0, 0, 3)) for _ in seqs]
        visible_at = [now + chance.choice((0, 0, 0, 50)) for _ in seqs]
        expires_at = [chance.choice((0, 0, now + 70)) for _ in seqs]
        sizes = [chance.randrange(100) for _ in seqs]
        together.admit_many(seqs, priority, visible_at, expires_at, sizes, [1] * len(seqs), now)
        for seq, *row in zip(seqs, priority, visible_at, expires_at, sizes, strict=True):
            alone.admit(seq, row[0], row[1], row[2], row[3], now)
            alone.state.rows.place(seq, (0,), (row[3],), (1,))
        now += 30
        for ledger in together, alone:
            claim = ledger.claim(len(seqs) // 3 + 1, 10, "someone", 7, now)
            assert claim is not None
            ledger.ack([(seq, 7) for seq in claim.seqs[::2]], now)
    assert together.state.counts() == alone.state.counts()
    assert together.state.rows.stored == alone.state.rows.stored
    found = [list(ledger.state.rows.with_state(None)) for ledger in (together, alone)]
    assert found[0] == found[1]
    for seq in found[0]:
        rows = [ledger.state.rows.locate(seq) for ledger in (together, alone)]
        values = [{name: getattr(page, name)[at] for name in ("state", *COLUMNS)} for page, at in rows]
        assert values[0] == values[1]
    claims = [ledger.claim(len(found[0]), 10, "someone", 8, now + 100) for ledger in (together, alone)]
    assert claims[0] == claims[1]
