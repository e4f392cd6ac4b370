"""The history rule itself: it lets honest stores pass, and catches every kind of broken promise."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

import penstock
from penstock import Draft, Message, Queue, SimulatedClock
from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from tests.history import History, Violation

SETTINGS = Settings(max_attempts=3)


class Broken:
    """A queue with calls and listings that a test replaces."""

    def __init__(self, real: Queue) -> None:
        self.real = real
        self.changes: list[Callable[[list[Message]], list[Message]]] = []  # changes of listings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def messages(self) -> Iterator[Message]:
        listed = list(self.real.messages())
        for change in self.changes:
            listed = change(listed)
        return iter(listed)

    def counts(self) -> dict[str, int]:
        states = Counter[str](message.state for message in self.messages())
        return {state: states[state] for state in STATES}

    def lists(self, change: Callable[[list[Message]], list[Message]]) -> None:
        """Change all further listings."""
        self.changes.append(change)

    def loses(self, payload: bytes) -> None:
        self.lists(lambda listed: [message for message in listed if message.payload != payload])

    def shows(self, payload: bytes, /, **fields: object) -> None:
        def change(listed: list[Message]) -> list[Message]:
            changed: list[Message] = [
                replace(message, **fields) if message.payload == payload else message  # type: ignore[arg-type]
                for message in listed
            ]
            return changed

        self.lists(change)

    def adds(self, message: Message) -> None:
        self.lists(lambda listed: [*listed, message])

    def stops(self, operation: str, *, done: bool) -> None:
        """Let the next such call raise an error of the disk, with or without its effect."""

        def stop(*arguments: object, **keywords: object) -> None:
            delattr(self, operation)
            if done:
                getattr(self.real, operation)(*arguments, **keywords)
            raise OSError("disk on fire")

        self.replaces(operation, stop)

    def replaces(self, operation: str, call: Callable[..., object]) -> None:
        setattr(self, operation, call)

    def answers(self, operation: str, answer: Callable[[Any], object]) -> None:
        """Falsify the answers of all further such calls."""
        real = getattr(self.real, operation)
        self.replaces(operation, lambda *arguments, **keywords: answer(real(*arguments, **keywords)))


class Bench:
    """A history with a queue that can be broken. Reopening keeps the same store, which checks must not notice."""

    def __init__(self, settings: Settings = SETTINGS, prompt: bool = True) -> None:
        self.clock = SimulatedClock()
        self.store = penstock.open("memory:", clock=self.clock)
        self.broken = Broken(self.store.create("jobs", **settings))
        self.queue = cast(Queue, self.broken)
        self.history = History(self.clock.now, settings, prompt=prompt)

    def put(self, payload: bytes, **fields: Any) -> str:
        return self.history.put(self.queue, Draft(payload, **fields))

    def claim(self, n: int = 1, lease: float = 30) -> list[Message]:
        return self.history.claim(self.queue, n, lease)

    def message(self, payload: bytes) -> Message:
        return next(message for message in self.broken.real.messages() if message.payload == payload)

    def unanswered(self, operation: str, *arguments: Any, done: bool) -> None:
        self.broken.stops("put_many" if operation == "put_many" else operation, done=done)
        with pytest.raises(OSError, match="disk on fire"):
            getattr(self.history, operation)(self.queue, *arguments)

    def check(self) -> None:
        self.history.check(self.queue)

    def reopened(self) -> None:
        self.history.reopened(self.queue)

    def refuses(self, match: str) -> None:
        with pytest.raises(Violation, match=match):
            self.reopened()


@pytest.fixture
def bench() -> Bench:
    return Bench()


# An honest store


@pytest.mark.parametrize("keep_done", [0, 0.05, None])
@pytest.mark.parametrize("seed", range(4))
def test_an_honest_store_passes_under_a_random_workload_of_many_threads(
    seed: int, keep_done: float | None
) -> None:
    settings = Settings(max_attempts=3, keep_done=keep_done, max_size=300)
    with penstock.open("memory:") as store:
        queue = store.create("jobs", **settings)
        history = History(penstock.SystemClock().now, settings)
        threads = [
            threading.Thread(target=work, args=(history, queue, f"{seed} {number}", 120)) for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        history.check(queue)
        work(history, queue, f"{seed} alone", 120)
        history.check(queue)


class Flaky:
    """A queue whose every tenth answer is lost, with or without its effect."""

    def __init__(self, real: Queue, random: Random) -> None:
        self._real, self._random = real, random

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)
        if name in ("messages", "counts"):
            return call

        def flaky(*arguments: object, **keywords: object) -> object:
            choice = self._random.random()
            if choice < 0.05:
                raise OSError("not done")
            answer = call(*arguments, **keywords)
            if choice < 0.1:
                raise OSError("done")
            return answer

        return flaky


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_store_passes_when_answers_are_lost(seed: int) -> None:
    settings = Settings(max_attempts=3, keep_done=0.05)
    with penstock.open("memory:") as store:
        queue = cast(Queue, Flaky(store.create("jobs", **settings), Random(seed)))
        history = History(penstock.SystemClock().now, settings)
        for turn in range(6):
            names = [f"{seed} {turn} {number}" for number in range(3)]
            threads = [threading.Thread(target=work, args=(history, queue, name, 30)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            history.reopened(queue)


def work(history: History, queue: Queue, name: str, operations: int) -> None:
    random = Random(name)
    mine: list[Message] = []
    settle = (history.ack, history.ack, history.fail, history.release, history.extend)

    def draft(number: object) -> Draft:
        return Draft(
            f"{name} {number}".encode(),
            priority=random.choice([0, 0, 1, -5]),
            headers={"a": "b"} if random.random() < 0.5 else None,
            delay=random.choice([0, 0, 0.003]),
            retention=random.choice([None, None, 0.02]),
            key=random.choice([None, f"{name} {number}"]),
            group=random.choice([None, None, "a", "b"]),
        )

    for number in range(operations):
        choice = random.random()
        try:
            if choice < 0.2:
                history.put(queue, draft(number))
            elif choice < 0.3:
                history.put_many(queue, [draft((number, each)) for each in range(random.randrange(5))])
            elif choice < 0.35 and history.keyed:
                history.put(queue, random.choice(history.keyed))
            elif choice < 0.55:
                mine += history.claim(queue, random.randint(1, 4), random.choice([0.005, 30]))
            elif choice < 0.6:
                history.pop(queue)
            elif choice < 0.65 and history.receipts:
                random.choice(settle)(queue, random.choice(list(history.receipts)))
            elif choice < 0.67:
                history.redrive(queue)
            elif choice < 0.68:
                history.purge(queue)
            elif choice < 0.7 and history.receipts:
                history.remove(queue, *random.choices(list(history.receipts.values()), k=2))
            elif mine:
                random.choice(settle)(queue, mine.pop(random.randrange(len(mine))))
        except (penstock.QueueFull, OSError):
            pass


def test_a_history_can_be_written_by_one_and_checked_by_another(bench: Bench) -> None:
    lines: list[str] = []
    writer = History(bench.clock.now, SETTINGS, name="child", write=lines.append)
    writer.put(bench.queue, Draft(b"a", key="k"))
    writer.put(bench.queue, b"b" * 1000)
    [message, _] = writer.claim(bench.queue, 2)
    bench.history.feed([*lines, '{"event": "sta'])
    assert next(iter(bench.history.receipts)) == message.receipt
    assert bench.history.keyed == [Draft(b"a", headers={}, key="k")]
    bench.reopened()
    bench.history.ack(bench.queue, message)
    bench.broken.shows(b"b" * 1000, payload=b"b" * 999 + b"c")
    bench.refuses("another payload than before")


def test_an_error_that_promises_nothing_changed_is_held_to_it(bench: Bench) -> None:
    bench = Bench(Settings(max_size=1))
    bench.put(b"a")
    with pytest.raises(penstock.QueueFull):
        bench.put(b"b")
    bench.reopened()
    bench.broken.adds(replace(bench.message(b"a"), id="2", payload=b"b"))
    bench.refuses("nobody put")


def test_a_test_that_repeats_a_payload_is_told_so(bench: Bench) -> None:
    bench.put(b"a")
    bench.put(b"a")
    with pytest.raises(ValueError, match="put twice"):
        bench.check()


# Every message is there, as it was put


def test_a_lost_message_is_noticed_and_its_story_told(bench: Bench) -> None:
    bench.put(b"a")
    bench.put(b"b")
    bench.broken.loses(b"a")
    with pytest.raises(Violation, match=r"message 1 cannot be so in this listing") as caught:
        bench.reopened()
    assert "op-1 put start {'drafts': [{'payload': 'a', 'priority': 0" in str(caught.value)
    assert "op-1  told {'ids': ['1']}" in str(caught.value)
    assert "waiting, attempts 0" in str(caught.value)


@pytest.mark.parametrize("state", ["delayed", "in_flight", "failed", "available"])
def test_a_message_is_missed_in_every_state(bench: Bench, state: str) -> None:
    bench.put(b"a", delay=60 if state == "delayed" else 0)
    if state == "in_flight":
        bench.claim()
    for _ in range({"failed": 3, "available": 1}.get(state, 0)):
        bench.history.fail(bench.queue, *bench.claim())
    assert bench.message(b"a").state == state
    bench.reopened()
    bench.broken.loses(b"a")
    bench.refuses("cannot be so")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("payload", b"A"),
        ("headers", {}),
        ("priority", 6),
        ("created_at", 78),
        ("received_at", 1_700_000_000_001),
        ("expires_at", 1_700_000_060_001),
        ("id", "2"),
        ("visible_at", 1_700_000_000_001),
        ("attempts", 1),
        ("state", "delayed"),
        ("state", "in_flight"),
        ("state", "done"),
        ("state", "failed"),
    ],
)
@pytest.mark.parametrize("was_shown_before", [True, False])
def test_a_message_that_changed_is_noticed(
    bench: Bench, field: str, value: object, was_shown_before: bool
) -> None:
    bench.put(b"a", priority=5, headers={"x": "y"}, retention=60, created_at=77)
    if was_shown_before:
        bench.check()
    bench.broken.shows(b"a", **{field: value})
    with pytest.raises(Violation):
        bench.reopened()


def test_a_message_ends_by_time_and_not_before(bench: Bench) -> None:
    bench.put(b"a", retention=60)
    bench.clock.advance(60)
    bench.reopened()
    bench.put(b"b", retention=60)
    bench.clock.advance(59)
    bench.broken.loses(b"b")
    bench.refuses("cannot be so")


def test_done_messages_are_kept_as_long_as_the_queue_says() -> None:
    bench = Bench(Settings(keep_done=60))
    bench.put(b"a")
    bench.history.ack(bench.queue, *bench.claim())
    bench.put(b"b")
    bench.history.pop(bench.queue)
    bench.reopened()
    bench.clock.advance(59.999)
    bench.reopened()
    bench.broken.loses(b"b")
    bench.refuses("cannot be so")


def test_counts_must_agree_with_the_list(bench: Bench) -> None:
    bench.put(b"a")
    bench.broken.answers("counts", lambda counts: {**counts, "failed": 1})
    bench.refuses("the counts are")


def test_a_message_listed_twice_is_noticed(bench: Bench) -> None:
    bench.put(b"a")
    bench.broken.lists(lambda listed: listed * 2)
    bench.refuses("listed twice")


def test_the_list_is_in_the_order_of_putting(bench: Bench) -> None:
    bench.put(b"a")
    bench.history.put_many(bench.queue, [b"b", b"c"])
    bench.reopened()
    bench.broken.lists(lambda listed: [listed[0], listed[2], listed[1]])
    bench.refuses("listed after")


# Nothing appears that was not put, and what has no answer is settled once


def test_a_message_that_nobody_put_is_noticed(bench: Bench) -> None:
    bench.put(b"a")
    bench.broken.adds(replace(bench.message(b"a"), id="7", payload=b"x"))
    bench.refuses("nobody put")


@pytest.mark.parametrize("done", [True, False])
def test_a_put_without_an_answer_happened_or_not_and_stays_so(bench: Bench, done: bool) -> None:
    bench.put(b"a")
    bench.unanswered("put", b"b", done=done)
    bench.reopened()
    bench.reopened()
    if done:
        bench.broken.loses(b"b")
        bench.refuses("cannot be so")
    else:
        bench.broken.adds(replace(bench.message(b"a"), id="7", payload=b"b"))
        bench.refuses("whose put was undone")


def test_a_put_without_an_answer_is_there_as_it_was_asked_for(bench: Bench) -> None:
    bench.unanswered("put", Draft(b"a", priority=1), done=True)
    bench.broken.shows(b"a", priority=2)
    bench.refuses("priority is 2, op-1 put 1")


def test_what_a_consumer_got_from_a_put_without_an_answer_was_put(bench: Bench) -> None:
    bench.unanswered("put", b"a", done=True)
    [message] = bench.claim()
    bench.history.ack(bench.queue, message)
    bench.reopened()
    bench.broken.adds(replace(message, state="available", receipt=None))
    bench.refuses("cannot be so")


def test_a_call_that_was_cut_off_by_a_crash_has_no_answer(bench: Bench) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    bench.broken.replaces("put", crash)
    with pytest.raises(Crash):
        bench.put(b"a")
    bench.reopened()


# Nothing comes back


@pytest.mark.parametrize("end", ["ack", "pop", "remove", "purge"])
def test_what_was_acknowledged_away_must_not_come_back(bench: Bench, end: str) -> None:
    bench.put(b"a")
    message = bench.message(b"a")
    if end == "ack":
        bench.history.ack(bench.queue, *bench.claim())
    elif end == "remove":
        bench.history.remove(bench.queue, message.id)
    else:
        getattr(bench.history, end)(bench.queue)
    bench.reopened()
    bench.broken.adds(message)
    bench.refuses("cannot be so")


@pytest.mark.parametrize("end", ["ack", "pop", "remove", "purge"])
@pytest.mark.parametrize("done", [True, False])
def test_an_end_without_an_answer_happened_or_not_and_stays_so(bench: Bench, end: str, done: bool) -> None:
    bench.put(b"a")
    message = bench.message(b"a")
    arguments: list[Any] = bench.claim() if end == "ack" else [message.id] if end == "remove" else []
    bench.unanswered(end, *arguments, done=done)
    bench.reopened()
    bench.reopened()
    if done:
        bench.broken.adds(message)
    else:
        bench.broken.loses(b"a")
    bench.refuses("cannot be so")


def test_a_pop_without_an_answer_explains_the_loss_of_one_message_only(bench: Bench) -> None:
    for payload in (b"a", b"b", b"c"):
        bench.put(payload)
    bench.unanswered("pop", done=True)
    bench.broken.loses(b"c")
    bench.refuses("explain other messages already")


@pytest.mark.parametrize("one_too_many", [True, False])
def test_several_answers_that_never_came_are_matched_with_what_they_explain(
    bench: Bench, one_too_many: bool
) -> None:
    for payload in (b"a", b"b", b"c", b"d"):
        bench.put(payload)
    bench.unanswered("claim", 1, 0.001, done=True)
    bench.unanswered("claim", 2, 0.001, done=True)
    bench.clock.advance(1)
    if one_too_many:
        bench.broken.shows(b"d", attempts=1, visible_at=bench.message(b"a").visible_at)
        bench.refuses("explain other messages already")
    else:
        bench.reopened()
        assert [message.attempts for message in bench.broken.messages()] == [1, 1, 1, 0]


# Batches


def test_a_batch_is_there_as_a_whole(bench: Bench) -> None:
    bench.history.put_many(bench.queue, [b"a", b"b", b"c"])
    bench.broken.loses(b"b")
    bench.refuses("cannot be so")


@pytest.mark.parametrize("done", [True, False])
def test_a_batch_without_an_answer_is_there_whole_or_not_at_all(bench: Bench, done: bool) -> None:
    bench.unanswered("put_many", [b"a", b"b", Draft(b"c", key="c")], done=done)
    bench.reopened()
    bench.unanswered("put_many", [b"d", b"e", Draft(b"f", key="f")], done=True)
    bench.broken.loses(b"f")
    bench.refuses("never seen, payload 'f'")


def test_what_is_missing_of_a_batch_may_have_been_popped(bench: Bench) -> None:
    bench.unanswered("put_many", [b"a", b"b"], done=True)
    bench.unanswered("pop", done=True)
    bench.reopened()
    bench.unanswered("put_many", [b"c", b"d", b"e"], done=True)
    bench.broken.loses(b"d")
    bench.unanswered("pop", done=True)
    bench.refuses("explain other messages already")


def test_what_is_missing_of_a_batch_may_be_there_under_its_key_already(bench: Bench) -> None:
    bench.put(b"a", key="a")
    bench.unanswered("put_many", [Draft(b"a", key="a"), b"b"], done=True)
    bench.reopened()


# Leases


def test_two_live_leases_on_one_message_are_noticed(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    at = bench.clock.now()
    again = replace(message, receipt="1.other", attempts=2, consumer="op-3", lease_until=at + 30_000)
    bench.broken.answers("claim", lambda claimed: [again])
    bench.claim()
    bench.refuses("cannot have been so when op-3 was answered")


def test_two_live_leases_across_a_reopening_are_noticed(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    bench.clock.advance(10)
    bench.reopened()
    at = bench.clock.now()
    again = replace(message, receipt="1.x", attempts=2, consumer="op-3", claimed_at=at, lease_until=at + 30_000)
    bench.broken.answers("claim", lambda claimed: [again])
    bench.claim()
    bench.refuses("cannot have been so when op-3 was answered")


def test_after_its_lease_a_message_goes_to_another(bench: Bench) -> None:
    bench.put(b"a")
    [first] = bench.claim(lease=10)
    bench.clock.advance(10)
    [second] = bench.claim()
    assert bench.history.ack(bench.queue, first) == [first.receipt]
    bench.reopened()
    assert bench.history.ack(bench.queue, second) == []
    bench.reopened()


@pytest.mark.parametrize(
    "fields",
    [
        {"lease_until": 1_700_000_029_999},
        {"consumer": "another"},
        {"attempts": 2},
        {"attempts": 0},
        {"state": "available"},
        {"state": "failed", "settled_at": 1_700_000_000_000},
    ],
)
def test_a_claim_is_kept_as_it_was_told(bench: Bench, fields: dict[str, object]) -> None:
    bench.put(b"a")
    bench.claim()
    bench.check()
    bench.broken.shows(b"a", **fields)
    bench.refuses("cannot be so")


def test_an_extended_lease_is_kept(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim(lease=10)
    bench.clock.advance(5)
    bench.history.extend(bench.queue, message, lease=10)
    bench.reopened()
    bench.clock.advance(5)
    bench.broken.shows(b"a", state="available", visible_at=bench.clock.now())
    bench.refuses("cannot be so")


@pytest.mark.parametrize("done", [True, False])
def test_a_claim_without_an_answer_happened_or_not_and_stays_so(bench: Bench, done: bool) -> None:
    bench.put(b"a")
    bench.unanswered("claim", done=done)
    bench.reopened()
    assert bench.message(b"a").state == ("in_flight" if done else "available")
    bench.reopened()
    if done:
        bench.broken.shows(b"a", state="available")
    else:
        at = bench.clock.now() + 30_000
        bench.broken.shows(b"a", state="in_flight", attempts=1, consumer="op-2", lease_until=at)
    bench.refuses("cannot be so")


def test_a_claim_without_an_answer_takes_no_more_than_it_asked_for(bench: Bench) -> None:
    bench.put(b"a")
    bench.put(b"b")
    bench.unanswered("claim", done=True)
    bench.broken.shows(
        b"b", state="in_flight", attempts=1, consumer="op-3", lease_until=bench.clock.now() + 30_000
    )
    bench.refuses("explain other messages already")


def test_a_live_receipt_that_is_refused_is_noticed(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    bench.reopened()

    def refuse(*_: object) -> None:
        raise penstock.LeaseExpired("jobs", [str(message.receipt)])

    bench.broken.replaces("ack", refuse)
    assert bench.history.ack(bench.queue, message) == [message.receipt]
    bench.refuses("cannot have been so when op-3 was answered")


def test_a_lost_receipt_that_is_accepted_is_noticed(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim(lease=1)
    bench.clock.advance(1)
    bench.broken.replaces("ack", lambda *_: None)
    bench.history.ack(bench.queue, message)
    bench.refuses("cannot have been so when op-3 was answered")


def test_a_receipt_that_nobody_was_given_must_be_refused(bench: Bench) -> None:
    bench.history.ack(bench.queue, "1.0000000000000000")
    bench.check()
    bench.broken.replaces("ack", lambda *_: None)
    bench.history.ack(bench.queue, "1.0000000000000000")
    bench.refuses("that nobody was given")


def test_a_receipt_must_change_with_every_claim(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    bench.history.release(bench.queue, message)
    bench.broken.answers("claim", lambda claimed: [replace(claimed[0], receipt=message.receipt)])
    bench.claim()
    bench.refuses("none or an old one")


@pytest.mark.parametrize("field", ["lease_until", "claimed_at", "consumer", "state", "attempts", "visible_at"])
def test_what_a_consumer_is_told_must_be_true(bench: Bench, field: str) -> None:
    bench.put(b"a")
    wrong = {"consumer": "me", "state": "available"}.get(field, 1)
    bench.broken.answers(
        "claim", lambda claimed: [replace(claimed[0], **{field: wrong, "attempts": 1 + (field == "attempts")})]
    )
    bench.claim()
    bench.refuses("message 1")


def test_a_consumer_gets_no_more_than_it_asked_for(bench: Bench) -> None:
    bench.put(b"a")
    bench.broken.answers("claim", lambda claimed: claimed * 2)
    bench.claim(2)
    with pytest.raises(Violation):
        bench.reopened()


# Attempts, ids, and what is safe to repeat


def test_attempts_go_down_only_by_a_redrive(bench: Bench) -> None:
    bench.put(b"a")
    for _ in range(3):
        bench.history.fail(bench.queue, *bench.claim())
    bench.reopened()
    assert bench.history.redrive(bench.queue) == 1
    bench.reopened()
    bench.history.release(bench.queue, *bench.claim())
    bench.reopened()
    bench.broken.shows(b"a", attempts=0)
    bench.refuses("cannot be so")


@pytest.mark.parametrize("done", [True, False])
def test_a_redrive_without_an_answer_happened_or_not_and_stays_so(bench: Bench, done: bool) -> None:
    bench.put(b"a")
    for _ in range(3):
        bench.history.fail(bench.queue, *bench.claim())
    bench.unanswered("redrive", done=done)
    bench.reopened()
    at = bench.clock.now()
    if done:
        bench.broken.shows(b"a", state="failed", attempts=3, settled_at=at)
    else:
        bench.broken.shows(b"a", state="available", attempts=0, visible_at=at)
    bench.refuses("cannot be so")


def test_a_revoked_lease_is_over_and_a_lease_is_revoked_only_while_it_lasts(bench: Bench) -> None:
    bench.put(b"a")
    [held] = bench.claim()
    assert bench.history.revoke(bench.queue, held.id) == 1
    assert bench.history.ack(bench.queue, held) == [held.receipt]
    assert bench.history.release(bench.queue, held) == []
    bench.reopened()
    bench.broken.answers("revoke", lambda count: count + 1)
    bench.history.revoke(bench.queue, held.id)
    with pytest.raises(Violation):
        bench.reopened()


@pytest.mark.parametrize("was_acknowledged", [True, False])
def test_an_id_is_never_used_again(bench: Bench, was_acknowledged: bool) -> None:
    bench.put(b"a")
    if was_acknowledged:
        bench.history.ack(bench.queue, *bench.claim())
    bench.reopened()
    bench.broken.replaces("put", lambda **_: "1")
    bench.put(b"b")
    bench.refuses("message 1")


def test_a_key_is_answered_with_the_first_id_for_five_minutes(bench: Bench) -> None:
    bench.put(b"a", key="k")
    bench.history.ack(bench.queue, *bench.claim())
    bench.reopened()
    bench.clock.advance(299.999)
    assert bench.put(b"a", key="k") == "1"
    bench.reopened()
    bench.clock.advance(0.001)
    assert bench.put(b"a", key="k") == "2"
    bench.reopened()


@pytest.mark.parametrize("across_reopening", [True, False])
def test_a_key_that_puts_two_messages_is_noticed(bench: Bench, across_reopening: bool) -> None:
    bench.put(b"a", key="k")
    if across_reopening:
        bench.reopened()
    bench.broken.replaces("put", lambda **fields: bench.broken.real.put(**{**fields, "key": None}))
    bench.put(b"a", key="k")
    bench.refuses("both put under the key 'k'")


def test_a_key_that_is_remembered_for_too_long_is_noticed(bench: Bench) -> None:
    bench.put(b"a", key="k")
    bench.clock.advance(300)
    bench.broken.replaces("put", lambda **_: "1")
    bench.put(b"a", key="k")
    bench.refuses("cannot have been so when op-2 was answered")


@pytest.mark.parametrize("done", [True, False])
def test_a_put_with_a_key_may_be_repeated_after_it_had_no_answer(bench: Bench, done: bool) -> None:
    draft = Draft(b"a", key="k")
    bench.unanswered("put", draft, done=done)
    bench.clock.advance(1)
    assert bench.put(b"a", key="k") == "1"
    bench.reopened()
    assert bench.put(b"a", key="k") == "1"
    bench.reopened()


@pytest.mark.parametrize("popped", [True, False])
def test_a_key_may_outlive_a_message_that_nobody_saw(bench: Bench, popped: bool) -> None:
    bench.unanswered("put", Draft(b"a", key="k"), done=True)
    if popped:
        bench.unanswered("pop", done=True)
    else:
        bench.broken.loses(b"a")
    bench.reopened()
    assert bench.put(b"a", key="k") == "1"
    if popped:
        bench.reopened()
    else:
        bench.refuses("cannot be so")


@pytest.mark.parametrize("operation", ["ack", "fail", "release"])
def test_a_repeat_must_be_no_error_for_five_minutes(bench: Bench, operation: str) -> None:
    settle = getattr(bench.history, operation)
    bench.put(b"a")
    [message] = bench.claim()
    settle(bench.queue, message)
    bench.reopened()
    bench.clock.advance(300)
    assert settle(bench.queue, message) == []
    bench.reopened()

    def refuse(*_: object, **__: object) -> None:
        raise penstock.LeaseExpired("jobs", [str(message.receipt)])

    bench.put(b"b")
    [message] = (each for each in bench.claim(2) if each.payload == b"b")
    settle(bench.queue, message)
    bench.clock.advance(299)
    bench.broken.replaces(operation, refuse)
    settle(bench.queue, message)
    bench.refuses("cannot have been so when")


def test_another_use_of_a_used_receipt_must_be_refused(bench: Bench) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    bench.history.release(bench.queue, message)
    assert bench.history.ack(bench.queue, message) == [message.receipt]
    bench.reopened()
    bench.broken.replaces("ack", lambda *_: None)
    bench.history.ack(bench.queue, message)
    bench.refuses("cannot have been so when")


@pytest.mark.parametrize("operation", ["ack", "fail", "release", "extend"])
@pytest.mark.parametrize("done", [True, False])
def test_a_settlement_without_an_answer_can_be_repeated(bench: Bench, operation: str, done: bool) -> None:
    bench.put(b"a")
    [message] = bench.claim()
    bench.unanswered(operation, message, done=done)
    bench.reopened()
    assert getattr(bench.history, operation)(bench.queue, message) == []
    bench.reopened()


@pytest.mark.parametrize("prompt", [True, False])
def test_a_put_may_take_effect_after_the_time_that_it_says_only_where_that_was_said(prompt: bool) -> None:
    bench = Bench(prompt=prompt)
    began = bench.clock.now()

    def put_late(**fields: Any) -> str:
        bench.clock.advance(1)
        bench.history.purge(bench.queue)  # which would have taken it, had it been there
        bench.broken.shows(b"a", created_at=began, received_at=began, visible_at=began)
        return bench.broken.real.put(**fields)

    bench.broken.replaces("put", put_late)
    bench.put(b"a")
    if prompt:
        bench.refuses("cannot be so")
    else:
        bench.reopened()


# Order


def test_what_stands_first_is_claimed_first(bench: Bench) -> None:
    bench.put(b"a")
    bench.put(b"b", priority=-1)
    bench.put(b"c", delay=10)
    bench.history.put_many(bench.queue, [b"d", b"e"])
    assert [message.payload for message in bench.claim(2)] == [b"b", b"a"]
    bench.clock.advance(10)
    assert [message.payload for message in bench.claim(3)] == [b"c", b"d", b"e"]
    bench.check()


@pytest.mark.parametrize("across_reopening", [True, False])
@pytest.mark.parametrize("take", ["claim", "pop"])
def test_a_message_that_is_passed_over_is_noticed(bench: Bench, take: str, across_reopening: bool) -> None:
    bench.put(b"a")
    bench.put(b"b", priority=-1)
    hidden = bench.message(b"b")
    if across_reopening:
        bench.reopened()
    bench.broken.real.remove(hidden.id)
    bench.broken.lists(lambda listed: sorted([*listed, hidden], key=lambda each: each.id))
    getattr(bench.history, take)(bench.queue)
    bench.refuses("message 2 was available, but op-3 got 1")


def test_a_queue_that_says_it_is_empty_and_is_not_is_noticed(bench: Bench) -> None:
    bench.put(b"a")
    bench.broken.replaces("claim", lambda *_, ack: [])
    bench.claim()
    bench.refuses("message 1 was available, but op-2 got 0 messages")


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("removal", ["remove", "purge", "none", "too late"])
def test_a_claim_may_hide_what_it_loses_to_a_removal_only_where_that_was_said(removal: str, prompt: bool) -> None:
    bench = Bench(prompt=prompt)
    hidden = bench.put(b"a")

    def claim_in_vain(*_: object, ack: object) -> list[Message]:
        bench.broken.replaces("claim", lambda *_, ack: [])
        assert bench.claim() == []  # of another, meanwhile
        if removal == "remove":
            bench.history.remove(bench.queue, hidden)
        elif removal == "purge":
            bench.history.purge(bench.queue)
        return []

    bench.broken.replaces("claim", claim_in_vain)
    assert bench.claim() == []
    if removal == "too late":
        bench.history.remove(bench.queue, hidden)
    if prompt or removal in ("none", "too late"):
        bench.refuses("message 1 was available, but op-3 got 0 messages")
    else:
        bench.reopened()


def test_messages_given_together_are_in_order(bench: Bench) -> None:
    bench.put(b"a")
    bench.put(b"b")
    bench.broken.answers("claim", lambda claimed: claimed[::-1])
    bench.claim(2)
    bench.refuses("message 1 was given to op-3 after 2")


# Groups


def given(bench: Bench, *payloads: bytes) -> None:
    """Let the next claim give these messages, whatever their groups say."""

    def claim(n: int, lease: float, wait: float, consumer: str, ack: object) -> list[Message]:
        delattr(bench.broken, "claim")
        now = bench.clock.now()
        return [
            replace(
                message, state="in_flight", attempts=message.attempts + 1, receipt=f"{message.id}.false",
                claimed_at=now, lease_until=now + round(lease * 1000), consumer=consumer,
            )
            for message in map(bench.message, payloads)
        ]  # fmt: skip

    bench.broken.replaces("claim", claim)


def test_two_messages_of_a_group_in_one_claim_are_noticed(bench: Bench) -> None:
    for payload in (b"a", b"b"):
        bench.put(payload, group="a")
    given(bench, b"a", b"b")
    bench.claim(2)
    bench.refuses("with another of its group")


@pytest.mark.parametrize("end", ["none", "fail", "redrive"])
def test_a_message_that_is_given_before_its_turn_is_noticed(bench: Bench, end: str) -> None:
    for payload in (b"a", b"b"):
        bench.put(payload, group="a")
    for _ in range({"none": 0, "fail": 1, "redrive": SETTINGS.max_attempts}[end]):
        bench.history.fail(bench.queue, *bench.claim())
    if end == "redrive":
        bench.history.redrive(bench.queue)
    given(bench, b"b")
    bench.claim()
    bench.refuses("before 1 of its group")


def test_a_message_that_is_given_while_another_of_its_group_is_in_flight_is_noticed(bench: Bench) -> None:
    for payload in (b"a", b"b"):
        bench.put(payload, group="a")
    bench.claim(lease=30)
    bench.clock.advance(29)
    given(bench, b"b")
    bench.claim()
    bench.refuses("while 1 of its group was in flight")


def test_two_messages_of_a_group_that_are_listed_in_flight_are_noticed(bench: Bench) -> None:
    for payload in (b"a", b"b"):
        bench.put(payload, group="a")
    bench.broken.lists(lambda listed: [replace(message, state="in_flight") for message in listed])
    bench.refuses("several messages of a group are in flight")


def test_a_group_whose_turn_is_passed_over_is_noticed(bench: Bench) -> None:
    for payload in (b"a", b"b"):
        bench.put(payload, group="a")
    bench.history.ack(bench.queue, *bench.claim())
    bench.broken.answers("claim", lambda claimed: [])
    assert bench.claim() == []
    bench.refuses("was available, but")


def test_the_next_of_a_group_has_its_turn_when_the_one_before_has_ended(bench: Bench) -> None:
    for payload in (b"a", b"b", b"c"):
        bench.put(payload, group="a")
    assert bench.claim(3, lease=5)[0].payload == b"a"
    assert bench.claim(3) == []
    bench.clock.advance(5)
    bench.history.ack(bench.queue, *bench.claim(3))
    bench.history.fail(bench.queue, *bench.claim(3), delay=5)
    assert bench.claim(3) == []
    bench.clock.advance(5)
    bench.history.remove(bench.queue, *[message.id for message in bench.claim(3)])
    assert [message.payload for message in bench.claim(3)] == [b"c"]
    bench.reopened()
