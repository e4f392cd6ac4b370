"""Health checks (healthz, readyz) and metrics in the text format of Prometheus, version 0.0.4."""

import asyncio
import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from penstock.contract.backend import Histogram
from penstock.contract.operations import Figures
from penstock.contract.stream_operations import AllStreams
from penstock.contract.streams import StreamInfo
from penstock.errors import PenstockError
from penstock.http.server.exchange import Answer, Problem, Request, json_answer
from penstock.version import __version__

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.time()
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_Labels: TypeAlias = Mapping[str, str]
_Sample: TypeAlias = tuple[_Labels, float]

# Name, type and help of a metric, the attribute of Figures, and a label if the attribute is a dict by that label.
_QUEUE_FAMILIES = (
    ("messages", "gauge", "Messages by state.", "counts", "state"),
    (
        "oldest_seconds", "gauge",
        "For how long the available message has waited that has waited longest; 0 if there is none.",
        "waiting_seconds",
    ),
    ("consumers_waiting", "gauge", "Consumers that wait for a message.", "in_line"),
    ("events_total", "counter", "Messages that were put, claimed, acked and so on.", "events", "event"),
    ("lease_expiries_total", "counter", "Leases that ran out before the message was settled.", "leases_expired"),
    ("expired_total", "counter", "Messages whose retention ended before they were done.", "expired"),
    ("given_up_total", "counter", "Messages that failed for good, after their last attempt.", "given_up"),
)  # fmt: skip
_STREAM_FAMILIES: tuple[tuple[str, str, Callable[[StreamInfo, float], float]], ...] = (
    ("held_messages", "Messages of the batch that a stream holds.", lambda info, now: info.messages),
    (
        "held_seconds", "For how long a stream has held its batch; 0 if it holds none.",
        lambda info, now: 0 if info.since is None else max(now - info.since, 0) / 1000,
    ),
    (
        "lag_messages", "Messages that wait in a stream's queue, or that a follower has not read yet.",
        lambda info, now: info.lag,
    ),
)  # fmt: skip
_MOST_STREAMS = 1_000  # that have metrics, by name
_STUCK = 10.0  # seconds after which a commit that still runs means a disk that hangs
_log = logging.getLogger("penstock.server")
_TEXT = f"Content-Type: {MEDIA_TYPE}\r\n".encode()


def queues(figures: Sequence[Figures]) -> Iterator[str]:
    """The metrics of queues. A queue that an error has stopped has none but `up`."""
    about = "0 if an error has stopped the queue: restart the server."
    yield from _family("penstock_queue_up", "gauge", about, (({"queue": each.queue}, each.up) for each in figures))
    # Most of the metrics are these, so each queue's label is made once.
    up = [(each, f'queue="{each.queue.translate(_ESCAPES)}"') for each in figures if each.up]
    for name, kind, about, attribute, *label in _QUEUE_FAMILIES:
        metric = f"penstock_queue_{name}"
        yield from _family(metric, kind, about, ())
        for each, queue in up:
            value = getattr(each, attribute)
            if label:
                for key, count in value.items():
                    yield f'{metric}{{{queue},{label[0]}="{key}"}} {count}\n'
            else:
                yield f"{metric}{{{queue}}} {_number(value)}\n"


def commits(seconds: Histogram, records: Histogram, running: float) -> Iterator[str]:
    """The metrics of commits: how long they take, and how many operations each makes durable."""
    yield from _histogram("penstock_commit_seconds", "Time that a commit took, its sync included.", seconds)
    yield from _histogram("penstock_commit_records", "Operations that one commit made durable.", records)
    yield from _one("penstock_commit_running_seconds", "For how long the longest running commit has run.", running)


def streams(found: Sequence[StreamInfo], now: float) -> Iterator[str]:
    """The metrics of streams; `now` in milliseconds."""
    for name, about, value in _STREAM_FAMILIES:
        samples = (
            ({"queue": each.queue, "stream": each.stream, "mode": each.mode}, value(each, now))
            for each in found[:_MOST_STREAMS]
        )
        yield from _family(f"penstock_stream_{name}", "gauge", about, samples)


def disk(files: str | None) -> Iterator[str]:
    """The metrics of the disk with the store's files."""
    if files is None:
        return
    try:
        found = shutil.disk_usage(files)
    except OSError:
        return  # the store's folder is gone
    yield from _one("penstock_disk_bytes", "Size of the file system with the store.", found.total)
    yield from _one("penstock_disk_free_bytes", "Bytes of it that are free for the store.", found.free)


def server(is_open: bool, connections: int, buffered: int, answers: Mapping[int, int]) -> Iterator[str]:
    """The metrics of the server."""
    yield from _one("penstock_store_up", "0 if the store was closed or has failed.", is_open)
    yield from _one("penstock_http_connections", "Connections that are open.", connections)
    yield from _one("penstock_http_buffered_bytes", "Bodies of requests that are in memory.", buffered)
    yield from _family(
        "penstock_http_answers_total", "counter", "Answers by status.",
        (({"status": str(status)}, count) for status, count in sorted(answers.items())),
    )  # fmt: skip
    yield from _family("penstock_info", "gauge", "Which version this is.", [({"version": __version__}, 1)])


def process() -> Iterator[str]:
    """The metrics of the process, by Prometheus's common names."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield from _one("process_cpu_seconds_total", "CPU time.", used.ru_utime + used.ru_stime, "counter")
    yield from _one("process_start_time_seconds", "When the process started, since 1970.", _STARTED)
    yield from _one("process_max_fds", "File descriptors allowed.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        with open("/proc/self/statm", "rb") as statm:
            resident = int(statm.read().split()[1]) * resource.getpagesize()
        open_files = len(os.listdir("/proc/self/fd"))
    except OSError:
        return  # not Linux
    yield from _one("process_resident_memory_bytes", "Memory in use.", resident)
    yield from _one("process_open_fds", "File descriptors in use.", open_files)


def _one(name: str, about: str, value: float, kind: str = "gauge") -> Iterator[str]:
    return _family(name, kind, about, [({}, value)])


def _family(name: str, kind: str, about: str, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {_number(value)}\n"


def _histogram(name: str, about: str, histogram: Histogram) -> Iterator[str]:
    counts, total = histogram.read()
    yield f"# HELP {name} {about}\n# TYPE {name} histogram\n"
    for bound, count in zip([*map(_number, histogram.bounds), "+Inf"], counts, strict=True):
        yield f'{name}_bucket{{le="{bound}"}} {count}\n'
    yield f"{name}_sum {_number(total)}\n{name}_count {counts[-1]}\n"


def _labels(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


async def healthz(backend: Any, request: Request) -> Answer:
    """GET /-/healthz: the process is alive, whatever the state of its store."""
    request.parameters()
    return json_answer({"status": "ok"})


async def readyz(backend: Any, request: Request) -> Answer:
    """GET /-/readyz: the store works, and no commit hangs."""
    request.parameters()
    if not backend.is_open() or request.service.stopping:
        raise Problem("StoreClosed", "the server is stopping, or its store has failed: send work elsewhere")
    try:
        await asyncio.wait_for(backend.check(), _STUCK)
    except TimeoutError:
        _log.warning("the store has not answered for %.0f s: look at its disk", _STUCK)
        raise Problem("Overloaded", f"the store has not answered for {_STUCK:.0f} s: look at its disk") from None
    except PenstockError as error:
        _log.warning("the store cannot work: %s", error)
        raise Problem("StoreClosed", "the store cannot work; the log says why: send work elsewhere") from None
    if backend.longest_commit() > _STUCK:
        _log.warning("a commit has been running for %.0f s or more: look at the disk", _STUCK)
        raise Problem("Overloaded", f"a commit has been running for {_STUCK:.0f} s or more: look at the disk")
    return json_answer({"status": "ready"})


async def metrics(backend: Any, request: Request) -> Answer:
    """GET /-/metrics."""
    request.parameters()
    service, figures = request.service, await backend.figures()
    try:
        found = await backend.run(AllStreams())
    except PenstockError:  # a kind of store without streams, or a store that has failed
        found = []

    def render() -> bytes:  # in a thread: there may be very many queues
        parts = chain(
            queues(figures),
            streams(found, time.time() * 1000),
            commits(backend.commit_seconds, backend.commit_records, max(0.0, backend.longest_commit())),
            disk(service.store_files),
            server(backend.is_open(), service.connections, service.buffered, dict(service.answers)),
            process(),
        )
        return "".join(parts).encode()

    return Answer(200, _TEXT, await service.loop.run_in_executor(None, render))
