"""What a server tells a console: overview, history, reasons, health, activity, changes, and who one is."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import penstock
from penstock.contract import roles
from penstock.contract.backend import Histogram
from penstock.contract.loads import Loads
from penstock.contract.message import STATES
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.http.server import Access, RunningServer, tokens, watch
from penstock.http.server.watch import Consumers, Latency
from penstock.sharing.backend import engine_of
from penstock.wire import frames
from tests.http.serving import ask, serving, until

KINDS = (
    "memory:",
    "journal:",
    "guest of journal:",
    *(pytest.param(kind, marks=pytest.mark.long) for kind in ("text:", "folder:", "slate:")),
)
COUNTING = ("memory:", "journal:", "slate:", "guest of journal:")  # the others know counts alone
EMPTY = dict.fromkeys(STATES, 0)


class Place:
    """A server and its store."""

    def __init__(self, kind: str, store: penstock.Store, server: RunningServer) -> None:
        self.kind, self.store, self.url = kind, store, server.url
        self._server = server

    def watchers(self) -> int:
        return self._server._server._service.watch()._watchers

    def get(self, path: str, status: int = 200) -> Any:
        answered, _, body = ask(self.url, f"/-/api/{path}")
        assert answered == status, body
        return json.loads(body)

    def row(self, queue: str) -> Any:
        return self.until(queue, lambda row: True)

    def until(self, queue: str, condition: Callable[[Any], object]) -> Any:
        """The queue's row, once it is as wanted. The server is asked again after each change."""
        change = 0
        while True:
            overview = self.get(f"overview?search={quote(queue, safe='')}")
            for row in overview["queues"]:
                if row["queue"] == queue and condition(row):
                    return row
            change = self.get(f"changes?since={max(change, overview['change'])}&wait=5")["change"]


def opened(kind: str, folder: Path) -> Iterator[Place]:
    guest = kind.startswith("guest of ")
    url = kind.removeprefix("guest of ")
    url += "" if url == "memory:" else str(folder / "secret-place")
    with penstock.open(url) as owner:
        if not guest:
            with serving(owner) as server:
                yield Place(kind, owner, server)
            return
        with penstock.open(url) as store:
            assert engine_of(store) is None
            with serving(store) as server:
                yield Place(kind, owner, server)


@pytest.fixture(scope="module", params=KINDS)
def any_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from opened(request.param, tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    yield from opened("journal:", tmp_path_factory.mktemp("place"))


# On every kind of store


def test_the_overview_follows_what_happens_in_a_queue(any_place: Place) -> None:
    jobs = any_place.store.create("followed", max_attempts=1)
    row = any_place.until("followed", lambda row: True)
    assert row["counts"] == EMPTY
    assert (row["up"], row["in"], row["out"], row["consumers"]) == (True, 0, 0, 0)
    jobs.put_many([b"a"] * 5)
    row = any_place.until("followed", lambda row: row["counts"]["available"] == 5)
    assert row["in"] > 0
    assert row["oldest"] >= 0
    assert row["depth"][-1] == 5
    done, failed, _ = jobs.claim(3)
    done.ack()
    failed.fail(reason="no disk")
    row = any_place.until("followed", lambda row: row["counts"]["failed"] == 1 and row["counts"]["in_flight"] == 1)
    assert row["counts"] == EMPTY | {"available": 2, "in_flight": 1, "failed": 1}
    assert row["depth"][-1] == 3
    assert row["throughput"][-1] > 0 or any_place.kind not in COUNTING
    reasons = any_place.get("queues/followed/reasons")
    assert (reasons["messages"], reasons["complete"], reasons["others"]) == (1, True, 0)
    [reason] = reasons["reasons"]
    assert (reason["reason"], reason["count"], reason["message"]) == ("no disk", 1, failed.id)
    series = any_place.get("queues/followed/history")["series"]
    assert [series[state][-1] for state in STATES] == [0, 2, 1, 0, 1]
    if any_place.kind in COUNTING:
        assert series["failures"][-1] > 0 or series["failures"][-2] > 0
    problems = any_place.get("overview?limit=0")["problems"]
    assert ("failed", "followed") in [(each["kind"], each["queue"]) for each in problems]
    any_place.store.delete("followed")
    while any_place.get("overview?search=followed")["found"]:
        any_place.get(f"changes?since={any_place.get('overview')['change']}&wait=5")
    assert any_place.get("queues/followed/history", 404)["error"] == "QueueNotFound"


def test_the_total_is_that_of_all_queues(any_place: Place) -> None:
    for name in ("one", "two"):
        any_place.store.create(name).put(name)
        any_place.until(name, lambda row: row["counts"]["available"] == 1)
    overview = any_place.get("overview")
    assert overview["totals"]["queues"] == overview["found"] == len(overview["queues"])
    for state in STATES:
        assert overview["totals"]["counts"][state] == sum(row["counts"][state] for row in overview["queues"])
    history = any_place.get("history?span=day")
    assert history["seconds"] * len(history["series"]["in"]) == 24 * 3600
    assert history["series"]["available"][-1] == overview["totals"]["counts"]["available"]
    assert 0 <= history["end"] - history["now"] <= history["seconds"] * 1000
    for name in ("one", "two"):
        any_place.store.delete(name)


def test_the_server_tells_how_it_is_and_no_secrets(any_place: Place) -> None:
    health = any_place.get("server")
    kind = any_place.kind.rpartition(" ")[2].rstrip(":")
    assert health["store"] == {"kind": kind, "open": True}
    assert (health["disk"] is None) == (kind == "memory")
    assert health["disk"] is None or 0 < health["disk"]["free"] <= health["disk"]["total"]
    assert health["uptime"] >= 0
    assert health["connections"] >= 1
    told = json.dumps([health, any_place.get("activity"), any_place.get("overview")])
    assert "secret-place" not in told


# A page of the overview


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Queues a-0 to a-9 with as many messages, each a second younger than the one before, and another."""
    clock = penstock.SimulatedClock()
    with penstock.open("memory:", clock=clock) as store:
        for number in range(10):
            store.create(f"a-{number}").put_many([b"a"] * number)
            clock.advance(1)
        store.create("other").put_many([penstock.Draft(b"a", delay=3600)] * 50)
        with serving(store) as server:
            yield Place("memory:", store, server)


def test_queues_are_searched_sorted_and_paged(many: Place) -> None:
    def names(query: str) -> list[str]:
        return [row["queue"] for row in many.get(f"overview?{query}")["queues"]]

    assert names("search=a-&limit=3") == ["a-0", "a-1", "a-2"]
    assert names("search=A-&limit=3&skip=8") == ["a-8", "a-9"]
    assert names("sort=available&limit=2") == ["a-9", "a-8"]
    assert names("sort=delayed&limit=2") == ["other", "a-0"]
    assert names("search=nothing") == []
    assert names("limit=0") == []
    assert names("search=-&sort=oldest&limit=1") == ["a-1"]
    assert many.get("overview?search=a-&limit=3")["found"] == 10
    for sort in ("queue", *STATES, "in", "out", "failures", "oldest", "consumers"):
        assert sorted(names(f"sort={sort}")) == sorted(names(""))
    assert len(many.get("overview?points=4")["queues"][0]["depth"]) == 4


@pytest.mark.parametrize(
    "query",
    ["sort=size", "limit=-1", "skip=x", "points=0", "points=121", "other=1", f"search={'a' * 256}", "search=%ff"],
)
def test_what_no_overview_can_be_is_refused(many: Place, query: str) -> None:
    assert many.get(f"overview?{query}", 400)["error"] == "InvalidArgument"


def test_a_hostile_name_is_data(many: Place) -> None:
    name = "<script>alert('1')</script>&\"%2F..\\"
    many.store.create(name).put(b"a")
    assert many.until(name, lambda row: row["counts"]["available"])["queue"] == name
    assert many.get(f"queues/{quote(name, safe='')}/history")["series"]["available"][-1] == 1
    many.store.delete(name)


# Changes


def test_a_change_is_told_to_those_who_wait_for_it(place: Place) -> None:
    queue = place.store.create("changing")
    change = place.until("changing", lambda row: True) and place.get("overview")["change"]
    answers: list[int] = []

    def wait() -> None:
        answers.append(place.get(f"changes?since={change}&wait=60")["change"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.put(b"a")
    waiting.join()
    assert answers[0] > change
    assert place.get(f"changes?since={change}")["change"] >= answers[0]
    assert place.get("changes?since=0&wait=60")["change"] >= answers[0]  # at once: nobody has number 0
    assert place.get(f"changes?since={1 << 52}&wait=60")["change"] < 1 << 52  # of a server before this one


def test_changes_of_other_queues_do_not_count(place: Place) -> None:
    queue, other = place.store.create("watched"), place.store.create("another")
    change = place.until("another", lambda row: True) and place.get("overview")["change"]
    other.put(b"a")
    place.until("another", lambda row: row["counts"]["available"])
    assert place.get(f"changes?since={change}&wait=60")["change"] > change
    began = time.monotonic()
    assert place.get(f"changes?since={change}&wait=0.2&queue=watched")["change"] > change
    assert time.monotonic() - began >= 0.2  # it waited in vain: only the number of all queues is another
    queue.put(b"a")
    place.get(f"changes?since={change}&wait=60&queue=watched")
    assert place.row("watched")["counts"]["available"] == 1
    change = place.get("overview")["change"]
    answers: list[Any] = []
    wait = f"changes?since={change}&wait=60&queue=watched"
    waiting = threading.Thread(target=lambda: answers.append(place.get(wait)))
    waiting.start()
    until(lambda: place.watchers() == 1)
    place.store.delete("watched")
    waiting.join()
    assert answers[0]["change"] > change
    assert place.get("changes?queue=watched", 404)["error"] == "QueueNotFound"


def test_a_restarted_server_has_higher_numbers(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        changes = []
        for _ in range(2):
            with serving(store) as server:
                changes.append(Place("journal:", store, server).get("changes")["change"])
    assert changes[0] < changes[1]


# Reasons


def test_reasons_that_differ_in_numbers_are_one_group(place: Place) -> None:
    queue = place.store.create("failing", max_attempts=1)
    queue.put_many([b"a"] * 6)
    reasons = [
        "timeout after 1.5 s",
        "timeout after 20.25 s",
        "no disk\nline 7",
        "no disk\nline 8",
        None,
        "x",
    ]
    for message, reason in zip(queue.claim(6), reasons, strict=True):
        message.fail(reason=reason)
    found = place.get("queues/failing/reasons")
    assert {(each["reason"], each["count"]) for each in found["reasons"]} == {
        ("timeout after 20.25 s", 2), ("no disk\nline 8", 2), (None, 1), ("x", 1),
    }  # fmt: skip
    assert [each["count"] for each in found["reasons"]] == [2, 2, 1, 1]
    assert all(each["latest"] > 0 for each in found["reasons"])
    assert place.get("queues/failing/reasons?state=done")["messages"] == 0
    assert place.get("queues/failing/reasons?state=other", 400)["error"] == "InvalidArgument"


def test_reasons_of_very_many_messages_are_those_of_the_first_ones(place: Place) -> None:
    queue = place.store.create("all-failing", max_attempts=1)
    queue.put_many([b"a"] * 10_060)
    messages = queue.claim(10_060)
    for number, message in enumerate(messages[:60]):
        message.fail(reason="x" * number)
    queue.fail(*messages[60:], reason="no disk")
    found = place.get("queues/all-failing/reasons")
    assert (found["messages"], found["complete"]) == (10_000, False)
    assert len(found["reasons"]) == 50
    assert (found["reasons"][0]["reason"], found["reasons"][0]["count"]) == ("no disk", 9_940)
    assert found["others"] == 60 - 49
    place.store.delete("all-failing")


# Health and activity


def test_the_latency_of_commits_is_that_of_the_last_minutes() -> None:
    histogram = Histogram((0.001, 0.002, 0.004))
    latency = Latency(histogram)
    latency.note(0)
    assert latency.read() is None
    for _ in range(98):
        histogram.observe(0.0005)
    for _ in range(2):
        histogram.observe(0.003)
    assert latency.read() == {"count": 100, "p50": pytest.approx(0.00051, abs=1e-5), "p99": pytest.approx(0.003)}
    for now in range(30, 331, 30):
        latency.note(now)
    assert latency.read() is None  # those were more than five minutes ago
    histogram.observe(9)
    assert latency.read() == {"count": 1, "p50": 0.004, "p99": 0.004}


def test_commits_are_measured(place: Place) -> None:
    ask(place.url, "/default/messages", "POST", b"a")
    commits = place.get("server")["commits"]
    assert commits["count"] >= 1
    assert 0 < commits["p50"] <= commits["p99"]
    assert place.get("server")["longest_commit"] >= 0


def test_streams_followers_loads_and_consumers_are_seen(place: Place) -> None:
    queue = place.store.create("busy")
    queue.put_many([b"a"] * 10)
    streams, loads = Streams(place.store.run), Loads(place.store.run)
    streams.begin("busy", "nightly", reader_name())
    streams.next("busy", "nightly", reader_name(), 0, 4, 1 << 30)
    after = streams.start("busy", "me", "earliest").after
    streams.ahead("busy", "me", after + 3, 0, 0, 1)
    load = loads.begin({"new": penstock.Settings()})
    loads.add(load, "0", 0, "busy", frames.encode_entries([]))
    ask(place.url, "/busy/messages?consumer=worker-1")
    ask(place.url, "/busy/messages?consumer=worker-1")
    ask(place.url, "/-/api/queues/busy/claim", "POST", b'{"n": 3, "consumer": "worker-2"}',
        Content_Type="application/json")  # fmt: skip
    activity = place.get("activity")
    [stream] = activity["streams"]
    assert (stream["queue"], stream["stream"], stream["batch"], stream["messages"]) == ("busy", "nightly", 1, 4)
    assert stream["age"] >= 0
    assert not stream["gone"]
    [follower] = activity["followers"]
    assert (follower["queue"], follower["follower"], follower["lag"]) == ("busy", "me", 7)
    [under_way] = activity["loads"]
    assert (under_way["load"], under_way["parts"], under_way["queues"]) == (load, 1, ["new"])
    seen = {(each["queue"], each["consumer"]): each["messages"] for each in activity["consumers"]}
    assert seen["busy", "worker-1"] == 2
    assert seen["busy", "worker-2"] == 3
    loads.abort(load)
    streams.leave("busy", "me")


def test_the_consumers_that_are_remembered_are_the_latest() -> None:
    consumers = Consumers()
    for number in range(3 * Consumers.MOST):
        consumers.see("jobs", f"worker-{number}", 1)
    latest = consumers.latest()
    assert len(latest) == Consumers.MOST
    assert latest[0].consumer == f"worker-{3 * Consumers.MOST - 1}"
    consumers.see("jobs", latest[-1].consumer, 2)
    assert (consumers.latest()[0].consumer, consumers.latest()[0].messages) == (latest[-1].consumer, 3)


def test_consumers_that_wait_are_counted(place: Place) -> None:
    place.store.create("waited-for")
    waiting = threading.Thread(target=ask, args=(place.url, "/waited-for/messages?wait=60"))
    waiting.start()
    place.until("waited-for", lambda row: row["consumers"] == 1)
    place.store.queue("waited-for").put(b"a")
    waiting.join()
    place.until("waited-for", lambda row: row["consumers"] == 0)


# Trouble


def test_a_store_that_was_closed_is_a_problem_that_the_overview_tells(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store, serving(store) as server:
        place = Place("journal:", store, server)
        place.get("overview")
        store.close()
        overview = place.get("overview")
        assert [(each["kind"], each["queue"]) for each in overview["problems"]] == [
            ("stopped", None), ("stopped", "default"),
        ]  # fmt: skip
        assert overview["queues"][0]["up"] is False
        assert place.get("server")["store"]["open"] is False


def test_leases_that_run_out_are_a_problem(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock()
    with penstock.open(tmp_path, clock=clock) as store, serving(store) as server:
        place = Place("journal:", store, server)
        queue = store.create("jobs")
        queue.put_many([b"a"] * 3)
        queue.claim(2, lease=5)
        place.until("jobs", lambda row: row["counts"]["in_flight"] == 2)
        clock.advance(10)
        place.until("jobs", lambda row: row["counts"]["in_flight"] == 0)
        [problem] = place.get("overview")["problems"]
        assert (problem["kind"], problem["severity"], problem["queue"]) == ("leases", "warning", "jobs")
        assert problem["what"].startswith("2 leases ran out")


def test_a_queue_that_is_full_is_a_problem_on_every_kind_of_store(any_place: Place) -> None:
    any_place.store.create("full", max_size=2).put_many(["a", "b"])
    any_place.until("full", lambda row: row["counts"]["available"] == 2)
    kinds = {each["kind"] for each in any_place.get("overview")["problems"] if each["queue"] == "full"}
    assert kinds == ({"full"} if any_place.kind != "guest of journal:" else set())  # its owner does not tell
    any_place.store.delete("full")


def test_while_a_value_cannot_be_computed_the_last_one_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a disk hangs: what is known is told all the same."""
    monkeypatch.setattr(watch, "_PATIENCE", 0.001)

    async def play() -> None:
        hangs, calls = asyncio.Event(), 0

        async def compute() -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                await hangs.wait()
            return calls

        value = watch.Spared(compute)
        assert [await value.get(), await value.get(), await value.get()] == [1, 1, 1]
        assert calls == 2  # and no further one is begun meanwhile
        hangs.set()
        while await value.get() == 1:
            pass

    asyncio.run(play())


def test_an_error_of_a_value_is_raised_to_those_who_ask_and_passes() -> None:
    async def play() -> None:
        errors = [ZeroDivisionError("no value"), None]

        async def compute() -> str:
            if (error := errors.pop(0)) is not None:
                raise error
            return "value"

        value = watch.Spared(compute)
        with pytest.raises(ZeroDivisionError):
            await value.get()
        assert await value.get() == "value"

    asyncio.run(play())


# Who one is


def test_without_tokens_everyone_has_all_roles(place: Place) -> None:
    assert place.get("whoami") == {"needs_token": False, "name": None, "roles": list(roles.ROLES)}


def test_with_tokens_the_roles_are_those_of_the_token(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    secret = tokens.create(path, "me", roles.READ | roles.WRITE)

    def who(server: RunningServer, bearer: str) -> Any:
        return json.loads(ask(server.url, "/-/api/whoami", Authorization=f"Bearer {bearer}")[2])

    with penstock.open("memory:") as store, serving(store, access=Access(path)) as server:
        known = who(server, secret)
        assert known == {"needs_token": True, "name": "me", "roles": ["read", "write"]}
        assert who(server, "wrong") == {"needs_token": True, "name": None, "roles": []}
        assert json.loads(ask(server.url, "/-/api/whoami")[2]) == who(server, "wrong")
        tokens.revoke(path, "me")
        until(lambda: who(server, secret)["name"] is None)


def test_a_browser_that_does_not_say_for_which_page_may_wait_for_changes(place: Place) -> None:
    """A page of another machine without TLS: its requests have neither Origin nor Sec-Fetch-Site."""
    assert ask(place.url, "/-/api/changes", User_Agent="Mozilla/5.0")[0] == 200
    assert ask(place.url, "/default/messages", User_Agent="Mozilla/5.0")[0] == 403
    assert ask(place.url, "/-/api/overview", Origin="http://evil.example")[0] == 403
