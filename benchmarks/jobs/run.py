"""A system at work: its server, its workers and a producer, each in processes of its own, in an empty folder."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from benchmarks.brokers.penstock import sources
from benchmarks.jobs import times
from benchmarks.jobs.environment import program
from benchmarks.jobs.systems import APPS, GREETING, System

ROOT = Path(__file__).parents[2]
WARM_UP = 40  # jobs before a measurement: every worker has its connections then
PATIENCE = 60  # seconds after which a system counts as hung
GLANCE = 0.005


class Run:
    """A context in which the workers of a system run, and put() puts jobs. Numbers of jobs count from 0."""

    def __init__(self, system: System, folder: Path, most: int) -> None:
        self._system, self._folder = system, folder
        self._times, self._log = folder / "times", folder / "jobs.log"
        times.create(self._times, WARM_UP + most)
        self._stack = ExitStack()
        self._put = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        system = self._system
        broker = self._stack.enter_context(system.broker(self._folder))
        values = {"port": broker.port, "folder": self._folder}
        self._environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONPATH": f"{ROOT}:{sources()['PYTHONPATH']}",
            "JOBS_URL": system.url.format(**values),
            "JOBS_DURABLE": "1" if system.durable else "",
            times.FILE: str(self._times),
        }
        library = system.library
        python = str(program("python")) if library.packages else sys.executable
        if library.tables:
            create = (python, "-m", f"{APPS}.{library.app}")
            with self._log.open("ab") as log:
                subprocess.run(create, cwd=self._folder, env=self._environment, stderr=log, check=True)
        worker, *arguments = [each.format(**values) for each in library.worker]
        self._spawn(python if worker == "python" else str(program(worker)), *arguments)
        while library.greets and GREETING not in self._log.read_text():
            time.sleep(GLANCE)
        self._producer = self._spawn(python, "-m", "benchmarks.jobs.producer", f"{APPS}.{library.app}", told=True)
        self._hear()
        self.finish(self.put("one", WARM_UP))

    def _spawn(self, *command: str, told: bool = False) -> subprocess.Popen[bytes]:
        """Start a process with a group of its own, which is killed at the end."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if told else subprocess.DEVNULL,
                stdout=subprocess.PIPE if told else log,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                start_new_session=True,
            )
        self._stack.callback(_kill, process)
        return process

    def _hear(self) -> None:
        """Wait for the producer's line."""
        assert self._producer.stdout is not None
        if not self._producer.stdout.readline():
            raise RuntimeError(f"the producer of {self._system.name} has ended: {self._last_words()}")

    def put(self, how: str, count: int, rate: float = 0) -> range:
        """Put jobs; returns their numbers once all are put."""
        assert self._producer.stdin is not None
        numbers = range(self._put, self._put + count)
        self._put += count
        self._producer.stdin.write(f"{how} {numbers.start} {count} {rate}\n".encode())
        self._producer.stdin.flush()
        self._hear()
        return numbers

    def finish(self, numbers: range) -> list[tuple[int, int]]:
        """When these jobs were put, and when they began, once all have."""
        end = time.monotonic() + PATIENCE
        while True:
            rows = times.read(self._times, numbers.start, len(numbers))
            left = sum(not began for _, began in rows)
            if not left:
                return rows
            if time.monotonic() > end:
                raise RuntimeError(f"{self._system.name}: {left} jobs have not run: {self._last_words()}")
            time.sleep(GLANCE)

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-1000:] or "without a word"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
