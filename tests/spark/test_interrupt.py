"""Ctrl-C at a command that runs on Spark: one line, and nothing is left behind."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.system import processes

ROWS = 400_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with penstock.open(tmp_path / "data") as made:
        made.create("jobs")
    line = json.dumps({"body": "x" * 400}) + "\n"
    (tmp_path / "rows.json").write_text(line * ROWS)
    return tmp_path / "data"


def of_session(leader: int) -> list[int]:
    """The processes of a session, without its leader."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            here = int(pid) != leader and os.getsid(int(pid)) == leader
            if here and not processes.is_gone(processes.name_of(int(pid))):  # a zombie has ended
                found.append(int(pid))
        except ProcessLookupError:
            continue
    return found


def interrupted(store: Path, moment: Callable[[int, str], bool]) -> tuple[int, str]:
    """Load on a terminal, with Ctrl-C at a moment; the exit code and the last line of the terminal."""
    main, terminal = pty.openpty()
    command = [sys.executable, "-m", "penstock", "--store", str(store), "load", "rows.json", "jobs"]
    running = subprocess.Popen(
        command, cwd=store.parent, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    os.set_blocking(main, False)
    shown = ""

    def read() -> None:
        nonlocal shown
        try:
            shown += os.read(main, 1 << 16).decode(errors="replace")
        except (BlockingIOError, OSError):
            time.sleep(0.05)

    while not moment(running.pid, shown):
        assert running.poll() is None, shown
        read()
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
    while running.poll() is None:
        read()
    read()
    os.close(main)
    while of_session(running.pid):  # what Spark has started ends at the latest now
        time.sleep(0.05)
    return running.returncode, shown


def is_staging(store: Path) -> bool:
    return any(path.stat().st_size for path in store.glob(".penstock/staged/*/part-*"))


def check(store: Path, code: int, shown: str) -> None:
    last = shown.rstrip().rsplit("\x1b[K", 1)[-1].strip().splitlines()[-1]
    assert (code, last.endswith("loading was interrupted: to go on, run the same command again")) == (1, True), (
        shown
    )
    assert "Traceback" not in shown
    assert list(store.glob(".penstock/staged/*")) == []
    with penstock.open(store) as found:
        assert found.queue("jobs").count() == 0


def test_ctrl_c_while_spark_starts_ends_java(store: Path) -> None:
    def java_starts(leader: int, shown: str) -> bool:
        return "starting Spark" in shown and bool(of_session(leader))

    check(store, *interrupted(store, java_starts))


def test_ctrl_c_in_the_middle_of_a_load_leaves_no_files_and_the_next_run_loads_all(store: Path) -> None:
    check(store, *interrupted(store, lambda leader, shown: is_staging(store)))
    command = [sys.executable, "-m", "penstock", "--store", str(store), "load", "rows.json", "jobs", "--json"]
    ran = subprocess.run(command, cwd=store.parent, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["rows"] == [{"queue": "jobs", "messages": ROWS, "bytes": ROWS * 400}]
