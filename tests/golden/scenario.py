"""Runs of every operation on queues, which leave messages in every state behind.

Time stands still between two steps. What is random is a function of the time and of how many bytes are asked for,
so that a run writes the same bytes each time, whatever else draws random bytes meanwhile.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import penstock
from penstock import Draft
from tests.golden.frozen import Predictable

LARGE = b"large " * 12_000


class Run:
    """A store that is written step by step, with a clock of its own."""

    store: penstock.Store

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = penstock.SimulatedClock()
        self.random = Predictable(self.clock.now).draw

    def open(self) -> None:
        self.store = penstock.open(self.url, clock=self.clock)

    def reopen(self) -> None:
        self.store.close()
        self.pass_time()
        self.open()

    def publish(self, payload: bytes, **more: Any) -> None:
        """Publish a message, and wait until every queue whose filter matches has it."""
        self.store.publish(payload, {"kind": "order"}, **more)
        while any(info.lag for info in self.store.queues()):
            time.sleep(0.001)

    def pass_time(self, seconds: float = 1) -> None:
        self.clock.advance(seconds)


@contextmanager
def written(url: str) -> Iterator[Run]:
    """A new store that every run writes with the same bytes."""
    run = Run(url)
    with patch("os.urandom", run.random):
        run.open()
        try:
            yield run
        finally:
            run.store.close()


def pop(queue: penstock.Queue) -> penstock.Message | None:
    """Pop as a consumer with the same name each time."""
    with patch("os.getpid", lambda: 4242), patch("os.uname", lambda: SimpleNamespace(nodename="host")):
        return queue.pop()


def play(run: Run) -> None:
    """All operations."""
    step, store = run.pass_time, run.store
    step()
    jobs = store.create("jobs", max_attempts=2, keep_done=3600, description="what is to do: café")
    store.create(
        "a/b", max_size=10, max_attempts=3, keep_done=None, filter="kind = 'order'", max_payload=100_000,
        priorities=(0, 9), max_lease=600, retention=86_400,
    )  # fmt: skip
    store.create("gone")
    step()
    first = jobs.put(b"plain")
    step()
    jobs.put("text: café\n", priority=3, headers={"kind": "a", "city": "Köln"})
    step()
    jobs.put(b"\x00\xff bytes", delay=40, retention=4000.5, key="a key", created_at=1_600_000_000_123)
    jobs.put(b"not put", key="a key")
    step()
    jobs.put_many([b"one", b"two", b"three"])
    step()
    jobs.put_many([Draft("four", 1, {"n": "4"}), Draft(b"", 2, delay=90), Draft("expires", retention=20, key="e")])
    step()
    jobs.put(LARGE, priority=9)
    step()
    held = jobs.claim(3, lease=30, consumer="me")
    step()
    jobs.ack(held[0])
    step()
    jobs.fail(held[1], delay=5.5, reason="no route: é")
    step()
    jobs.release(held[2])
    step()
    [again] = jobs.claim(consumer="you")
    step()
    jobs.extend(again, lease=50)
    run.reopen()
    store, jobs = run.store, run.store.queue("jobs")
    step()
    jobs.ack(again.receipt or "")
    step()
    popped = pop(jobs)
    assert popped is not None
    step()
    [lost] = jobs.claim(lease=10, consumer="me")
    step(11)  # the lease ends, and so does what expires
    for _ in range(2):
        [bad] = jobs.claim(lease=10, consumer="me")
        step()
        jobs.fail(bad, reason="bad")
        step()
    [bad] = jobs.claim(lease=10, consumer="me")
    jobs.fail(bad, reason="again")
    step()
    failed = [message.id for message in jobs.messages("failed")]
    assert len(failed) == 2, failed
    jobs.redrive(failed[0])
    step()
    assert jobs.remove(first, lost.id) == 2
    step()
    run.publish(b"order 1", priority=2, retention=900)
    step()
    run.publish(b"order 2", created_at=1_600_000_000_456)
    step()
    store.queue("gone").put(b"gone")
    step()
    store.delete("gone")
    step()
    rest = store.create("rest", keep_done=0)
    rest.put_many([b"r1", b"r2", b"r3", b"r4"])
    step()
    _, done = rest.claim(2, lease=4000, consumer="me")
    rest.ack(done)
    step()
    assert rest.purge() == 2
    step()
    rest.put(b"after")
    step()
    jobs.claim(lease=5000, consumer="holder")
    step()


def play_ordering(run: Run) -> None:
    """Groups, dead letters, moves, and settings that a queue goes by when it is not told."""
    step, store = run.pass_time, run.store
    step()
    store.create("dead", labels={"team": "pipeline"})
    jobs = store.create(
        "jobs", max_attempts=2, keep_done=None, lease=20, delay=2, backoff=(3, 2, 60), dead_letter="dead",
        labels={"team": "café", "penstock": "no"},
    )  # fmt: skip
    other = store.create("other", max_attempts=0)
    step()
    jobs.put_many([Draft(f"g{number}", group="g") for number in range(3)])
    jobs.put_many([Draft("h0", 1, {"n": "1"}, group="Köln / h"), Draft("h1", group="Köln / h"), b"alone"])
    step(2)
    for _ in range(2):  # the head of g fails for good, after its backoff
        for message in jobs.claim(9, consumer="me"):
            if message.payload in (b"g0", b"h0"):
                jobs.fail(message, reason="no route: é")
            else:
                jobs.ack(message)
        step(5)
    dead = store.queue("dead")
    assert [message.payload for message in dead.messages()] == [b"g0", b"h0"]
    step()
    assert dead.redrive(*[message.id for message in dead.peek(1)]) == 1
    step()
    late = jobs.put(b"late", delay=900, group="late")
    step()
    assert jobs.move("other", late) == 1
    other.put_many([Draft("o0", group="o"), Draft("o1", group="o"), Draft("o2", 5)])
    run.reopen()
    store, jobs, other = run.store, run.store.queue("jobs"), run.store.queue("other")
    step()
    jobs.update(backoff=(1, 1, 1), labels={"team": "ours"}, lease=600)
    step()
    [held] = other.claim(consumer="holder")
    assert held.group == "o"
    step()
    assert [message.group for message in jobs.claim(9, consumer="holder")] == ["g", "Köln / h"]
    step()


RUNS = {"": (play, 1_700_000_044_000), "ordering": (play_ordering, 1_700_000_022_000)}  # and when each is over


def found(store: penstock.Store) -> list[str]:
    """Every queue, message and attempt of a store, as lines."""
    lines = []
    for info in store.queues():
        queue = store.queue(info.name)
        lines += ["", f"queue {info.name}: {dict(info.settings)}", f"  {info.counts}"]
        for message in queue.messages():
            payload = message.payload if len(message.payload) < 100 else f"{len(message.payload)} bytes"
            assert len(message.payload) < 100 or message.payload == LARGE
            lines.append(f"  {message.id} {message.state}: {payload!r} {message.headers}")
            fields = (
                "priority", "created_at", "received_at", "visible_at", "expires_at", "attempts", "receipt",
                "claimed_at", "lease_until", "consumer", "settled_at", "reason",
            )  # fmt: skip
            lines.append(f"    {', '.join(f'{name}={getattr(message, name)}' for name in fields)}")
            lines += [] if message.group is None else [f"    group={message.group!r}"]
            lines += [f"    {attempt}" for attempt in queue.attempts(message.id)]
        lines.append(f"  next: {[message.id for message in queue.peek(100)]}")
    return lines
