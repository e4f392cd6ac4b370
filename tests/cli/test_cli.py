"""The command line, run in process on a store in memory that all commands of a test share.

What commands print, and their exit codes, is in tests/golden/sessions; here is what those do not show.
"""

import base64
import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli

URL = "memory:command-line"


class Run(Protocol):
    def __call__(self, *arguments: str, code: int = 0, stdin: bytes | str = b"") -> Result: ...


@pytest.fixture
def store() -> Iterator[penstock.Store]:
    with penstock.open(URL) as store:
        yield store


@pytest.fixture
def run(store: penstock.Store) -> Run:
    def run(*arguments: str, code: int = 0, stdin: bytes | str = b"") -> Result:
        result = CliRunner().invoke(cli, ["--store", URL, *arguments], input=stdin)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def jobs(store: penstock.Store) -> penstock.Queue:
    return store.create("jobs", max_attempts=2)


def printed(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.mark.parametrize("arguments", [("--version", "--json"), ("--json", "--version")])
def test_the_version_comes_with_those_of_the_formats_as_json_too(run: Run, arguments: tuple[str, ...]) -> None:
    assert printed(run(*arguments)) == {
        "version": penstock.__version__,
        "formats": {"journal": 1, "slate": 1, "text": 1, "folder": 1},
    }


def test_json_of_no_command_is_wrong_usage(run: Run) -> None:
    assert "--json comes after the command" in run("--json", "list", code=2).output


def test_the_version_loads_nothing_heavy() -> None:
    script = """if True:
        import sys
        from click.testing import CliRunner
        from penstock.cli import cli
        CliRunner().invoke(cli, ["--version"], catch_exceptions=False)
        print({"numpy", "obstore", "pyarrow", "pyspark", "slatedb", "uvloop"} & sys.modules.keys())
    """
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"


def test_bytes_go_in_and_come_out_as_they_are(run: Run, jobs: penstock.Queue, tmp_path: Path) -> None:
    (file := tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\x00\r\n")
    run("put", "jobs", f"@{file}")
    for arguments in (["-"], []):
        run("put", "jobs", *arguments, stdin=b"\xff piped\n")
    assert [message.payload for message in jobs.peek(3)] == [file.read_bytes(), *[b"\xff piped\n"] * 2]
    assert run("peek", "jobs", "-n", "2", "--raw").stdout_bytes == file.read_bytes() + b"\xff piped\n"
    assert run("pop", "jobs", "--raw").stdout_bytes == file.read_bytes()


def test_put_lines_reads_a_file_too(run: Run, jobs: penstock.Queue, tmp_path: Path) -> None:
    (file := tmp_path / "lines.txt").write_bytes(b"one\n\ntwo \nthree")
    assert printed(run("put", "jobs", "--lines", f"@{file}", "--json", "-p", "1")) == {"count": 4}
    assert [message.payload for message in jobs.claim(8)] == [b"one", b"", b"two ", b"three"]


def test_put_without_a_queue_means_the_default_one(run: Run, store: penstock.Store) -> None:
    run("put", stdin=b"a")
    run("put", "", "b")
    assert [message.payload for message in store.queue().claim(2)] == [b"a", b"b"]


def test_put_lines_takes_many(run: Run, jobs: penstock.Queue) -> None:
    run("put", "jobs", "--lines", stdin="".join(f"{number}\n" for number in range(2_500)))
    assert len(jobs) == 2_500


def test_messages_show_their_group_and_come_one_at_a_time(run: Run, jobs: penstock.Queue) -> None:
    run("put", "jobs", "1", "--group", "customer-4")
    run("put", "jobs", "--lines", "--group", "customer-4", stdin=b"2\n3")
    run("put", "jobs", "other")
    assert [message["group"] for message in printed(run("peek", "jobs", "-n", "9", "--json"))] == [
        "customer-4",
        None,
    ]
    assert "customer-4" in run("peek", "jobs").stdout
    claimed = printed(run("claim", "jobs", "-n", "9", "--json"))
    assert [(each["payload"], each["group"]) for each in claimed] == [("1", "customer-4"), ("other", None)]
    empty = run("claim", "jobs", code=3).stderr
    assert "no message to claim; 2 wait for others of their group; 2 are in flight" in empty
    run("ack", "jobs", claimed[0]["receipt"])
    table = run("claim", "jobs", "-n", "9").stdout
    assert "customer-4" in table
    assert [message.payload for message in jobs.messages("available")] == [b"3"]


def test_a_queue_goes_by_the_settings_that_it_was_created_with(run: Run, store: penstock.Store) -> None:
    store.create("dead")
    run(
        "create", "slow", "--lease", "90", "--delay", "1.5", "--backoff", "1", "2", "300", "--dead-letter", "dead",
        "--label", "team=web", "--label", "tier=1", "--max-attempts", "2",
    )  # fmt: skip
    settings = store.queue("slow").settings
    assert (settings.lease, settings.delay, settings.backoff, settings.dead_letter, settings.labels) == (
        90, 1.5, (1, 2, 300), "dead", {"team": "web", "tier": "1"},
    )  # fmt: skip
    shown = run("show", "slow").stdout
    for text in ("90 s", "1.5 s", "1 s, times 2, 300 s at most", "dead", "team=web, tier=1"):
        assert text in shown
    run("put", "slow", "now", "--delay", "0")
    run("put", "slow", "later")
    [claimed] = printed(run("claim", "slow", "-n", "9", "--json"))
    assert (claimed["payload"], claimed["lease_until"] - claimed["claimed_at"]) == ("now", 90_000)
    run("fail", "slow", claimed["receipt"])
    assert store.queue("slow").counts()["delayed"] == 2


def test_settings_are_taken_away_by_options_of_their_own(run: Run, store: penstock.Store) -> None:
    store.create("dead")
    store.create("jobs", lease=90, backoff=(1, 2, 300), dead_letter="dead", labels={"a": "b"})
    run("set", "jobs", "--no-backoff", "--no-dead-letter", "--label", "c=d")
    settings = store.queue("jobs").settings
    assert (settings.backoff, settings.dead_letter, settings.labels) == (None, None, {"c": "d"})
    run("set", "jobs", "--no-labels")
    assert store.queue("jobs").settings.labels is None
    assert store.queue("jobs").settings.lease == 90
    both = run("set", "jobs", "--no-backoff", "--backoff", "1", "2", "3", code=2)
    assert "another backoff or none" in both.output


def test_create_leaves_a_queue_that_exists_as_it_is_if_told_so(run: Run, store: penstock.Store) -> None:
    assert "created jobs" in run("create", "jobs", "--exist-ok", "--lease", "60").stdout
    assert "found jobs" in run("create", "jobs", "--exist-ok").stdout
    run("create", "jobs", "--exist-ok", "--lease", "60")
    assert "lease" in run("create", "jobs", "--exist-ok", "--lease", "61", code=1).output
    run("create", "jobs", code=1)
    assert store.queue("jobs").settings.lease == 60


def test_a_message_of_a_worker_that_died_is_taken_back_by_its_id(run: Run, store: penstock.Store) -> None:
    jobs = store.create("jobs")
    jobs.put_many([b"a", b"b"])
    held, other = jobs.claim(2, lease=43_200)
    assert run("revoke", "jobs", held.id).stdout == "1 message available again\n"
    assert printed(run("revoke", "jobs", held.id, other.id, "--json")) == {"revoked": 1}
    assert printed(run("revoke", "jobs", held.id, "--json", code=3)) == {"revoked": 0}
    assert jobs.counts()["available"] == 2


def test_failed_messages_move_to_another_queue_and_dead_letters_back(run: Run, store: penstock.Store) -> None:
    store.create("dead")
    jobs = store.create("jobs", max_attempts=1, dead_letter="dead")
    other = store.create("other")
    jobs.put_many([b"a", b"b"])
    jobs.claim()[0].fail()
    assert printed(run("redrive", "dead", "--json")) == {"redriven": 1}
    [first, _] = jobs.messages()
    assert "moved 1 message to other" in run("move", "jobs", "other", first.id).stdout
    assert [message.payload for message in other.messages()] == [first.payload]
    assert printed(run("move", "jobs", "other", "--json", code=3)) == {"moved": 0}
    assert "queue 'jobs' has no failed messages" in run("move", "jobs", "other", code=3).stderr
    assert "nobody" in run("move", "jobs", "nobody", code=1).output


def test_claim_shows_a_table_with_the_receipt(run: Run, jobs: penstock.Queue) -> None:
    jobs.put_many([penstock.Draft("resize [bold]cat[/bold]\n.jpg", headers={"kind": "image"}), b"\xff"])
    result = run("claim", "jobs", "-n", "5", "--lease", "60", "--consumer", "shell")
    [_, second] = jobs.messages("in_flight")
    [first_receipt, _] = re.findall(r"\d\.[0-9a-f]{16}", result.stdout)
    jobs.ack(first_receipt)
    assert "resize [bold]cat[/bold]\\n.jpg" in result.stdout
    assert "kind=image" in result.stdout
    assert "(1 byte, not text)" in result.stdout
    assert second.consumer == "shell"
    assert second.lease_until == (second.claimed_at or 0) + 60_000


def test_a_payload_that_is_not_text_is_base64_in_json(run: Run, jobs: penstock.Queue) -> None:
    jobs.put(b"\xff\x00")
    [claimed] = printed(run("claim", "jobs", "--json"))
    assert claimed["payload"] is None
    assert base64.b64decode(claimed["payload_base64"]) == b"\xff\x00"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["put", "a b", "x"], 1, "has ' ' at position 1"),
        (["put", "default", "x", "-p", "9223372036854775808"], 1, "priority 9223372036854775808"),
        (["put", "default", "x", "--lines"], 2, "--lines reads a file"),
        (["put", "default", "--lines", "--key", "k"], 2, "leave one of them out"),
        (["create", "default"], 1, "show default` shows its settings"),
        (["create", "x", "--filter", "upper(a) = 'b'"], 1, "^"),
        (["create", "x", "--keep-done", "long"], 2, "'long' is not a duration: give seconds"),
        (["peek", "--state", "ready"], 2, "'ready' is not one of 'delayed'"),
        (["peek", "-n", "99999999999999999999", "--state", "failed"], 2, "is not in the range"),
        (["pop", "--raw", "--json"], 2, "leave one of them out"),
    ],
)
def test_a_mistake_gets_one_clear_answer(run: Run, arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert message in result.stderr


def test_a_kind_of_store_that_there_is_not_is_named() -> None:
    result = CliRunner().invoke(cli, ["--store", "nosuch:data", "list"])
    assert result.exit_code == 1
    assert "there is no kind of store 'nosuch'" in result.stderr


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_every_command_teaches_and_has_json(run: Run, command: str) -> None:
    text = run(command, "--help").stdout
    assert "--json" in text
    assert cli.commands[command].help
    assert "Example" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(run: Run, shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in run("completion", shell).stdout


def test_the_shell_completes_commands_and_queue_names(jobs: penstock.Queue) -> None:
    def completed(words: str, number: int) -> str:
        environment = {
            "_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number),
            "PENSTOCK_STORE": URL,
        }  # fmt: skip
        return CliRunner().invoke(cli, prog_name="penstock", env=environment).stdout

    assert (
        completed("penstock re", 1)
        == "plain,release\nplain,revoke\nplain,redrive\nplain,remove\nplain,reaper\nplain,report\n"
    )
    assert completed("penstock claim jo", 2) == "plain,jobs\n"


@pytest.mark.parametrize("name", ["[/b]", "[bold]", ":smile:", "{x}", "--help", "%s", "x" * 255])
def test_an_odd_queue_name_is_shown_as_it_is(run: Run, store: penstock.Store, name: str) -> None:
    store.create(name)
    for command in (["list"], ["show", "--", name]):
        assert name in run(*command).stdout.replace("\n", "")


def test_nothing_in_a_message_reaches_the_terminal_as_a_command(run: Run, store: penstock.Store) -> None:
    queue = store.create("q", max_attempts=1, description="\x1b[2J")
    queue.put("\x1b[31mred\n", headers={"k\x07": "\x1b]0;title\x07"})
    queue.claim()[0].fail(reason="\x1b[2Jgone\r\nforged line")
    shown = run("peek", "q", "--state", "failed").stdout + run("show", "q").stdout + run("list").stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\x1b[2Jgone\\r\\nforged line" in shown


def test_lines_that_do_not_fit_say_how_many_did(run: Run, store: penstock.Store) -> None:
    queue = store.create("q", max_size=1_500)
    result = run("put", "q", "--lines", stdin="line\n" * 2_000, code=1)
    assert "1,000 lines before that were put, none after" in result.stderr
    assert len(queue) == 1_000


def test_a_long_payload_is_cut_in_the_table(run: Run, jobs: penstock.Queue) -> None:
    jobs.put("x" * 1_000)
    assert "x" * 57 + "..." in run("peek", "jobs").stdout
    assert "x" * 58 not in run("peek", "jobs").stdout


@pytest.mark.parametrize("command", ["pop", "peek"])
def test_raw_of_an_empty_queue_is_exit_code_three(run: Run, command: str) -> None:
    assert run(command, "--raw", code=3).stdout_bytes == b""


ON_DISK = [sys.executable, "-c", "from penstock.cli import main; main()"]
COMMAND = [*ON_DISK, "--store", "memory:"]


def at_a_terminal(
    *arguments: str, typed: bytes = b"", command: list[str] = COMMAND, columns: str = "100"
) -> tuple[int, str]:
    """A command with a terminal for stdin, stdout and stderr: its exit code and what it shows."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": columns}
    process = subprocess.Popen(
        [*command, *arguments], stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    os.write(leader, typed)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with its last user
        while data := os.read(leader, 4096):
            shown += data
    os.close(leader)
    return process.wait(), shown.decode()


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_person_is_asked_before_a_queue_is_emptied(answer: bytes, code: int) -> None:
    exit_code, shown = at_a_terminal("purge", typed=answer)
    assert "Remove 0 messages from queue default? [y/N]" in shown
    assert exit_code == code
    assert ("removed 0 messages" in shown) == (code == 0)


@pytest.mark.parametrize("command", ["purge", "delete"])
@pytest.mark.parametrize("stdin", ["< /dev/null", "<&-"])
def test_without_a_terminal_what_destroys_needs_yes(command: str, stdin: str, tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put_many([b"a", b"b"])
    line = f"{shlex.join(ON_DISK)} --store {tmp_path} {command} jobs"
    refused = subprocess.run(f"{line} {stdin}", shell=True, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "2 messages" in refused.stderr
    assert "say --yes" in " ".join(refused.stderr.split())
    with penstock.open(tmp_path) as store:
        assert len(store.queue("jobs")) == 2
    subprocess.run(f"{line} --yes {stdin}", shell=True, capture_output=True, check=True)
    with penstock.open(tmp_path) as store:
        assert [info.counts["available"] for info in store.queues() if info.name == "jobs"] in ([0], [])


def test_a_person_who_asks_not_to_be_asked_is_not_asked() -> None:
    assert at_a_terminal("purge", "--yes") == (0, "removed 0 messages from default\r\n")


def test_a_person_who_forgets_the_payload_is_told_so() -> None:
    exit_code, shown = at_a_terminal("put", "default")
    assert exit_code == 2
    assert "no payload: give it as an argument" in shown


def test_long_work_shows_its_progress_to_people_only(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("line\n" * 5_000)
    assert "putting into default" in at_a_terminal("put", "default", "--lines", f"@{file}")[1]
    quiet = subprocess.run([*COMMAND, "put", "default", "--lines", f"@{file}"], capture_output=True, check=True)
    assert (quiet.stdout, quiet.stderr) == (b"put 5,000 messages into default\n", b"")


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_receipt_can_be_copied_from_any_terminal(columns: str) -> None:
    code = (
        "import penstock; from penstock.cli import cli; store = penstock.open('memory:t'); queue = store.queue();"
        "queue.put('a rather long payload that says what is to be done', 5, {'kind': 'image', 'tenant': 'acme'});"
        "cli(['--store', 'memory:t', 'claim'])"
    )
    _, shown = at_a_terminal(command=[sys.executable, "-c", code], columns=columns)
    assert re.search(r"\b1\.[0-9a-f]{16}\b", shown)


@pytest.mark.parametrize(
    ("redirection", "message"),
    [("> /dev/full", "No space left"), ("--json > /dev/full", "No space left"), (">&-", "")],
)
def test_output_that_goes_nowhere_is_no_traceback(redirection: str, message: str) -> None:
    command = " ".join(shlex.quote(part) for part in COMMAND)
    result = subprocess.run(
        f"{command} list {redirection}", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr
    assert message in result.stderr


def test_a_closed_stdin_and_a_file_that_cannot_be_read_are_no_tracebacks() -> None:
    command = shlex.join(COMMAND)
    closed = ("put default", "put default -", "put default --lines", "publish", "sql -", "purge", "delete jobs")
    for arguments, code in (
        *((f"{each} <&-", 1 if each == "delete jobs" else 2) for each in closed),
        ("list <&-", 0),
        ("peek <&-", 3),
        ("put default x <&-", 0),
        ("put default @/proc/self/mem", 1),
    ):
        result = subprocess.run(f"{command} {arguments}", shell=True, capture_output=True, text=True, check=False)
        assert (result.returncode, "Traceback" in result.stderr) == (code, False)


@pytest.mark.parametrize("command", [["put", "jobs"], ["publish"]])
def test_nothing_piped_in_is_no_payload_unless_it_is_asked_for(
    run: Run, jobs: penstock.Queue, command: list[str]
) -> None:
    assert "no payload" in run(*command, stdin=b"", code=2).stderr
    assert len(jobs) == 0
    run(*command, "-", stdin=b"")
    run(*command, "", stdin=b"")
    assert [message.payload for message in jobs.peek(3)] == ([b"", b""] if command[0] == "put" else [])


def test_bytes_that_are_no_text_are_put_as_they_were_typed() -> None:
    code = "import os, sys; from penstock.cli.messages import read_payload; print(read_payload(sys.argv[1]))"
    result = subprocess.run([sys.executable, "-c", code, b"\xff\xfe"], capture_output=True, check=True)
    assert result.stdout == b"b'\\xff\\xfe'\n"


def test_the_installed_command_runs_in_a_process_of_its_own() -> None:
    environment = {**os.environ, "COLUMNS": "100"}
    put = subprocess.run([*COMMAND, "put", "default", "x"], capture_output=True, env=environment, check=True)
    assert put.stdout == b"1\n"
    pop = subprocess.run([*COMMAND, "pop"], capture_output=True, env=environment, check=False)
    assert (pop.returncode, pop.stdout) == (3, b"")
    assert pop.stderr == b"queue 'default' has no available messages\n"


# The entries of a text store


def test_a_file_is_shown_as_it_is_coloured_by_state_and_a_terminal_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("# mine\n-resize cat.jpg\n\n=two\n lines\n!three\n-\x1b[2J\n")

    def run(*arguments: str, color: bool = False) -> str:
        return (
            CliRunner().invoke(cli, ["--store", str(path), *arguments], color=color, catch_exceptions=False).stdout
        )

    assert run("show", "--entries") == "# mine\n-resize cat.jpg\n\n=two\n lines\n!three\n-\\x1b[2J\n"
    entries = json.loads(run("show", "--entries", "--json"))
    assert [entry["state"] for entry in entries] == ["comment", "available", "done", "failed", "available"]
    assert (entries[2]["offset"], entries[2]["length"], entries[2]["text"]) == (24, 12, "two\nlines")
    run("claim", "jobs")
    shown = run("show", "jobs", "--entries", color=True)
    assert "\x1b[33m-resize cat.jpg\x1b[0m" in shown
    assert "\x1b[31m!three\x1b[0m" in shown


def test_other_stores_have_no_entries_to_show(run: Run) -> None:
    assert "--entries is for text stores" in run("show", "--entries", code=1).stderr
