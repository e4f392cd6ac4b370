"""Queues with groups, dead letters, moves and streams: each step at random, each compared with the model."""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock import Draft, LeaseExpired, Message, Queue, QueueFull, SimulatedClock, Store
from penstock.contract.message import ORIGIN_HEADER
from penstock.contract.settings import Settings
from penstock.contract.stream_operations import Streams
from penstock.stores.journal.store import open_journal
from tests.model import Item, Model, Models

KINDS = ("memory", "journal", "text", "folder", "slate")
QUEUES = {
    "a": Settings(max_attempts=2, dead_letter="dead", keep_done=5),
    "b": Settings(max_attempts=1),
    "dead": Settings(keep_done=5),
}
STEPS = (
    *("put", "claim", "settle", "settle") * 4,
    *("advance", "redrive", "move", "stream") * 2,
    *("pop", "remove", "purge", "update", "reopen", "tidy"),
)
READER = "reader"


class Comparison:
    """A store and its model, which are told the same."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind, self.url = kind, "memory:" if kind == "memory" else f"{kind}:{folder}"
        self.folder, self.choose, self.clock = folder, Random(seed), SimulatedClock()
        self.stores: list[Store] = []
        self.open()
        for name in ("dead", "a", "b"):
            self.stores[0].create(name, **QUEUES[name])
        self.models = Models(QUEUES, self.clock.now())
        self.held: list[tuple[Message, tuple[int, int], str]] = []
        self.payloads = self.nonce = 0
        self.read = dict.fromkeys(QUEUES, 0)  # the last batch that each queue's stream has read
        self.told: list[tuple[Any, ...]] = []

    def open(self) -> None:
        """Open the store: a text store twice, as two programs would."""
        if self.kind == "journal":
            size = self.choose.choice([2_000, 64 << 20])
            backend = open_journal(str(self.folder), clock=self.clock, sync="never", segment_size=size)
            self.stores = [Store(self.url, backend)]
        else:
            count = 2 if self.kind == "text" else 1
            self.stores = [penstock.open(self.url, clock=self.clock, sync="never") for _ in range(count)]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def queue(self, name: str) -> Queue:
        return self.choose.choice(self.stores).queue(name)

    def step(self) -> None:
        name = self.choose.choice(("a", "a", "a", "b", "dead"))
        what = self.choose.choice(STEPS)
        self.told.append((what, name))
        getattr(self, what)(name, self.queue(name), self.models.queues[name])
        self.look()

    def look(self) -> None:
        """All that a listing shows is as the model says."""
        self.pass_time(0)
        for store in self.stores:
            for name, model in self.models.queues.items():
                queue, items = store.queue(name), sorted(model.items, key=lambda item: item.seq)
                listed = [
                    (each.payload.decode(), each.state, each.attempts, each.group, each.headers.get(ORIGIN_HEADER))
                    for each in queue.messages()
                ]
                known = [
                    (each.payload, model.state(each), each.attempts, each.group, each.origin) for each in items
                ]
                if self.kind == "folder":  # lists state by state
                    listed, known = sorted(listed, key=str), sorted(known, key=str)
                assert listed == known
                assert queue.counts() == model.counts()
                assert [each.payload.decode() for each in queue.peek(999)] == [x.payload for x in model.next(999)]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.models.advance(self.clock.now())
        self.stores[0].queues()  # dead letters move

    def some(self, queue: Queue, model: Model) -> tuple[list[str], list[int]]:
        """Ids and numbers of some messages."""
        items = {item.payload: item for item in model.items}
        chosen = [each for each in queue.messages() if self.choose.random() < 0.3]
        return [each.id for each in chosen], [items[each.payload.decode()].seq for each in chosen]

    # Steps

    def put(self, name: str, queue: Queue, model: Model) -> None:
        choice, drafts = self.choose.choice, []
        for _ in range(choice([1, 1, 2, 5])):
            self.payloads += 1
            drafts.append(
                Draft(
                    str(self.payloads), choice([0, 0, 1, 2]), delay=choice([0, 0, 0, 2, 4]),
                    retention=choice([None] * 5 + [3, 7]), group=choice([None, "x", "x", "y", "z"]),
                )
            )  # fmt: skip
        seqs = model.put(
            [
                (
                    each.priority,
                    int(each.delay or 0) * 1_000,
                    None if each.retention is None else int(each.retention) * 1_000,
                    None,
                    each.group,
                )
                for each in drafts
            ]
        )
        if isinstance(seqs, str):  # full
            with pytest.raises(QueueFull):
                queue.put_many(drafts)
            return
        queue.put_many(drafts)
        for seq, draft in zip(seqs, drafts, strict=True):
            self.item(model, seq).payload = str(draft.payload)

    def item(self, model: Model, seq: int) -> Item:
        return next(item for item in model.items if item.seq == seq)

    def claim(self, name: str, queue: Queue, model: Model) -> None:
        n, lease = self.choose.choice([1, 2, 9]), self.choose.choice([2, 5, 1_000])
        self.nonce += 1
        claimed, seqs = queue.claim(n, lease), model.claim(n, lease * 1_000, self.nonce)
        assert [each.payload.decode() for each in claimed] == [self.item(model, seq).payload for seq in seqs]
        self.held += [(each, (seq, self.nonce), name) for each, seq in zip(claimed, seqs, strict=True)]

    def pop(self, name: str, queue: Queue, model: Model) -> None:
        payloads = [item.payload for item in model.next(1)]
        model.pop()
        popped = queue.pop()
        assert [each.payload.decode() for each in (popped,) if each] == payloads

    def settle(self, name: str, queue: Queue, model: Model) -> None:
        if not self.held:
            return
        at = self.choose.randrange(len(self.held))
        message, receipt, name = self.held[at]
        queue, model, delay = self.queue(name), self.models.queues[name], self.choose.choice([None, None, 0, 3])
        if self.choose.random() < 0.8:  # else it is settled again later
            self.held.pop(at)
        how = self.choose.choice(["ack", "fail", "fail", "release", "extend"])
        self.told.append((how, message.payload, name, delay))
        if how == "extend":
            lost = model.extend([receipt], 6_000)
        else:
            lost = model.settle(how, [receipt], delay if delay is None else delay * 1_000, "no")
        options: dict[str, Any] = {"delay": delay, "reason": "no"} if how == "fail" else {}
        options |= {"lease": 6} if how == "extend" else {}
        refused = True
        with suppress(LeaseExpired):
            getattr(queue, how)(message.receipt, **options)
            refused = False
        assert refused == bool(lost)

    def advance(self, name: str, queue: Queue, model: Model) -> None:
        for _ in range(self.choose.choice([1, 2, 4, 6])):
            self.pass_time(0.5)

    def remove(self, name: str, queue: Queue, model: Model) -> None:
        ids, seqs = self.some(queue, model)
        assert queue.remove(*ids) == len(model.remove(seqs))

    def purge(self, name: str, queue: Queue, model: Model) -> None:
        if self.choose.random() < 0.3:
            assert queue.purge() == len(model.purge())

    def redrive(self, name: str, queue: Queue, model: Model) -> None:
        ids, seqs = self.some(queue, model)
        assert queue.redrive(*ids) == self.models.redrive(name, seqs or None)

    def move(self, name: str, queue: Queue, model: Model) -> None:
        ids, seqs = self.some(queue, model)
        target = self.choose.choice([each for each in QUEUES if each != name])
        self.told.append((target, seqs))
        moved = self.models.move(name, target, seqs or None)
        if moved == "full":
            with pytest.raises(QueueFull):
                queue.move(target, *ids)
        else:
            assert queue.move(target, *ids) == moved

    def update(self, name: str, queue: Queue, model: Model) -> None:
        choice = self.choose.choice
        changes: dict[str, Any] = choice([
            {"max_attempts": choice([0, 1, 2, 3])},
            {"keep_done": choice([0, 5, None])},
            {"backoff": choice([None, (1, 2, 5), (0.5, 1, 0.5)])},
            {"max_size": choice([0, 3, 8])} if name == "dead" else {"dead_letter": choice([None, "dead"])},
        ])  # fmt: skip
        self.told.append((changes,))
        model.update(queue.update(**changes))

    def reopen(self, name: str, queue: Queue, model: Model) -> None:
        if self.kind != "memory":
            self.close()
            self.open()

    def tidy(self, name: str, queue: Queue, model: Model) -> None:
        backend: Any = self.stores[0].backend
        if self.kind in ("journal", "text"):
            backend.pack(name)
        elif self.kind == "folder":
            backend.tend()

    def stream(self, name: str, queue: Queue, model: Model) -> None:
        if self.kind not in ("journal", "slate") or name == "b":
            return
        streams, start, n = Streams(self.stores[0].run), self.read[name], self.choose.choice([1, 3, 20])
        if model.begin("s", READER) is None and not start:
            streams.begin(name, "s", READER)
        self.nonce += 1
        payloads = {item.seq: item.payload for item in model.items}
        due = model.next_batch("s", READER, start, n, self.nonce)
        batch = streams.next(name, "s", READER, start, n, 1 << 30)
        assert not isinstance(due, str)
        assert batch == (due and due[0])
        if batch is None or due is None:
            return
        streams.read(name, "s", batch, None)
        model.read_batch("s", batch)
        page = streams.messages(name, "s", batch, "", "", 999)
        assert [each.payload.decode() for each in page] == [payloads[seq] for seq in due[1]]
        if self.choose.random() < 0.7:  # else it is asked for again
            bad = [each for each in zip(page, due[1], strict=True) if self.choose.random() < 0.3]
            if bad:
                streams.fail(name, "s", batch, [message.id for message, _ in bad], "odd")
                model.fail_some("s", batch, [seq for _, seq in bad], "odd", 0)
            self.read[name] = batch


def compare(kind: str, folder: Path, seed: int, steps: int) -> None:
    comparison = Comparison(kind, folder, seed)
    try:
        for _ in range(steps):
            comparison.step()
    except BaseException as error:
        error.add_note(f"seed {seed}: {comparison.told[-30:]}")
        raise
    finally:
        comparison.close()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_several_queues_are_where_the_model_says(kind: str, tmp_path: Path) -> None:
    compare(kind, tmp_path / "store", 1, 100)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_several_queues_are_where_the_model_says_for_long(kind: str, tmp_path: Path) -> None:
    for seed in range(100, 140):
        compare(kind, tmp_path / str(seed), seed, 200)
