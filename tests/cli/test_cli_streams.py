"""`penstock streams`: what there is, and what to do about it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from tests.engine.test_streams import GONE

MANY = 1 << 40


@pytest.fixture(params=["journal", "slate"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A stream that holds two messages, and whose reader is gone."""
    url = f"{request.param}:{tmp_path / 'data'}"
    with penstock.open(url) as store:
        store.create("jobs").put_many(["a", "b", "c"])
        streams = Streams(store.run)
        streams.begin("jobs", "nightly", GONE)
        streams.next("jobs", "nightly", GONE, 0, 2, MANY)
    return url


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["--store", url, "streams", *arguments])


def test_streams_are_listed_with_batch_messages_age_and_lag(url: str) -> None:
    assert run(url).stdout.split()[:8] == [
        "queue",
        "stream",
        "mode",
        "batch",
        "settled",
        "messages",
        "age",
        "lag",
    ]
    [info] = json.loads(run(url, "--json").stdout)
    assert info["age"] >= 0
    assert {name: info[name] for name in ("queue", "stream", "mode", "batch", "settled", "messages", "lag")} == {
        "queue": "jobs", "stream": "nightly", "mode": "consume", "batch": 1, "settled": 0, "messages": 2, "lag": 1,
    }  # fmt: skip


def test_what_a_stream_holds_can_be_given_back_and_then_the_stream_be_forgotten(url: str) -> None:
    held = run(url, "delete", "nightly")
    assert (held.exit_code, "holds 2 messages" in held.stderr) == (1, True)
    assert json.loads(run(url, "release", "nightly", "--json").stdout)["released"] == 2
    assert run(url, "release", "nightly").stdout == "gave back 0 messages of batch 1\n"
    assert run(url, "delete", "nightly", "--queue", "jobs").exit_code == 0
    missing = run(url, "release", "nightly")
    assert (missing.exit_code, "there is no stream 'nightly'" in missing.stderr) == (1, True)
    with penstock.open(url) as store:
        assert store.queue("jobs").count() == 3


def test_a_checkpoint_says_what_to_settle(url: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    offset = {"batch": 1, "stream": "nightly", "queue": "jobs", "store": url}
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(offset) + "\n-")
    assert json.loads(run(url, "settle", str(checkpoint), "--json").stdout)["settled"] == 0
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    assert run(url, "settle", str(checkpoint)).stdout == "settled 1 batch\n"
    assert run(url, "settle", str(checkpoint)).stdout == "settled 0 batches\n"
    nothing = run(url, "settle", str(tmp_path))
    assert (nothing.exit_code, "is no checkpoint" in nothing.stderr) == (2, True)


def test_two_queues_may_have_streams_of_the_same_name(url: str) -> None:
    with penstock.open(url) as store:
        Streams(store.run).begin("default", "nightly", reader_name())
    both = run(url, "delete", "nightly")
    assert (both.exit_code, "say which with --queue" in both.stderr) == (2, True)
