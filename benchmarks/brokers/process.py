"""A broker's processes: started for one measurement in a folder of its own on free ports, stopped after it."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchmarks.brokers.connection import HOST, Connection

STARTING, STOPPING = 60, 20  # seconds that it may take


class Broker:
    """A context in which the broker listens on `port`. What it is told is synced before it answers."""

    name: ClassVar[str]
    package: ClassVar[str]  # of Debian
    connection: ClassVar[type[Connection]]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def program(cls) -> str | None:
        """Where the broker is installed; None if it is not."""
        return shutil.which(cls.package)

    def start(self) -> None:
        """Spawn the processes, and return when they accept connections."""
        raise NotImplementedError

    def settle(self) -> None:
        """Do what a broker does by itself in the long run, between filling it and measuring."""

    def __enter__(self) -> Self:
        self.port, *self.spare_ports = free_ports(3)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def spawn(self, *command: str | Path, **environment: str) -> None:
        """Start a process; with little of our environment, which may be set up for a broker of another kind."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"} | environment,
                user=self.user,
                group=self.user,
                start_new_session=True,  # so that Ctrl-C is ours alone
            )
        self.processes.append(process)

    def ready(self) -> bool:
        """Whether it accepts connections by now."""
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def await_ready(self) -> None:
        """Return when the broker is ready; if it will never be, tell its last words."""
        end = time.monotonic() + STARTING
        while not self.ready():
            if self.processes[-1].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} did not start: {self.last_words()}")
            time.sleep(0.02)

    def last_words(self) -> str:
        """The end of what the processes said."""
        return self.log.read_text(errors="replace").strip()[-1000:] or "without a word"

    def stop(self) -> None:
        """End the processes, the last one first."""
        while self.processes:
            process = self.processes.pop()
            process.send_signal(self.stop_signal)
            try:
                process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
