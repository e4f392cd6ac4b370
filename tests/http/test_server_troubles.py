"""What counts as a problem of a store, its streams and its queues, and how bad it is."""

from typing import Any

import pytest

from penstock.contract.backend import FLOWS, Reading
from penstock.contract.streams import StreamInfo, reader_name
from penstock.http.server.history import History
from penstock.http.server.troubles import Look, Problem, of_queue, of_store, of_streams, worst_first

GIB = 1 << 30
WELL = Look(0, True, 0.0, {"free": 90 * GIB, "total": 100 * GIB}, {"count": 9, "p50": 0.001, "p99": 0.01}, [])
GONE = "2147483647-1-1@x@" + reader_name().rpartition("@")[2]


def told(problems: Any) -> list[tuple[str, str]]:
    return [(problem.kind, problem.severity) for problem in problems]


@pytest.mark.parametrize(
    ("look", "problems"),
    [
        ({}, []),
        ({"disk": None, "commits": None}, []),
        ({"is_open": False}, [("stopped", "error")]),
        ({"longest_commit": 11.0}, [("commit", "error")]),
        ({"commits": {"count": 9, "p50": 0.5, "p99": 1.5}}, [("commit", "warning")]),
        ({"disk": {"free": 9 * GIB, "total": 100 * GIB}}, [("disk", "warning")]),
        ({"disk": {"free": GIB, "total": 100 * GIB}}, [("disk", "error")]),
        ({"disk": {"free": 60 * GIB, "total": 1_000 * GIB}}, []),  # 60 GiB are plenty, whatever their share
    ],
)
def test_a_store_has_problems_with_its_disk_and_its_commits(
    look: dict[str, Any], problems: list[tuple[str, str]]
) -> None:
    assert told(of_store(WELL._replace(**look))) == problems


@pytest.mark.parametrize(
    ("since", "reader", "problems"),
    [
        (None, GONE, []),
        (3_000_000, reader_name(), []),
        (3_000_000, GONE, [("stream", "warning")]),
        (1_000, reader_name(), [("stream", "warning")]),
    ],
)
def test_a_stream_is_a_problem_if_its_reader_has_ended_or_holds_a_batch_for_an_hour(
    since: int | None, reader: str, problems: list[tuple[str, str]]
) -> None:
    stream = StreamInfo("jobs", "nightly", "consume", 7, 6, 5, since, 0, reader, 0)
    found = list(of_streams(WELL._replace(now=4_000_000, streams=[stream])))
    assert told(found) == problems
    assert all("nightly" in each.what and each.queue == "jobs" for each in found)


def problems_after(seconds: float, *readings: Reading) -> list[tuple[str, str]]:
    """The problems of a queue with these readings, as many seconds apart."""
    history = History()
    for number, reading in enumerate(readings):
        history.begin(number * seconds)
        history.take([reading])
        history.finish()
    return told(of_queue("jobs", history.tracks["jobs"], history))


def read(up: bool = True, in_line: int = 0, **values: int) -> Reading:
    counts = tuple(values.pop(state, 0) for state in ("delayed", "available", "in_flight", "done", "failed"))
    flows = tuple(values.pop(flow, 0) for flow in ("into", *FLOWS[1:]))
    assert not values
    return Reading("jobs", up, counts, flows, in_line)


def test_an_idle_queue_is_well() -> None:
    assert problems_after(300, read(), read(), read()) == []


def test_a_stopped_queue_is_an_error() -> None:
    assert problems_after(10, read(), read(up=False, failed=3)) == [("stopped", "error")]


def test_a_queue_fails_if_most_of_several_attempts_do() -> None:
    assert problems_after(10, read(), read(failures=10, out=9)) == [("failing", "error")]
    assert problems_after(10, read(), read(failures=10, out=10)) == []
    assert problems_after(10, read(), read(failures=9)) == []
    assert problems_after(400, read(), read(failures=10), read(failures=10), read(failures=10)) == []  # long ago


def test_failed_messages_and_leases_that_ran_out_are_warnings() -> None:
    assert problems_after(10, read(failed=1), read(failed=1)) == [("failed", "warning")]
    assert problems_after(10, read(), read(leases_expired=1)) == [("leases", "warning")]


def test_messages_that_nobody_takes_for_ten_minutes_are_a_notice() -> None:
    waiting = read(available=5)
    unattended = [("unattended", "notice")]
    assert problems_after(290, waiting, waiting, waiting) == []
    assert problems_after(290, waiting, waiting, waiting, waiting) == unattended
    assert problems_after(290, waiting, waiting, waiting, read(available=5, into=9)) == unattended
    assert problems_after(290, waiting, waiting, waiting, read(available=5, in_line=1)) == []
    assert problems_after(290, waiting, waiting, waiting, read(available=4, out=1)) == []
    assert problems_after(290, waiting, waiting, waiting, read(available=4, in_flight=1)) == []


def test_a_full_queue_is_an_error_and_a_nearly_full_one_a_warning() -> None:
    def problems(max_size: int) -> list[tuple[str, str]]:
        reading = read(delayed=3, available=3, in_flight=4, done=5)._replace(max_size=max_size)
        return problems_after(10, reading)

    assert problems(0) == problems(12) == []
    assert problems(11) == [("full", "warning")]
    assert problems(10) == [("full", "error")]


def test_the_worst_problems_come_first() -> None:
    problems = [Problem("a", severity, None, "", "") for severity in ("notice", "error", "warning", "error")]
    assert [each.severity for each in worst_first(problems)] == ["error", "error", "warning", "notice"]
