"""kill -9 of a server under load, again and again on the same folder, with clients that try again.

Afterwards the store must show exactly what its history allows: nothing that was acknowledged is lost, nothing
appears that nobody put, and no message was given to anyone while someone else held it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock import Queue, StoreUnreachable
from penstock.contract.store import Store
from penstock.http.client.backend import RemoteBackend
from tests.harness.children import ServerChild
from tests.harness.kills import Series
from tests.harness.scenarios import QUEUE
from tests.harness.workers import Worker, workers


class TriesOnce(RemoteBackend):
    """What is tried again is an operation of its own in the history, so the client must not do that by itself."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience=(1, 1))


class Persistent(RemoteBackend):
    """Tries again for as long as a server takes to start, which may be long on a machine that is busy."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience=(1_000_000, 1_000_000))


class ServerSeries(Series):
    """Servers of one store, one after the other, each killed; their clients live on."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__("journal", folder, seed)
        self.workers = workers(self.history, str(seed))

    def use_and_kill(self, name: str) -> None:
        def work(worker: Worker) -> None:
            with suppress(StoreUnreachable):
                worker.run(queue)

        with (
            ServerChild(self.folder) as server,
            Store(server.url, TriesOnce(server.url)) as store,
            ThreadPoolExecutor(len(self.workers)) as threads,
        ):
            queue = store.queue(QUEUE)
            assert queue.settings == self.settings
            self.history.reopened(queue)
            working = [threads.submit(work, worker) for worker in self.workers]
            time.sleep(self.random.uniform(0.01, 0.5))
            server.kill()
            for each in working:
                each.result()


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 5), *[pytest.param(seed, 10, marks=pytest.mark.long) for seed in range(100, 110)]],
)
def test_a_killed_server_has_kept_every_promise_that_it_made(tmp_path: Path, seed: int, kills: int) -> None:
    ServerSeries(tmp_path, seed).run(kills)


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
