"""Recorded spans, and a program that runs with a tracer provider and prints its spans."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

ROOT = Path(__file__).parents[2]
_SET_UP = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
written = open(os.environ["SPANS"], "a")
exporter = ConsoleSpanExporter(out=written, formatter=lambda span: span.to_json(None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


class Recorded(InMemorySpanExporter):
    """The spans that have ended, in the order of their ends."""

    def all(self, name: str = "") -> list[ReadableSpan]:
        """Those of an operation, such as "put"; without a name all."""
        return [each for each in self.get_finished_spans() if not name or each.name.split()[0] == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.all(name)
        return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Without the ones that every span has."""
    given = dict(span.attributes or {})
    assert given.pop("messaging.system") == "penstock"
    return {name.removeprefix("messaging."): value for name, value in given.items()}


def identity(span: ReadableSpan) -> tuple[int, int]:
    return _identity(span.context)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [_identity(each.context) for each in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else _identity(span.parent)


def _identity(context: SpanContext | None) -> tuple[int, int]:
    assert context is not None
    return context.trace_id, context.span_id


def traced_program(source: str, written: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a program in a process with a tracer provider; its spans, as JSON has them."""
    command = [sys.executable, "-c", _SET_UP + source, *arguments]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "SPANS": str(written)})
    return [json.loads(line) for line in written.read_text().splitlines()]
