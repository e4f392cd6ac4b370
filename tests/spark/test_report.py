"""Reports: numbers that were worked out by hand, each message once, and a page that shows them to anyone."""

import json
import subprocess
import sys
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import Draft
from penstock.contract.message import STATES
from penstock.contract.store import Store
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.server import serve_in_thread
from penstock.spark.jobs import archive, report
from penstock.spark.jobs.reporting import charts, numbers
from penstock.spark.jobs.reporting.job import last_day
from penstock.spark.jobs.reporting.numbers import Figures, Numbers, Reason, Slice, Times
from penstock.spark.jobs.reporting.page import render
from penstock.stores.journal.store import open_journal

HOUR = 3_600_000
START = 472_223 * HOUR  # 2023-11-14 23:00
EVIL = "<script>alert('1')</script>"


def known_history(folder: Path) -> None:
    """Five messages: what happens to them is on the right, in seconds since the start."""
    clock = penstock.SimulatedClock(START)
    with penstock.open(folder, clock=clock) as store:
        a = store.create("a", max_attempts=2, keep_done=None)
        a.put_many([b"1", b"2", Draft(b"3", delay=10), b"4"])
        clock.advance(2)
        first = a.claim()  # 1 waited 2
        clock.advance(3)
        a.ack(*first)  # and was processed in 3
        second = a.claim()  # 2 waited 5
        clock.advance(1)
        a.fail(*second, reason=EVIL)
        second = a.claim()
        clock.advance(4)
        a.fail(*second, reason=EVIL)  # and was processed in 4, the last time
        clock.advance(2)
        a.pop()  # 3 waited 2 after its delay, and took no time; 4 waits
        clock.advance(3_600)
        store.create(EVIL, keep_done=None).put(b"5")
        store.queue(EVIL).pop()  # 5 took no time at all


def times(count: int, *seconds: float) -> dict[str, Any]:
    return dict(zip(("count", "p50", "p90", "p99", "max"), (count, *seconds), strict=True))


def check_known(document: dict[str, Any]) -> None:
    total = document["total"]
    assert total["states"] == {"delayed": 0, "available": 1, "in_flight": 0, "done": 3, "failed": 1}
    assert (total["put"], total["done"], total["failed"]) == (5, 3, 1)
    assert total["waiting"] == times(4, 2.0, 5.0, 5.0, 5.0)  # of 0, 2, 2, 5
    assert total["processing"] == times(4, 0.0, 4.0, 4.0, 4.0)  # of 0, 0, 3, 4
    assert total["attempts"] == {"1": 3, "2": 1}
    a, evil, default = document["queues"]
    assert (a["queue"], evil["queue"], default["queue"]) == ("a", EVIL, "default")
    assert a["waiting"] == times(3, 2.0, 5.0, 5.0, 5.0)
    assert a["processing"] == times(3, 3.0, 4.0, 4.0, 4.0)
    assert (default["put"], default["waiting"]["count"], default["waiting"]["p50"]) == (0, 0, None)
    assert (document["from"], document["to"], document["window"]) == (START, START + HOUR + 12_000, 3600)
    one, two = document["windows"]
    assert (one["start"], one["put"], one["done"], one["failed"]) == (START, 4, 2, 1)
    assert (two["start"], two["put"], two["done"], two["failed"]) == (START + HOUR, 1, 1, 0)
    assert one["waiting"] == times(3, 2.0, 5.0, 5.0, 5.0)
    assert two["processing"] == times(1, 0.0, 0.0, 0.0, 0.0)
    assert [each["put"] for each in document["queue_windows"][EVIL]] == [0, 1]
    expected = [{"reason": EVIL, "attempts": 2, "messages": 1}]
    assert document["reasons"]["total"] == document["reasons"]["queues"]["a"] == expected


def test_the_numbers_are_those_worked_out_by_hand_wherever_the_messages_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    known_history(tmp_path / "store")
    summary = report(spark, tmp_path / "store", tmp_path / "out", window="1 hour", id="first")
    assert summary.rows[0] == ["a", 0, 1, 0, 2, 1, 2.0, 5.0, 3.0, 4.0]
    check_known(json.loads((tmp_path / "out" / "report.json").read_text()))
    page = (tmp_path / "out" / "report.html").read_text()
    assert EVIL not in page
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;" in page
    assert report(spark, tmp_path / "store", tmp_path / "out", id="first").repeated
    archive(spark, tmp_path / "store", tmp_path / "archive")
    with penstock.open(tmp_path / "store") as store:
        store.queue("a").remove("1", "2")  # now two are in the archive alone, and two in both
    report(spark, tmp_path / "store", tmp_path / "out", archive=tmp_path / "archive", window="60 min")
    check_known(json.loads((tmp_path / "out" / "report.json").read_text()))


def test_depth_consumers_and_the_ways_of_dead_letters_are_those_worked_out_by_hand(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = penstock.SimulatedClock(START)
    with penstock.open(tmp_path / "store", clock=clock) as store:
        dead, later = (store.create(name, keep_done=None) for name in ("dead", "<later>"))
        jobs = store.create("jobs", max_attempts=2, keep_done=None, dead_letter="dead")
        jobs.put_many([b"1", b"2", b"3", b"4", b"5", b"6"])
        one, *others = jobs.claim(3, lease=100, consumer="ada")
        clock.advance(60)
        jobs.ack(one)
        jobs.fail(*others, reason="no luck")
        jobs.fail(*jobs.claim(2, consumer="b&o"), reason="no luck")  # 2 and 3 are dead letters
        clock.advance(3_540)
        for _ in range(2):
            jobs.claim(lease=30, consumer="ada")
            clock.advance(30)
        assert dead.count() == 3  # 4 is one, too
        dead.ack(*dead.claim(consumer="carl"))
        clock.advance(3_540)
        jobs.put_many([b"7", b"8"])
        clock.advance(3_600)
        jobs.fail(*jobs.claim(consumer="ada"), reason="odd")
        jobs.ack(jobs.claim(2, consumer="b&o")[0])  # 5 is done, and the lease of 6 will have ended
        three, four = dead.peek(2)
        assert (three.payload, four.payload) == (b"3", b"4")
        assert dead.move("<later>", four.id) == 1
        assert later.count() == 1
    report(spark, tmp_path / "store", tmp_path / "out", window="1 hour")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    # A message that moved was put where it is now.
    windows = {"": document["windows"], **document["queue_windows"]}
    assert {name: [each["depth"] for each in slices] for name, slices in windows.items()} == {
        "": [4, 3, 5, 5], "jobs": [2, 2, 4, 3], "dead": [2, 1, 1, 1], "<later>": [0, 0, 0, 1],
    }  # fmt: skip
    assert [tuple(each.values()) for each in document["consumers"]] == [
        ("ada", 2, 2, 1, START + 3 * HOUR),
        ("b&o", 2, 2, 1, START + 3 * HOUR + 30_000),
        ("carl", 1, 1, 0, START + HOUR + 60_000),
    ]
    none = dict.fromkeys(STATES, 0)
    assert [tuple(each.values()) for each in document["dead_letters"]] == [
        ("jobs", "dead", 2, none | {"available": 1, "done": 1}, "no luck"),
        ("jobs", "<later>", 1, none | {"available": 1}, "lease expired"),
    ]
    page = Outline((tmp_path / "out" / "report.html").read_text())
    assert page.open == []
    assert [row[:5] for row in page.rows("Windows")] == [
        ["2023-11-14 23:00", "5", "1", "0", "4"],
        ["2023-11-15 00:00", "0", "1", "0", "3"],
        ["2023-11-15 01:00", "2", "0", "0", "5"],
        ["2023-11-15 02:00", "1", "1", "0", "5"],
    ]
    assert "Depth: most at 2023-11-15 01:00: 5; at the end 5" in page.labels
    assert page.rows("Consumers") == [
        ["ada", "2", "2", "1", "2023-11-15 02:00:00"],
        ["b&o", "2", "2", "1", "2023-11-15 02:00:30"],
        ["carl", "1", "1", "0", "2023-11-15 00:01:00"],
    ]
    assert page.rows("Dead letters") == [
        ["jobs", "dead", "2", "0", "1", "0", "1", "0", "no luck"],
        ["jobs", "<later>", "1", "0", "1", "0", "0", "0", "lease expired"],
    ]


def test_an_empty_store_has_a_report_and_a_dry_run_writes_none(spark: SparkSession, tmp_path: Path) -> None:
    penstock.open(tmp_path / "store").close()
    dry = report(spark, tmp_path / "store", tmp_path / "out", dry_run=True)
    assert (dry.dry_run, dry.rows[0][:6]) == (True, ["default", 0, 0, 0, 0, 0])
    assert not (tmp_path / "out").exists()
    report(spark, tmp_path / "store", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "There are no messages yet" in page
    assert "<h2>Streams</h2>" not in page


def test_streams_are_shown_with_what_they_hold_since_when_and_how_far_behind_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = penstock.SimulatedClock(START)
    with closing(open_journal(str(tmp_path / "store"), clock=clock)) as backend:
        Store("", backend).create("a&b").put_many([b"x"] * 5)
        streams, reader = backend.streams(), reader_name()
        streams.begin("a&b", "<i>one", reader)
        assert streams.next("a&b", "<i>one", reader, 0, 1, 1 << 20) == 1
        clock.advance(1)
        assert streams.next("a&b", "<i>one", reader, 1, 2, 1 << 20) == 2  # the first is settled
        streams.follow("a&b", "two", reader, 3)
    report(spark, tmp_path / "store", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = [{name: value for name, value in each.items() if value != reader} for each in document["streams"]]
    assert shown == [
        {
            "queue": "a&b", "stream": "<i>one", "mode": "consume", "batch": 2, "settled": 1, "messages": 2,
            "since": START + 1_000, "failures": 0, "lag": 2,
        },
        {
            "queue": "a&b", "stream": "two", "mode": "follow", "batch": 3, "settled": 0, "messages": 0,
            "since": None, "failures": 0, "lag": 2,
        },
    ]  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text()
    held_for = charts.duration((document["made_at"] - START - 1_000) / 1_000)
    queue, none = "<td>a&amp;b</td>", "<td class=zero>0</td>"
    assert (
        f"<tr><th scope=row>&lt;i&gt;one</th>{queue}<td>consume</td><td>2</td><td>1</td><td>2</td>"
        f"<td>{held_for}</td><td>2</td></tr>"
    ) in page
    assert f"<th scope=row>two</th>{queue}<td>follow</td><td>3</td>{none}{none}<td>-</td><td>2</td>" in page
    assert Outline(page).open == []


def test_streams_of_a_slate_store_are_shown_beside_its_owner(spark: SparkSession, tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        store.create("jobs").put_many([b"x"] * 5)
        streams, reader = Streams(store.run), reader_name()
        streams.begin("jobs", "nightly", reader)
        assert streams.next("jobs", "nightly", reader, 0, 2, 1 << 20) == 1
        report(spark, url, tmp_path / "out")
    [shown] = json.loads((tmp_path / "out" / "report.json").read_text())["streams"]
    assert (shown["stream"], shown["batch"], shown["messages"], shown["lag"]) == ("nightly", 1, 2, 3)


def test_what_cannot_be_reported_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="no store at "):
        report(spark, tmp_path / "none", tmp_path / "out")
    penstock.open(tmp_path / "store").close()
    with pytest.raises(PenstockError, match="there is no archive"):
        report(spark, tmp_path / "store", tmp_path / "out", archive=tmp_path / "none")
    with pytest.raises(InvalidArgument, match="15 minutes"):
        report(spark, tmp_path / "store", tmp_path / "out", window="often")


@pytest.mark.long
def test_the_command_report(tmp_path: Path) -> None:
    known_history(tmp_path / "store")
    command = [sys.executable, "-m", "penstock", "--store", str(tmp_path / "store"), "report"]
    run = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "wait_p99" in run.stdout
    assert (tmp_path / "out" / "report.html").exists()


# Windows and words


def test_windows_are_of_a_sensible_length_and_begin_where_people_expect_it() -> None:
    assert numbers.parse_window("15 min") == numbers.parse_window("900 seconds") == 900_000
    assert numbers.parse_window("1week") == numbers.parse_window("7d")
    assert str(numbers.windows_of(START, START, None)) == "1 minute"
    for hours, expected in (
        (0.01, "1 second"),
        (1, "1 minute"),
        (36, "1 hour"),
        (24 * 40, "1 day"),
        (24 * 300, "1 week"),
    ):
        assert str(numbers.windows_of(START, START + round(hours * HOUR) - 1)) == expected
    week = numbers.windows_of(START, START, numbers.parse_window("1 week"))
    assert charts.moment(week.first) == "2023-11-13 00:00"  # a Monday
    assert numbers.windows_of(START - 1, START, HOUR).starts() == [START - HOUR, START]
    for wrong in ("", "0 h", "1", "h", "1 fortnight", "-1 h"):
        with pytest.raises(InvalidArgument, match="window"):
            numbers.parse_window(wrong)
    with pytest.raises(InvalidArgument, match="3,600 of them"):
        numbers.checked_windows(numbers.windows_of(START, START + HOUR - 1, 1000))


def test_numbers_are_short() -> None:
    shown = [charts.duration(each) for each in (None, 0, 0.0004, 0.012, 1, 9.96, 61, 5_400, 200_000)]
    assert shown == ["-", "0 s", "0.4 ms", "12 ms", "1 s", "10 s", "1 min", "1.5 h", "2.3 d"]
    assert [charts.share(*each) for each in ((0, 0), (1, 1), (1, 3), (1, 5_000), (4_999, 5_000))] == [
        "0%", "100%", "33.3%", "<0.1%", ">99.9%",
    ]  # fmt: skip


# The page by itself


class Outline(HTMLParser):
    """Whether what is opened is closed, what the page would load or run, and what is in its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self._tables: dict[str, list[list[str]]] = {}
        self.feed(page)
        self.close()

    def rows(self, label: str) -> list[list[str]]:
        """The texts of a table's cells, without its head."""
        return [row for row in self._tables[label] if row]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "use"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "src" or name.startswith("on") or (name == "href" and not (value or "").startswith("#")):
                self.loads.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value or "")
            if name == "aria-label":
                self.labels.append(value or "")
        if tag == "table":
            self._tables[self.labels[-1]] = []
        if tag == "tr":
            self._tables[[*self._tables][-1]].append([])
        if tag in ("td", "th") and "tbody" in self.open:
            self._tables[[*self._tables][-1]][-1].append("")
        if tag in ("script", "link", "iframe", "img"):
            self.loads.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "path", "use"):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "path", "use"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tbody" in self.open and self.open[-1] != "tr":
            self._tables[[*self._tables][-1]][-1][-1] += data


def figures(queue: str, put: int) -> Figures:
    return Figures(queue, dict.fromkeys(STATES, 0) | {"available": put}, put, 0, 0, Times(put, 0.0, 1.0, 2.0, 3.0))


def test_the_page_needs_nothing_but_itself_and_shows_the_largest_of_many_queues() -> None:
    names = [f"<b>{number}</b>" for number in range(1_000)]
    cut = numbers.windows_of(START, START + 3 * HOUR, HOUR)
    slices = [Slice(start, 5, 3, 1, Times(3, 0.0, 0.5, 90.0, 4_000.0)) for start in cut.starts()]
    queues = [figures(name, 1_000 - number) for number, name in enumerate(names)]
    reasons = {"": [Reason(None, 2, 0), Reason("<img src=x onerror=alert(1)>", 1, 1)]}
    all_slices = dict.fromkeys(("", *names[:12]), slices)
    shown = Numbers(cut, START, START + 3 * HOUR, figures("", 500), queues, all_slices, reasons)
    page = render(shown, "a & b", "<archive>", START, ["a <note>"])
    outline = Outline(page)
    assert (outline.open, outline.loads) == ([], [])
    assert len(set(outline.ids)) == len(outline.ids)
    assert "http" not in page.replace("http-equiv", "")
    assert "The 50 queues with the most messages of 1,000" in page
    assert ("&lt;b&gt;49&lt;/b&gt;" in page, "&lt;b&gt;50&lt;/b&gt;" in page) == (True, False)
    assert "2023-11-14 23:00 UTC: put 5, done 3, failed 1" in page
    assert len(page) < 700_000


def test_the_last_day_is_drawn_as_a_server_remembers_it() -> None:
    with penstock.open("memory:") as store:
        server = serve_in_thread(store)
        try:
            assert last_day("memory:") is None
            assert last_day(server.url) is not None  # from here on the server knows what has happened
            store.queue().put_many([b"a"] * 9_000)
            store.queue().pop()
            history = last_day(server.url)
        finally:
            server.stop()
    assert history is not None
    found = numbers.remembered(history)
    assert found is not None
    windows, slices = found
    assert (windows.length, windows.starts()[-1] + windows.length) == (900_000, history["end"])
    assert slices[-1].depth == 8_999
    assert sum(each.put for each in slices) == 9_000
    assert sum(each.done for each in slices) == 1
    page = render(Numbers(None, 0, 0, figures("", 0), [], {}, {}), "a", None, START, [], day=found)
    assert "The last day, as the server remembers it" in page
    assert "8,999 unsettled at the end" in page
    assert Outline(page).open == []


def test_a_remembered_day_begins_when_it_is_known_and_sleeps_with_the_machine() -> None:
    values = [None, None, 1.0, None, 2.0]
    names = ("delayed", "available", "in_flight", "in", "out", "given_up")
    series = {name: [None if each is None else each * 2 for each in values] for name in names}
    history = {"seconds": 900, "end": START, "covered": [0, 0, 450, 0, 900], "series": series}
    found = numbers.remembered(history)
    assert found is not None
    windows, slices = found
    assert (windows.count, windows.first) == (3, START - 3 * 900_000)
    assert [(each.put, each.depth) for each in slices] == [(900, 6), (0, 6), (3_600, 12)]
    nothing = {name: [None] * 5 for name in names}
    assert numbers.remembered(history | {"series": nothing}) is None


@pytest.mark.parametrize(
    "kind",
    ["text:", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("folder:", "slate:", "memory:", ""))],
)
def test_a_report_is_made_through_a_server_of_any_store(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with penstock.open(f"{kind}{tmp_path / 'data'}") as store:
        jobs = store.create("jobs", keep_done=None)
        jobs.put_many([b"a", b"b"])
        jobs.ack(*jobs.claim())
        server = serve_in_thread(store)
        try:
            report(spark, server.url, tmp_path / "report")
        finally:
            server.stop()
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert document["streams"] == []
    assert document["remembered"]["series"]["available"][-1] == 1
    assert (tmp_path / "report" / "report.html").read_text()
