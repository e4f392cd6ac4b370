"""The jobs that move messages in bulk: load and convert."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock import Draft, Message, SimulatedClock
from penstock.errors import InvalidArgument, NotSupported, PenstockError
from penstock.http.server import serve_in_thread
from penstock.spark import jobs

START = int(time.time() * 1000) - 60_000
ROWS: list[dict[str, Any]] = [
    {"kind": "order", "region": "eu", "urgency": 2, "body": {"n": 1}},
    {"kind": None, "region": "us", "urgency": None, "body": {"n": 2}},
    {"kind": "refund", "region": "eu", "urgency": -1, "body": {"n": 3}},
]


@pytest.fixture
def store(tmp_path: Path) -> str:
    with penstock.open(tmp_path / "store") as made:
        made.create("eu")
        made.create("us")
    return str(tmp_path / "store")


@pytest.fixture
def events(tmp_path: Path) -> str:
    path = tmp_path / "events.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def messages(store: str, queue: str) -> list[Message]:
    with penstock.open(store) as opened:
        return list(opened.queue(queue).messages())


def test_rows_of_json_lines_become_messages_with_priority_and_headers(
    spark: SparkSession, store: str, events: str
) -> None:
    summary = jobs.load(
        spark,
        events,
        store,
        "eu",
        payload_column="body",
        priority="urgency",
        headers={"type": "kind", "at": "region"},
    )
    found = messages(store, "eu")
    assert [json.loads(each.payload) for each in found] == [row["body"] for row in ROWS]
    assert [each.priority for each in found] == [2, 0, -1]
    assert [each.headers for each in found] == [
        {"type": "order", "at": "eu"},
        {"at": "us"},
        {"type": "refund", "at": "eu"},
    ]
    assert summary.as_json()["rows"] == [{"queue": "eu", "messages": 3, "bytes": 3 * len('{"n":1}')}]


def test_a_row_can_become_json_and_choose_its_queue(spark: SparkSession, store: str, events: str) -> None:
    dry = jobs.load(spark, events, store, payload_json=True, queue_column="region", priority=7, dry_run=True)
    assert messages(store, "eu") == []
    summary = jobs.load(spark, events, store, payload_json=True, queue_column="region", priority=7)
    assert summary.rows == dry.rows
    assert summary.id == dry.id
    assert [json.loads(each.payload)["body"] for each in messages(store, "eu")] == [{"n": 1}, {"n": 3}]
    (only,) = messages(store, "us")
    assert only.priority == 7


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("lines.txt", lambda path: path.write_text("first\nsecond\n")),
        ("rows.csv", lambda path: path.write_text("payload,other\nfirst,1\nsecond,2\n")),
        ("rows.tsv", lambda path: path.write_text("other\tpayload\n1\tfirst\n2\tsecond\n")),
    ],
)
def test_the_ending_says_what_is_in_a_file(
    spark: SparkSession, store: str, tmp_path: Path, name: str, write: Callable[[Path], object]
) -> None:
    write(tmp_path / name)
    jobs.load(spark, str(tmp_path / name), store, "eu")
    assert [each.payload for each in messages(store, "eu")] == [b"first", b"second"]


def test_parquet_keeps_bytes_as_they_are(spark: SparkSession, store: str, tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    spark.sql("SELECT unhex('00FF0A') AS payload").write.parquet(path)
    jobs.load(spark, path, store, "eu")
    assert [each.payload for each in messages(store, "eu")] == [b"\x00\xff\n"]


def test_the_same_load_takes_effect_once_and_a_changed_file_is_another(
    spark: SparkSession, store: str, events: str
) -> None:
    first = jobs.load(spark, events, store, "eu", payload_json=True)
    again = jobs.load(spark, events, store, "eu", payload_json=True)
    assert (first.repeated, again.repeated) == (False, True)
    assert (again.id, again.rows) == (first.id, first.rows)
    with open(events, "a") as file:
        file.write(json.dumps(ROWS[0]) + "\n")
    assert not jobs.load(spark, events, store, "eu", payload_json=True).repeated
    assert not jobs.load(spark, events, store, "us", payload_json=True, id="by-hand").repeated
    assert jobs.load(spark, events, store, "us", payload_json=True, priority=1, id="by-hand").repeated
    assert (len(messages(store, "eu")), len(messages(store, "us"))) == (7, 4)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"queue": "eu"}, "which of the columns body, kind, region, urgency is the payload"),
        (
            {"queue": "eu", "payload_column": "bdy"},
            "there is no column 'bdy'; there are body, kind, region, urgency",
        ),
        ({"queue": "eu", "payload_json": True, "payload_column": "body"}, "a column, or the row as JSON"),
        ({"queue": "lost", "payload_json": True}, "there is no queue 'lost'"),
        ({"payload_json": True}, "into which queue"),
        (
            {"queue_column": "kind", "payload_json": True},
            "name no queue|no queue is named|there is no queue 'order'",
        ),
        ({"queue": "eu", "payload_column": "kind"}, "have no payload|row 2 of partition 0: its payload is NULL"),
        ({"queue": "eu", "payload_json": True, "id": "a b"}, "id 'a b': give 1 to 100 letters"),
    ],
)
def test_a_load_that_cannot_be_says_why(
    spark: SparkSession, store: str, events: str, arguments: dict[str, Any], text: str, dry_run: bool
) -> None:
    with pytest.raises((PenstockError, PySparkException), match=text):
        jobs.load(spark, events, store, dry_run=dry_run, **arguments)
    assert messages(store, "eu") == messages(store, "us") == []


def test_what_is_in_a_file_must_be_said_if_its_name_does_not(spark: SparkSession, store: str) -> None:
    with pytest.raises(InvalidArgument, match="what is in 'events'\\? Say so with --format: parquet, json, csv"):
        jobs.load(spark, "events", store, "eu")


# convert


def varied(path: Path) -> str:
    """A store with messages in every state."""
    clock = SimulatedClock(START)
    with penstock.open(path, clock=clock) as made:
        queue = made.create("jobs", max_attempts=2, keep_done=None, priorities=(-5, 5), description="some")
        queue.put_many(
            [Draft(b"%d" % number, priority=number % 3, headers={"n": str(number)}) for number in range(9)]
        )
        queue.put(b"later", delay=1_000_000_000, created_at=5)
        queue.put(b"soon gone", retention=1_000_000_000)
        for _ in range(2):
            clock.advance(1)
            for message in queue.claim(2, consumer="loser"):
                clock.advance(1)
                message.fail(reason="no luck")
        for message in queue.claim(2, consumer="winner"):
            clock.advance(2)
            message.ack()
        queue.claim(1, consumer="release")[0].release()
        queue.claim(1, lease=40_000, consumer="holder")
        made.queue().put(b"plain")
        made.create("empty")
    return str(path)


def shown(store: str, queue: str) -> list[Any]:
    with penstock.open(store) as opened:
        found = opened.queue(queue)
        return [
            (
                each.payload, each.headers, each.priority, each.created_at, each.received_at, each.visible_at,
                each.expires_at, each.attempts, each.state, each.claimed_at, each.consumer, each.settled_at,
                each.reason, found.attempts(each.id),
            )
            for each in found.messages()
        ]  # fmt: skip


def test_everything_but_ids_goes_from_store_to_store(spark: SparkSession, tmp_path: Path) -> None:
    source, target = varied(tmp_path / "a"), str(tmp_path / "b")
    dry = jobs.convert(spark, source, target, dry_run=True)
    assert not (tmp_path / "b").exists()
    summary = jobs.convert(spark, source, target)
    assert summary.rows == dry.rows
    assert summary.as_json()["rows"][2] == {
        "queue": "jobs", "made": "yes", "delayed": 1, "available": 5, "in_flight": 1, "done": 2, "failed": 2,
        "messages": 11,
    }  # fmt: skip
    assert summary.notes == ["messages in flight arrive as available"]

    def as_arrived(row: tuple[Any, ...]) -> tuple[Any, ...]:
        if row[8] != "in_flight":
            return row
        ended = [each for each in row[13] if each.outcome is not None]
        return (*row[:8], "available", None, None, None, row[12], ended)

    for queue in ("jobs", "default", "empty"):
        before = sorted((as_arrived(row) for row in shown(source, queue)), key=str)
        assert sorted(shown(target, queue), key=str) == before
    with penstock.open(source) as one, penstock.open(target) as other:
        assert {info.name: info.settings for info in one.queues()} == {
            info.name: info.settings for info in other.queues()
        }
        held = [message.payload for message in one.queue("jobs").messages("in_flight")]
        claimed = [message.payload for message in other.queue("jobs").claim(20) if message.payload not in held]
        assert claimed == [message.payload for message in one.queue("jobs").claim(20)]


def test_a_store_is_converted_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = varied(tmp_path / "a"), str(tmp_path / "b")
    first, again = (jobs.convert(spark, source, target) for _ in range(2))
    assert (first.repeated, again.repeated) == (False, True)
    with penstock.open(source) as store:
        [message] = store.queue().claim()
        message.release()
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say, attempts"):
        jobs.convert(spark, source, target)
    with penstock.open(source) as store:
        store.queue().put(b"later")
    with pytest.raises(PenstockError, match=r"has changed since \(queue 'default': \d+ messages then, \d+ now"):
        jobs.convert(spark, source, target)
    assert len(messages(target, "default")) == 1


def test_what_the_target_cannot_hold_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    source = varied(tmp_path / "a")
    with penstock.open(tmp_path / "b") as made:
        made.create("jobs", max_attempts=3)
    with pytest.raises(NotSupported, match=r"queue 'jobs' is there with other settings \(max_attempts=2, there 3"):
        jobs.convert(spark, source, str(tmp_path / "b"))
    with penstock.open(tmp_path / "b") as opened:
        assert [info.name for info in opened.queues()] == ["default", "jobs"]
        assert opened.queue().count() == 0
    with pytest.raises(InvalidArgument, match="are the same store"):
        jobs.convert(spark, source, f"journal:{source}")
    with pytest.raises(NotSupported, match="Spark works with stores on disk"):
        jobs.convert(spark, source, "memory:")


def test_a_queue_that_is_alike_keeps_what_it_holds(spark: SparkSession, tmp_path: Path) -> None:
    source = varied(tmp_path / "a")
    with penstock.open(tmp_path / "b") as made:
        made.queue().put(b"here before")
    jobs.convert(spark, source, str(tmp_path / "b"))
    assert [each.payload for each in messages(str(tmp_path / "b"), "default")] == [b"here before", b"plain"]


# Stores of a server


@contextmanager
def served(store: str) -> Iterator[str]:
    with penstock.open(store) as opened:
        server = serve_in_thread(opened)
        yield server.url
        server.stop()


def test_a_load_goes_through_a_server_once(spark: SparkSession, store: str, events: str) -> None:
    with served(store) as url:
        first, again = (
            jobs.load(spark, events, url, queue_column="region", payload_json=True, priority="urgency")
            for _ in range(2)
        )
    assert (first.repeated, again.repeated) == (False, True)
    assert first.rows == again.rows
    assert [row[:2] for row in first.rows] == [["eu", 2], ["us", 1]]
    assert [message.priority for message in messages(store, "eu")] == [2, -1]


def test_a_store_that_a_server_has_is_converted_into_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    source, target = varied(tmp_path / "a"), str(tmp_path / "b")
    before = shown(source, "jobs")
    with served(source) as url:
        jobs.convert(spark, url, target)
    assert sorted(row[0] for row in shown(target, "jobs")) == sorted(row[0] for row in before)
    assert [row[13] for row in shown(target, "jobs") if row[8] == "failed"] == [
        row[13] for row in before if row[8] == "failed"
    ]
