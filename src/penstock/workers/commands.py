"""Commands as handlers: the payload on stdin, the other fields in the environment, the outcome by the exit code.

Each command runs in a process group of its own: a Ctrl-C for the worker does not reach it, and its child processes
end with it.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from penstock.contract import tracing
from penstock.contract.message import Message
from penstock.workers.options import Fail, Release

NOT_NOW = 75  # EX_TEMPFAIL of sysexits.h
_TO_END = 2.0  # seconds from SIGTERM to SIGKILL
_LINE = 1 << 16  # bytes of a line of stderr that are read


class Commands:
    """Runs a command for each message: a handler for work(), with its on_drop."""

    def __init__(
        self,
        command: Sequence[str],
        store: str,
        stop: threading.Event,
        pause: Callable[[Message], float],
        timeout: float | None = None,
        stdout: int | None = None,
        stderr: Callable[[bytes], object] = lambda line: None,
    ) -> None:
        self._command = list(command)
        self._store = store
        self._stop = stop
        self._pause = pause
        self._timeout = timeout
        self._stdout = stdout
        self._stderr = stderr
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}  # by receipt

    def __call__(self, message: Message) -> None:
        """Run the command; returns if the message is to be acknowledged."""
        with tempfile.TemporaryFile() as payload:  # a pipe would need a thread that writes
            payload.write(message.payload)
            payload.seek(0)
            process = self._start(message, payload)
        last = _LastLine(process.stderr, self._stderr)
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self._end(process)
            raise Fail(f"no end within {self._timeout:g} seconds{last.shown()}") from None
        finally:
            with self._lock:
                self._running.pop(message.receipt or "", None)
            last.wait()
        if code == NOT_NOW:
            # The message is held during the backoff, so that it is not claimed again at once.
            self._stop.wait(self._pause(message))
            raise Release
        if code < 0:
            raise Fail(f"killed by {_signal_name(-code)}{last.shown()}")
        if code:
            raise Fail(f"exit code {code}{last.shown()}")

    def _start(self, message: Message, payload: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                self._command,
                stdin=payload,
                stdout=self._stdout,
                stderr=subprocess.PIPE,
                env={**os.environb, **environment(message), b"PENSTOCK_STORE": os.fsencode(self._store)},
                start_new_session=True,
            )
        except OSError as error:
            raise Fail(f"the command cannot be run: {error.strerror} ({self._command[0]})") from error
        with self._lock:
            self._running[message.receipt or ""] = process
        return process

    def drop(self, message: Message) -> None:
        """End the command for a message that is no longer held."""
        with self._lock:
            process = self._running.get(message.receipt or "")
        if process is not None:
            _signal(process, signal.SIGTERM)
            timer = threading.Timer(_TO_END, self._kill, [process])
            timer.daemon = True
            timer.start()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            _signal(process, signal.SIGKILL)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END)
        _signal(process, signal.SIGKILL)  # to the whole group: child processes too
        process.wait()

    def close(self) -> None:
        """End all running commands."""
        with self._lock:
            left = list(self._running.values())
        for process in left:
            _signal(process, signal.SIGTERM)
        for process in left:
            self._end(process)


class _LastLine:
    """Reads a command's stderr, passes it on, and keeps the last line."""

    def __init__(self, stream: IO[bytes] | None, pass_on: Callable[[bytes], object]) -> None:
        self._stream = stream
        self._pass_on = pass_on
        self._last = b""
        self._thread = threading.Thread(target=self._read, name="penstock-stderr", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._stream is None:
            return
        with self._stream, suppress(ValueError):
            while line := self._stream.readline(_LINE):
                self._last = line.strip() or self._last
                self._pass_on(line)

    def wait(self) -> None:
        """Wait until stderr is read, a second at most: a process that the command left may have it open."""
        self._thread.join(1.0)

    def shown(self) -> str:
        """The last line, as the end of a reason."""
        self.wait()
        return f": {self._last.decode(errors='replace')}" if self._last else ""


def environment(message: Message) -> dict[bytes, bytes]:
    """The environment variables of a message, and of its trace: TRACEPARENT and the like."""
    told = {
        "PENSTOCK_ID": message.id,
        "PENSTOCK_QUEUE": message.queue,
        "PENSTOCK_ATTEMPTS": str(message.attempts),
        "PENSTOCK_PRIORITY": str(message.priority),
        "PENSTOCK_CREATED_AT": str(message.created_at),
        "PENSTOCK_RECEIPT": message.receipt or "",
    }
    if message.group is not None:
        told["PENSTOCK_GROUP"] = message.group
    told.update((_variable(name), value) for name, value in tracing.carried(message).items())
    for name, value in message.headers.items():
        told["PENSTOCK_HEADER_" + _variable(name)] = value
    return {name.encode(): value.replace("\0", "\ufffd").encode() for name, value in told.items()}


def _variable(name: str) -> str:
    return re.sub("[^A-Za-z0-9]", "_", name).upper()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # it leads its group


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
