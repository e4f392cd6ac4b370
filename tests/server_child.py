"""A `penstock serve` in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


class ServerChild:
    """Serves a store from when it is made until stop(), kill(), or the end of the `with` block."""

    def __init__(self, folder: Path | str, *options: str, prefix: Sequence[str] = ()) -> None:
        self.errors = Path(str(folder).rpartition(":")[2] + ".errors")
        command = [
            *prefix,
            sys.executable,
            "-m",
            "penstock",
            "--store",
            str(folder),
            "serve",
            "--port",
            "0",
            *options,
        ]
        with self.errors.open("ab") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline().decode()  # empty if it died
        self.url = self.first_line.partition(" ")[0]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(how)
        self.process.communicate()
        return self.process.returncode

    def kill(self) -> None:
        """As if the power went."""
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL, self.errors.read_text()

    def __enter__(self) -> "ServerChild":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.stop(signal.SIGKILL)
