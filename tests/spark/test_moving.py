"""The jobs that move messages in bulk: load and convert."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock import Draft, Message, SimulatedClock
from penstock.errors import InvalidArgument, NotSupported, PenstockError
from penstock.spark import jobs
from tests.harness import everything
from tests.spark.stores import EACH_KIND, KINDS, opened

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
    with penstock.open(store) as found:
        return list(found.queue(queue).messages())


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
        group="region",
    )
    found = messages(store, "eu")
    assert [json.loads(each.payload) for each in found] == [row["body"] for row in ROWS]
    assert [each.priority for each in found] == [2, 0, -1]
    assert [each.group for each in found] == ["eu", "us", "eu"]
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
        queue = made.create("jobs", max_attempts=2, keep_done=None, priorities=(0, 5), description="some")
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


def shown(store: penstock.Store, queue: str) -> list[Any]:
    found = store.queue(queue)
    return [
        (
            each.payload, each.headers, each.priority, each.created_at, each.received_at, each.visible_at,
            each.expires_at, each.attempts, each.state, each.claimed_at, each.consumer, each.settled_at,
            each.reason, found.attempts(each.id),
        )
        for each in found.messages()
    ]  # fmt: skip


def as_arrived(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is in flight arrives as available."""
    if row[8] != "in_flight":
        return row
    ended = [each for each in row[13] if each.outcome is not None]
    return (*row[:8], "available", None, None, None, row[12], ended)


@pytest.mark.parametrize(
    "kind",
    ["slate", "text", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("folder", "server", "bucket"))],
)
def test_groups_dead_letters_and_settings_go_from_store_to_store_and_back(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    source, back = str(tmp_path / "a"), str(tmp_path / "back")
    with opened(kind, request, tmp_path / "b") as place:
        dead_letters = everything.takes_dead_letters(place.store)
        with penstock.open(source) as made:
            everything.fill(made)
        if not dead_letters:
            with pytest.raises(NotSupported, match="cannot hold this, and nothing was written: queue 'jobs': "):
                jobs.convert(spark, source, place.url)
            assert [info.name for info in place.store.queues()] == ["default"]
            with penstock.open(source) as made:
                made.queue("dead").redrive()
                made.queue("jobs").update(dead_letter=None)
                for _ in range(2):
                    made.queue("jobs").claim()[0].fail(delay=0)
        jobs.convert(spark, source, place.url)
        jobs.convert(spark, place.url, back)
        everything.check(place.store, None, dead_letters)
    with penstock.open(back) as found:
        everything.check(found, None, dead_letters)


def test_chains_of_dead_letters_are_refused_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(tmp_path / "a"), str(tmp_path / "b")
    with penstock.open(source) as store:
        store.create("dead")
        store.create("jobs", dead_letter="dead")
    with penstock.open(target) as store:
        store.create("jobs")
        store.create("mails", dead_letter="jobs")
        store.delete("jobs")
    with pytest.raises(NotSupported, match="queue 'jobs' takes the dead letters of 'mails'"):
        jobs.convert(spark, source, target)
    with penstock.open(source) as store:
        store.delete("dead")
    with pytest.raises(NotSupported, match="queue 'jobs': its dead_letter 'dead' is not there"):
        jobs.convert(spark, source, str(tmp_path / "c"))
    with penstock.open(target) as store:
        assert [info.name for info in store.queues()] == ["default", "mails"]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("kind", EACH_KIND)
def test_everything_but_ids_goes_from_store_to_store_and_back(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    source, back = varied(tmp_path / "a"), str(tmp_path / "back")
    with opened(kind, request, tmp_path / "b") as place:
        dry = jobs.convert(spark, source, place.url, dry_run=True)
        assert place.total() == 0
        summary = jobs.convert(spark, source, place.url)
        assert summary.rows == dry.rows
        assert summary.as_json()["rows"][2] == {
            "queue": "jobs", "made": "yes", "delayed": 1, "available": 5, "in_flight": 1, "done": 2, "failed": 2,
            "messages": 11,
        }  # fmt: skip
        assert summary.notes == ["messages in flight arrive as available"]
        with penstock.open(source) as one:
            for queue in ("jobs", "default", "empty"):
                before = sorted((as_arrived(row) for row in shown(one, queue)), key=str)
                assert sorted(shown(place.store, queue), key=str) == before
            assert [(info.name, info.settings) for info in one.queues()] == [
                (info.name, info.settings) for info in place.store.queues()
            ]
            expected = sorted(shown(place.store, "jobs"), key=str)
            jobs.convert(spark, place.url, back)
            held = [message.payload for message in one.queue("jobs").messages("in_flight")]
            claimed = place.store.queue("jobs").claim(20)
            assert [message.payload for message in claimed if message.payload not in held] == [
                message.payload for message in one.queue("jobs").claim(20)
            ]
        assert place.staged() == []
    with penstock.open(back) as other:
        assert sorted(shown(other, "jobs"), key=str) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "journal",
        "text",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in KINDS
            if kind not in ("journal", "text", "bucket")
        ),
    ],
)
def test_a_store_is_converted_and_a_file_is_loaded_once(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    source, lines = str(tmp_path / "a"), tmp_path / "lines.txt"
    lines.write_text("one\ntwo\nthree\n")
    with penstock.open(source) as store:
        store.create("mail", keep_done=None).put_many([b"a", b"b"])
    with opened(kind, request, tmp_path / "b") as place:
        first, again = (jobs.convert(spark, source, place.url) for _ in range(2))
        assert (first.repeated, again.repeated) == (False, True)
        with penstock.open(source) as store:
            store.queue("mail").pop()  # as many messages as before
        with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say, attem"):
            jobs.convert(spark, source, place.url)
        with penstock.open(source) as store:
            store.queue("mail").put(b"c")
        with pytest.raises(PenstockError, match=r"has changed since \(queue 'mail': 2 messages then, 3 now\)"):
            jobs.convert(spark, source, place.url)
        assert place.store.queue("mail").counts()["available"] == 2
        jobs.convert(spark, source, place.url, id="again")
        counts = place.store.queue("mail").counts()
        assert (counts["available"], counts["done"]) == (4, 1)
        first, again = (jobs.load(spark, str(lines), place.url, "default") for _ in range(2))
        assert (first.repeated, again.repeated) == (False, True)
        assert list(map(list, first.rows)) == list(map(list, again.rows)) == [["default", 3, 11]]
        assert place.store.queue().count() == 3


def test_what_the_target_cannot_hold_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    source = varied(tmp_path / "a")
    with penstock.open(tmp_path / "b") as made:
        made.create("jobs", max_attempts=3)
    with pytest.raises(NotSupported, match=r"queue 'jobs' is there with other settings \(max_attempts=2, there 3"):
        jobs.convert(spark, source, str(tmp_path / "b"))
    with penstock.open(tmp_path / "b") as found:
        assert [info.name for info in found.queues()] == ["default", "jobs"]
        assert found.queue().count() == 0
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


@pytest.mark.parametrize("kind", ["text", pytest.param("folder", marks=pytest.mark.long)])
def test_a_conversion_notices_reasons_and_what_a_person_has_edited(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    source, target = f"text:{tmp_path / 'source'}", f"{kind}:{tmp_path / 'store'}"
    with penstock.open(source) as store:
        queue = store.create("mail")
        queue.put_many([b"a", b"b"])
        [held] = queue.claim()
    jobs.convert(spark, source, target)
    assert jobs.convert(spark, source, target).repeated
    with penstock.open(source) as store:
        store.queue("mail").fail(held, reason="no luck")  # its attempt was counted when it was claimed
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say"):
        jobs.convert(spark, source, target)
    jobs.convert(spark, source, f"{target}2")
    path = tmp_path / "source" / "mail.tq"
    path.write_text(path.read_text().replace("-b\n", "-B\n"))
    with pytest.raises(PenstockError, match=r"has changed since \(as many messages, but what they say"):
        jobs.convert(spark, source, f"{target}2")


@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_run_is_the_same_however_the_stores_are_written(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "journal") as store:
        store.queue().put_many([b"a", b"b"])
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    target = f"{kind}:{tmp_path / 'store'}"
    jobs.convert(spark, f"journal:{tmp_path / 'journal'}", target)
    assert jobs.convert(spark, str(tmp_path / "journal"), f"{kind.upper()}:{tmp_path}/./store").repeated
    jobs.load(spark, str(lines), target, "default")
    assert jobs.load(spark, str(lines), f"{kind}:{os.path.relpath(tmp_path / 'store')}", "default").repeated
    (tmp_path / "link").symlink_to("store")
    with pytest.raises(InvalidArgument, match="are the same store"):
        jobs.convert(spark, target, f"{kind}:{tmp_path / 'link'}")
    with penstock.open(target) as store:
        assert store.queue().counts()["available"] == 4


def test_a_file_takes_one_queue_and_others_are_named_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = str(tmp_path / "journal")
    with penstock.open(source) as store:
        queue = store.queue()
        queue.put_many([b"a", b"b"])
        queue.claim()[0].fail(reason="no luck")
        before = shown(store, "default")
    for _ in range(2):
        jobs.convert(spark, source, str(tmp_path / "copy.tq"))
    with penstock.open(tmp_path / "copy.tq") as store:
        assert shown(store, "default") == before
    with penstock.open(source) as store:
        store.create("jobs")
    with pytest.raises(NotSupported, match="a file is the queue 'jobs' alone, and these are default, jobs"):
        jobs.convert(spark, source, str(tmp_path / "jobs.tq"))
    assert not (tmp_path / "jobs.tq").exists()
    with penstock.open(source) as store:
        store.queue().purge()
        store.queue("jobs").put(b"c")
    jobs.convert(spark, source, str(tmp_path / "jobs.tq"))
    with penstock.open(tmp_path / "jobs.tq") as store:
        assert [message.payload for message in store.queue("jobs").messages()] == [b"c"]
