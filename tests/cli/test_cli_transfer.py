"""`penstock export` and `penstock import`, on every kind of store, with interruptions."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import cli
from penstock.system.clock import SystemClock
from tests.cli.conftest import Place
from tests.harness import everything
from tests.http.serving import serving, until

LOADING = ("journal", "slate")  # all of a file or nothing; `http` here serves a store in memory


def loads(place: Place) -> bool:
    return place.url.partition(":")[0] in LOADING


def write(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def numbered(file: Path, count: int) -> Path:
    return write(file, *({"payload": str(number)} for number in range(count)))


def payloads(queue: penstock.Queue) -> list[int]:
    return sorted(int(message.payload) for message in queue.messages())


# Round trips


def test_what_was_exported_is_imported_with_all_that_belongs_to_it(place: Place, tmp_path: Path) -> None:
    place.jobs.put("text: é\n", priority=3, headers={"kind": "a", "city": "Köln"}, created_at=1_600_000_000_123)
    place.jobs.put(b"\xff\x00", delay=600, retention=7200)
    place.jobs.put("plain", group="g")
    [claimed] = [message for message in place.jobs.claim(2) if message.payload == b"plain"]
    claimed.fail(reason="no disk")
    file = tmp_path / "jobs.jsonl"
    exported = place.json("export", "jobs", str(file))
    assert exported == {"exported": 3, "file": str(file)}
    before = list(place.jobs.messages())
    place.jobs.remove(*(message.id for message in before))
    assert place.json("import", str(file), "jobs") == {"imported": 3, "left_out": 0, "repeated": False}
    after = list(place.jobs.messages())
    for name in ("payload", "headers", "priority", "created_at", "group"):
        assert [getattr(message, name) for message in after] == [getattr(message, name) for message in before]
    assert [message.state for message in after] == ["available", "delayed", "available"]
    for name in ("visible_at", "expires_at"):
        was, now = getattr(before[1], name), getattr(after[1], name)
        assert abs(now - was) < (1 if loads(place) else 60_000)


def test_settled_messages_stay_settled_or_are_left_out(place: Place, tmp_path: Path) -> None:
    place.jobs.put_many(["done", "failed", "waits"])
    for settle in ("ack", "fail", "fail"):
        [message] = place.jobs.claim()
        getattr(message, settle)()
    before = {message.payload: message.state for message in place.jobs.messages()}
    assert before == {b"done": "done", b"failed": "failed", b"waits": "available"}
    place.run("export", "jobs", str(tmp_path / "jobs.jsonl"))
    place.jobs.remove(*(message.id for message in place.jobs.messages()))
    imported = place.json("import", str(tmp_path / "jobs.jsonl"), "jobs")
    after = {message.payload: message.state for message in place.jobs.messages()}
    if loads(place):
        assert (after, imported["left_out"]) == (before, 0)
    else:
        assert (after, imported["left_out"]) == ({b"waits": "available"}, 2)


def test_dead_letters_keep_their_origin(place: Place, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "other") as other:
        everything.fill(other)
    file = tmp_path / "dead.jsonl"
    exporting = CliRunner().invoke(cli, ["--store", str(tmp_path / "other"), "export", "dead", str(file)])
    assert exporting.exit_code == 0
    if place.url.startswith("http"):  # without loads, so that it takes messages of producers alone
        refused = place.run("import", str(file), "jobs", code=1).output
        assert "line 1 is a dead letter of queue 'jobs', and a server of this store takes none" in refused
        assert place.jobs.count() == 0
        return
    place.run("import", str(file), "jobs")
    [letter] = place.jobs.messages()
    assert letter.headers == {"penstock.origin": "jobs", "penstock.reason": "no luck"}
    own = {"payload": "x", "headers": {"penstock.origin": "jobs"}}
    refused = place.run("import", str(write(tmp_path / "own.jsonl", own)), "jobs", code=1).output
    assert "line 1: header 'penstock.origin': names that start with 'penstock.' are Penstock's own" in refused


@pytest.mark.parametrize("kind", LOADING)
def test_all_queues_of_a_store_are_exported_and_imported(kind: str, tmp_path: Path) -> None:
    def run(store: str, *arguments: str) -> None:
        assert CliRunner().invoke(cli, ["--store", store, *arguments]).exit_code == 0

    one, two = f"journal:{tmp_path / 'one'}", f"{kind}:{tmp_path / 'two'}"
    with penstock.open(one) as store:
        everything.fill(store)
    with penstock.open(two) as store:
        store.create("dead", keep_done=None)
        store.create("jobs", **everything.SETTINGS, dead_letter="dead")
    for queue in ("dead", "jobs"):
        run(one, "export", queue, str(tmp_path / queue))
        run(two, "import", str(tmp_path / queue), queue)
    with penstock.open(two) as store:
        everything.check(store, None)


def test_a_queue_goes_through_a_pipe(place: Place, tmp_path: Path) -> None:
    place.jobs.put_many([str(number) for number in range(2_500)])
    exported = place.run("export", "jobs").stdout_bytes
    assert [json.loads(line)["payload"] for line in exported.splitlines()] == [str(each) for each in range(2_500)]
    with penstock.open(tmp_path / "other") as other:
        other.create("jobs")
        Place(str(tmp_path / "other"), other, other.queue("jobs")).run("import", "-", "jobs", stdin=exported)
        assert payloads(other.queue("jobs")) == list(range(2_500))


def test_over_http_a_queue_is_exported_and_imported_as_from_the_folder(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store, serving(store) as server:
        jobs = store.create("jobs", keep_done=None)
        place = Place(server.url, store, jobs)
        jobs.put_many([str(number) for number in range(2_500)])
        jobs.ack(*jobs.claim(700))
        place.run("export", "jobs", str(file := tmp_path / "jobs.jsonl"))
        before = [(message.payload, message.state) for message in jobs.messages()]
        jobs.remove(*(message.id for message in jobs.messages()))
        assert place.json("import", str(file), "jobs")["imported"] == 2_500
        assert sorted((message.payload, message.state) for message in jobs.messages()) == sorted(before)
        assert place.json("import", str(file), "jobs")["repeated"]


def test_export_takes_one_state(place: Place) -> None:
    place.jobs.put_many(["a", "b"])
    place.jobs.claim()
    [line] = place.run("export", "jobs", "--state", "available").stdout.splitlines()
    assert (json.loads(line)["payload"], json.loads(line)["state"]) == ("b", "available")
    none = place.run("export", "jobs", "--state", "failed")
    assert (none.stdout, none.stderr) == ("", "queue 'jobs' has no failed messages\n")


def test_an_export_is_never_written_over_a_file(place: Place, tmp_path: Path) -> None:
    (file := tmp_path / "jobs.jsonl").write_text("mine")
    assert "exists" in place.run("export", "jobs", str(file), code=2).stderr
    assert file.read_text() == "mine"


def test_a_failed_export_leaves_no_file(place: Place, tmp_path: Path) -> None:
    file = str(tmp_path / "none" / "jobs.jsonl")
    assert f"cannot write {file!r}: No such file" in place.run("export", "jobs", file, code=1).stderr
    place.run("export", "none", str(tmp_path / "jobs.jsonl"), code=1)
    assert not list(tmp_path.rglob("*.jsonl*"))


# Lines


def test_a_line_needs_a_payload_and_may_have_what_a_put_has(place: Place, tmp_path: Path) -> None:
    file = write(
        tmp_path / "in.jsonl",
        {"payload": "a", "priority": 2, "headers": {"k": "v"}, "delay": 600},
        {"payload_base64": "/w==", "retention": 3600},
    )
    file.write_text(file.read_text() + "\n")  # an empty line is none
    place.run("import", str(file), "jobs")
    first, second = place.jobs.messages()
    assert (first.payload, first.priority, first.headers, first.state) == (b"a", 2, {"k": "v"}, "delayed")
    assert (second.payload, second.state) == (b"\xff", "available")
    assert 3_500_000 < (second.expires_at or 0) - second.received_at <= 3_600_000


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 3: not a JSON document"),
        ('"text"', "line 3: a JSON object is wanted"),
        ("{}", 'line 3: a message has a "payload"'),
        ('{"payload": "a", "colour": "red"}', "line 3: a message has no 'colour'"),
        ('{"payload": "a", "visible_at": "soon"}', "line 3: "),
        ('{"payload": "a", "visible_at": 1, "delay": 1}', "line 3: visible_at and delay contradict"),
        ('{"payload": "a", "state": "lost"}', "line 3: there is no state 'lost'"),
        ('{"payload": "a", "headers": {"": "x"}}', "line 3: a header without a name"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_put(place: Place, tmp_path: Path, line: str, said: str) -> None:
    (file := tmp_path / "in.jsonl").write_text('{"payload": "a"}\n\n' + line + "\n")
    assert said in place.run("import", str(file), "jobs", code=1).stderr
    assert not any(place.jobs.counts().values())
    file.write_text('{"payload": "a"}\n')
    place.run("import", str(file), "jobs")
    assert len(place.jobs) == 1


def test_a_file_that_is_not_there_is_wrong_usage(place: Place) -> None:
    assert "cannot read" in place.run("import", "none.jsonl", "jobs", code=2).stderr


# Repeating


def test_importing_the_same_lines_again_does_nothing(place: Place, tmp_path: Path) -> None:
    file = numbered(tmp_path / "in.jsonl", 2_500)
    for imported in (2_500, 0):
        again = place.json("import", str(file), "jobs")
        assert again == {"imported": imported, "left_out": 0, "repeated": not imported}
    assert payloads(place.jobs) == list(range(2_500))
    if not loads(place):
        Path(f"{file}.progress").unlink()  # another import, of the same lines
    place.run("import", str(file), "jobs", "--id", "again")
    assert payloads(place.jobs) == sorted([*range(2_500)] * 2)


def test_a_full_queue_takes_all_lines_or_whole_batches_and_the_same_command_goes_on(
    place: Place, tmp_path: Path
) -> None:
    file = numbered(tmp_path / "in.jsonl", 2_500)
    place.jobs.update(max_size=1_500)
    refused = place.run("import", str(file), "jobs", code=1)
    assert payloads(place.jobs) == ([] if loads(place) else list(range(1_000)))
    if not loads(place):
        assert "in lines 1,001 to 2,000; the 1,000 before them were imported" in refused.stderr
    place.jobs.update(max_size=0)
    place.run("import", str(file), "jobs")
    assert payloads(place.jobs) == list(range(2_500))


def test_a_batch_that_may_be_there_is_put_once_within_five_minutes_and_later_asked_about(
    place: Place, tmp_path: Path
) -> None:
    if loads(place):
        pytest.skip("a load has no batches that may be there")
    file = numbered(tmp_path / "in.jsonl", 1_500)
    place.run("import", str(file), "jobs")
    progress = Path(f"{file}.progress")
    done = json.loads(progress.read_text())
    assert (done["done"], done["putting"], done["complete"]) == (1_500, None, True)
    now = SystemClock().now()
    progress.write_text(json.dumps({**done, "done": 1_000, "putting": [1_500, now], "complete": False}))
    place.run("import", str(file), "jobs")
    assert payloads(place.jobs) == list(range(1_500))
    progress.write_text(json.dumps({**done, "done": 1_000, "putting": [1_500, now - 300_000], "complete": False}))
    asked = place.run("import", str(file), "jobs", code=1)
    assert "lines 1,001 to 1,500 may be in the queue" in asked.stderr
    assert "--skip 1500 if it is there, or --skip 1000 if it is not" in asked.stderr
    assert place.json("import", str(file), "jobs", "--skip", "1500")["imported"] == 0
    assert place.json("import", str(file), "jobs")["repeated"]
    assert payloads(place.jobs) == list(range(1_500))


def test_the_progress_of_another_file_is_no_progress(place: Place, tmp_path: Path) -> None:
    if loads(place):
        pytest.skip("a load has no progress")
    file = numbered(tmp_path / "in.jsonl", 3)
    place.run("import", str(file), "jobs")
    numbered(file, 4)
    assert "is the progress of another import" in place.run("import", str(file), "jobs", code=1).stderr
    assert len(place.jobs) == 3


def test_without_loads_stdin_is_refused(place: Place) -> None:
    if loads(place):
        pytest.skip("a load is repeatable from stdin, too")
    assert "give its name" in place.run("import", "-", "jobs", code=2, stdin='{"payload": "a"}\n').stderr
    assert len(place.jobs) == 0


# Interruptions


def command(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "--store", url, *arguments]


@pytest.mark.parametrize("kind", ["text", pytest.param("folder", marks=pytest.mark.long)])
def test_an_import_that_was_killed_between_batches_goes_on(tmp_path: Path, kind: str) -> None:
    file, url = numbered(tmp_path / "in.jsonl", 20_000), f"{kind}:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        jobs = store.create("jobs")
        progress = Path(f"{file}.progress")
        for stop in (1_000, 3_000):
            with subprocess.Popen(command(url, "import", str(file), "jobs")) as process:
                until(lambda: progress.exists() and json.loads(progress.read_text())["done"] >= stop)  # noqa: B023
                process.send_signal(signal.SIGKILL)
        there = len(jobs)
        assert 3_000 <= there < 20_000
        assert there % 1_000 == 0
        subprocess.run(command(url, "import", str(file), "jobs"), check=True)
        assert payloads(jobs) == list(range(20_000))


@pytest.mark.parametrize("kind", ["journal", "slate"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_load_leaves_nothing(tmp_path: Path, kind: str, by: signal.Signals) -> None:
    url = f"{kind}:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        jobs = store.create("jobs")
        process = subprocess.Popen(
            command(url, "import", "-", "jobs"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            assert process.stdin
            for _ in range(200):  # more than pipes hold: some of it has been staged
                process.stdin.write(b'{"payload": "%b"}\n' % (b"x" * 65_536))
            process.stdin.flush()
            process.send_signal(by)
            process.communicate()
        assert process.returncode != 0
        assert len(jobs) == 0
        file = numbered(tmp_path / "in.jsonl", 2_500)
        subprocess.run(command(url, "import", str(file), "jobs"), check=True)
        assert payloads(jobs) == list(range(2_500))
