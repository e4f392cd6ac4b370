"""The joint between operations and OpenTelemetry: every call of a Store or Queue passes through it, and no other.

Penstock imports nothing of OpenTelemetry by itself. Spans begin once the program has imported
`opentelemetry.trace` and has set a tracer provider; until then a call costs a look into a dict. Guests, owners and
servers run operations below this joint, so that one call never makes two spans.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.contract.operations import Ack, Claim, Fail, Pop, Publish, Put, Release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from penstock.contract.message import Message
    from penstock.contract.operation import AsyncRunner, Operation, Runner
    from penstock.contract.spans import Spans

Result = TypeVar("Result")
SPANS = {  # messaging.operation.name and .type
    Put: ("put", "send"),
    Publish: ("publish", "send"),
    Claim: ("claim", "receive"),
    Pop: ("pop", "receive"),
    Ack: ("ack", "settle"),
    Fail: ("fail", "settle"),
    Release: ("release", "settle"),
}
_API = "opentelemetry.trace"
_W3C = ("traceparent", "tracestate")
_modules = sys.modules
_current: Callable[[], Spans | None] | None = None


def traced(url: str, run: Runner) -> Runner:
    """A backend's run(), with spans."""

    def run_traced(operation: Operation[Result]) -> Result:
        if _API not in _modules or type(operation) not in SPANS or (spans := _spans()) is None:
            return run(operation)
        with spans.around(operation, url) as call:
            return call.ended(run(call.operation))

    return run_traced


def traced_in_loop(url: str, run: AsyncRunner) -> AsyncRunner:
    """An asynchronous backend's run(), with spans."""

    async def spanned(spans: Spans, operation: Operation[Result]) -> Result:
        with spans.around(operation, url) as call:
            return call.ended(await run(call.operation))

    def run_traced(operation: Operation[Result]) -> Awaitable[Result]:
        if _API not in _modules or type(operation) not in SPANS or (spans := _spans()) is None:
            return run(operation)
        return spanned(spans, operation)

    return run_traced


def is_on() -> bool:
    """Whether calls get spans."""
    return _spans() is not None


def processing(
    message: Message, no_errors: type[BaseException] | tuple[type[BaseException], ...] = ()
) -> AbstractContextManager[Any]:
    """The span of the work on a message: `with processing(message): ...`; nothing without a tracer provider.

    Workers do this around their handlers. The span links to the one that has put the message; spans that are made
    inside, also by put() and ack(), are its children, and baggage that came with the message is readable.

    Args:
        message: the message that is worked on
        no_errors: exceptions that do not mark the span as failed
    """
    return nullcontext() if (spans := _spans()) is None else spans.processing(message, no_errors)


def settling(work: Iterable[Any]) -> AbstractContextManager[Any]:
    """What is settled in here belongs to that work, which processing() returned."""
    return nullcontext() if (spans := _spans()) is None else spans.settling(work)


def carried(message: Message) -> dict[str, str]:
    """Headers that carry the trace on from the work on a message, such as `traceparent`."""
    if (spans := _spans()) is None:
        return {name: message.headers[name] for name in _W3C if name in message.headers}
    return spans.carried()


def _spans() -> Spans | None:
    """What makes spans; None unless the program has set a tracer provider."""
    global _current
    if _API not in _modules:
        return None
    if _current is None:
        from penstock.contract.spans import current  # here, as OpenTelemetry is optional

        _current = current
    return _current()
