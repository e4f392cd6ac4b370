"""A command that runs on Spark, at a terminal: rows in its progress bar, and Ctrl-C, which leaves nothing."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.system import processes

ROWS = 400_000
CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")
Moment = Callable[[int, str], bool]


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


def screen(shown: str) -> list[str]:
    """The lines that a wide terminal shows in the end, without empty ones."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(shown):
        found = CONTROL.match(shown, at)
        if found is not None:
            if found[2] == "A":  # up
                row = max(0, row - int(found[1] or 1))
            if found[2] == "K":  # erase the whole line, or what follows
                lines[row] = "" if found[1] == "2" else lines[row][:column]
            at = found.end()
            continue
        letter, at = shown[at], at + 1
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + letter + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


def press(terminal: int, leader: int) -> None:
    """Ctrl-C: the terminal interrupts all processes in its foreground."""
    os.write(terminal, b"\x03")


def kill(terminal: int, leader: int) -> None:
    """An interrupt of the command alone, as from a supervisor."""
    os.kill(leader, signal.SIGINT)


def interrupted(store: Path, moment: Moment, interrupt: Callable[[int, int], None]) -> tuple[int, str]:
    """Load on a terminal, interrupted at a moment; the exit code and all that was written to the terminal."""
    main, terminal = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    command = [sys.executable, "-m", "penstock", "--store", str(store), "load", "rows.json", "jobs"]
    command += ["--master", "local[1]"]  # one task after the other, so that there is time for interrupts
    running = subprocess.Popen(
        command,
        cwd=store.parent,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
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
    interrupt(main, running.pid)
    while running.poll() is None:
        read()
    assert of_session(running.pid) == [], "processes of Spark outlive the command"
    read()
    os.close(main)
    return running.returncode, shown


def java_starts(leader: int, shown: str) -> bool:
    return "starting Spark" in shown and bool(of_session(leader))


def rows(shown: str) -> list[int]:
    """The numbers of rows that the progress bar has shown."""
    return [int(each.replace(",", "")) for each in re.findall(r"loading, ([\d,]+) rows", shown)]


def is_staging(store: Path) -> bool:
    return any(path.stat().st_size for path in store.glob(".penstock/staged/*/part-*"))


def check(store: Path, code: int, shown: str) -> None:
    assert code == 1
    assert screen(shown) == ["penstock: loading was interrupted: to go on, run the same command again"], shown
    assert list(store.glob(".penstock/staged/*")) == []
    with penstock.open(store) as found:
        assert found.queue("jobs").count() == 0


@pytest.mark.parametrize("interrupt", [kill, pytest.param(press, marks=pytest.mark.long)])
def test_an_interrupt_while_spark_starts_ends_java(store: Path, interrupt: Callable[[int, int], None]) -> None:
    check(store, *interrupted(store, java_starts, interrupt))


@pytest.mark.parametrize("interrupt", [press, pytest.param(kill, marks=pytest.mark.long)])
def test_rows_are_counted_until_an_interrupt_and_the_next_run_loads_all(
    store: Path, interrupt: Callable[[int, int], None]
) -> None:
    def rows_move(leader: int, shown: str) -> bool:
        return is_staging(store) and len(set(rows(shown))) > 1 and max(rows(shown)) < ROWS

    code, shown = interrupted(store, rows_move, interrupt)
    check(store, code, shown)
    assert all(0 < each <= ROWS for each in rows(shown))
    tasks_and_time = r"loading, [\d,]+ rows \S+ \d+/\d+ 0:\d\d:\d\d"
    assert re.search(tasks_and_time, CONTROL.sub("", shown))
    command = [sys.executable, "-m", "penstock", "--store", str(store), "load", "rows.json", "jobs", "--json"]
    ran = subprocess.run(command, cwd=store.parent, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["rows"] == [{"queue": "jobs", "messages": ROWS, "bytes": ROWS * 400}]
