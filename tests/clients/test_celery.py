"""Celery with kombu's transport for SQS: a real worker, which is killed in the middle of a task."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any
from urllib.parse import urlsplit

from tests.clients import table
from tests.clients.conftest import Service
from tests.clients.kit import tapped
from tests.harness.children import noted
from tests.http.serving import until


class Worker:
    """Processes of `celery worker`, and a program that asks for tasks."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self._surroundings = {
            **os.environ,
            "BROKER": f"sqs://any:any@{urlsplit(url).netloc}",
            "TASKS_LOG": str(self.log),
        }

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "celery", "-A", "tests.clients.celery_tasks", "worker"]
        command += ["--concurrency", "1", "--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
        with (
            (self.folder / "worker").open("ab") as told,
            subprocess.Popen(
                command, env=self._surroundings, stdout=told, stderr=told, start_new_session=True
            ) as worker,
        ):
            try:
                yield worker
            finally:
                kill(worker)

    def ask(self, program: str) -> None:
        program = f"import time; from tests.clients.celery_tasks import *; {program}"
        subprocess.run([sys.executable, "-c", program], env=self._surroundings, check=True)

    def notes(self, name: str) -> list[Any]:
        return [each[name] for each in noted(self.log) if name in each]


def kill(worker: subprocess.Popen[bytes]) -> None:
    """kill -9 of the worker with all its processes."""
    if worker.poll() is None:
        os.killpg(worker.pid, SIGKILL)
        worker.wait()


def test_a_worker_does_tasks_and_another_repeats_what_a_killed_one_has_begun(
    service: Service, tmp_path: Path
) -> None:
    free = tmp_path / "free"
    with tapped(service.url) as tap, ExitStack() as stack:
        worker = Worker(tap.url, tmp_path)
        first = stack.enter_context(worker.running())
        worker.ask("add.delay(2, 3); flaky.delay(); timed.apply_async((time.time(),), countdown=1)")
        until(lambda: worker.notes("after") and len(worker.notes("attempt")) == 3)
        assert worker.notes("sum") == [5]
        assert worker.notes("attempt") == [0, 1, 2]
        assert worker.notes("after")[0] >= 1

        worker.ask(f"held.delay({str(free)!r})")
        until(lambda: worker.notes("held"))
        kill(first)
        free.touch()
        second = stack.enter_context(worker.running())
        until(lambda: "done" in worker.notes("held"))
        assert worker.notes("held") == ["begun", "begun", "done"]
        until(lambda: sum(service.store.queue("tasks").counts().values()) == 0)
        second.send_signal(SIGTERM)
        assert second.wait() == 0
    table.check("Celery", tap.done)
