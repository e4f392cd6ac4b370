"""Spans of OpenTelemetry by the semantic conventions for messaging. Only tracing.py imports this.

put, put_many, publish   PRODUCER  its context travels in the headers of the messages
claim, pop               CLIENT    links to the spans that put the messages; none if there are no messages
process                  CONSUMER  links to the span that put the message; child of what is current, if anything
ack, fail, release       CLIENT    child of the work on the message; links to the work on each of several
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from penstock.contract.message import Entry, Message, checked_headers
from penstock.contract.operations import Ack, Publish
from penstock.contract.tracing import SPANS
from penstock.errors import InvalidArgument
from penstock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from penstock.contract.operation import Operation

Result = TypeVar("Result")
Headers: TypeAlias = "Mapping[str, str]"
_MOST_LINKS = 128  # what the SDK keeps of a span unless told otherwise
_WORK = context.create_key("penstock-work")  # links to the work whose messages are settled
_QUEUE, _COUNT = "messaging.destination.name", "messaging.batch.message_count"
_known: tuple[TracerProvider | None, Spans | None] = None, None


def current() -> Spans | None:
    """What makes spans by the tracer provider that is set; None if there is none but the API's own."""
    global _known
    provider = trace.get_tracer_provider()
    known, spans = _known
    if known is not provider:
        is_real = not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)
        spans = Spans(provider) if is_real else None
        _known = provider, spans
    return spans


class Call(Generic[Result]):
    """An operation that has a span."""

    def __init__(self, operation: Operation[Result]) -> None:
        self.operation = operation
        self.result: Any = None

    def ended(self, result: Result) -> Result:
        """The operation has succeeded."""
        self.result = result
        return result


class Spans:
    """Makes spans with the tracer of one provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("penstock", __version__)

    def around(self, operation: Operation[Result], url: str) -> AbstractContextManager[Call[Result]]:
        """The span of an operation. The call's operation is the one to run: its messages carry the context."""
        name, type_ = SPANS[type(operation)]
        about = _about(name, type_, getattr(operation, "queue", None)) | _server(url)
        if type_ == "send":
            return self._sending(operation, about)
        if type_ == "settle":
            return self._settling(operation, about)
        acks = getattr(operation, "ack", ())
        return self._acking(operation, about, url) if acks else self._receiving(operation, about)

    @contextmanager
    def _acking(self, operation: Any, about: dict[str, Any], url: str) -> Iterator[Call[Any]]:
        """Two spans: of the acks, and of the claim."""
        with self.around(Ack(operation.queue, operation.ack), url), self._receiving(operation, about) as call:
            yield call

    @contextmanager
    def _sending(self, operation: Any, about: dict[str, Any]) -> Iterator[Call[Any]]:
        entries: Sequence[Entry] = [operation.entry] if type(operation) is Publish else operation.entries
        given = [entry.headers for entry in entries if _creator(entry.headers)]
        kind = SpanKind.CLIENT if 0 < len(given) == len(entries) else SpanKind.PRODUCER
        span = self._start(about | _of_messages(entries), kind, _creators(given))
        with _ending(span):
            call = Call(_carrying(operation, entries, _injected(trace.set_span_in_context(span))))
            yield call
            if len(entries) == 1:
                [id_] = [call.result] if type(operation) is Publish else call.result
                span.set_attribute("messaging.message.id", id_)

    @contextmanager
    def _receiving(self, operation: Any, about: dict[str, Any]) -> Iterator[Call[Any]]:
        # Made afterwards: the links are known then, and a poll that finds nothing needs no span.
        began, call = time.time_ns(), Call(operation)
        try:
            yield call
        except Exception as error:
            span = self._start(about, SpanKind.CLIENT, began=began)
            _fail(span, error)
            span.end()
            raise
        messages = call.result if isinstance(call.result, list) else [call.result]
        if messages and messages[0] is not None:
            links = _creators([each.headers for each in messages])
            self._start(about | _of_messages(messages), SpanKind.CLIENT, links, began=began).end()

    @contextmanager
    def _settling(self, operation: Any, about: dict[str, Any]) -> Iterator[Call[Any]]:
        count, links = len(operation.receipts), cast("list[Link] | None", context.get_value(_WORK))
        many = {} if count == 1 else {_COUNT: count}
        with _ending(self._start(about | many, SpanKind.CLIENT, links)):
            yield Call(operation)

    @contextmanager
    def processing(
        self, message: Message, no_errors: type[BaseException] | tuple[type[BaseException], ...]
    ) -> Iterator[Context]:
        """The span of the work on a message; its context."""
        about = _about("process", "process", message.queue) | _of_messages([message])
        about["messaging.penstock.message.attempts"] = message.attempts
        around = context.get_current()
        span = self._start(about, SpanKind.CONSUMER, _creators([message.headers]))
        # What came with the message, such as baggage, but not its span, which is linked to.
        inside = trace.set_span_in_context(span, _extracted(message.headers, around))
        token = context.attach(inside)
        try:
            yield inside
        except no_errors:
            raise
        except Exception as error:
            span.record_exception(error)
            _fail(span, error)
            raise
        finally:
            context.detach(token)
            span.end()

    @contextmanager
    def settling(self, work: Iterable[Context | None]) -> Iterator[None]:
        """What is settled in here belongs to that work: it is the parent if it is one, linked to if it is more."""
        contexts = [each for each in work if each is not None]
        if len(contexts) == 1:
            inside = contexts[0]
        else:
            spans = [trace.get_current_span(each) for each in contexts]
            inside = context.set_value(_WORK, [Link(each.get_span_context()) for each in spans[:_MOST_LINKS]])
        token = context.attach(inside)
        try:
            yield
        finally:
            context.detach(token)

    def carried(self) -> dict[str, str]:
        """Headers that carry the current context on."""
        return _injected(context.get_current())

    def _start(
        self,
        about: Mapping[str, Any],
        kind: SpanKind,
        links: Sequence[Link] | None = None,
        began: int | None = None,
    ) -> Span:
        name = about["messaging.operation.name"]
        queue = about.get(_QUEUE)
        return self._tracer.start_span(
            f"{name} {queue}" if queue else name, kind=kind, attributes=about, links=links, start_time=began
        )


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _fail(span, error)
        raise
    finally:
        span.end()


def _fail(span: Span, error: Exception) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


# Attributes


def _about(name: str, type_: str, queue: str | None) -> dict[str, Any]:
    about = {"messaging.system": "penstock", "messaging.operation.name": name, "messaging.operation.type": type_}
    return about if queue is None else about | {_QUEUE: queue}


def _server(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        return {}
    parts = urlsplit(url)
    return {
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
    }


def _of_messages(messages: Sequence[Entry | Message]) -> dict[str, Any]:
    if len(messages) != 1:
        return {_COUNT: len(messages)}
    [one] = messages
    size = {"messaging.message.body.size": len(one.payload)}
    return size | {"messaging.message.id": one.id} if isinstance(one, Message) else size


# Contexts in headers


def _injected(of: Context) -> dict[str, str]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, of)
    return carrier


def _extracted(headers: Headers, around: Context) -> Context:
    try:
        return propagate.extract(headers, around)
    except Exception:  # a propagator that stumbles over one message must not keep all from being claimed
        return around


def _creator(headers: Headers | None) -> SpanContext | None:
    """The context of the span that made a message, from its headers."""
    if not headers or propagate.get_global_textmap().fields.isdisjoint(headers):
        return None
    found = trace.get_current_span(_extracted(headers, Context())).get_span_context()
    return found if found.is_valid else None


def _creators(headers: Iterable[Headers | None]) -> list[Link]:
    """Links to the spans that made messages: each once."""
    fields = propagate.get_global_textmap().fields
    distinct = {tuple(each.get(field) for field in fields): each for each in headers if each}
    return [Link(found) for each in islice(distinct.values(), _MOST_LINKS) if (found := _creator(each))]


def _carrying(operation: Any, entries: Sequence[Entry], carrier: Headers) -> Operation[Any]:
    """The operation with messages that carry a context; those that carry one already keep it."""
    if not carrier:
        return cast("Operation[Any]", operation)
    carrying = [_with(entry, carrier) for entry in entries]
    changed = {"entry": carrying[0]} if type(operation) is Publish else {"entries": carrying}
    return cast("Operation[Any]", operation.changed(**changed))


def _with(entry: Entry, carrier: Headers) -> Entry:
    if type(entry) is not Entry or _creator(entry.headers):
        return entry
    try:
        return replace(entry, headers=checked_headers({**carrier, **(entry.headers or {})}))
    except InvalidArgument:
        return entry  # it has as many headers as a message may have
