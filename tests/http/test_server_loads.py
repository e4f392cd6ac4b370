"""Loads over HTTP: what many senders send takes effect all at once, once, or not at all."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

import pytest

import penstock
from penstock.contract.loads import Sent
from penstock.contract.message import Entry, Plain
from penstock.contract.operations import Counts
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.engine import loads as uploads
from penstock.engine.backend import Engine
from penstock.errors import (
    DiskFull,
    InvalidArgument,
    InvalidName,
    InvalidPriority,
    LoadNotFound,
    NotSupported,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    QueueNotFound,
)
from penstock.http.client.backend import RemoteLoads
from penstock.http.server import serve_in_thread
from penstock.sharing.backend import engine_of
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.stores.slate.store import open_slate
from penstock.wire import frames, jsons
from tests.harness.children import ServerChild
from tests.http.serving import ask, serving
from tests.simulated_disk import SimulatedDisk

FRAME = {"Content-Type": frames.MEDIA_TYPE}
JSON = {"Content-Type": "application/json"}


class TriesOnce(RemoteLoads):
    """Gives up at once."""

    def __init__(self, url: str) -> None:
        super().__init__(url, patience=(1, 1), tries=1)


class Served:
    """A store, a server of it, and a client that sends loads."""

    def __init__(self, folder: Path, kind: str = "journal", owned: bool = True) -> None:
        self.folder = folder
        self._url, self._owned = f"{kind}:{folder}", owned
        self.start()
        self.store.create("jobs")
        self.store.create("strict", max_payload=10, priorities=(0, 5), max_size=3, retention=60)

    def start(self) -> None:
        self.owner = penstock.open(self._url)
        self.store = self.owner if self._owned else penstock.open(self._url)
        self.server = serve_in_thread(self.store)
        self.client = RemoteLoads(self.server.url)

    def stop(self) -> None:
        self.client.close()
        self.server.stop()
        self.store.close()
        self.owner.close()

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any]:
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        status, _, content = ask(self.server.url, path, method, body, **(headers or JSON))
        return status, json.loads(content) if content else None

    def begun(self, batch: bytes) -> str:
        """A load with one batch for the queue `jobs`, in part `a`."""
        load = self.client.begin({})
        self.client.add(load, "a", 0, "jobs", batch)
        return load

    def payloads(self, queue: str = "jobs") -> list[bytes]:
        return [message.payload for message in self.store.queue(queue).messages()]


def staged(folder: Path) -> list[str]:
    path = folder / ".penstock" / "staged"
    return os.listdir(path) if path.exists() else []


STORES = pytest.mark.parametrize("kind", ["journal", "slate"])
KINDS = pytest.mark.parametrize(
    ("kind", "owned"),
    [("journal", True), ("slate", True), ("journal", False), ("slate", False)],
    ids=["journal", "slate", "journal of another process", "slate of another process"],
)


@pytest.fixture(
    params=[("journal", True), ("slate", True), ("journal", False)],
    ids=["journal", "slate", "journal of another process"],
)
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(tmp_path / "store", *request.param)
    yield made
    made.stop()
    assert staged(made.folder) == []


def frame(*payloads: bytes) -> bytes:
    return frames.encode_entries([Entry(payload) for payload in payloads])


# What it is for


def test_many_senders_send_at_the_same_time_and_one_commit_makes_all_visible(served: Served) -> None:
    client = served.client
    load = client.begin({})

    def send(part: int) -> Sent:
        for number in range(5):
            client.add(
                load, f"{part:05}-7", number, "jobs", frame(*[b"%d %d %d" % (part, number, at) for at in range(9)])
            )
        return Sent(f"{part:05}-7", 5)

    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(send, range(20)))
    assert served.payloads() == []
    assert client.commit(load, sent, None) == (True, 900)
    assert served.payloads() == [
        b"%d %d %d" % (part, number, at) for part in range(20) for number in range(5) for at in range(9)
    ]


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_consumer_in_line_is_served_at_once(served: Served, size: int) -> None:
    load = served.client.begin({})
    for number in range(2):
        served.client.add(load, "a", number, "jobs", frame(b"%d" % number + b"x" * size))
    with penstock.open(served.server.url) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.queue("jobs").claim, 2, wait=30)
        served.client.commit(load, [Sent("a", 2)], None)
        claimed = waiting.result()
        if len(claimed) < 2:  # a batch comes after the other, and who waits gets the first
            claimed += store.queue("jobs").claim(2, wait=30)
        assert [message.payload[:1] for message in claimed] == [b"0", b"1"]


def test_a_load_goes_to_many_queues_and_makes_those_that_it_brings(served: Served) -> None:
    load = served.client.begin({"new": Settings(max_attempts=2, retention=5), "empty": Settings()})
    for number, queue in enumerate(["jobs", "new", "default", "jobs"]):
        served.client.add(load, "a", number, queue, frame(queue.encode() + b"%d" % number))
    with pytest.raises(QueueNotFound):
        served.store.queue("new")
    served.client.commit(load, [Sent("a", 4)], None)
    assert served.payloads() == [b"jobs0", b"jobs3"]
    assert (served.payloads("new"), served.payloads("default"), served.payloads("empty")) == (
        [b"new1"], [b"default2"], [],
    )  # fmt: skip
    assert served.store.queue("new").settings.max_attempts == 2
    [message] = served.store.queue("new").messages()
    assert message.expires_at == message.received_at + 5000


def test_a_batch_says_of_its_messages_what_a_put_says(served: Served) -> None:
    entries = [
        Entry(b"a", priority=3, headers={"kind": "ü"}, created_at=17),
        Entry(b"b", delay=60, retention=120),
    ]
    load = served.client.begin({})
    served.client.add(load, "a", 0, "jobs", frames.encode_entries(entries))
    times = {"visible_at": [None, 4_000_000_000_000], "expires_at": [0, 4_100_000_000_000], "priority": 1}
    served.client.add(load, "a", 1, "strict", frames.encode_columns(times, [1, 2], [b"cdd"]))
    served.client.commit(load, [Sent("a", 2)], None)
    first, second = served.store.queue("jobs").messages()
    assert (first.priority, first.headers, first.created_at, first.state) == (3, {"kind": "ü"}, 17, "available")
    staged_at = second.visible_at - 60_000
    assert staged_at <= second.received_at
    assert second.expires_at == staged_at + 120_000
    third, fourth = served.store.queue("strict").messages()
    assert (third.payload, third.priority, third.expires_at, third.state) == (b"c", 1, None, "available")
    assert (fourth.payload, fourth.visible_at, fourth.expires_at) == (b"dd", 4_000_000_000_000, 4_100_000_000_000)


def test_curl_is_enough(served: Served) -> None:
    status, begun = served.ask("POST", "/-/loads")
    assert status == 201
    path = f"/-/loads/{begun['load']}"
    assert served.ask("PUT", f"{path}/0/0?queue=jobs", {"messages": [{"payload": "by hand"}]}) == (204, None)
    parts = {"parts": [{"part": "0", "batches": 1}]}
    assert served.ask("POST", f"{path}/commit", parts) == (200, {"loaded": True, "messages": 1})
    assert served.payloads() == [b"by hand"]


def test_a_part_may_be_called_as_a_path_of_loads_is(served: Served) -> None:
    load = served.client.begin({})
    served.client.add(load, "commit", 0, "jobs", frame(b"a"))
    assert served.client.commit(load, [Sent("commit", 1)], None).messages == 1
    assert served.payloads() == [b"a"]


def test_json_is_read_in_a_thread(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    in_loop = []

    def read(value: Any) -> Any:
        with suppress(RuntimeError):
            in_loop.append(asyncio.get_running_loop())
        return entries_from_json(value)

    entries_from_json = jsons.entries_from_json
    monkeypatch.setattr(jsons, "entries_from_json", read)
    load = served.client.begin({})
    assert served.ask("PUT", f"/-/loads/{load}/a/0?queue=jobs", {"messages": [{"payload": "a"}]})[0] == 204
    assert served.client.commit(load, [Sent("a", 1)], None).messages == 1
    assert not in_loop


def test_a_load_can_be_empty(served: Served) -> None:
    load = served.begun(frame())
    assert served.client.commit(load, [Sent("a", 1)], None) == (True, 0)


ATTEMPT = [1, "then", 1_600_000_000_000, 1_600_000_000_500, "failed", "no luck"]


@KINDS
@pytest.mark.parametrize("size", [1, 3_000_000], ids=["few bytes", "a file of their own"])
def test_messages_arrive_in_the_state_that_they_had_elsewhere(
    tmp_path: Path, size: int, kind: str, owned: bool
) -> None:
    served = Served(tmp_path / "store", kind, owned)
    served.store.create("kept", keep_done=None)
    load = served.client.begin({})
    became = {
        "received_at": [1_600_000_000_000, None], "state": ["failed", "in_flight"], "attempts": [2, 1],
        "claimed_at": [1_600_000_001_000, 1_600_000_002_000], "settled_at": [1_600_000_003_000, None],
        "consumer": ["me", "you"], "reason": ["broken", None], "history": [[ATTEMPT], None],
        "created_at": [None, 17], "headers": [{"a": "b"}, None], "expires_at": 0,
    }  # fmt: skip
    served.client.add(
        load, "a", 0, "kept", frames.encode_columns(became, [size, size], [b"f" * size, b"h" * size])
    )
    done = {"state": "done", "settled_at": 1_600_000_004_000, "claimed_at": 1_600_000_001_500, "attempts": 3}
    served.client.add(load, "a", 1, "kept", frames.encode_columns(done, [size], [b"d" * size]))
    served.client.commit(load, [Sent("a", 2)], None)
    for _ in range(2):
        failed, held, settled = served.store.queue("kept").messages()
        assert (failed.state, failed.attempts, failed.reason, failed.consumer) == ("failed", 2, "broken", "me")
        assert (failed.received_at, failed.settled_at) == (1_600_000_000_000, 1_600_000_003_000)
        assert (failed.created_at, failed.headers) == (1_600_000_000_000, {"a": "b"})
        assert (held.state, held.attempts, held.consumer, held.created_at) == ("available", 1, None, 17)
        assert (settled.state, settled.attempts, settled.payload) == ("done", 3, b"d" * size)
        [attempt] = served.store.queue("kept").attempts(failed.id)[:1]
        assert list(attempt) == ATTEMPT
        served.stop()
        served.start()
    served.stop()


# Again


def test_the_same_batch_again_is_staged_once_and_another_one_is_refused(served: Served) -> None:
    load = served.client.begin({})
    for _ in range(3):
        served.client.add(load, "a", 0, "jobs", frame(b"0"))
    for _ in range(2):
        served.client.add(load, "a", 1, "jobs", frame(b"1"))
    for number, queue, content in [(1, "jobs", b"2"), (1, "default", b"1"), (0, "jobs", b"0"), (3, "jobs", b"3")]:
        with pytest.raises(InvalidArgument, match="the next is 2"):
            served.client.add(load, "a", number, queue, frame(content))
    served.client.commit(load, [Sent("a", 2)], None)
    assert served.payloads() == [b"0", b"1"]


def test_the_same_batch_twice_at_the_same_time_is_staged_once(served: Served) -> None:
    load = served.client.begin({})
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            content = frame(*[b"%d" % number] * 1000)
            list(pool.map(lambda at: served.client.add(load, "a", at, "jobs", content), [number] * 4))  # noqa: B023
    served.client.commit(load, [Sent("a", 20)], None)
    assert served.payloads() == [b"%d" % number for number in range(20) for _ in range(1000)]


@KINDS
@pytest.mark.parametrize("run", [None, "monday"])
def test_a_commit_again_is_answered_as_the_first_time(
    tmp_path: Path, run: str | None, kind: str, owned: bool
) -> None:
    served = Served(tmp_path / "store", kind, owned)
    load = served.begun(frame(b"0", b"1"))
    for _ in range(2):
        assert served.client.commit(load, [Sent("a", 1)], run) == (True, 2)
    served.stop()
    served.start()
    assert served.client.commit(load, [Sent("a", 1)], run) == (True, 2)
    assert served.store.queue("jobs").count() == 2
    served.stop()


def test_commits_at_the_same_time_take_effect_once(served: Served) -> None:
    load = served.begun(frame(*[b"x"] * 10_000))
    others = [served.client.begin({}) for _ in range(3)]
    for other in others:
        served.client.add(other, "a", 0, "jobs", frame(b"y"))
    with ThreadPoolExecutor(8) as pool:
        same = [pool.submit(served.client.commit, load, [Sent("a", 1)], None) for _ in range(4)]
        runs = [pool.submit(served.client.commit, other, [Sent("a", 1)], "tuesday") for other in others]
    assert [each.result() for each in same] == [(True, 10_000)] * 4
    assert sorted(each.result() for each in runs) == [(False, 0), (False, 0), (True, 1)]
    assert len(served.payloads()) == 10_001


def test_a_run_takes_effect_once_whatever_its_load(served: Served) -> None:
    for expected in [(True, 1), (False, 0)]:
        load = served.begun(frame(b"0"))
        for _ in range(2):
            assert served.client.commit(load, [Sent("a", 1)], "../monday") == expected
    assert served.payloads() == [b"0"]


@pytest.mark.parametrize("run", ["monday", "../..", "two words", "\N{SNOWMAN}" * 85, "%" * 255, "x" * 255, "\0"])
def test_a_run_can_be_asked_for(served: Served, run: str) -> None:
    assert served.client.run(run) is None
    load = served.begun(frame(b"0", b"11"))
    served.client.add(load, "a", 1, "default", frame(b"222"))
    served.client.commit(load, [Sent("a", 2)], run)
    assert served.client.run(run) == [("default", 1, 3), ("jobs", 2, 3)]


def opened(folder: Path, kind: str, clock: penstock.Clock) -> Engine:
    return open_slate(f"slate:{folder}", clock=clock) if kind == "slate" else open_journal(folder, clock=clock)


@STORES
def test_loads_that_took_effect_are_remembered_for_a_week(tmp_path: Path, kind: str) -> None:
    clock = penstock.SimulatedClock()
    backend = opened(tmp_path, kind, clock)
    load = backend.uploads().begin({})
    for _ in range(2):
        assert backend.uploads().commit(load, [], None).loaded
    clock.advance(6 * 24 * 3600)
    backend.uploads().begin({})
    assert backend.uploads().commit(load, [], None).loaded
    clock.advance(2 * 24 * 3600)
    backend.uploads().begin({})
    with pytest.raises(LoadNotFound):
        backend.uploads().commit(load, [], None)
    backend.close()


# Not at all


def test_parts_that_a_commit_does_not_name_are_dropped(served: Served) -> None:
    load = served.client.begin({})
    for part in ("00000-1", "00000-2", "00001-3"):
        served.client.add(load, part, 0, "jobs", frame(part.encode()))
    served.client.commit(load, [Sent("00001-3", 1), Sent("00000-2", 1)], None)
    assert served.payloads() == [b"00001-3", b"00000-2"]


def test_a_part_of_which_something_is_missing_is_refused(served: Served) -> None:
    load = served.begun(frame(b"0"))
    for sent in ([Sent("a", 2)], [Sent("a", 0)], [Sent("b", 1)], [Sent("a", 1), Sent("a", 1)]):
        with pytest.raises(InvalidArgument, match=r"batches here|named twice"):
            served.client.commit(load, sent, None)
    served.client.commit(load, [Sent("a", 1)], None)
    assert served.payloads() == [b"0"]


def test_what_a_queue_refuses_changes_nothing_and_can_be_committed_once_there_is_room(served: Served) -> None:
    load = served.begun(frame(b"0"))
    served.client.add(load, "a", 1, "strict", frame(b"1", b"2"))
    served.store.queue("strict").put_many([b"3", b"4"])
    with pytest.raises(QueueFull, match="queue 'strict' holds 2 of at most 3 messages; 2 more"):
        served.client.commit(load, [Sent("a", 2)], None)
    assert served.payloads() == []
    served.store.queue("strict").pop()
    served.client.commit(load, [Sent("a", 2)], None)
    assert (served.payloads(), served.payloads("strict")) == ([b"0"], [b"4", b"1", b"2"])


def test_a_queue_that_is_deleted_before_the_commit_is_missing(served: Served) -> None:
    load = served.begun(frame(b"0"))
    served.store.delete("jobs")
    with pytest.raises(QueueNotFound):
        served.client.commit(load, [Sent("a", 1)], None)
    served.client.abort(load)


def test_an_aborted_load_leaves_nothing(served: Served) -> None:
    load = served.begun(frame(b"0"))
    for _ in range(2):
        served.client.abort(load)
    assert staged(served.folder) == []
    with pytest.raises(PenstockError, match="there is no load"):
        served.client.commit(load, [Sent("a", 1)], None)
    with pytest.raises(PenstockError, match="there is no load"):
        served.client.add(load, "a", 1, "jobs", frame(b"1"))


def test_a_load_that_took_effect_cannot_be_aborted(served: Served) -> None:
    load = served.begun(frame(b"0"))
    served.client.commit(load, [Sent("a", 1)], None)
    served.client.abort(load)
    assert served.payloads() == [b"0"]
    assert served.client.commit(load, [Sent("a", 1)], None) == (True, 1)


@STORES
def test_what_nobody_touches_for_a_day_is_dropped(tmp_path: Path, kind: str) -> None:
    clock = penstock.SimulatedClock()
    backend = opened(tmp_path, kind, clock)
    forgotten, used = backend.uploads().begin({}), backend.uploads().begin({})
    backend.uploads().add(forgotten, "a", 0, "default", frames.encode_entries(Plain([b"x"])))
    for number in range(4):
        clock.advance(8 * 3600)
        backend.uploads().add(used, "a", number, "default", frames.encode_entries(Plain([b"x"])))
    while (tmp_path / ".penstock" / "staged" / forgotten).exists():
        time.sleep(0.01)
    assert staged(tmp_path) == [used]
    backend.close()
    assert staged(tmp_path) == []


# Those who mean harm, or are broken


@pytest.mark.parametrize(
    "load",
    [
        "x", "..", ".", "%2E%2E", "%2E%2E%2F%2E%2E", "0-0-1.0123456789abcdef", "1-2-3.0123456789abcdef", "%00",
        "a" * 3000,
    ],
)  # fmt: skip
def test_a_load_that_is_not_there_is_not_found(served: Served, load: str) -> None:
    before = sorted(os.walk(served.folder))
    for method, path, body, headers in [
        ("PUT", f"/-/loads/{load}/a/0", frame(b"x"), FRAME),
        ("POST", f"/-/loads/{load}/commit", {"parts": []}, JSON),
        ("POST", f"/-/loads/{load}/commit", {"parts": [], "run": "friday"}, JSON),
    ]:
        status, problem = served.ask(method, path, body, headers)
        assert (status, problem["error"]) == (404, "LoadNotFound")
        assert str(served.folder) not in problem["detail"]
    assert served.ask("DELETE", f"/-/loads/{load}") == (204, None)
    assert sorted(os.walk(served.folder)) == before


@pytest.mark.parametrize("path", ["", "/a", "/a/0/0", "//0", "/a/b/c/d"])
def test_other_paths_are_no_ones(served: Served, path: str) -> None:
    status, problem = served.ask("POST", f"/-/loads/x{path}", {})
    assert (status, problem["error"]) in [(404, "NotFound"), (405, "MethodNotAllowed")]


@pytest.mark.parametrize(
    ("part", "number", "query", "error"),
    [
        ("..", "0", "", "InvalidArgument"),
        ("%2E%2E%2Fx", "0", "", "InvalidArgument"),
        ("A", "0", "", "InvalidArgument"),
        ("", "0", "", "InvalidArgument"),
        ("x" * 65, "0", "", "InvalidArgument"),
        ("%C3%BC", "0", "", "InvalidArgument"),
        ("a", "-1", "", "InvalidArgument"),
        ("a", "x", "", "InvalidArgument"),
        ("a", "0.0", "", "InvalidArgument"),
        ("a", "9" * 20, "", "InvalidArgument"),
        ("a", "0", "?queue=two%20words", "InvalidName"),
        ("a", "0", "?queue=nowhere", "QueueNotFound"),
        ("a", "0", "?part=b", "InvalidArgument"),
    ],
)
def test_names_and_numbers_that_are_none_are_refused(
    served: Served, part: str, number: str, query: str, error: str
) -> None:
    load = served.client.begin({})
    status, problem = served.ask("PUT", f"/-/loads/{load}/{part}/{number}{query}", frame(b"x"), FRAME)
    assert (status in (400, 404), problem["error"]) == (True, error)
    path = served.folder / ".penstock" / "staged" / load
    assert not path.exists() or os.listdir(path) == []
    served.client.abort(load)


@pytest.mark.parametrize(
    ("columns", "sizes", "content"),
    [
        ({}, [2], b"x"),
        ({}, [-1], b"x"),
        ({"key": "k"}, [1], b"x"),
        ({"queue": "jobs"}, [1], b"x"),
        ({"visible_at": "soon"}, [1], b"x"),
        ({"visible_at": [1, 2]}, [1], b"x"),
        ({"visible_at": [True]}, [1], b"x"),
        ({"visible_at": [-1]}, [1], b"x"),
        ({"expires_at": [2**63]}, [1], b"x"),
        ({"visible_at": [1], "delay": 1}, [1], b"x"),
        ({"expires_at": [1], "retention": 1}, [1], b"x"),
        ({"headers": {"": "x"}}, [1], b"x"),
        ({"created_at": -1}, [1], b"x"),
        ({"attempts": 1}, [1], b"x"),
        ({"state": None}, [1], b"x"),
        ({"state": "lost"}, [1], b"x"),
        ({"state": [[]]}, [1], b"x"),
        ({"state": ["done", "failed"]}, [1, 0], b"x"),
        ({"state": ["done"]}, [1, 0], b"x"),
        ({"state": "failed", "attempts": -1}, [1], b"x"),
        ({"state": "failed", "attempts": 2**32 - 1}, [1], b"x"),
        ({"state": "failed", "attempts": None}, [1], b"x"),
        ({"state": "failed", "claimed_at": "then"}, [1], b"x"),
        ({"state": "failed", "received_at": -1}, [1], b"x"),
        ({"state": "failed", "settled_at": 2**63}, [1], b"x"),
        ({"state": "failed", "consumer": "x" * 256}, [1], b"x"),
        ({"state": "failed", "consumer": "\ud800"}, [1], b"x"),
        ({"state": "failed", "reason": 7}, [1], b"x"),
        ({"state": "failed", "history": [7]}, [1], b"x"),
        ({"state": "failed", "history": [[7]]}, [1], b"x"),
        ({"state": "failed", "history": [[[]]]}, [1], b"x"),
        ({"state": "failed", "history": [[ATTEMPT] * 101]}, [1], b"x"),
        ({"state": "failed", "history": [[[*ATTEMPT[:4], "lost", None]]]}, [1], b"x"),
        ({"state": "failed", "history": [[[*ATTEMPT[:3], None, "failed", None]]]}, [1], b"x"),
        ({"priority": 2**63}, [1], b"x"),
    ],
)
def test_frames_that_are_none_are_refused(
    served: Served, columns: dict[str, Any], sizes: list[int], content: bytes
) -> None:
    load = served.client.begin({})
    with pytest.raises((InvalidArgument, InvalidPriority)):
        served.client.add(load, "a", 0, "jobs", frames.encode_columns(columns, sizes, [content]))
    served.client.add(load, "a", 0, "jobs", frame(b"right"))
    served.client.commit(load, [Sent("a", 1)], None)
    assert served.payloads() == [b"right"]


def test_noise_is_refused(served: Served) -> None:
    random, load = Random(7), served.client.begin({})
    good = frame(b"a", b"bb")
    for _ in range(200):
        noise = bytearray(good)
        noise[random.randrange(len(noise) - 3)] = random.randrange(256)
        if bytes(noise) != good:
            status, _ = served.ask("PUT", f"/-/loads/{load}/a/0?queue=jobs", bytes(noise), FRAME)
            assert status in (204, 400)
            if status == 204:  # another frame, that is one
                served.client.abort(load)
                load = served.client.begin({})
    served.client.abort(load)
    assert served.payloads() == []


def test_what_a_queue_would_not_take_is_refused_when_it_is_sent(served: Served) -> None:
    load = served.client.begin({"small": Settings(max_payload=1)})
    for queue, entry, error in [
        ("strict", Entry(b"x" * 11), PayloadTooLarge),
        ("strict", Entry(b"x", priority=6), InvalidPriority),
        ("small", Entry(b"xx"), PayloadTooLarge),
        ("jobs", Entry(b"x" * 16_777_217), PayloadTooLarge),
    ]:
        with pytest.raises(error):
            served.client.add(load, "a", 0, queue, frames.encode_entries([entry]))
    served.client.abort(load)


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    load = served.client.begin({})
    connection = HTTPConnection(served.server.url.removeprefix("http://"))
    connection.putrequest("PUT", f"/-/loads/{load}/a/0")
    connection.putheader("Content-Length", str((64 << 20) + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    served.client.abort(load)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"parts": {}}', b'{"parts": [1]}', b'{"parts": [{}]}', b'{"parts": [{"part": "a"}]}',
        b'{"parts": [{"part": "a", "batches": "1"}]}', b'{"parts": [{"part": "a", "batches": true}]}',
        b'{"parts": [{"part": 1, "batches": 1}]}', b'{"parts": [{"part": "a", "batches": 1, "queue": "x"}]}',
        b'{"parts": [], "run": 1}', b'{"parts": [], "run": ""}', b'{"parts": [], "run": "\\ud800"}',
        b'{"parts": [], "run": "0-0-1.0123456789abcdef"}', b'{"parts": [], "queues": {}}',
        b'{"parts": [], "run": "' + b"x" * 256 + b'"}', b'{"parts": [{"part": "../a", "batches": 0}]}',
    ],
)  # fmt: skip
def test_commits_that_are_none_are_refused(served: Served, body: bytes) -> None:
    load = served.client.begin({})
    status, problem = served.ask("POST", f"/-/loads/{load}/commit", body)
    assert (status, problem["error"]) == (400, "InvalidArgument")
    served.client.abort(load)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"queues": []}', "InvalidArgument"),
        (b'{"queues": {"a": 1}}', "InvalidArgument"),
        (b'{"queues": {"a b": {}}}', "InvalidName"),
        (b'{"queues": {"a": {"filter": "("}}}', "InvalidFilter"),
        (b'{"parts": []}', "InvalidArgument"),
    ],
)
def test_loads_that_cannot_be_begun_are_refused(served: Served, body: bytes, error: str) -> None:
    assert served.ask("POST", "/-/loads", body)[1]["error"] == error


def test_no_more_loads_are_open_than_the_server_can_keep_in_mind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST", 3)
    monkeypatch.setattr(uploads, "MOST_BATCHES", 5)
    loads = [served.client.begin({}) for _ in range(3)]
    status, problem = served.ask("POST", "/-/loads")
    assert (status, problem["error"]) == (503, "Overloaded")
    for number in range(4):  # and one part
        served.client.add(loads[0], "a", number, "jobs", frame(b"x"))
    status, problem = served.ask("PUT", f"/-/loads/{loads[1]}/a/0", frame(b"x"), FRAME)
    assert (status, problem["error"]) == (503, "Overloaded")
    served.client.commit(loads[0], [Sent("a", 4)], None)
    served.client.add(loads[1], "a", 0, "jobs", frame(b"x"))
    for load in [*loads, served.client.begin({})]:
        served.client.abort(load)
    assert engine_of(served.owner).uploads()._size == 0  # type: ignore[union-attr]


def test_where_a_log_begins_is_for_stores_that_have_one(served: Served) -> None:
    status, answer = served.ask(
        "POST", "/-/loads", b'{"queues": {"a": {"filter": "x = 1", "start": "beginning"}}}'
    )
    if isinstance(engine_of(served.owner), JournalBackend):
        assert (status, answer["error"]) == (501, "NotSupported")
    else:
        assert status == 201


def test_a_store_in_memory_takes_no_loads() -> None:
    with (
        penstock.open("memory:") as store,
        serving(store) as server,
        closing(RemoteLoads(server.url)) as client,
    ):
        with pytest.raises(NotSupported, match="takes no loads"):
            client.begin({})
        bodies = {
            ("PUT", "x/a/0"): b'{"messages": []}',
            ("POST", "x/commit"): b'{"parts": []}',
            ("DELETE", "x"): None,
        }
        for (method, path), body in bodies.items():
            assert ask(server.url, f"/-/loads/{path}", method, body, **JSON)[0] == 501


def test_a_store_for_kestrel_2_takes_no_loads(tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path, dialect="2.x") as store,
        serving(store) as server,
        closing(RemoteLoads(server.url)) as client,
        pytest.raises(NotSupported, match='dialect="doc"'),
    ):
        client.begin({})


def test_other_requests_are_answered_while_batches_are_staged(served: Served) -> None:
    load, stop = served.client.begin({}), threading.Event()
    content = frame(*[b"x" * 100] * 50_000)

    def send() -> int:
        number = 0
        while not number or not stop.is_set():
            served.client.add(load, threading.current_thread().name.lower(), number, "jobs", content)
            number += 1
        return number

    with ThreadPoolExecutor(2, "sender") as pool, penstock.open(served.server.url) as store:
        senders = [pool.submit(send) for _ in range(2)]
        for number in range(20):
            store.queue("default").put(b"%d" % number)
            assert store.queue("default").pop().payload == b"%d" % number  # type: ignore[union-attr]
        stop.set()
        assert all(sender.result() for sender in senders)
    served.client.abort(load)


# The server is killed, the disk is full


def send_some(url: str, count: int = 3) -> tuple[str, list[Sent]]:
    client = RemoteLoads(url)
    load = client.begin({"new": Settings()})
    for part in ("a", "b"):
        for number in range(count):
            client.add(
                load, part, number, ("new", "default")[number % 2], frame(b"%d" % number + b"x" * 3_000_000)
            )
    client.close()
    return load, [Sent("a", count), Sent("b", count)]


@STORES
def test_a_kill_before_the_commit_leaves_nothing(tmp_path: Path, kind: str) -> None:
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server:
        load, sent = send_some(server.url)
        assert staged(tmp_path / "store") == [load]
        server.kill()
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server, penstock.open(server.url) as store:
        assert staged(tmp_path / "store") == []
        assert [info.name for info in store.queues()] == ["default"]
        assert store.queue().count() == 0
        client = RemoteLoads(server.url)
        with pytest.raises(PenstockError, match="there is no load"):
            client.commit(load, sent, None)
        client.close()
        assert server.stop() == 0


@STORES
def test_a_kill_after_the_commit_leaves_everything(tmp_path: Path, kind: str) -> None:
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server:
        load, sent = send_some(server.url)
        client = RemoteLoads(server.url)
        assert client.commit(load, sent, None) == (True, 6)
        client.close()
        server.kill()
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server, penstock.open(server.url) as store:
        assert (store.queue("new").count(), store.queue().count()) == (4, 2)
        client = RemoteLoads(server.url)
        assert client.commit(load, sent, None) == (True, 6)
        client.close()
        assert staged(tmp_path / "store") == []
        assert server.stop() == 0


@STORES
@pytest.mark.parametrize("seed", [0, 1, *[pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20)]])
def test_a_kill_during_the_commit_leaves_everything_or_nothing(tmp_path: Path, seed: int, kind: str) -> None:
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server:
        load, sent = send_some(server.url)
        timer = threading.Timer(Random(seed).uniform(0, 0.05), server.kill)
        client = TriesOnce(server.url)
        timer.start()
        answered = False
        with suppress(PenstockError):
            answered = client.commit(load, sent, None).loaded
        timer.join()
        client.close()
    with ServerChild(f"{kind}:{tmp_path / 'store'}") as server, penstock.open(server.url) as store:
        counts = {info.name: info.counts["available"] for info in store.queues()}
        assert counts in ([{"default": 2, "new": 4}] if answered else [{"default": 0}, {"default": 2, "new": 4}])
        if counts["default"]:
            again = RemoteLoads(server.url)
            assert again.commit(load, sent, None) == (True, 6)
            again.close()
        assert staged(tmp_path / "store") == []
        assert server.stop() == 0


class SmallDisk(SimulatedDisk):
    """Has so many bytes left."""

    def leave(self, size: int) -> None:
        self.capacity = 1 << 40
        room = self.room()
        assert room is not None
        self.capacity = (1 << 40) - room + size


def on_a_disk(disk: SimulatedDisk, *parts: tuple[str, list[str]]) -> tuple[JournalBackend, str]:
    """A store, and a load of parts that have a batch for each of some queues."""
    backend = open_journal("/data", disk=disk, segment_size=4096)
    backend.create("other", Settings())
    load = backend.uploads().begin({})
    for part, queues in parts:
        for number, queue in enumerate(queues):
            backend.uploads().add(load, part, number, queue, frames.encode_entries(Plain([b"x" * 5000])))
    return backend, load


def test_a_part_that_the_disk_has_no_room_for_is_refused_and_the_store_goes_on() -> None:
    disk = SmallDisk(Random(1))
    backend, load = on_a_disk(disk, ("good", ["default"]))
    disk.leave(2000)
    with pytest.raises(DiskFull):
        backend.uploads().add(load, "bad", 0, "default", frames.encode_entries(Plain([b"x" * 100_000])))
    disk.capacity = None
    with pytest.raises(InvalidArgument, match="under another name"):
        backend.uploads().add(load, "bad", 0, "default", frames.encode_entries(Plain([b"x"])))
    with pytest.raises(InvalidArgument, match="under another name"):
        backend.uploads().commit(load, [Sent("good", 1), Sent("bad", 0)], None)
    assert backend.uploads().commit(load, [Sent("good", 1)], None).messages == 1
    backend.close()


def test_a_commit_that_the_disk_has_no_room_for_changes_nothing_and_can_be_repeated() -> None:
    disk = SmallDisk(Random(1))
    backend, load = on_a_disk(disk, ("shared", ["default", "other"]))
    sent = [Sent("shared", 2)]
    refused = 0
    for size in range(0, 200_000, 1000):
        disk.leave(size)
        try:
            assert backend.uploads().commit(load, sent, None).messages == 2
            break
        except DiskFull:
            refused += 1
            assert backend.run(Counts("default"))["available"] == backend.run(Counts("other"))["available"] == 0
    assert refused > 10
    assert backend.run(Counts("default"))["available"] == backend.run(Counts("other"))["available"] == 1
    disk.capacity = None
    backend.close()


def test_names_of_queues_are_checked_when_a_load_begins(served: Served) -> None:
    with pytest.raises(InvalidName):
        served.client.begin({"two words": Settings()})


def test_a_closed_store_takes_no_loads(tmp_path: Path) -> None:
    backend = open_journal(tmp_path)
    with Store(str(tmp_path), backend):
        pass
    with pytest.raises(penstock.StoreClosed):
        backend.uploads().begin({})
    assert staged(tmp_path) == []
