"""A folder shared by processes: puts through the owner's Unix socket, and the time of a takeover after a kill."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness import RAW_APPEND, Cell

GROUP = "sharing"
PROCESSES = 16
SECONDS = 2.0  # of a measurement
KILLS = 10
HTTP, SOCKET = f"loopback HTTP, put, {PROCESSES} processes", f"Unix socket, put, {PROCESSES} processes"

PUT = """
import os, sys, time, penstock
payload, seconds = os.urandom(1024), float(sys.argv[2])
with penstock.open(sys.argv[1]) as store:
    queue = store.queue()
    queue.put(payload)
    print("ready", flush=True)
    sys.stdin.readline()
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        queue.put(payload)
        count += 1
    print(count, flush=True)
"""
OWN = """
import sys, penstock
with penstock.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.read()
"""
FOLLOW = """
import sys, time, penstock
with penstock.open(sys.argv[1]) as store:
    queue, number = store.queue(), 0
    print("ready", flush=True)
    while True:
        begun = time.monotonic_ns()
        queue.put(b"x", key=f"{begun}")
        print(begun, time.monotonic_ns(), flush=True)
"""


@contextmanager
def _child(code: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed "ready"; killed at the end."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            if _line(process) != b"ready":
                raise RuntimeError("a process failed")
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """A server of the folder; its URL."""
    command = [sys.executable, "-m", "penstock", "--store", str(folder), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield _line(process).split()[0].decode()
        finally:
            process.terminate()


def _puts(url: object) -> float:
    """Messages per second that all processes put together."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_child(PUT, url, SECONDS)) for _ in range(PROCESSES)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        return sum(int(_line(process)) for process in processes) / SECONDS


def _http(folder: Path) -> float:
    with _server(folder / "store") as url:
        return _puts(url)


def _socket(folder: Path) -> float:
    """The same server, used by processes that open its folder."""
    with _server(folder / "store"):
        return _puts(folder / "store")


def _take_over(folder: Path) -> float:
    """The longest time from the kill of an owner to the end of a put that began after it."""
    return max(_one_take_over(folder / "store") for _ in range(KILLS))


def _one_take_over(store: Path) -> float:
    with _child(OWN, store) as owner, _child(FOLLOW, store) as guest:
        time.sleep(1)  # until the guest is connected
        owner.kill()
        killed = time.monotonic_ns()
        while True:
            begun, ended = map(int, _line(guest).split())
            if begun > killed or ended > killed + 1_000_000:  # the owner answered earlier puts before its death
                return (ended - killed) / 1e9


CELLS = [
    Cell(HTTP, GROUP, "ops/s", _http, "higher"),
    Cell(SOCKET, GROUP, "ops/s", _socket, "higher", {HTTP: 0.8, RAW_APPEND: 3}),
    Cell(f"owner killed to next put, longest of {KILLS}", GROUP, "s", _take_over, "lower", target=1.0),
]
