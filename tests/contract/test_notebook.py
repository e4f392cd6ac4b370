"""Stores and queues in a notebook: an HTML table, whatever their names and texts are."""

from html.parser import HTMLParser

import pytest

import penstock
from penstock import Queue, Store


class Table(HTMLParser):
    """The texts of each row, and every tag that occurs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        if tag in ("tr", "caption"):
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "caption":
            self.rows[-1].append(data)
        else:
            self.rows[-1][-1] += data


HEAD = ["queue", "delayed", "available", "in_flight", "done", "failed", "settings"]
HOSTILE = "<script>alert('$x^2$')</script>&amp;"


def html_of(shown: Store | Queue) -> str:
    html = shown._repr_html_()
    assert isinstance(html, str)
    return html


def test_a_store_is_a_table_of_its_queues() -> None:
    with penstock.open("memory:") as store:
        jobs = store.create("jobs", max_attempts=3, description="cats")
        jobs.put_many([b"a"] * 1_234)
        jobs.put(b"b", delay=60)
        jobs.claim(4)
        assert Table(html_of(store)).rows == [
            ["<penstock.Store 'memory:'>"],
            HEAD,
            ["default", "0", "0", "0", "0", "0", ""],
            ["jobs", "1", "1,230", "4", "0", "0", "max_attempts=3, description='cats'"],
        ]


def test_a_queue_is_a_table_of_one_row() -> None:
    with penstock.open("memory:") as store:
        store.create("others")
        jobs = store.create("jobs")
        jobs.put(b"a")
        assert Table(html_of(jobs)).rows == [
            ["<penstock.Queue 'jobs' of 'memory:'>"],
            HEAD,
            ["jobs", "0", "1", "0", "0", "0", ""],
        ]


def test_hostile_names_and_texts_are_shown_and_never_run() -> None:
    with penstock.open(f"memory:{HOSTILE}") as store:
        jobs = store.create(HOSTILE, description=HOSTILE)
        for shown in (store, jobs):
            html = html_of(shown)
            table = Table(html)
            assert table.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
            assert table.rows[0] == [repr(shown)]
            assert HOSTILE in [row[0] for row in table.rows]
            assert "mathjax_ignore" in html  # or a notebook would typeset what is between dollar signs


def test_a_store_of_many_queues_shows_the_first_hundred() -> None:
    with penstock.open("memory:") as store:
        for number in range(150):
            store.create(f"jobs-{number:03}")
        rows = Table(html_of(store)).rows
        assert [row[0] for row in rows[2:]] == [
            "default", *(f"jobs-{number:03}" for number in range(99)), "... and 51 more",
        ]  # fmt: skip


@pytest.mark.parametrize("url", ["memory:", f"memory:{HOSTILE}"])
def test_what_cannot_be_asked_shows_the_error(url: str) -> None:
    store = penstock.open(url)
    queue = store.create("jobs")
    store.delete("jobs")
    assert "QueueNotFound: " in html_of(queue)
    store.close()
    html = html_of(store)
    assert "StoreClosed: " in html
    assert "<script>" not in html
