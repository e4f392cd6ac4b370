"""Names of processes, and whether a process has ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.system.processes import is_gone, name_of, parent_of, program_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks Linux")


def test_a_process_is_there_until_it_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = name_of(child.pid)
    assert not is_gone(name)
    assert parent_of(child.pid) == os.getpid()
    child.communicate()
    assert is_gone(name)
    assert program_of(child.pid) == ""
    with pytest.raises(ProcessLookupError, match=f"there is no process {child.pid}"):
        name_of(child.pid)


def test_a_process_that_has_ended_is_gone_even_if_nobody_asks_how_it_went() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = name_of(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays as it is: a zombie
    assert is_gone(name)
    child.wait()


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    pid, started, space = name_of(os.getpid()).split("-")
    assert is_gone(f"{pid}-{int(started) - 1}-{space}")


def test_what_cannot_be_told_is_not_gone() -> None:
    pid, started, space = name_of(os.getpid()).split("-")
    assert not is_gone(f"{pid}-{int(started) - 1}-{int(space) + 1}")  # another container's
    assert not is_gone("no name of a process")
