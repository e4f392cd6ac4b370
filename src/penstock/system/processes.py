"""Processes: names that no later process takes over, whether one is still there; forks and garbage of this one."""

import gc
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.errors import InvalidArgument

_STARTED = 19  # where the stat of a process, from its state on, has when it began
_DEAD = ("Z", "X")  # ended, but its parent has not asked how: in a container perhaps nobody ever does
_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)", re.ASCII)


def name_of(pid: int) -> str:
    """A name for a process: its number, when it started, and the space in which the number means anything."""
    return f"{pid}-{_started(pid)}-{_number_space()}"


def checked_process(name: str) -> str:
    """A name of a process, which can be that of a file too."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgument(f"{name!r} is not the name of a process")
    return name


def is_gone(name: str) -> bool:
    """Whether the process of that name has ended, as far as can be told: in another container it cannot."""
    matched = _NAME.fullmatch(name)
    if matched is None or int(matched[3]) != _number_space():
        return False
    try:
        stat = _stat(int(matched[1]))
    except ProcessLookupError:
        return True
    return int(stat[_STARTED]) != int(matched[2]) or stat[0] in _DEAD


def parent_of(pid: int) -> int:
    """The process that a process belongs to; 0 if there is none."""
    return int(_stat(pid)[1])


def program_of(pid: int) -> str:
    """The name of the program that a process runs, up to 15 letters of it."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    return int(_stat(pid)[_STARTED])


def _stat(pid: int) -> list[str]:
    """What the system says of a process, from its state on."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()  # the program's name may have anything in it
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"there is no process {pid}") from None


def _number_space() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


# Forks: a child has copies of everything that its parent holds, but no threads


class Forked(Protocol):
    """Something that has to know that it is in a child now."""

    def forked(self) -> None:
        """Called in the child, before anything else."""


_all: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def watch_forks(each: Forked) -> None:
    """Tell it of forks, for as long as it lives."""
    _all.add(each)


def _tell() -> None:
    for each in list(_all):
        each.forked()


os.register_at_fork(after_in_child=_tell)


@contextmanager
def without_collection() -> Iterator[None]:
    """Make very many objects that stay, and are in no cycle: half of the time would go into looking for cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
