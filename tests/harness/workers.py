"""Producers, consumers and a tidier: random but seeded operations on a queue, recorded in a history."""

import time
from collections.abc import Callable
from random import Random

from penstock import Draft, Message, Queue, QueueFull
from tests.history import History

EXPIRING = b"expiring "  # the prefix of payloads with a retention
Action = Callable[[Queue], object]


class Worker:
    """A user of a queue; it continues with the next process after a kill."""

    def __init__(self, history: History, name: str, lowest_priority: int) -> None:
        self.history, self.name, self.lowest_priority = history, name, lowest_priority
        self.random = Random(name)
        self._unanswered: Action | None = None

    def run(self, queue: Queue) -> None:
        """Use the queue until an operation raises."""
        while True:
            try:
                if self._unanswered is None:
                    self.act(queue)
                else:
                    self.repeatable(queue, self._unanswered)
            except QueueFull:
                time.sleep(0.005)

    def act(self, queue: Queue) -> None:
        raise NotImplementedError

    def repeatable(self, queue: Queue, action: Action) -> None:
        """An action that may be repeated: if it is not answered, it is the next action as well."""
        self._unanswered = action
        action(queue)
        self._unanswered = None


class Producer(Worker):
    _count = 0

    def act(self, queue: Queue) -> None:
        if self.random.random() < 0.1 and self.history.keyed:
            self.history.put(queue, self.random.choice(self.history.keyed))
            return
        drafts = [self._draft() for _ in range(self.random.choice([1, 1, 2, 9]))]

        def put(queue: Queue) -> None:
            if len(drafts) == 1:
                self.history.put(queue, drafts[0])
            else:
                self.history.put_many(queue, drafts)

        if all(draft.key for draft in drafts):
            self.repeatable(queue, put)
        else:
            put(queue)

    def _draft(self) -> Draft:
        choice = self.random.choice
        self._count += 1
        name = f"{self.name} {self._count}"
        retention = choice([None] * 5 + [0.05, 5])
        text = (EXPIRING if retention else b"") + name.encode()
        return Draft(
            # Long payloads, because a kill can cut off a write only between pages.
            text + b"." * choice([0] * 60 + [300, 3_000] * 20 + [1_000_000]),
            priority=choice([0, 0, 0, 7, self.lowest_priority]),
            headers=choice([None, None, {"kind": "test", "empty": ""}]),
            delay=choice([0] * 8 + [0.02] * 4 + [2]),
            retention=retention,
            key=name if self.random.random() < 0.3 else None,
            created_at=choice([None, None, 1]),
            group=choice([None, None, None, "a", "b", "c"]),
        )


class Consumer(Worker):
    def __init__(self, history: History, name: str, lowest_priority: int) -> None:
        super().__init__(history, name, lowest_priority)
        self._held: list[Message] = []

    def act(self, queue: Queue) -> None:
        chance = self.random.random()
        if chance < 0.1:
            self.history.pop(queue, wait=self.random.choice([0, 0.02]))
        elif chance < 0.2 and len(self._held) > 3:
            many, self._held = self._held[:3], self._held[3:]
            self.repeatable(queue, lambda queue: self.history.ack(queue, *many))
        elif chance < 0.7 and self._held:
            self._settle(queue, self._held.pop(self.random.randrange(len(self._held))))
        elif chance < 0.72:
            self._held.clear()  # a consumer that forgets
        else:
            n, lease, wait = (self.random.choice(some) for some in ([1, 1, 5], [0.01, 0.2, 2, 30], [0, 0.02]))
            self._held += self.history.claim(queue, int(n), lease, wait)

    def _settle(self, queue: Queue, message: Message) -> None:
        history, delay = self.history, self.random.choice([0, 0.02])
        ways: list[Callable[[Queue, str], object]] = [
            *[history.ack] * 6,
            history.release,
            history.extend,
            lambda queue, receipt: history.fail(queue, receipt, delay=delay, reason="no"),
        ]
        settle, receipt = self.random.choice(ways), message.receipt
        assert receipt is not None
        self.repeatable(queue, lambda queue: settle(queue, receipt))


class Tidier(Worker):
    def act(self, queue: Queue) -> None:
        time.sleep(self.random.uniform(0, 0.02))
        chance = self.random.random()
        ids = list(self.history.receipts.values())[-50:]
        if chance < 0.05:
            self.history.redrive(queue)
        elif chance < 0.5 and ids:
            self.history.redrive(queue, self.random.choice(ids))
        elif ids:
            self.history.remove(queue, *self.random.choices(ids, k=self.random.choice([1, 1, 3])))


def workers(history: History, name: str, lowest_priority: int = -(2**63)) -> list[Worker]:
    kinds = [*[Producer] * 3, *[Consumer] * 3, Tidier]
    return [kind(history, f"{name} {number}", lowest_priority) for number, kind in enumerate(kinds)]
