"""`penstock work QUEUE -- COMMAND`, with real commands and in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Queue
from penstock.http.server import serve_in_thread


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "store") as store:
        store.create("jobs", max_attempts=2, keep_done=None)
    return tmp_path / "store"


def put(folder: Path, *payloads: bytes) -> None:
    with penstock.open(folder) as store:
        store.queue("jobs").put_many(payloads)


def command_line(url: str | Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "--store", str(url), "work", *arguments]


def run(url: str | Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command_line(url, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def script(text: str) -> list[str]:
    return ["--", "sh", "-c", text]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def jobs_in(folder: Path) -> Iterator[Queue]:
    with penstock.open(folder) as store:
        yield store.queue("jobs")


def left(queue: Queue) -> dict[str, int]:
    return {state: count for state, count in queue.counts().items() if count}


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_a_command_gets_the_payload_and_its_exit_code_0_acknowledges(folder: Path, tmp_path: Path) -> None:
    put(folder, b"one", b"\x00two" * 100_000)
    done = run(folder, "jobs", "--until-empty", *script(f"cat > {tmp_path}/$PENSTOCK_ID"))
    with jobs_in(folder) as jobs:
        for message in jobs.messages("done"):
            assert (tmp_path / message.id).read_bytes() == message.payload
        assert left(jobs) == {"done": 2}
    assert done.stdout.startswith("jobs: 2 acknowledged, 0 failed attempts, 0 released, 0 lost in ")


def test_a_command_that_does_not_read_its_payload_does_no_harm(folder: Path) -> None:
    put(folder, b"x" * 1_000_000)
    run(folder, "jobs", "--until-empty", "--", "true")
    with jobs_in(folder) as jobs:
        assert left(jobs) == {"done": 1}


def test_a_command_sees_its_message_in_the_environment(folder: Path) -> None:
    with jobs_in(folder) as jobs:
        put_id = jobs.put(b"x", priority=-3, headers={"Content-Type": "a\0b", "größe": "ü", "path": "/tmp"})
    done = run(folder, "jobs", "--until-empty", *script("env | grep ^PENSTOCK_ | sort"))
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("PENSTOCK_"))
    assert told.pop("PENSTOCK_CREATED_AT").isdigit()
    assert told.pop("PENSTOCK_RECEIPT")
    assert told == {
        "PENSTOCK_ID": put_id,
        "PENSTOCK_QUEUE": "jobs",
        "PENSTOCK_ATTEMPTS": "1",
        "PENSTOCK_PRIORITY": "-3",
        "PENSTOCK_STORE": str(folder),
        "PENSTOCK_HEADER_CONTENT_TYPE": "a\ufffdb",
        "PENSTOCK_HEADER_GR__E": "ü",
        "PENSTOCK_HEADER_PATH": "/tmp",
    }


def test_another_exit_code_fails_with_the_last_line_of_stderr_as_the_reason(folder: Path) -> None:
    put(folder, b"x")
    failing = script("echo starting >&2; echo 'no such cat' >&2; echo >&2; exit 3")
    done = run(folder, "jobs", "--until-empty", "--backoff", "0", *failing)
    with jobs_in(folder) as jobs:
        [message] = jobs.messages("failed")
        assert message.reason == "exit code 3: no such cat"
        assert message.attempts == 2
    assert f"message {message.id}, attempt 2: exit code 3: no such cat\n" in done.stderr
    assert done.stderr.count("starting\n") == 2
    assert "2 failed attempts" in done.stdout


def test_a_command_that_is_killed_fails_with_the_name_of_the_signal(folder: Path) -> None:
    put(folder, b"x")
    run(folder, "jobs", "--until-empty", "--backoff", "0", *script("kill -9 $$"))
    with jobs_in(folder) as jobs:
        assert next(jobs.messages("failed")).reason == "killed by SIGKILL"


def test_exit_code_75_gives_the_message_back_for_later(folder: Path, tmp_path: Path) -> None:
    put(folder, b"x")
    later = script(f"test -e {tmp_path}/ready && exit 0; touch {tmp_path}/ready; exit 75")
    done = run(folder, "jobs", "--until-empty", "--backoff", "0.1", *later)
    assert done.stdout.startswith("jobs: 1 acknowledged, 0 failed attempts, 1 released, 0 lost in ")
    with jobs_in(folder) as jobs:
        [message] = jobs.messages("done")
        assert [attempt.outcome for attempt in jobs.attempts(message.id)] == ["released", "acked"]


def test_a_command_that_takes_too_long_is_ended_and_fails(folder: Path) -> None:
    put(folder, b"x")
    run(folder, "jobs", "--until-empty", "--backoff", "0", "--timeout", "0.2", *script("sleep 1000"))
    with jobs_in(folder) as jobs:
        assert next(jobs.messages("failed")).reason == "no end within 0.2 seconds"


def test_json_has_a_line_for_each_message_and_one_with_the_sum(folder: Path) -> None:
    put(folder, b"good", b"bad")
    done = run(folder, "jobs", "--until-empty", "--backoff", "0", "--json", *script("echo hello; grep -q good"))
    *results, summed = lines(done.stdout)
    assert sorted((each["outcome"], each["attempts"], each["reason"]) for each in results) == [
        ("ack", 1, None),
        ("fail", 1, "exit code 1"),
        ("fail", 2, "exit code 1"),
    ]
    assert summed.pop("seconds") > 0
    assert summed == {"queue": "jobs", "acked": 1, "failed": 2, "released": 0, "lost": 0, "signal": None}
    assert done.stderr.count("hello") == 3


def test_without_options_a_worker_goes_by_the_lease_and_the_backoff_of_the_queue(
    folder: Path, tmp_path: Path
) -> None:
    with jobs_in(folder) as jobs:
        jobs.update(lease=77, backoff=(0.25, 1, 0.25))
        jobs.put(b"a", group="g")
    looking = f"{sys.executable} -m penstock --store $PENSTOCK_STORE peek jobs --state in_flight --json"
    what = f"echo $PENSTOCK_GROUP >&2; {looking} > {tmp_path}/seen; test $PENSTOCK_ATTEMPTS = 2"
    done = run(folder, "jobs", "--until-empty", *script(what))
    assert done.stderr.splitlines().count("g") == 2
    [seen] = json.loads((tmp_path / "seen").read_text())
    assert seen["lease_until"] - seen["claimed_at"] == 77_000
    with jobs_in(folder) as jobs:
        [message] = jobs.messages("done")
        failed, _ = jobs.attempts(message.id)
        assert message.visible_at - (failed.ended_at or 0) == 250


def test_a_command_that_is_not_there_is_wrong_usage(folder: Path) -> None:
    assert "there is no command" in run(folder, "jobs", "--", "no-such-command", code=2).stderr


def test_a_command_that_is_not_given_is_wrong_usage(folder: Path) -> None:
    run(folder, "jobs", code=2)


def test_a_queue_that_is_not_there_is_an_error(folder: Path) -> None:
    assert "there is no queue" in run(folder, "nope", "--", "true", code=1).stderr


def test_help_teaches_with_examples(folder: Path) -> None:
    help_text = run(folder, "--help").stdout
    for word in ("PENSTOCK_ID", "75", "--until-empty", "Examples:", "exit code"):
        assert word in help_text


# Signals


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@contextmanager
def working(url: str | Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command_line(url, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


NOT_NOW = b"not now"  # is held for long, unless the worker is told to stop: when it is back, that was heard
FIRST = 'if test "$(cat)" = "not now"; then exit 75; fi; '


def wait_until_heard(folder: Path) -> None:
    with jobs_in(folder) as jobs:
        until(lambda: NOT_NOW in [message.payload for message in jobs.messages("available")])


def test_sigterm_lets_commands_finish(folder: Path, tmp_path: Path) -> None:
    put(folder, NOT_NOW, b"1", b"2", b"3")
    waiting = f"touch {tmp_path}/started.$PENSTOCK_ID; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    options = ["-c", "3", "--grace", "1000", "--backoff", "1000"]
    with working(folder, "jobs", *options, *script(FIRST + waiting)) as process:
        until(lambda: len(list(tmp_path.glob("started.*"))) == 2)
        process.send_signal(signal.SIGTERM)
        wait_until_heard(folder)
        (tmp_path / "go").touch()
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert out.startswith("jobs: 2 acknowledged, 0 failed attempts, 1 released, 0 lost in ")
    with jobs_in(folder) as jobs:
        assert left(jobs) == {"available": 2, "done": 2}


@pytest.mark.parametrize("how", ["grace", "twice"])
def test_what_does_not_finish_is_ended_with_all_that_it_started_and_released(
    folder: Path, tmp_path: Path, how: str
) -> None:
    put(folder, NOT_NOW, b"1")
    hanging = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"
    options = ["-c", "2", "--grace", "0.1" if how == "grace" else "1000", "--backoff", "1000"]
    with working(folder, "jobs", *options, *script(FIRST + hanging)) as process:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        process.send_signal(signal.SIGTERM)
        if how == "twice":
            wait_until_heard(folder)
            process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert process.returncode == 0
    assert "2 released" in out
    until(lambda: not any(alive(int((tmp_path / name).read_text())) for name in ("pid", "child")))
    with jobs_in(folder) as jobs:
        assert left(jobs) == {"available": 2}


def test_what_a_killed_worker_held_goes_to_another_after_the_lease(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock()
    with penstock.open(tmp_path / "store", clock=clock) as store:
        store.create("jobs", keep_done=None).put(b"1")
        server = serve_in_thread(store)
        started = script(f"echo $$ > {tmp_path}/pid; exec sleep 1000")
        with working(server.url, "jobs", "--lease", "1000", *started) as process:
            until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
            process.kill()
            assert process.wait() == -signal.SIGKILL
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # nobody is left to do that
        clock.advance(999)
        assert left(store.queue("jobs")) == {"in_flight": 1}
        clock.advance(1)
        run(server.url, "jobs", "--until-empty", *script("true"))
        assert left(store.queue("jobs")) == {"done": 1}
        server.stop()
