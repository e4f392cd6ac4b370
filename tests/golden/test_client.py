"""The requests of clients, byte by byte: clients for threads and for coroutines send the same."""

import asyncio
import inspect
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
import penstock.aio
from tests.golden.expectations import compare
from tests.golden.normaliser import Normaliser
from tests.golden.processes import Shell, Time
from tests.golden.recorder import Recorder, problem
from tests.golden.talk import written_down


class On(NamedTuple):
    """The objects that operations are called on."""

    store: Any
    queue: Any
    message: Any


Operation = Callable[[On], Any]
RECEIPTS = ("7.00000000000000ff", "8.00000000000000fe")
OPERATIONS: dict[str, Operation] = {
    "store.queue()": lambda on: on.store.queue(),
    "store.queue('a/b %')": lambda on: on.store.queue("a/b%"),
    "store.queues()": lambda on: on.store.queues(),
    "store.create('jobs')": lambda on: on.store.create("jobs"),
    "store.create('..', and all settings)": lambda on: on.store.create(
        "..", max_size=1, max_attempts=2, keep_done=None, filter="kind = 'é'", max_payload=3, priorities=(-4, 5),
        max_lease=6.5, retention=7, description="café",
    ),
    "store.delete('jobs')": lambda on: on.store.delete("jobs"),
    "store.publish(b'a')": lambda on: on.store.publish(b"a"),
    "store.publish('é', and all arguments)": lambda on: on.store.publish(
        "é", {"kind": "a"}, priority=3, delay=4.5, retention=60, created_at=5
    ),
    "queue.settings": lambda on: on.queue.settings() if _is_asynchronous(on) else on.queue.settings,
    "queue.counts()": lambda on: on.queue.counts(),
    "queue.count()": lambda on: on.queue.count(),
    "queue.put(b'a')": lambda on: on.queue.put(b"a"),
    "queue.put('é', priority=-3)": lambda on: on.queue.put("é", priority=-3),
    "queue.put(b'', delay=1.5)": lambda on: on.queue.put(b"", delay=1.5),
    "queue.put(b'a', key='k')": lambda on: on.queue.put(b"a", key="k"),
    "queue.put(b'a', and all arguments)": lambda on: on.queue.put(
        b"a", 3, {"kind": "é"}, delay=4, retention=0, key="k", created_at=5
    ),
    "queue.put_many([])": lambda on: on.queue.put_many([]),
    "queue.put_many([b'a'])": lambda on: on.queue.put_many([b"a"]),
    "queue.put_many([b'a', 'é'])": lambda on: on.queue.put_many([b"a", "é"]),
    "queue.put_many([b'a', Draft('b', ...), Draft('c', ...)])": lambda on: on.queue.put_many(
        [b"a", penstock.Draft("b", priority=1, headers={"n": "1"}), penstock.Draft("c", 1, delay=2.5, key="k")]
    ),
    "queue.claim()": lambda on: on.queue.claim(),
    "queue.claim(3, lease=60, wait=2.5, consumer='café')": lambda on: on.queue.claim(
        3, lease=60, wait=2.5, consumer="café"
    ),
    "queue.claim(200_000)": lambda on: on.queue.claim(200_000, consumer="me"),
    "queue.pop()": lambda on: on.queue.pop(),
    "queue.pop(wait=1)": lambda on: on.queue.pop(wait=1),
    "queue.ack(message)": lambda on: on.queue.ack(on.message),
    "queue.ack(receipts)": lambda on: on.queue.ack(*RECEIPTS),
    "queue.ack()": lambda on: on.queue.ack(),
    "queue.fail(receipt)": lambda on: on.queue.fail(RECEIPTS[0]),
    "queue.fail(receipts, delay=2.5, reason='é')": lambda on: on.queue.fail(*RECEIPTS, delay=2.5, reason="é"),
    "queue.release(receipts)": lambda on: on.queue.release(*RECEIPTS),
    "queue.extend(receipt)": lambda on: on.queue.extend(RECEIPTS[0]),
    "queue.extend(message, lease=60)": lambda on: on.queue.extend(on.message, lease=60),
    "message.ack()": lambda on: on.message.ack(),
    "message.fail(delay=1, reason='no')": lambda on: on.message.fail(delay=1, reason="no"),
    "message.release()": lambda on: on.message.release(),
    "message.extend(lease=5)": lambda on: on.message.extend(lease=5),
    "queue.remove('7', 'é')": lambda on: on.queue.remove("7", "é"),
    "queue.revoke('7', '8')": lambda on: on.queue.revoke("7", "8"),
    "queue.redrive()": lambda on: on.queue.redrive(),
    "queue.redrive('7', '8')": lambda on: on.queue.redrive("7", "8"),
    "queue.purge()": lambda on: on.queue.purge(),
    "queue.peek()": lambda on: on.queue.peek(),
    "queue.peek(5_000)": lambda on: on.queue.peek(5_000),
    "queue.messages()": lambda on: on.queue.messages(),
    "queue.messages('failed')": lambda on: on.queue.messages("failed"),
    "queue.attempts('7')": lambda on: on.queue.attempts("7"),
    "queue.attempts('a/b')": lambda on: on.queue.attempts("a/b"),
}  # fmt: skip
REFUSALS = [
    (400, "InvalidArgument"), (400, "InvalidName"), (400, "InvalidPriority"), (400, "InvalidFilter"),
    (401, "Unauthorized"), (403, "Forbidden"), (403, "QueueProtected"), (404, "QueueNotFound"),
    (404, "StreamNotFound"), (404, "MessageNotFound"), (409, "QueueExists"), (409, "LeaseExpired"),
    (413, "PayloadTooLarge"), (500, "StoreCorrupt"), (501, "NotSupported"), (507, "QueueFull"), (507, "DiskFull"),
    (418, "SomethingNew"),
]  # fmt: skip


def _is_asynchronous(on: On) -> bool:
    return isinstance(on.queue, penstock.aio.Queue)


class Threads:
    """The client for threads."""

    def open(self, url: str, **more: Any) -> Any:
        return penstock.open(url, **more)

    def run(self, result: Any) -> Any:
        return list(result) if inspect.isgenerator(result) else result

    def end(self) -> None:
        pass


class Coroutines:
    """The client for coroutines, in an event loop of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def open(self, url: str, **more: Any) -> Any:
        async def opened() -> Any:
            return await penstock.aio.open(url, **more)

        return self._runner.run(opened())

    def run(self, result: Any) -> Any:
        async def awaited() -> Any:
            if inspect.isasyncgen(result):
                return [each async for each in result]
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(awaited())

    def end(self) -> None:
        self._runner.close()


@pytest.mark.parametrize("kind", [Threads, Coroutines])
def test_clients_send_and_understand_the_same(kind: type[Threads | Coroutines]) -> None:
    client = kind()
    lines: list[str] = []

    def note(name: str, result: Any, requests: list[bytes]) -> None:
        lines.extend(["", f"# {name}"])
        for request in requests:
            own = f':{os.getpid()}"'.encode() in request
            shown = [f"> {line}" if line else ">" for line in written_down(request)]
            lines.extend(_without_length(shown) if own else shown)
        lines.append(f"= {result!r}")

    with closing(Recorder()) as recorder:
        store = client.open(recorder.url, token="pst_a", clock=penstock.SimulatedClock())
        note("open(url, token='pst_a')", None, recorder.taken())
        queue = client.run(store.queue("jobs"))
        looking = recorder.taken()
        for name, operation in OPERATIONS.items():
            [message] = client.run(queue.claim(consumer="me"))
            recorder.taken()
            result = client.run(operation(On(store, queue, message)))
            requests = recorder.taken()
            if kind is Threads and name.startswith(("queue.peek", "queue.messages")):
                assert requests[:1] == looking  # whether the queue is there is seen before the first message
                requests = requests[1:]
            note(name, _plain(result), requests)
        lines += ["", "# what refusals become"]
        for status, error in REFUSALS:
            more = {"queue": "jobs", "receipts": ["7.ff"]} if error == "LeaseExpired" else {}
            recorder.refusal = problem(status, error, **more)
            with pytest.raises(penstock.PenstockError) as raised:
                client.run(queue.purge())
            lines.append(f"{status} {error}: {type(raised.value).__name__}: {raised.value}")
        client.run(store.close())
        client.end()
    text = "\n".join(lines).replace(recorder.url, "<url>").replace("penstock.aio.", "penstock.").lstrip("\n")
    compare("client.txt", Normaliser()(text + "\n"))


def test_the_command_line_asks_for_streams_as_it_always_did(tmp_path: Path) -> None:
    lines: list[str] = []
    shell = Shell(Time(tmp_path / "time"), tmp_path)
    with closing(Recorder()) as recorder:
        for command in ("streams", "streams --json", "streams release s", "streams delete s --queue jobs --json"):
            ran = shell.run("--store", recorder.url, *command.split())
            lines += ["", f"$ penstock --store <url> {command}"]
            for request in recorder.taken():
                lines += [f"> {line}" if line else ">" for line in written_down(request)]
            lines += [ran.out + ran.err + f"({ran.code})"]
    shell.end()
    compare("client.streams.txt", Normaliser()("\n".join(lines).lstrip("\n") + "\n"))


def _without_length(lines: list[str]) -> list[str]:
    """Lines without the length of a body that has the process's number in it, which has 1 to 7 digits."""
    return ["> Content-Length: <number>" if line.startswith("> Content-Length") else line for line in lines]


def _plain(result: Any) -> Any:
    """A result that prints the same each time: a queue is its name."""
    return f"queue {result.name}" if isinstance(result, penstock.Queue | penstock.aio.Queue) else result
