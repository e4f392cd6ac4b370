"""The server's log: formatters for JSON lines and for text, the setup, and the access log."""

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from penstock.http.server.exchange import Answer, Request, about

FORMATS = ("auto", "json", "text")
_FIELDS = ("request", "peer", "token", "method", "path", "action", "status", "bytes", "seconds")
_access = logging.getLogger("penstock.access")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: vars(record)[name] for name in _FIELDS if name in vars(record)})
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Formats a record as a line of text; a traceback follows below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        told = " ".join(f"{name}={vars(record)[name]}" for name in _FIELDS if name in vars(record))
        first, newline, rest = line.partition("\n")
        return f"{first} {told}{newline}{rest}" if told else line


def set_up(form: str, level: str, access: bool = False, stream: TextIO | None = None) -> Callable[[], None]:
    """Log to stderr, with `access` every request too; returns a function that undoes the setup."""
    stream = stream or sys.stderr
    if form == "auto":
        form = "text" if stream.isatty() else "json"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root, before = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(level.upper())
    _access.setLevel("INFO" if access else "NOTSET")  # also if the level of the log is above INFO
    logging.captureWarnings(True)

    def undo() -> None:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(before)
        _access.setLevel("NOTSET")

    return undo


def access(request: Request, answer: Answer) -> None:
    """Log an answered request."""
    seconds = request.service.loop.time() - request.begun
    told = {"status": answer.status, "bytes": answer.size, "seconds": round(seconds, 6)}
    _access.info("answered", extra={**about(request), **told})
