"""The command line on a store on disk."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.sharing.backend import engine_of
from penstock.stores.journal.format import Continue, RemoveTentativeXid, encode
from tests.cli.test_cli import at_a_terminal
from tests.stores.journal.journals import NOW, item, written

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


class Shell:
    """Runs commands in a folder, as a shell there would, but in this process; each opens the store anew."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        self.folder = folder
        self.store = store

    def run(self, *arguments: str, code: int = 0, stdin: str = "") -> Result:
        with contextlib.chdir(self.folder):
            result = CliRunner().invoke(cli, arguments, input=stdin, env={"PENSTOCK_STORE": self.store})
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def in_process(folder: Path, *arguments: str, code: int = 0, stdin: str = "") -> str:
    """The same in a process of its own, as someone meets it."""
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_STORE"}
    result = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Another process that has the store open; its pid."""
    code = "import sys, penstock; store = penstock.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin
    assert holder.stdout
    with holder, holder.stdin:
        holder.stdout.readline()
        yield holder.pid


def damaged(folder: Path) -> Path:
    """A store whose journal of the queue jobs is damaged in the middle."""
    with penstock.open(folder) as store:
        jobs = store.create("jobs")
        for payload in (b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"):
            jobs.put(payload)
    file = folder / "jobs"
    file.write_bytes(file.read_bytes().replace(b"bbbbbbbb", b"bbbbXbbb"))
    (folder / ".penstock" / "index" / "jobs").unlink()
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file but the lock, which says who tried to open the store."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_message_goes_its_way_through_processes_that_end(tmp_path: Path) -> None:
    run = partial(in_process, tmp_path)
    assert run("create", "jobs", "--max-attempts", "1") == "created jobs\n"
    assert (tmp_path / "penstock-data" / ".penstock").is_dir()
    assert run("put", "jobs", "resize cat.jpg", "-H", "kind=image") == "1\n"
    assert run("put", "jobs", stdin="resize dog.jpg") == "2\n"
    assert json.loads(run("peek", "jobs", "--json"))[0]["payload"] == "resize cat.jpg"
    cat, dog = json.loads(run("claim", "jobs", "-n", "2", "--lease", "600", "--json"))
    assert (cat["headers"], cat["attempts"]) == ({"kind": "image"}, 1)
    for _ in range(2):  # safe to repeat
        assert run("ack", "jobs", cat["receipt"]) == "acknowledged 1 message\n"
    run("fail", "jobs", dog["receipt"], "--reason", "no such file")
    assert json.loads(run("show", "jobs", "--json"))["counts"]["failed"] == 1
    assert "no such file" in run("peek", "jobs", "--state", "failed")
    assert run("redrive", "jobs") == "1 message available again\n"
    assert run("pop", "jobs", "--raw") == "resize dog.jpg"
    run("pop", "jobs", code=3)
    assert "already" in run("create", "jobs", code=1)


def test_the_store_is_the_option_else_the_variable_else_penstock_data(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "journal:from-the-variable")
    shell.run("put", "default", "a")
    shell.run("--store", str(tmp_path / "from the option"), "put", "default", "b")
    Shell(tmp_path).run("put", "default", "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "from the option", "from-the-variable", "penstock-data",
    ]  # fmt: skip
    for folder, payload in (("from-the-variable", b"a"), ("from the option", b"b"), ("penstock-data", b"c")):
        with penstock.open(tmp_path / folder) as store:
            assert [message.payload for message in store.queue().messages()] == [payload]


def test_a_queue_of_any_name_is_reached_by_its_name(shell: Shell) -> None:
    with penstock.open(shell.folder / "penstock-data") as store:
        for name in ("a/b", "Jobs", "jobs"):
            store.create(name).put(f"of {name}")
    shell.run("create", "..")
    assert [info["name"] for info in shell.json("list")] == ["..", "Jobs", "a/b", "default", "jobs"]
    assert shell.run("pop", "a/b", "--raw").stdout == "of a/b"


def test_a_store_that_another_process_has_open_is_listed_and_the_doctor_names_the_process(shell: Shell) -> None:
    with held(shell.folder / "penstock-data") as pid:
        assert "default" in shell.run("list").stdout
        assert f"the store is open in pid {pid}" in shell.run("doctor").stdout
        assert shell.json("doctor")["holder"] == f"pid {pid}"


def test_a_damaged_store_is_a_clear_error_and_the_doctor_explains(shell: Shell) -> None:
    folder = damaged(shell.folder / "penstock-data")
    before = contents(folder)
    result = shell.run("list", code=1)
    assert result.stdout == ""
    assert "is damaged at offset" in result.stderr
    assert "`penstock doctor`" in result.stderr
    report = shell.run("doctor", code=1).stdout
    assert "problem  queue jobs: jobs is damaged at offset" in report
    assert "1 message can be saved from before that place, 1 from after it" in report
    assert "-> put jobs back from a copy" in report
    examined = shell.json("doctor", code=1)
    assert not examined["sound"]
    [problem] = [
        each for queue in examined["queues"] for each in queue["findings"] if each["severity"] == "problem"
    ]
    assert Path(problem["file"]).name == "jobs"
    assert contents(folder) == before


def test_packing_frees_what_is_no_longer_needed(shell: Shell) -> None:
    folder = shell.folder / "penstock-data"
    with penstock.open(folder) as store:
        for name in ("jobs", "other"):
            queue = store.create(name)
            queue.put_many([b"x" * 1_000] * 100)
            queue.ack(*queue.claim(99))
    [result] = shell.json("pack", "jobs")
    assert result["queue"] == "jobs"
    assert result["before"] > 100_000 > 10_000 > result["after"]
    assert result["freed"] == result["before"] - result["after"]
    assert sum(path.stat().st_size for path in folder.glob("jobs*")) == result["after"]
    shown = shell.run("pack").stdout
    assert all(word in shown for word in ("queue", "before", "after", "freed", "default", "jobs", "other"))
    assert sum(path.stat().st_size for path in folder.glob("other*")) < 10_000
    with penstock.open(folder) as store:
        assert [message.payload for message in store.queue("other").messages()] == [b"x" * 1_000]


def test_packing_a_queue_that_is_not_there_packs_nothing(shell: Shell) -> None:
    shell.run("put", "default", "x")
    assert "there is no queue 'missing'" in shell.run("pack", "default", "missing", code=1).stderr
    assert len(list((shell.folder / "penstock-data").glob("default*"))) == 1


def test_a_person_sees_that_queues_are_packed(tmp_path: Path) -> None:
    penstock.open(tmp_path).close()
    command = [*COMMAND, "--store", str(tmp_path)]
    code, shown = at_a_terminal("pack", command=command)
    assert code == 0
    assert "packing queues" in shown
    assert "freed" in shown


@pytest.mark.parametrize(
    ("command", "text"), [("doctor", "has no files to examine"), ("pack", "has nothing to pack")]
)
def test_a_store_in_memory_says_that_it_has_no_files(command: str, text: str) -> None:
    result = CliRunner().invoke(cli, ["--store", "memory:", command])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"store 'memory:' {text}" in result.stderr


def test_packing_never_makes_a_queue_larger(shell: Shell) -> None:
    with penstock.open(shell.folder / "penstock-data") as store:
        jobs = store.create("jobs")
        jobs.put(b"one", priority=5)
        jobs.put_many([b"two", b"three"])
        jobs.claim(lease=60)
    for _ in range(2):
        [result] = shell.json("pack", "jobs")
        assert result["freed"] == 0
        assert result["after"] == result["before"]


def test_packing_never_makes_a_queue_of_any_kind_of_messages_larger(shell: Shell) -> None:
    folder = shell.folder / "penstock-data"
    with penstock.open(folder) as store:
        same = store.create("same")
        same.put_many([b"x"] * 50)
        for _ in range(5):
            same.claim(lease=60)
        keyed = store.create("keyed")
        for number in range(20):
            keyed.put(b"x" * 30, key=str(number), headers={"a": "b"})
        keyed.ack(*keyed.claim(5))
        held = store.create("held", keep_done=100)
        held.put_many([bytes([each]) * each for each in range(40)])
        held.ack(*held.claim(12))
        held.fail(*held.claim(7), reason="no")
        read = store.create("read").name
        for stream in ("one", "two"):
            engine_of(store).streams().begin(read, stream, "me")  # type: ignore[union-attr]
    sizes = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
    for _ in range(3):
        for result in shell.json("pack"):
            assert result["freed"] >= 0
            assert result["after"] <= result["before"]
    after = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
    assert sum(after.values()) <= sum(sizes.values())


def test_packing_writes_a_damaged_journal_anew_even_if_it_is_no_smaller(shell: Shell) -> None:
    folder = shell.folder / "penstock-data"
    with penstock.open(folder) as store:
        jobs = store.create("jobs")
        jobs.put_many([b"aaaaaaaa", b"bbbbbbbb", *[b"x"] * 50])
    data = bytearray((folder / "jobs").read_bytes())
    data[data.index(b"bbbbbbbb")] ^= 1
    (folder / "jobs").write_bytes(data)
    assert "penstock pack jobs" in shell.run("doctor", code=1).stdout
    shell.run("remove", "jobs", "2")
    shell.run("pack", "jobs")
    shell.run("doctor")
    assert len(shell.json("peek", "jobs", "-n", "99")) == 51


def test_the_dialect_of_a_kestrel_2_is_given_in_the_url(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "mails").write_bytes(written(item(b"a"), RemoveTentativeXid(7), Continue(7, NOW, 0, b"went on")))
    shell = Shell(tmp_path, "journal:spool?dialect=2.x")
    [queue] = shell.json("doctor")["queues"]
    assert (queue["name"], queue["counts"]["available"]) == ("mails", 1)
    assert [path.name for path in tmp_path.rglob("*")] == ["spool", "mails"]
    assert shell.run("pop", "mails", "--raw").stdout == "went on"
    shell.run("put", "mails", "ours")
    assert encode(RemoveTentativeXid(2)) in (folder / "mails").read_bytes()
    shell.run("backup", "copy")
    assert shell.json("doctor")["sound"]
    assert Shell(tmp_path, "journal:copy?dialect=2.x").run("pop", "mails", "--raw").stdout == "ours"
    assert {path.name for path in tmp_path.iterdir()} == {"spool", "copy"}
