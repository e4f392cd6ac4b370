"""Monitoring of a server: health, metrics as Prometheus reads them, the log, failures that end the process."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.cli import cli
from penstock.contract.backend import Histogram
from penstock.contract.stream_operations import Begin, Next
from penstock.contract.streams import reader_name
from penstock.http.server import RunningServer
from penstock.sharing.backend import engine_of
from tests.harness.children import ServerChild
from tests.http.serving import ask, serving, until
from tests.stores.slate import loop_disk

Metrics = dict[str, float]
TELLS_TOO_MUCH = re.compile(rb"Traceback|\.py\b|File \"|/(home|tmp|usr)/|0x[0-9a-f]{6}|site-packages")


@pytest.fixture
def clock() -> penstock.SimulatedClock:
    return penstock.SimulatedClock()


@pytest.fixture
def store(tmp_path: Path, clock: penstock.SimulatedClock) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path / "secret-place", clock=clock) as store:
        yield store


@pytest.fixture
def server(store: penstock.Store) -> Iterator[RunningServer]:
    with serving(store) as running:
        yield running


def scrape(url: str) -> Metrics:
    """The samples, each by its name and labels as Prometheus has them."""
    status, headers, body = ask(url, "/-/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Metrics = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for name, labels, value, *_ in family.samples:
            key = name + "".join(f" {label}={text}" for label, text in sorted(labels.items()))
            assert key not in found
            found[key] = value
    return found


# Metrics


def test_metrics_tell_what_is_in_a_queue_and_what_has_happened(
    server: RunningServer, store: penstock.Store, clock: penstock.SimulatedClock
) -> None:
    jobs = store.create("jobs", max_attempts=2)
    with penstock.open(server.url) as remote:
        queue = remote.queue("jobs")
        queue.put_many([b"a"] * 9 + [penstock.Draft(b"later", delay=3600), penstock.Draft(b"short", retention=60)])
        clock.advance(10)
        first, second, third, fourth = queue.claim(4, lease=5)
        first.ack()
        second.fail()
        third.release()
        assert fourth.receipt
        queue.pop()
        queue.remove(queue.put(b"b"))
    seen = scrape(server.url)
    assert seen["penstock_queue_messages queue=jobs state=in_flight"] == 1
    assert seen["penstock_queue_messages queue=jobs state=delayed"] == 1
    assert seen["penstock_queue_messages queue=jobs state=available"] == 7
    assert seen["penstock_queue_oldest_seconds queue=jobs"] == 10
    assert seen["penstock_queue_oldest_seconds queue=default"] == 0
    events = {"put": 12, "claimed": 4, "popped": 1, "acked": 1, "failed": 1, "released": 1, "removed": 1}
    for event, count in events.items():
        assert seen[f"penstock_queue_events_total event={event} queue=jobs"] == count, event
    assert seen["penstock_queue_lease_expiries_total queue=jobs"] == 0
    assert seen["penstock_queue_up queue=jobs"] == seen["penstock_store_up"] == 1
    clock.advance(5)
    assert scrape(server.url)["penstock_queue_lease_expiries_total queue=jobs"] == 1
    jobs.claim(2, lease=5)  # those that failed or ran out once
    clock.advance(60)
    seen = scrape(server.url)
    assert seen["penstock_queue_lease_expiries_total queue=jobs"] == 3
    assert seen["penstock_queue_given_up_total queue=jobs"] == jobs.counts()["failed"] > 0
    assert seen["penstock_queue_expired_total queue=jobs"] == 1


def test_metrics_tell_what_has_moved_to_another_queue(server: RunningServer, store: penstock.Store) -> None:
    store.create("dead")
    store.create("jobs", max_attempts=1, dead_letter="dead")
    with penstock.open(server.url) as remote:
        jobs, dead = remote.queue("jobs"), remote.queue("dead")
        jobs.put_many([b"a", b"b", b"c"])
        jobs.fail(*jobs.claim(2))
        jobs.move("default", next(jobs.messages("available")).id)
        dead.remove(next(dead.messages()).id)
        dead.redrive()
    seen = scrape(server.url)
    counted = {
        (queue, event): seen[f"penstock_queue_events_total event={event} queue={queue}"]
        for queue in ("jobs", "dead", "default")
        for event in ("put", "moved_in", "moved_out", "removed")
    }
    assert {each: count for each, count in counted.items() if count} == {
        ("jobs", "put"): 3, ("jobs", "moved_out"): 3, ("jobs", "moved_in"): 1,
        ("dead", "moved_in"): 2, ("dead", "removed"): 1, ("dead", "moved_out"): 1,
        ("default", "moved_in"): 1,
    }  # fmt: skip
    assert seen["penstock_queue_given_up_total queue=jobs"] == 2


def test_metrics_tell_how_long_commits_take_and_how_much_they_hold(
    server: RunningServer, store: penstock.Store
) -> None:
    before = scrape(server.url)
    for _ in range(20):
        assert ask(server.url, "/default/messages", "POST", b"a")[0] == 201
    seen = scrape(server.url)
    commits = seen["penstock_commit_seconds_count"] - before["penstock_commit_seconds_count"]
    assert 1 <= commits <= 20
    assert seen["penstock_commit_records_count"] == seen["penstock_commit_seconds_count"]
    assert seen["penstock_commit_records_sum"] - before["penstock_commit_records_sum"] == 20
    assert seen["penstock_commit_seconds_sum"] > 0
    assert seen["penstock_commit_seconds_bucket le=+Inf"] == seen["penstock_commit_seconds_count"]
    assert seen["penstock_http_answers_total status=201"] == 20
    assert seen["penstock_http_connections"] == 1
    assert seen["process_resident_memory_bytes"] > 1_000_000


def test_metrics_tell_what_streams_hold_and_how_full_the_disk_is(tmp_path: Path) -> None:
    began = time.time()
    with penstock.open(tmp_path / "store") as store, serving(store) as server:
        store.queue().put_many([b"a", b"b", b"c"])
        for stream in ("clicks", "idle"):
            store.run(Begin("default", stream, reader_name()))
        store.run(Next("default", "clicks", reader_name(), 0, 2))
        seen, ended = scrape(server.url), time.time()
    told = {name.partition("_stream_")[2]: value for name, value in seen.items() if "_stream_" in name}
    assert 0 <= told.pop("held_seconds mode=consume queue=default stream=clicks") <= ended - began
    assert told == {
        "held_messages mode=consume queue=default stream=clicks": 2,
        "lag_messages mode=consume queue=default stream=clicks": 1,
        "held_messages mode=consume queue=default stream=idle": 0,
        "held_seconds mode=consume queue=default stream=idle": 0,
        "lag_messages mode=consume queue=default stream=idle": 1,
    }
    assert seen["penstock_disk_bytes"] == shutil.disk_usage(tmp_path).total
    assert 0 < seen["penstock_disk_free_bytes"] < seen["penstock_disk_bytes"]
    assert seen["penstock_commit_running_seconds"] == 0


@pytest.mark.parametrize("kind", ["memory:", "text:", "folder:"])
def test_stores_without_streams_have_no_metrics_of_any(tmp_path: Path, kind: str) -> None:
    with (
        penstock.open(kind if kind == "memory:" else f"{kind}{tmp_path / 'store'}") as store,
        serving(store) as server,
    ):
        seen = scrape(server.url)
    assert seen["penstock_queue_messages queue=default state=available"] == 0
    assert not any("_stream_" in name for name in seen)
    assert ("penstock_disk_bytes" in seen) == (kind != "memory:")


def test_odd_queue_names_are_told_as_they_are(server: RunningServer, store: penstock.Store) -> None:
    names = ['"', "\\", "\\n", "a{b}", 'x"y\\z', "".join(map(chr, range(33, 127)))]
    for name in names:
        store.create(name)
    seen = scrape(server.url)
    for name in names:
        assert seen[f"penstock_queue_up queue={name}"] == 1


def test_what_was_replayed_does_not_count_as_happening_now(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock()
    with penstock.open(tmp_path / "store", clock=clock) as store:
        store.queue().put_many([b"a"] * 5)
        store.queue().claim(5, lease=1)
        clock.advance(2)
        store.queue().pop()
    with penstock.open(tmp_path / "store", clock=clock) as store, serving(store) as server:
        seen = scrape(server.url)
    assert seen["penstock_queue_messages queue=default state=available"] == 4
    for name in ("lease_expiries_total", "events_total event=put", "events_total event=popped"):
        assert seen[f"penstock_queue_{name} queue=default"] == 0


def test_a_histogram_counts_what_is_not_above_a_bound() -> None:
    histogram = Histogram([1, 2.5])
    for value in (0, 1, 1.5, 2.5, 3):
        histogram.observe(value)
    assert histogram.read() == ([2, 4, 5], 8.0)


# Health


def test_a_server_whose_store_is_gone_is_alive_and_not_ready(server: RunningServer, store: penstock.Store) -> None:
    store.close()
    assert ask(server.url, "/-/healthz")[0] == 200
    assert ask(server.url, "/-/readyz")[0] == 503
    assert scrape(server.url)["penstock_store_up"] == 0
    assert scrape(server.url)["penstock_queue_up queue=default"] == 0


# Housekeeping


def test_what_time_takes_goes_without_anyone_asking(
    server: RunningServer, store: penstock.Store, clock: penstock.SimulatedClock
) -> None:
    store.queue().put_many([penstock.Draft(b"a", retention=10)] * 3)
    backend = engine_of(store)
    assert backend is not None
    ledger = backend.find("default")._ledger
    assert ledger.state.size() == 3
    clock.advance(11)
    until(lambda: ledger.state.size() == 0)  # which asks for nothing that would let time pass


def test_what_expired_is_taken_out_of_the_files_without_anyone_asking(
    server: RunningServer, store: penstock.Store, clock: penstock.SimulatedClock, tmp_path: Path
) -> None:
    store.queue().put_many([penstock.Draft(b"x" * 1_000_000, retention=10)] * 20)

    def size() -> int:
        total = 0
        for path in (tmp_path / "secret-place").glob("default*"):
            with suppress(FileNotFoundError):  # replaced just now
                total += path.stat().st_size
        return total

    assert size() > 20_000_000
    clock.advance(11)
    until(lambda: size() < 1_000_000)


# The log


def lines(server: ServerChild) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.errors.read_text().splitlines()]


def test_every_line_of_the_log_is_json_and_names_its_request(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "store", "--log-level", "info", "--access-log") as server:
        assert ask(server.url, "/jobs", "PUT", X_Request_Id="mine-1")[1]["X-Request-Id"] == "mine-1"
        ask(server.url, "/jobs/messages", "POST", b"\xff\x00")
        assert ask(server.url, "/jobs/messages", "POST", Content_Length=str(1 << 30))[1]["X-Request-Id"]
        refused = ask(server.url, '/no"body?receipt=secret', X_Request_Id="mine 2")[1]["X-Request-Id"]
        assert refused != "mine 2"
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            raw.recv(1000)
        assert server.stop() == 0
    logged = lines(server)
    assert [line["message"].split()[0] for line in logged if line["logger"] == "penstock.server"] == [
        "serving", "stopping", "stopped",
    ]  # fmt: skip
    answered = [line for line in logged if line["logger"] == "penstock.access"]
    assert [(line["method"], line["path"], line["status"]) for line in answered] == [
        ("PUT", "/jobs", 201), ("POST", "/jobs/messages", 201),
        ("POST", "/jobs/messages", 413), ("GET", '/no"body', 400),
    ]  # fmt: skip
    assert answered[0]["request"] == "mine-1"
    assert answered[3]["request"] == refused
    assert len({line["request"] for line in answered}) == 4
    assert all(line["seconds"] >= 0 and line["peer"].startswith("127.0.0.1:") for line in answered)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in logged)
    assert "secret" not in server.errors.read_text()


def test_a_log_for_people_has_a_line_for_each_event(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "store", "--log-format", "text", "--access-log") as server:
        ask(server.url, "/default")
        ask(server.url, "/", "POST", b"{}", X_Amz_Target="AmazonSQS.ListQueues")
        ask(server.url, "/", "POST", b"{}", X_Amz_Target="AmazonSQS.List Queues status=999")
        assert server.stop() == 0
    first, *of_sqs = [line for line in server.errors.read_text().splitlines() if "INFO answered request=" in line]
    assert "action=" not in first
    assert [" path=/ action=ListQueues status=200 " in line for line in of_sqs] == [True, False]
    assert "999" not in of_sqs[1]


# What goes wrong


def damage(folder: Path) -> None:
    """Another byte in the middle of every payload."""
    for path in folder.iterdir():
        if path.is_file() and (content := path.read_bytes()):
            path.write_bytes(content.replace(b"precious-payload", b"precious+payload"))


def test_a_body_that_cannot_be_read_ends_its_connection_and_not_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "secret-place"
    with penstock.open(folder) as store:
        store.create("jobs")
        store.queue("jobs").put(b"precious-payload")
        store.queue().put(b"whole")
    with ServerChild(folder) as server:
        damage(folder)
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"GET /jobs/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while data := raw.recv(65_536):  # until the server ends it
                answer += data
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "StoreCorrupt"
        assert not TELLS_TOO_MUCH.search(answer)
        assert b"secret-place" not in answer
        assert ask(server.url, "/default/messages")[2] == b"whole"
        assert ask(server.url, "/-/readyz")[0] == 200
        assert server.stop() == 0
    [line] = lines(server)
    assert line["error"] == "StoreCorrupt"
    assert "Traceback" in line["trace"]
    assert line["request"].encode() in answer
    assert (line["level"], line["path"]) == ("error", "/jobs/messages")


def test_a_bug_in_the_parsing_of_a_request_ends_its_connection_and_not_the_server(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = server._server._service
    port = urlsplit(server.url).port
    with monkeypatch.context() as patch, socket.create_connection(("127.0.0.1", port)) as raw:
        patch.setattr(service.backend, "max_payload", lambda queue: 1 / 0)
        raw.sendall(b"POST /default/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na")
        answer = raw.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert not TELLS_TOO_MUCH.search(answer)
    assert ask(server.url, "/default/messages", "POST", b"a")[0] == 201
    assert not service.failed.done()
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_that_cannot_be_given_ends_its_connection_and_not_the_server(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = server._server._service
    port = urlsplit(server.url).port
    with monkeypatch.context() as patch, socket.create_connection(("127.0.0.1", port)) as raw:
        patch.setattr(service, "answers", None)
        raw.sendall(b"GET /default HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionError):
            assert raw.recv(65_536) == b""
    assert ask(server.url, "/default")[0] == 200
    assert not service.failed.done()
    assert "a request could not be answered" in caplog.text


def test_an_error_outside_of_any_request_is_logged_and_ends_the_server(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    service = server._server._service
    server._loop.call_soon_threadsafe(lambda: 1 / 0)
    until(service.failed.done)
    assert "ZeroDivisionError" in caplog.text


def test_a_store_that_fails_ends_the_process_with_an_error(tmp_path: Path) -> None:
    """A journal that cannot be written any more: its folder is gone, and with it where the next file would go."""
    folder = tmp_path / "store"
    with ServerChild(folder) as server:
        ask(server.url, "/jobs", "PUT")
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        status, _, body = ask(server.url, "/other", "PUT")
        assert status >= 500
        assert not TELLS_TOO_MUCH.search(body)
        server.process.communicate()
        assert server.process.returncode == 1
    assert lines(server)[0]["level"] == "error"


DYING_THREAD = """
import threading, time
from penstock.cli import main

def die():
    while threading.excepthook is threading.__excepthook__:  # the server is not there yet
        time.sleep(0.01)
    raise ArithmeticError("no more")

threading.Thread(target=die, name="background").start()
main()
"""


def test_a_thread_that_dies_ends_the_process_with_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DYING_THREAD, "--store", str(tmp_path / "store"), "serve", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    [line] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert line["level"] == "error"
    assert line["message"] == "thread background failed"
    assert "ArithmeticError: no more" in line["trace"]
    with penstock.open(tmp_path / "store") as store:  # which it has let go of
        assert [info.name for info in store.queues()] == ["default"]


# Settings


def test_settings_come_from_flags_then_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[serve]\nmax_connections = 1\nlog_level = "info"\nlog_format = "text"\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(config))
    monkeypatch.setenv("PENSTOCK_SERVE_LOG_FORMAT", "json")
    with ServerChild(tmp_path / "store") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as first:
            first.sendall(b"GET /-/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(1000).startswith(b"HTTP/1.1 200")
            assert ask(server.url, "/-/healthz")[0] == 503
        server.stop()
    assert lines(server)[0]["message"].startswith("serving")
    with ServerChild(tmp_path / "store", "--log-format", "text", "--max-connections", "2") as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            until(lambda: ask(server.url, "/-/healthz")[0] == 200)
        server.stop()
    assert "INFO serving" in server.errors.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[serve]\nnonsense = 1\n", "there is no setting 'nonsense'"),
        ("nonsense = 1\n", "nonsense"),
        ("[serve\n", "is no TOML"),
        ('[serve]\nport = "many"\n', "many"),
        ("serve = 1\n", "a table"),
        ("# a comment\n\nnonsense = 1\n[serve]\n", "line 3: 'nonsense' is out of place"),
        ("[serve]\n\nallow_host = [\n  'a',\n]\nnonsense = 1\n", "line 6: there is no setting 'nonsense'"),
        ("[serve]\nport = 0\nidle = '5 minutes'\n", "line 3: idle: '5 minutes' is not a duration"),
        ("[serve]\nidle = 0.5\nport = 0\n", "line 2: idle: 0.5 is out of range: give at least 1 s"),
        ('[serve]\ntokens = "a"\nport =\n  70000\n', "is no TOML"),
        ('[serve]\ntokens = "a"\nport = 70000\n', "line 3: port: 70000 is not in the range"),
        ('[serve]\ntls_cert = ["a"]\n', "line 2: tls_cert: ['a'] is no value"),
        ("[serve]\nport = true\n", "line 2: port: True is no value"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, content: str, message: str) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(content)
    refused = CliRunner().invoke(cli, ["--store", str(tmp_path / "a"), "serve", "--config", str(config)])
    assert refused.exit_code == 2
    assert message in refused.stderr


def test_the_file_can_name_the_store(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('store = "nosuch:x"\n')
    refused = CliRunner().invoke(cli, ["serve", "--config", str(config)], env={"PENSTOCK_STORE": ""})
    assert "nosuch:x" in refused.stderr


@pytest.mark.skipif(bool(loop_disk.missing()), reason=loop_disk.missing())
@pytest.mark.parametrize("kind", ["text:", "folder:"])
def test_a_store_whose_disk_has_become_read_only_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    disk = loop_disk.LoopDisk(tmp_path)
    try:
        with penstock.open(f"{kind}{disk.mounted / 'data'}") as store:
            store.queue().put(b"a")
            with serving(store) as server:
                assert ask(server.url, "/-/readyz")[0] == 200
                subprocess.run(["mount", "-o", "remount,abort", str(disk.mounted)], check=True)  # as an error does
                for _ in range(2):
                    assert ask(server.url, "/default/messages", "POST")[0] == 503
                    assert ask(server.url, "/-/readyz")[0] == 503
                assert "the file system is read-only" in caplog.text
    finally:
        disk.close()


@pytest.mark.parametrize("kind", ["text:", "folder:"])
def test_a_store_that_cannot_work_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The system refuses its folder: what was asked is refused, and so is more work."""
    data = tmp_path / "data"
    with penstock.open(f"{kind}{data}") as store:
        store.queue().put(b"a")
        with serving(store) as server:
            assert ask(server.url, "/-/readyz")[0] == 200
            data.rename(tmp_path / "away")
            data.write_text("no folder")
            status, _, body = ask(server.url, "/jobs", "PUT")
            assert status == 503
            assert "log says which" in json.loads(body)["detail"]
            assert "a request was refused" in caplog.text
            assert "this is a file, where a folder belongs" in caplog.text
            assert ask(server.url, "/-/readyz")[0] == 503
            assert ask(server.url, "/-/healthz")[0] == 200
