"""Tables for people: they fit a terminal of 80 columns, and are complete in a pipe."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.contract.message import STATES

KINDS = ["journal", "folder"]  # with the shortest ids and with the longest
LONG = "what is to be done with this message, which is a rather long text " * 3
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def command(store: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "--store", store, *arguments]


def at_a_terminal(store: str, *arguments: str) -> list[str]:
    """The lines that a command shows at a terminal."""
    return shown_by(command(store, *arguments))


def shown_by(program: list[str]) -> list[str]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(program, stdout=follower, stderr=follower, env={**os.environ, "COLUMNS": "80"})
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 4096):
            shown += data
    except OSError:  # the terminal is gone with its last user
        pass
    os.close(leader)
    assert process.wait() == 0
    return [line.rstrip() for line in _STYLES.sub("", shown.decode()).splitlines()]


def in_a_pipe(store: str, *arguments: str) -> str:
    return subprocess.run(command(store, *arguments), capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with messages in every state, whose headers, reasons and payloads are long."""
    url = f"{request.param}:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        queue = store.create("jobs", max_attempts=1, keep_done=None, description=LONG)
        draft = penstock.Draft(LONG, 5, {"kind": "image", "tenant": "a tenant with a rather long name"})
        queue.put_many([draft] * 4)
        queue.ack(*queue.claim(1))
        queue.fail(*queue.claim(1), reason="the host of the printer cannot be reached from here, no route")
        queue.claim(1, lease=36_000, consumer="a-consumer-with-a-rather-long-name:4711")
        queue.put(LONG, delay=36_000)
    return url


@pytest.mark.parametrize(
    "arguments",
    [("list",), ("show", "jobs"), ("peek", "jobs"),
     *(("peek", "jobs", "--state", state) for state in ("delayed", "available", "in_flight", "done", "failed")),
     ("claim", "jobs")],
    ids=" ".join,
)  # fmt: skip
def test_a_table_fits_a_terminal_of_80_columns(store: str, arguments: tuple[str, ...]) -> None:
    lines = at_a_terminal(store, *arguments)
    assert max(map(len, lines)) <= 80
    assert any("─" * 10 in line for line in lines)  # a table, and not a line for each cell


@pytest.mark.parametrize("store", ["journal", "text", "folder"], indirect=True)
def test_what_the_doctor_prints_are_tables_that_fit_a_terminal(store: str) -> None:
    tables = [line for line in at_a_terminal(store, "doctor") if line and not line.startswith("ok ")]
    assert max(map(len, tables)) <= 80
    first, *more = [line.split() for line in tables if line.split()[0] == "queue"]
    assert [name for name in first if name in STATES] == [state for state in STATES if state in first]
    assert {"bytes", "available", "in_flight", "failed"} <= {
        *first
    }  # where all numbers are 0, columns may be gone
    if not store.startswith("journal"):  # whose doctor tells no holders
        assert more == [["queue", "held", "consumer", "lease", *more[0][4:]]]
        assert any(re.search(r"jobs .* a-cons.*… +in 10 h", line) for line in tables)


REPORTED = """
from penstock.cli.spark import print_summary
from penstock.spark.jobs import Summary
from penstock.spark.jobs.reporting.job import _COLUMNS

rows = [["0", 0, 12_000, 3, 100_000, 17, 0.512, 12.25, 0.25, 100.5], ["jobs", 7, 1, 2, 3, 4] + [None] * 4]
print_summary(Summary("report", "report-1", _COLUMNS, rows), as_json=False)
"""


def test_the_summary_of_a_report_is_a_table_that_fits_a_terminal() -> None:
    lines = shown_by([sys.executable, "-c", REPORTED])
    assert max(map(len, lines)) <= 80
    header, _, row, *_ = filter(None, lines)
    assert header.split() == ["queue", "available", "in_flight", "done", "failed", "wait_p50", "process_p50"]
    assert row.split() == ["0", "12,000", "3", "100,000", "17", "0.512", "0.25"]


def test_a_pipe_gets_every_column_and_ids_receipts_and_names_are_never_cut(store: str) -> None:
    piped = in_a_pipe(store, "peek", "jobs", "--state", "in_flight")
    columns = piped.splitlines()[1].split()
    assert columns == ["id", "priority", "attempts", "created", "lease", "consumer", "headers", "payload"]
    assert "a-consumer-with-a-rather-long-name:4711" in piped
    assert "in 10 h" in piped
    claimed = "\n".join(at_a_terminal(store, "claim", "jobs"))
    with penstock.open(store) as opened:
        ids = [message.id for message in opened.queue("jobs").messages("in_flight")]
    assert re.search(rf"\b{ids[1]}\.[0-9a-f]{{16}}\b", claimed)


@pytest.mark.parametrize(("state", "column"), [("delayed", "due"), ("failed", "settled"), ("done", "settled")])
def test_times_are_relative_where_they_say_something(store: str, state: str, column: str) -> None:
    header, _, row = in_a_pipe(store, "peek", "jobs", "--state", state).splitlines()[1:4]
    columns = re.split(r"\s{2,}", header.strip())
    assert "created" in columns
    assert ("due" in columns, "settled" in columns) == (column == "due", column == "settled")
    assert "lease" not in columns
    assert re.search(r"in 10 h" if column == "due" else r"(now|s ago)\s", row)
