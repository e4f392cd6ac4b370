"""`penstock top`, and what a rate means, on every kind of store."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import cli
from penstock.cli.top import Row, Watch
from penstock.contract.monitoring import MOST, Changes
from penstock.contract.operations import Figures
from penstock.http.client.backend import RemoteBackend
from tests.cli.conftest import Place
from tests.http.serving import serving
from tests.scripted import QUEUE, answer, problem, scripted

COMMAND = [sys.executable, "-m", "penstock"]


def row(watch: Watch, queue: str) -> Row:
    watch.look()
    [found] = [row for row in watch.rows if row.figures.queue == queue]
    return found


def test_each_queue_comes_with_counts_rates_and_the_longest_wait(place: Place) -> None:
    place.jobs.put_many(["a", "b", "c"])
    place.jobs.put("later", delay=600)
    place.jobs.claim(lease=600)
    [top] = place.lines("top", "--once", "--interval", "0.1")
    [jobs] = [each for each in top["queues"] if each["queue"] == place.jobs.name]
    assert {state: jobs[state] for state in place.jobs.counts()} == place.jobs.counts()
    assert (jobs["up"], jobs["in"], jobs["out"]) == (True, 0, 0)
    assert jobs["oldest"] >= 0


def test_without_a_terminal_one_table_is_printed(place: Place) -> None:
    place.jobs.put_many(["a", "b", "c"])
    shown = place.run("top", "--interval", "0.1").stdout.splitlines()
    [line] = [line.split() for line in shown if line.split()[:1] == [place.jobs.name]]
    assert line[:7] == [place.jobs.name, "3", "0", "0", "0", "0.0", "0.0"]


def test_with_no_interval_there_are_no_rates(place: Place) -> None:
    [top] = place.lines("top", "--once", "--interval", "0")
    assert {(each["in"], each["out"]) for each in top["queues"]} == {(None, None)}


def test_rates_are_what_has_happened_since_the_look_before(place: Place) -> None:
    watch = Watch(place.store, "queue")
    assert (row(watch, place.jobs.name).into, row(watch, place.jobs.name).out) == (None, 0)
    place.jobs.put_many(["a", "b", "c"])
    place.jobs.pop()
    found = row(watch, place.jobs.name)
    assert found.into
    assert found.out is not None
    if found.figures.events:
        assert found.into / found.out == pytest.approx(3)
    else:  # two more than before is all that is known
        assert found.out == 0
    place.jobs.purge()
    assert bool(row(watch, place.jobs.name).out) is not bool(found.figures.events)  # a purge is no consumer


def test_of_a_server_the_rates_of_the_last_minute_are_shown_at_once() -> None:
    with penstock.open("memory:") as store, serving(store) as server, penstock.open(server.url) as asked:
        asked.run(Changes())  # from here on the server knows what has happened
        for number in range(MOST + 1):
            store.create(f"queue-{number}")
        store.queue("queue-7").put_many(["a", "b"])
        store.queue("queue-7").pop()
        watch = Watch(asked, "queue", remembers=True)
        watch.look()
        rates = {each.figures.queue: (each.into, each.out) for each in watch.rows}
        assert len(rates) == MOST + 2
        assert rates["queue-8"] == rates["default"] == (0, 0)
        into, out = rates["queue-7"]
        assert into is not None
        assert out is not None
        assert 0 < into == pytest.approx(2 * out, abs=0.002)
        assert row(watch, "queue-7").into == 0  # since the look before
        shown = CliRunner().invoke(cli, ["--store", server.url, "top", "--once", "--json"])
        [seven] = [each for each in json.loads(shown.stdout)["queues"] if each["queue"] == "queue-7"]
        assert seven["in"] > 0


def test_rates_are_not_known_after_counters_began_anew(tmp_path: Path) -> None:
    backend = penstock.open(tmp_path).backend
    store = penstock.Store("watched", backend)
    watch = Watch(store, "queue")
    store.queue().put_many(["a", "b"])
    watch.look()
    store.close()
    with penstock.open(tmp_path) as store:
        watch._store = store
        assert row(watch, "default").into is None
        assert row(watch, "default").into == 0


def test_queues_are_sorted(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        for name, count in (("a", 1), ("b", 3), ("c", 2)):
            store.create(name).put_many(["x"] * count)
        store.queue("a").claim()
        for sort, names in (("queue", "abc"), ("available", "bca"), ("in_flight", "abc"), ("oldest", "bca")):
            watch = Watch(store, sort)
            watch.look()
            assert "".join(each.figures.queue for each in watch.rows if each.figures.queue != "default") == names


def test_a_queue_that_an_error_has_stopped_is_shown_as_stopped() -> None:
    stopped = Row(Figures("jobs", False, {}, 0, 0, {}, 0, 0, 0))
    assert stopped.cells()[:2] == ["jobs", "stopped"]
    assert stopped.as_json() == {"queue": "jobs", "up": False, "in": None, "out": None}


def test_of_a_server_of_an_earlier_version_counts_are_shown() -> None:
    listed = answer(b'{"queues": [' + QUEUE.partition(b"\r\n\r\n")[2] + b"]}")
    with scripted(QUEUE, problem(404, "NotFound"), listed) as server, penstock.open(server.url) as store:
        watch = Watch(store, "queue")
        watch.look()
    assert [(row.figures.queue, row.figures.counts["available"]) for row in watch.rows] == [("default", 3)]


def test_while_a_server_is_away_the_queues_stay_as_they_were() -> None:
    with penstock.open("memory:") as served:
        served.queue().put("a")
        with serving(served) as server:
            store = penstock.Store(server.url, RemoteBackend(server.url, patience=(1, 0.0)))
            watch = Watch(store, "queue")
            watch.look_again()
            assert watch.problem is None
        watch.look_again()
        assert "cannot be reached" in (watch.problem or "")
        assert [row.figures.counts["available"] for row in watch.rows] == [1]
        store.close()


# In processes of their own


def test_json_is_a_line_for_each_refresh_until_it_is_interrupted(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs")
    command = [*COMMAND, "--store", str(tmp_path), "top", "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        times = [json.loads(process.stdout.readline())["time"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert times == sorted(set(times))
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_at_a_terminal_the_table_is_refreshed_until_q_or_ctrl_c(tmp_path: Path, key: bytes) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put_many(["a", "b"])
        store.create("long" * 60)
    leader, follower = pty.openpty()
    command = [*COMMAND, "--store", str(tmp_path), "top", "--interval", "0.1"]
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24"}

    def controlled() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(follower), os.O_RDWR))  # Ctrl-C reaches it through its own terminal

    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment, preexec_fn=controlled
    )
    os.close(follower)
    shown, pressed = b"", threading.Event()
    with suppress(OSError):  # the terminal is gone with its last user
        while data := os.read(leader, 4096):
            shown += data
            if shown.count(b"q: quit") >= 2 and not pressed.is_set():
                pressed.set()
                os.write(leader, key)
    os.close(leader)
    assert process.wait() == 0
    assert b"Traceback" not in shown
    assert shown.endswith(b"3 queues: 2 available, 0 delayed, 0 in flight, 0 failed\r\n")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).splitlines()
    assert max(map(len, lines)) <= 80
    columns = ["queue", "available", "delayed", "in", "flight", "failed", "in/s", "out/s", "oldest"]
    assert columns in map(str.split, lines)
    assert any(re.match(r" longlong\S*… +0 +0 +0 +0 ", line) for line in lines)


@pytest.mark.parametrize("interval", ["0", "0.01", "-1", "x"])
def test_a_refresh_without_a_pause_is_wrong_usage(place: Place, interval: str) -> None:
    place.run("top", "--json", "--interval", interval, code=2)
