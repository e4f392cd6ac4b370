"""kill -9 of a server under load, again and again on the same folder, with clients that try again.

Afterwards the store must show exactly what its history allows: nothing that was acknowledged is lost, nothing
appears that nobody put, and no message was given to anyone while someone else held it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock import Draft, Message, Queue, StoreClosed, StoreUnreachable
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.http.client.backend import RemoteBackend
from tests.history import Answer, History
from tests.history_life import Record
from tests.server_child import ServerChild

QUEUE = "jobs"
Action = Callable[[Queue], object]


class TriesOnce(RemoteBackend):
    """What is tried again is an operation of its own in the history, so the client must not do that by itself."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience=(1, 1))


class Persistent(RemoteBackend):
    """Tries again for as long as a server takes to start, which may be long on a machine that is busy."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience=(1_000_000, 1_000_000))


class RemoteHistory(History):
    """Knows that what a server did not answer may have happened."""

    def _ask(
        self,
        do: str,
        asked: Record,
        call: Callable[[], Answer],
        told: Callable[[Answer], Record],
        name: str | None = None,
    ) -> Answer:
        def ask() -> Answer:
            try:
                return call()
            except StoreUnreachable as error:
                raise StoreClosed(str(error)) from error

        return super()._ask(do, asked, ask, told, name)


class Worker:
    """Uses a queue until its server is gone, and begins with what was not answered when it uses it again."""

    def __init__(self, history: History, name: str) -> None:
        self.history = history
        self.name = name
        self.random = Random(name)
        self.again: Action | None = None
        self.error: BaseException | None = None

    def run(self, queue: Queue) -> None:
        try:
            while True:
                action, self.again = self.again or self.next_action(), None
                try:
                    action(queue)
                except penstock.QueueFull:
                    time.sleep(0.005)
        except StoreClosed:
            pass
        except BaseException as error:
            self.error = error

    def next_action(self) -> Action:
        raise NotImplementedError

    def surely(self, action: Action) -> Action:
        """To be tried again, as that does no harm."""

        def act(queue: Queue) -> None:
            self.again = act
            action(queue)
            self.again = None

        return act


class Producer(Worker):
    count = 0

    def next_action(self) -> Action:
        drafts = [self._draft() for _ in range(self.random.choice([1, 1, 1, 2, 20]))]
        if len(drafts) > 1:
            action: Action = lambda queue: self.history.put_many(queue, drafts)  # noqa: E731
        else:
            action = lambda queue: self.history.put(queue, drafts[0])  # noqa: E731
        return self.surely(action) if all(draft.key for draft in drafts) else action

    def _draft(self) -> Draft:
        self.count += 1
        name = f"{self.name} {self.count}"
        return Draft(
            name.encode() + b"." * self.random.choice([0] * 40 + [300, 3_000] * 10 + [1_000_000]),
            priority=self.random.choice([0, 0, 0, 7]),
            headers=self.random.choice([None, {"kind": "test"}]),
            delay=self.random.choice([0] * 8 + [0.02]),
            key=name if self.random.random() < 0.7 else None,
        )


class Consumer(Worker):
    def __init__(self, history: History, name: str) -> None:
        super().__init__(history, name)
        self.held: list[Message] = []

    def next_action(self) -> Action:
        choice = self.random.random()
        if choice < 0.1:
            wait = self.random.choice([0, 0.02])
            return lambda queue: self.history.pop(queue, wait)
        if choice < 0.15:
            self.held.clear()  # a consumer that forgets
        if choice < 0.65 and self.held:
            message = self.held.pop(self.random.randrange(len(self.held)))
            settle: Callable[..., object] = self.random.choice(
                [*[self.history.ack] * 6, self.history.fail, self.history.release, self.history.extend]
            )
            return self.surely(lambda queue: settle(queue, message.receipt))
        return self._claim

    def _claim(self, queue: Queue) -> None:
        n, lease, wait = (self.random.choice(some) for some in ([1, 1, 5], [0.05, 0.5, 30], [0, 0.05]))
        self.held += self.history.claim(queue, int(n), lease, wait)


class Series:
    """Servers of one folder, one after the other, each killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.folder = folder / "store"
        self.settings = Settings(max_size=500, max_attempts=3, keep_done=self.random.choice([0, 0.3]))
        with penstock.open(self.folder) as store:
            store.create(QUEUE, **self.settings)
        self.history = RemoteHistory(penstock.SystemClock().now, self.settings)
        self.workers: list[Worker] = [
            *[Producer(self.history, f"{seed} producer {number}") for number in range(4)],
            *[Consumer(self.history, f"{seed} consumer {number}") for number in range(4)],
        ]

    def run(self, kills: int) -> None:
        for number in range(kills):
            try:
                self.serve_and_kill()
                if self.random.random() < 0.5:  # else the next server recovers it
                    self.look_into_the_folder()
            except BaseException as error:
                error.add_note(f"seed {self.seed}, kill {number}")
                raise
        self.look_into_the_folder()

    def serve_and_kill(self) -> None:
        with ServerChild(self.folder) as server, Store(server.url, TriesOnce(server.url)) as store:
            queue = store.queue(QUEUE)
            assert queue.settings == self.settings
            self.history.reopened(queue)
            threads = [threading.Thread(target=worker.run, args=(queue,)) for worker in self.workers]
            for thread in threads:
                thread.start()
            time.sleep(self.random.uniform(0.01, 0.5))
            server.kill()
            for thread in threads:
                thread.join()
        for worker in self.workers:
            if worker.error is not None:
                raise worker.error

    def look_into_the_folder(self) -> None:
        with penstock.open(self.folder) as store:
            self.history.reopened(store.queue(QUEUE))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_server_has_kept_every_promise_that_it_made(tmp_path: Path, seed: int) -> None:
    Series(tmp_path, seed).run(5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_hundred_killed_servers_have_kept_every_promise_that_they_made(tmp_path: Path, seed: int) -> None:
    Series(tmp_path, seed).run(10)


def test_clients_that_try_again_by_themselves_notice_nothing_of_a_kill(tmp_path: Path, port: int) -> None:
    stopping = threading.Event()
    put: list[bytes] = []
    acknowledged: list[bytes] = []
    errors: list[BaseException] = []

    def produce(queue: Queue, name: str) -> None:
        number = 0
        while not stopping.is_set():
            payload = f"{name} {number}"
            queue.put(payload, key=payload)
            put.append(payload.encode())
            number += 1

    def consume(queue: Queue, name: str) -> None:
        while not stopping.is_set():
            for message in queue.claim(5, lease=3600, wait=0.05, consumer=name):
                queue.ack(message)
                acknowledged.append(message.payload)

    def run(work: Callable[[Queue, str], None], queue: Queue, name: str) -> None:
        try:
            work(queue, name)
        except BaseException as error:
            errors.append(error)

    with ExitStack() as stack:
        server = stack.enter_context(ServerChild(tmp_path / "store", "--port", str(port)))
        store = stack.enter_context(Store(server.url, Persistent(server.url)))
        queue = store.create(QUEUE)
        work = [produce, produce, produce, consume, consume]
        threads = [
            threading.Thread(target=run, args=(each, queue, f"worker {number}"))
            for number, each in enumerate(work)
        ]
        for thread in threads:
            thread.start()
        for _ in range(3):
            time.sleep(0.3)
            server.kill()
            server = stack.enter_context(ServerChild(tmp_path / "store", "--port", str(port)))
        while not acknowledged:
            time.sleep(0.01)
        stopping.set()
        for thread in threads:
            thread.join()
        assert errors == []
        # Of a claim that was not answered nobody has a receipt: its messages wait for the end of their lease.
        left = [message.payload for message in queue.messages()]
        assert server.stop() == 0
    assert Counter(acknowledged + left) == Counter(put)
    assert acknowledged
