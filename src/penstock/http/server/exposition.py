"""The metrics as Prometheus reads them: its text format, version 0.0.4."""

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from penstock.engine.queue import Figures
from penstock.system.histogram import Histogram
from penstock.version import __version__

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.time()
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_Labels: TypeAlias = Mapping[str, str]
_Sample: TypeAlias = tuple[_Labels, float]


def queues(figures: Sequence[Figures]) -> Iterator[str]:
    """Of each queue: what is in it, and what has happened."""
    up = [each for each in figures if each.up]
    yield from _family(
        "penstock_queue_up", "gauge", "0 if an error has stopped the queue: restart the server.",
        (({"queue": each.queue}, each.up) for each in figures),
    )  # fmt: skip
    yield from _family(
        "penstock_queue_messages", "gauge", "Messages by state.",
        (
            ({"queue": each.queue, "state": state}, count)
            for each in up
            for state, count in each.counts.items()
        ),
    )  # fmt: skip
    yield from _family(
        "penstock_queue_oldest_seconds", "gauge",
        "For how long the available message has waited that has waited longest; 0 if there is none.",
        (({"queue": each.queue}, each.waiting_seconds) for each in up),
    )  # fmt: skip
    yield from _family(
        "penstock_queue_consumers_waiting", "gauge", "Consumers that wait for a message.",
        (({"queue": each.queue}, each.in_line) for each in up),
    )  # fmt: skip
    yield from _family(
        "penstock_queue_events_total", "counter", "Messages that were put, claimed, acked and so on.",
        (
            ({"queue": each.queue, "event": event}, count)
            for each in up
            for event, count in each.events.items()
        ),
    )  # fmt: skip
    for name, about, attribute in (
        ("lease_expiries", "Leases that ran out before the message was settled.", "leases_expired"),
        ("expired", "Messages whose retention ended before they were done.", "expired"),
        ("given_up", "Messages that failed for good, after their last attempt.", "given_up"),
    ):
        samples = (({"queue": each.queue}, getattr(each, attribute)) for each in up)
        yield from _family(f"penstock_queue_{name}_total", "counter", about, samples)


def commits(seconds: Histogram, records: Histogram) -> Iterator[str]:
    """How long it takes until something is on stable storage, and how much gets there at once."""
    yield from _histogram("penstock_commit_seconds", "Time that a commit took, its sync included.", seconds)
    yield from _histogram("penstock_commit_records", "Operations that one commit made durable.", records)


def server(is_open: bool, connections: int, buffered: int, answers: Mapping[int, int]) -> Iterator[str]:
    """Of the server itself."""
    yield from _one("penstock_store_up", "0 if the store was closed or has failed.", is_open)
    yield from _one("penstock_http_connections", "Connections that are open.", connections)
    yield from _one("penstock_http_buffered_bytes", "Bodies of requests that are in memory.", buffered)
    yield from _family(
        "penstock_http_answers_total", "counter", "Answers by status.",
        (({"status": str(status)}, count) for status, count in sorted(answers.items())),
    )  # fmt: skip
    yield from _family("penstock_info", "gauge", "Which version this is.", [({"version": __version__}, 1)])


def process() -> Iterator[str]:
    """Of the process, by the names that all programs use."""
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
