"""Which processes use a folder store, on this host and on others: their names, and whether they are gone."""

import itertools
import os
from contextlib import suppress
from typing import Protocol

from penstock.contract import names
from penstock.system import processes
from penstock.system.clock import SystemClock, rest

_PATIENCE = 60.0  # seconds after which a message that another host holds is taken from it
_numbers = itertools.count(1)


class Neighbours(Protocol):
    """What a store needs to know of processes."""

    @property
    def name(self) -> str:
        """The name of this one, of letters that any file name may have."""

    def is_gone(self, name: str, idle: float) -> bool:
        """Whether a process will touch nothing any more; `idle` are the seconds since it last did."""

    def has_stopped(self, name: str) -> bool:
        """Whether the whole machine of a process that is gone may have stopped with it."""

    def idle(self, time: int) -> float:
        """The seconds since a time that the file system noted, in nanoseconds."""

    def pause(self) -> None:
        """Let another process finish what it is doing."""


class SystemNeighbours:
    """The processes of this host, by their numbers, and those of others, by their silence."""

    def __init__(self) -> None:
        self._host = _host()
        self.name = f"{process_name(os.getpid())}.{next(_numbers)}"

    def is_gone(self, name: str, idle: float) -> bool:
        """Exact on this host. A process of another that holds something for a minute has lost it."""
        host, _, rest = name.partition(".")
        boot, _, process = rest.partition(".")
        if host != self._host.partition(".")[0]:
            return idle > _PATIENCE
        return boot != _boot() or processes.is_gone(process.rpartition(".")[0])

    def has_stopped(self, name: str) -> bool:
        """Unless it is of this start of this machine."""
        return not name.startswith(f"{self._host}.")

    def idle(self, time: int) -> float:
        """By this host's clock, which NTP keeps close enough for a minute."""
        return SystemClock().now() / 1e3 - time / 1e9

    def pause(self) -> None:
        """A moment: a process that does not wait for a disk has finished by then."""
        rest(0.002)


def process_name(pid: int) -> str:
    """A name for a process of this host that none of any host ever takes over."""
    return f"{_host()}.{processes.name_of(pid)}"


def _host() -> str:
    """This host, as long as it runs."""
    return f"{names.file_name(os.uname().nodename.encode('ascii', 'replace').decode())[:40]}.{_boot()}"


def _boot() -> str:
    """Differs after each start of the machine."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read()[:8]
    return "0"
