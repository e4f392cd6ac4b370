"""`penstock tail`, on every kind of store."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import tail
from penstock.http.server import serve_in_thread
from tests.cli.conftest import Place

FOLLOWED = ("journal", "slate")


def payloads(reader: tail.Reader) -> list[str]:
    return [message.payload.decode() for message in reader.new()]


def test_the_last_messages_are_printed_in_the_order_of_their_puts(place: Place) -> None:
    place.jobs.put_many([str(number) for number in range(25)])
    assert [each["payload"] for each in place.lines("tail", "jobs", "--no-follow", "-n", "3")] == [
        "22",
        "23",
        "24",
    ]
    assert len(place.lines("tail", "jobs", "--no-follow")) == 10
    assert len(place.lines("tail", "jobs", "--no-follow", "-n", "100")) == 25


def test_a_line_has_id_age_priority_headers_and_payload(place: Place) -> None:
    put = place.jobs.put("resize\ncat.jpg " * 50, headers={"kind": "image", "long": "x" * 100}, priority=3)
    [line] = place.run("tail", "jobs", "--no-follow").stdout.splitlines()
    assert line.split()[0] == put
    assert re.search(r" (now|\d+ s ago)  p3  kind=image, long=xxxx", line)
    assert "x...  resize\\ncat.jpg resize" in line
    assert line.endswith("...")


def test_a_line_of_json_is_the_whole_message(place: Place) -> None:
    place.jobs.put(b"\xff", headers={"kind": "a"})
    assert place.lines("tail", "jobs", "--no-follow") == place.json("peek", "jobs")


def test_an_empty_queue_is_exit_code_3(place: Place) -> None:
    empty = place.run("tail", "jobs", "--no-follow", code=3)
    assert (empty.stdout, empty.stderr) == ("", "queue 'jobs' has no messages\n")


def test_what_enters_is_read_once_and_in_order(place: Place) -> None:
    place.jobs.put("before")
    reader = tail._reader(place.store, place.jobs.name)
    assert payloads(reader) == []
    place.jobs.put_many([str(number) for number in range(1_500)])
    assert payloads(reader) == [str(number) for number in range(1_500)]
    place.jobs.claim(3)[0].fail()
    assert payloads(reader) == []
    place.jobs.put("after")
    assert payloads(reader) == ["after"]
    reader.close()


def test_what_was_there_is_the_end_of_what_came_before(place: Place) -> None:
    for there in ([], ["a", "b", "c"]):
        place.jobs.put_many(there)
        reader = tail._reader(place.store, place.jobs.name)
        place.jobs.put("new")
        shown = tail._latest(place.store, place.jobs.name, 2, reader.last)
        assert [message.payload.decode() for message in shown] == there[-2:]
        assert payloads(reader) == ["new"]
        reader.close()
        place.jobs.purge()


def test_what_is_removed_at_once_is_read_where_the_store_keeps_it_for_followers(place: Place) -> None:
    reader = tail._reader(place.store, place.jobs.name)
    place.jobs.remove(place.jobs.put("gone"))
    place.jobs.put("here")
    assert payloads(reader) == (["gone", "here"] if place.url.partition(":")[0] in FOLLOWED else ["here"])
    reader.close()


def test_messages_that_come_and_go_are_read_once_where_the_last_one_is_gone(place: Place) -> None:
    reader = tail._reader(place.store, place.jobs.name)
    read = []
    for number in range(20):
        place.jobs.put_many([f"a{number}", f"b{number}"])
        read += payloads(reader)
        place.jobs.remove(*[message.id for message in place.jobs.messages()][number % 2 :])
    assert read == [f"{letter}{number}" for number in range(20) for letter in "ab"]
    reader.close()


def test_a_lister_forgets_ids_that_are_gone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_MANY", 4)
    reader = tail.Lister(place.store, place.jobs.name)
    for number in range(10):
        place.jobs.put(str(number))
        assert payloads(reader) == [str(number)]
        place.jobs.remove(*[message.id for message in place.jobs.messages()])
    assert len(reader._seen) <= 4


# In a process of its own


@contextmanager
def tailing(url: str | Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "penstock", "--store", str(url), "tail", "jobs", "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def line(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def test_it_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        jobs = store.create("jobs")
        jobs.put_many(["one", "two"])
        with tailing(tmp_path / "store", "-n", "1") as process:
            assert line(process)["payload"] == "two"
            jobs.put("three")
            assert line(process)["payload"] == "three"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_a_restart_of_the_server_is_said_and_nothing_is_missed(tmp_path: Path, port: int) -> None:
    with penstock.open(tmp_path / "store") as store:
        jobs = store.create("jobs")
        jobs.put("one")
        server = serve_in_thread(store, port=port)
        with tailing(server.url) as process:
            assert process.stderr
            assert line(process)["payload"] == "one"
            server.stop()
            jobs.put("two")
            assert "Waiting until it is back" in process.stderr.readline()
            server = serve_in_thread(store, port=port)
            assert line(process)["payload"] == "two"
            assert process.stderr.readline() == "penstock: the server is back\n"
        server.stop()


def test_a_queue_that_is_not_there_is_an_error(place: Place) -> None:
    assert "there is no queue 'none'" in place.run("tail", "none", code=1).stderr


def test_a_look_without_a_pause_is_wrong_usage(place: Place) -> None:
    place.run("tail", "jobs", "--interval", "0", code=2)
