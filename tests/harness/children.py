"""Processes that tests start and kill: scenarios, servers, and forks that die at a step."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from penstock.system.files import SystemDisk, SystemFile

ROOT = Path(__file__).parents[2]


class Log:
    """A file to which a process writes lines, each at once and in one write: that survives a kill."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, line: str) -> None:
        os.write(self._descriptor, line.encode())

    def note(self, **told: object) -> None:
        self.write(json.dumps(told) + "\n")


def noted(*logs: Path) -> list[dict[str, Any]]:
    """The notes of processes, without a line that a kill has cut off."""
    lines = [line for log in logs if log.exists() for line in log.read_bytes().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


class Child:
    """A process that runs until it is told to end, is killed, or the `with` block is left."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        self.errors = errors
        with errors.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )

    def read_line(self) -> str:
        """The next line that it prints; empty if it died."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode()

    def wait_until_ready(self) -> None:
        assert self.read_line() == "ready\n", self.errors.read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(how)
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        """kill -9."""
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL, self.errors.read_text()

    def end(self) -> None:
        """Close its stdin, and wait for its end."""
        self.process.communicate()
        assert self.process.returncode == 0, self.errors.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.returncode is None:
            self.stop(signal.SIGKILL)


def scenario(what: str, log: Path, *arguments: str) -> Child:
    """A process that plays a scenario (`scenarios.py`)."""
    command = [sys.executable, "-m", "tests.harness.scenarios", what, str(log), *arguments]
    return Child(command, log.with_suffix(".errors"))


class ServerChild(Child):
    """A `penstock serve`."""

    def __init__(self, folder: Path | str, *options: str, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-m", "penstock", "--store", str(folder), "serve", "--port", "0"]
        super().__init__([*command, *options], Path(str(folder).rpartition(":")[2] + ".errors"))
        self.first_line = self.read_line()
        self.url = self.first_line.partition(" ")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


Methods = Mapping[type, Iterable[str]]
SYNCS: Methods = {
    SystemFile: ("sync", "write_through", "append"),
    SystemDisk: ("sync_folder", "sync_files"),
}
CHANGES: Methods = {
    SystemFile: ("write", "write_through", "append", "truncate", "sync", "set_changed"),
    SystemDisk: (
        *("open", "rename", "unlink", "mkdir", "rmdir", "sync_folder", "sync_files"),
        *("set_attribute", "set_changed"),
    ),
}


def is_killed_before(number: int, work: Callable[[], object], methods: Methods = CHANGES) -> bool:
    """Run the work in a fork that is killed before its call of that number; False if it ended before."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _kill_before(number, methods)
            work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert ended == 0 or os.WTERMSIG(ended) == signal.SIGKILL, f"the fork failed before its call {number}"
    return ended != 0


def _kill_before(number: int, methods: Methods) -> None:
    left = number

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)

        return call

    for kind, names in methods.items():
        for name in names:
            setattr(kind, name, counted(getattr(kind, name)))
