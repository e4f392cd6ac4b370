"""Processes: unique names, liveness, forks, garbage collection."""

import gc
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.errors import InvalidArgument

_STARTED = 19  # index of the start time in /proc/PID/stat, counted from the state
_DEAD = ("Z", "X")  # zombies: in a container perhaps no parent ever waits for them
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)", re.ASCII)


def name_of(pid: int) -> str:
    """A unique name for a process: its pid, start time, and pid namespace."""
    return f"{pid}-{_started(pid)}-{_number_space()}"


def checked_process(name: str) -> str:
    """The name; InvalidArgument unless it is one of name_of(), and so a safe file name."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(f"{name!r} is not the name of a process")
    return name


def is_gone(name: str) -> bool:
    """Whether the process of that name has ended; False for processes of other containers."""
    matched = _NAME.fullmatch(name)
    if matched is None or int(matched[3]) != _number_space():
        return False
    try:
        stat = _stat(int(matched[1]))
    except ProcessLookupError:
        return True
    return int(stat[_STARTED]) != int(matched[2]) or stat[0] in _DEAD


def parent_of(pid: int) -> int:
    """The pid of the parent; 0 if there is none."""
    return int(_stat(pid)[1])


def descendants_of(pid: int) -> list[int]:
    """The pids of the children of a process, of their children, and so on."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError, PermissionError):
            parents[int(name)] = parent_of(int(name))
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def program_of(pid: int) -> str:
    """The first 15 letters of the program's name."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    return int(_stat(pid)[_STARTED])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; ProcessLookupError."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()  # the program's name may contain spaces and parentheses
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"there is no process {pid}") from None


def _number_space() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


# Forks: a child has copies of its parent's objects, but no threads


class Forked(Protocol):
    """An object that is told of forks."""

    def forked(self) -> None:
        """Called in the child, before anything else."""


_all: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def watch_forks(each: Forked) -> None:
    """Call each.forked() in every forked child, while the object lives."""
    _all.add(each)


def _tell() -> None:
    for each in list(_all):
        each.forked()


os.register_at_fork(after_in_child=_tell)


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection while very many lasting objects are made: it would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
