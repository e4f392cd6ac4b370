"""Penstock as a process whose time stands still: `python frozen.py CLOCK ARGUMENTS...` is `penstock ARGUMENTS...`.

What a server draws at random is predictable, so that it writes the same files each time.
CLOCK is a file with the time, in milliseconds; writing it lets time pass. Without arguments it takes commands from
stdin, one JSON object a line ({"arguments": [...], "stdin": "...", "environment": {...}}), runs each in a process
of its own, and answers with a line: {"code": 0, "out": "...", "err": "..."}.
"""

import hashlib
import importlib
import json
import os
import random
import runpy
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import penstock


class Predictable:
    """Random bytes that depend on the time, and on how often so many of them were asked for at that time."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._drawn: Counter[tuple[int, int]] = Counter()

    def draw(self, count: int) -> bytes:
        moment = self._now(), count
        self._drawn[moment] += 1
        return hashlib.shake_128(f"{moment} {self._drawn[moment]}".encode()).digest(count)


def freeze(path: str, is_predictable: bool) -> None:
    def now(clock: penstock.SystemClock | None = None) -> int:
        with open(path) as file:
            return int(file.read())

    def monotonic(clock: penstock.SystemClock) -> float:
        return now() / 1000

    if is_predictable:
        os.urandom = random._urandom = Predictable(now).draw  # type: ignore[attr-defined]

    for method in (now, monotonic):
        setattr(penstock.SystemClock, method.__name__, method)


def run(arguments: list[str]) -> None:
    sys.argv = ["penstock", *arguments]
    runpy.run_module("penstock", run_name="__main__")


def run_apart(command: dict[str, Any]) -> dict[str, Any]:
    with ExitStack() as files:
        given, out, err, loaded = (files.enter_context(tempfile.TemporaryFile()) for _ in range(4))
        given.write(command["stdin"].encode())
        given.seek(0)
        child = os.fork()
        if not child:
            code: Any = 99
            try:
                for number, file in enumerate((given, out, err)):
                    os.dup2(file.fileno(), number)
                sys.stdin = open(0)  # noqa: SIM115 - until the process ends
                os.environ.update(command["environment"])
                run(command["arguments"])
                code = 0
            except SystemExit as end:
                code = end.code or 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                loaded.write("\n".join(sys.modules).encode())
                loaded.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = {}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            texts[name] = file.read().decode()
        loaded.seek(0)
        for name in loaded.read().decode().split():
            if name.startswith("penstock."):
                importlib.import_module(name)  # so that the next command need not
        return {"code": code, **texts}


def main() -> None:
    freeze(sys.argv[1], "serve" in sys.argv[2:])
    if sys.argv[2:]:
        run(sys.argv[2:])
        return
    runpy.run_module("penstock", run_name="loaded")  # once, for all commands

    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_apart(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
