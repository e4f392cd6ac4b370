"""Processes of Penstock with a simulated clock: a server, and a shell that runs commands one after the other."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

START = 1_700_000_000_000
_FROZEN = str(Path(__file__).parent / "frozen.py")


class Time:
    """The clock of the processes: a file with the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._set(START)

    def advance(self, seconds: float) -> None:
        self._set(int(self.path.read_text()) + round(seconds * 1000))

    def _set(self, now: int) -> None:
        new = self.path.with_suffix(".new")  # then renamed: processes never read half of it
        new.write_text(str(now))
        new.rename(self.path)


def environment() -> dict[str, str]:
    """The environment without the user's settings of Penstock, with a terminal of a fixed width."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK", "COV"))}
    return {**kept, "COLUMNS": "80", "LINES": "25", "TERM": "dumb", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}


class Server:
    """A `penstock serve` of a store."""

    def __init__(self, time: Time, store: str, *options: str) -> None:
        self.time = time
        command = [sys.executable, _FROZEN, str(time.path), "--store", store, "serve", "--port", "0", *options]
        self._errors = time.path.with_suffix(".errors")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=errors, cwd=time.path.parent
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line, self._errors.read_text()
        self.url = line.partition(" ")[0]
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        self._process.communicate()
        if kind is None:
            assert (self._process.returncode, self._errors.read_text()) == (0, "")


class Ran(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands of `penstock` in a folder."""

    def __init__(self, time: Time, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, _FROZEN, str(time.path)],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
        )  # fmt: skip

    def run(self, *arguments: str, stdin: str = "", **more: str) -> Ran:
        command: dict[str, Any] = {"arguments": arguments, "stdin": stdin, "environment": more}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        return Ran(**json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.communicate()
