"""Spans and the trace context of messages, with the SDK of OpenTelemetry."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import penstock
import penstock.aio
from penstock import working
from penstock.cli import cli
from penstock.contract import tracing
from penstock.contract.message import MAX_HEADERS
from penstock.contract.spans import current
from penstock.tracing import processing
from tests.http.serving import serving
from tests.tracing.spans import ROOT, Recorded, attributes, identity, links, parent, traced_program

FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FOREIGN_IDENTITY = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture(params=["memory", "guest", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Store]:
    """A store of this process; one that another opening of the folder owns; one behind a server."""
    with penstock.open("memory:" if request.param != "guest" else tmp_path / "store") as owner:
        if request.param == "memory":
            yield owner
        elif request.param == "guest":
            with penstock.open(tmp_path / "store") as guest:
                yield guest
        else:
            with serving(owner) as server, penstock.open(server.url) as remote:
                yield remote


@pytest.fixture
def queue() -> Iterator[penstock.Queue]:
    with penstock.open("memory:") as store:
        yield store.create("jobs", max_size=100)


# The path of a message


def test_the_work_on_a_message_links_to_its_put_wherever_the_store_is(
    store: penstock.Store, spans: Recorded
) -> None:
    jobs = store.create("jobs")
    jobs.put(b"abc", headers={"a": "b"})
    seen: list[penstock.Message] = []
    penstock.work(jobs, seen.append, until_empty=True)
    assert seen[0].headers["a"] == "b"
    put, claim, process, ack = (spans.one(name) for name in ("put", "claim", "process", "ack"))
    assert len(spans.all()) == 4  # neither owner nor server adds any
    assert [each.name for each in (put, claim, process, ack)] == [
        "put jobs",
        "claim jobs",
        "process jobs",
        "ack jobs",
    ]
    assert links(claim) == links(process) == [identity(put)]
    assert parent(put) is parent(claim) is parent(process) is None
    assert parent(ack) == identity(process)
    assert [each.kind for each in (put, claim, process, ack)] == [
        SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CLIENT,
    ]  # fmt: skip
    server = {name: value for name, value in attributes(put).items() if name.startswith("server.")}
    assert (len(server) == 2) == store.url.startswith("http:")
    of_one = {"destination.name": "jobs", "message.id": seen[0].id, "message.body.size": 3, **server}
    assert attributes(put) == {"operation.name": "put", "operation.type": "send", **of_one}
    assert attributes(claim) == {"operation.name": "claim", "operation.type": "receive", **of_one}
    assert attributes(ack) == {
        "operation.name": "ack", "operation.type": "settle", "destination.name": "jobs", **server,
    }  # fmt: skip
    here = {
        name: value for name, value in of_one.items() if name not in server
    }  # the work is no call of the server
    assert attributes(process) == {
        "operation.name": "process", "operation.type": "process", "penstock.message.attempts": 1, **here,
    }  # fmt: skip


PRODUCER = """
import penstock
with penstock.open(sys.argv[1]) as store, trace.get_tracer("shop").start_as_current_span("order"):
    store.create("jobs").put(b"a")
"""


def test_the_trace_goes_on_in_another_process(tmp_path: Path, spans: Recorded) -> None:
    put, order = traced_program(PRODUCER, tmp_path / "spans", str(tmp_path / "store"))
    assert (put["name"], order["name"]) == ("put jobs", "order")
    assert put["parent_id"] == order["context"]["span_id"]
    with penstock.open(tmp_path / "store") as store:
        penstock.work(store.queue("jobs"), lambda message: None, until_empty=True)
    [(trace_id, span_id)] = links(spans.one("process"))
    assert (f"0x{trace_id:032x}", f"0x{span_id:016x}") == (put["context"]["trace_id"], put["context"]["span_id"])


def test_a_published_message_carries_its_span_into_each_queue(spans: Recorded) -> None:
    with penstock.open("memory:") as store:
        first, second = store.create("a", filter="x = '1'"), store.create("b", filter="x = '1'")
        id_ = store.publish(b"a", headers={"x": "1"})
        for queue in (first, second):
            queue.pop()
    publish = spans.one("publish")
    assert publish.name == "publish"  # to no queue by name
    assert attributes(publish)["message.id"] == id_
    assert [links(each) for each in spans.all("pop")] == [[identity(publish)]] * 2


def test_a_batch_has_one_span_and_a_claim_links_to_each_span_once(queue: penstock.Queue, spans: Recorded) -> None:
    queue.put_many([b"a"] * 3)
    queue.put_many([penstock.Draft(b"b", headers={"x": "1"}), b"c"])
    messages = queue.claim(10)
    queue.ack(*messages)
    first, second = spans.all("put")
    assert [attributes(each)["batch.message_count"] for each in (first, second)] == [3, 2]
    assert "message.id" not in attributes(first)
    assert links(spans.one("claim")) == [identity(first), identity(second)]
    assert attributes(spans.one("claim"))["batch.message_count"] == 5
    assert attributes(spans.one("ack"))["batch.message_count"] == 5
    assert [message.headers.get("x") for message in messages] == [None, None, None, "1", None]


def test_a_message_keeps_the_context_that_the_program_gave_it(queue: penstock.Queue, spans: Recorded) -> None:
    queue.put(b"a", headers={"traceparent": FOREIGN})
    assert queue.claim()[0].headers == {"traceparent": FOREIGN}
    assert spans.one("put").kind == SpanKind.CLIENT  # its context is not the message's
    assert links(spans.one("put")) == links(spans.one("claim")) == [FOREIGN_IDENTITY]


def test_a_header_that_is_no_context_is_no_link(queue: penstock.Queue, spans: Recorded) -> None:
    queue.put(b"a", headers={"traceparent": "00-<script>"})
    penstock.work(queue, lambda message: None, until_empty=True)
    assert not any(links(each) for each in spans.all())


class Stumbling(TraceContextTextMapPropagator):
    """A propagator with a bug."""

    def extract(self, *arguments: Any, **named: Any) -> Context:
        raise ZeroDivisionError


def test_a_propagator_that_stumbles_over_a_message_does_not_keep_it_from_consumers(
    queue: penstock.Queue, spans: Recorded
) -> None:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Stumbling())
    try:
        queue.put_many([penstock.Draft(b"a", headers={"traceparent": "?"}), b"b"])
        assert penstock.work(queue, lambda message: None, until_empty=True).acked == 2
    finally:
        propagate.set_global_textmap(before)
    assert len(spans.all("process")) == 2


def test_headers_of_the_program_stay_whatever_their_names(queue: penstock.Queue, spans: Recorded) -> None:
    queue.put(b"a", headers={"baggage": "two suitcases"})
    headers = queue.claim()[0].headers
    assert headers.pop("baggage") == "two suitcases"
    assert set(headers) == {"traceparent"}
    assert links(spans.one("claim")) == [identity(spans.one("put"))]


def test_a_message_without_room_for_another_header_is_put_without(queue: penstock.Queue, spans: Recorded) -> None:
    full = {f"h{number}": "" for number in range(MAX_HEADERS)}
    queue.put(b"a", headers=full)
    assert queue.claim()[0].headers == full
    assert len(spans.all()) == 2


def test_baggage_travels_as_the_propagator_says(queue: penstock.Queue, spans: Recorded) -> None:
    found: list[object] = []
    token = context.attach(baggage.set_baggage("customer", "42"))
    before = propagate.get_global_textmap()
    try:
        queue.put(b"a")
        propagate.set_global_textmap(TraceContextTextMapPropagator())
        queue.put(b"b")
    finally:
        propagate.set_global_textmap(before)
        context.detach(token)
    sent = [set(message.headers) for message in queue.peek(2)]
    assert sent == [{"traceparent", "baggage"}, {"traceparent"}]
    penstock.work(queue, lambda message: found.append(baggage.get_baggage("customer")), 1, until_empty=True)
    assert found == ["42", None]


# Outcomes


def test_an_error_is_named(queue: penstock.Queue, spans: Recorded) -> None:
    queue.update(max_size=1)
    queue.put(b"a")
    with pytest.raises(penstock.QueueFull):
        queue.put(b"b")
    with pytest.raises(penstock.LeaseExpired):
        queue.ack("1.0123456789abcdef")
    queue._store.delete("jobs")
    with pytest.raises(penstock.QueueNotFound):
        queue.claim()
    errors = [(each.name, attributes(each).get("error.type"), each.status.status_code) for each in spans.all()]
    assert errors == [
        ("put jobs", None, StatusCode.UNSET),
        ("put jobs", "QueueFull", StatusCode.ERROR),
        ("ack jobs", "LeaseExpired", StatusCode.ERROR),
        ("claim jobs", "QueueNotFound", StatusCode.ERROR),
    ]


def test_a_poll_that_finds_nothing_has_no_span(queue: penstock.Queue, spans: Recorded) -> None:
    assert (queue.claim(), queue.pop()) == ([], None)
    assert not spans.all()


def test_a_handler_that_fails_shows_in_its_span_and_one_that_releases_does_not(
    queue: penstock.Queue, spans: Recorded
) -> None:
    def handler(message: penstock.Message) -> None:
        if message.payload == b"broken":
            raise ValueError("no such picture")
        if message.attempts == 1:
            raise working.Release

    queue.update(max_attempts=1)
    queue.put(b"broken")
    queue.update(max_attempts=5)
    queue.put(b"later")
    queue.update(max_attempts=1)
    stop = threading.Event()

    def report(result: working.Result) -> None:
        if result.outcome == "release":
            stop.set()

    penstock.work(queue, handler, 1, stop=stop, report=report)
    failed, released = spans.all("process")
    assert attributes(failed)["error.type"] == "ValueError"
    assert failed.status.status_code == StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]
    assert "error.type" not in attributes(released)
    assert parent(spans.one("fail")) == identity(failed)
    assert parent(spans.one("release")) == identity(released)
    assert "error.type" not in attributes(spans.one("fail"))


def test_a_handler_can_put_and_settle_within_its_span(queue: penstock.Queue, spans: Recorded) -> None:
    other = queue._store.create("next")

    def handler(message: penstock.Message) -> None:
        other.put(b"b")
        message.ack()

    queue.put(b"a")
    penstock.work(queue, handler, until_empty=True)
    process = identity(spans.one("process"))
    assert parent(spans.all("put")[1]) == parent(spans.one("ack")) == process
    assert links(spans.one("process")) == [identity(spans.all("put")[0])]


def test_what_is_settled_together_links_to_each_work(queue: penstock.Queue, spans: Recorded) -> None:
    queue.put_many([b"a", b"b"])
    work = []
    messages = queue.claim(2)
    for message in messages:
        with processing(message) as each:
            work.append(each)
    with tracing.settling(work):
        queue.ack(*messages)
    assert links(spans.one("ack")) == [identity(each) for each in spans.all("process")]
    assert parent(spans.one("ack")) is None


# Coroutines


def test_coroutines_have_the_same_spans_each_its_own(tmp_path: Path, spans: Recorded) -> None:
    seen: dict[bytes, int] = {}

    async def handler(message: penstock.aio.Message) -> None:
        await asyncio.sleep(0)  # the others run meanwhile
        seen[message.payload] = trace.get_current_span().get_span_context().span_id

    async def main() -> None:
        async with penstock.aio.open(tmp_path / "store") as store:
            jobs = await store.create("jobs")
            await asyncio.gather(*(jobs.put(b"%d" % number) for number in range(3)))
            await penstock.aio.work(jobs, handler, until_empty=True)
            with pytest.raises(penstock.QueueNotFound):
                await penstock.aio.Queue(store, "none").put(b"a")

    asyncio.run(main())
    *puts, refused = spans.all("put")
    processes = spans.all("process")
    assert sorted(link for each in processes for link in links(each)) == sorted(map(identity, puts))
    assert len(set(seen.values())) == 3
    assert set(seen.values()) == {identity(each)[1] for each in processes}
    assert attributes(refused)["error.type"] == "QueueNotFound"
    assert {parent(each) or links(each)[0] for each in spans.all("ack")} <= set(map(identity, processes))


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        store = await penstock.aio.open("memory:")
        queue = await store.queue()
        await store.close()
        with pytest.raises(penstock.StoreClosed, match="was closed"):
            await queue.put(b"a")

    asyncio.run(main())


# Commands

WORKER = """
from penstock.cli import main
main()
"""


def test_a_command_gets_the_trace_of_its_work(tmp_path: Path, spans: Recorded) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.queue().put(b"a")
    command = ["work", "default", "--until-empty", "--", "sh", "-c", f'printf %s "$TRACEPARENT" > {tmp_path}/told']
    written = traced_program(WORKER, tmp_path / "spans", "--store", str(tmp_path / "store"), *command)
    by_name = {each["name"].split()[0]: each for each in written}
    assert by_name.keys() == {"claim", "process", "ack"}
    work = by_name["process"]["context"]
    assert (tmp_path / "told").read_text()[
        :-2
    ] == f"00-{work['trace_id'][2:]}-{work['span_id'][2:]}-"  # then flags
    put = spans.one("put").get_span_context()
    assert put is not None
    assert by_name["process"]["links"][0]["context"]["span_id"] == f"0x{put.span_id:016x}"


def test_a_command_of_a_worker_that_is_not_traced_gets_the_trace_of_the_put(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.queue().put(b"a", headers={"traceparent": FOREIGN, "tracestate": "a=b", "baggage": "c=d"})
        store.queue().put(b"b")
    command = ["sh", "-c", f'echo "$TRACEPARENT $TRACESTATE $BAGGAGE" >> {tmp_path}/told']
    arguments = ["--store", str(tmp_path / "store"), "work", "default", "-c", "1", "--until-empty", "--", *command]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert (tmp_path / "told").read_text() == f"{FOREIGN} a=b \n  \n"


# The document


def test_the_example_of_the_document_runs(tmp_path: Path) -> None:
    [example] = re.findall(
        r"```python\n(import penstock\n.*?)```", (ROOT / "docs" / "watching.md").read_text(), re.DOTALL
    )
    ended = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert re.findall(r'"name": "(.+)"', ended.stdout) == [
        "put jobs", "order", "claim jobs", "process jobs", "ack jobs",
    ]  # fmt: skip
    assert re.search(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-9a-f]$", ended.stdout, re.MULTILINE)


# Without


def test_without_a_provider_nothing_is_added(queue: penstock.Queue) -> None:
    assert trace.get_tracer_provider().__class__ is trace.ProxyTracerProvider
    assert current() is None
    queue.put(b"a")
    with processing(queue.claim()[0]) as work:
        assert work is None
        assert not trace.get_current_span().get_span_context().is_valid


UNTRACED = """
import sys
if sys.argv[1] == "missing":
    sys.modules["opentelemetry"] = None  # as if it were not installed
import penstock
with penstock.open("memory:") as store:
    store.queue().put(b"a")
    penstock.work(store.queue(), lambda message: print(message.headers), until_empty=True)
print([name for name in sys.modules if name.startswith("opentelemetry.")])
"""


@pytest.mark.parametrize("package", ["missing", "installed"])
def test_a_program_that_is_not_traced_imports_nothing(package: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UNTRACED, package],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert ended.stdout == "{}\n[]\n"
