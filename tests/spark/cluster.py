"""A Spark standalone cluster on this machine: a master and two workers, from the Spark that pip installed."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pyspark

import penstock
from penstock.spark.sessions import java_home

WORKERS = 2
_MASTER = re.compile(r"spark://127\.0\.0\.1:[0-9]+")


class Cluster:
    """A cluster, until the end of the `with` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = str(Path(penstock.__file__).parent.parent)
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java_home(folder)),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOG_DIR": str(folder),
            "SPARK_NO_DAEMONIZE": "1",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        ports = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start("master", "org.apache.spark.deploy.master.Master", *ports, "--port", "0")
        self.master = self._read("master", _MASTER)
        for number in range(WORKERS):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{number}")]
            self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *ports, *work, self.master)
        for number in range(WORKERS):
            self._read(f"worker-{number}", re.compile("Successfully registered with master"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def run(self, *command: str) -> str:
        """What a program prints that is run beside the cluster, as its users do."""
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def penstock(self, store: object, *arguments: str) -> str:
        """What a command of Penstock prints."""
        return self.run(sys.executable, "-m", "penstock", "--store", str(store), *arguments)

    def executors(self) -> int:
        """How many executors there have been."""
        return sum(1 for _ in self.folder.glob("work-*/app-*/*/stdout"))

    def _start(self, name: str, *what: str) -> None:
        home = self.environment["SPARK_HOME"]
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [f"{home}/bin/spark-class", *what]
            started = subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(started)

    def _read(self, name: str, wanted: re.Pattern[str]) -> str:
        """Wait until a log has it."""
        while True:
            text = (self.folder / f"{name}.log").read_text(errors="replace")
            if found := wanted.search(text):
                return found[0]
            assert all(process.poll() is None for process in self._processes), text
            time.sleep(0.1)
