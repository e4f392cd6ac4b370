"""The console of a large store: it asks for pages, and every page is small."""

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Response, expect

import penstock
from penstock.http.server import RunningServer
from tests.console.tab import Tab
from tests.http.serving import serving

QUEUES, MESSAGES = 10_000, 1_000_000


class Sizes:
    """What the console has been sent."""

    def __init__(self, tab: Tab) -> None:
        self.largest = 0
        self.count = 0
        tab.page.on("response", self._note)

    def _note(self, response: Response) -> None:
        if "/-/api/" in response.url:
            self.count += 1
            self.largest = max(self.largest, int(response.header_value("content-length") or 0))


def show_pages(tab: Tab, store: penstock.Store, queues: int) -> None:
    """Look around among many queues."""
    sizes = Sizes(tab)
    tab.open()
    tab.first("Queues", "default")
    assert len(tab.keys("Queues")) == 50
    tab.shows(f" of {queues + 1:,} queues")
    tab.press("Next →")
    tab.first("Queues", "queue-00049")
    tab.page.get_by_role("searchbox").fill(f"{queues - 1:05}")
    tab.first("Queues", f"queue-{queues - 1:05}")
    assert len(tab.keys("Queues")) == 1
    tab.page.get_by_role("searchbox").fill("")
    store.queue("queue-00177").put_many([b"a"] * 7)
    tab.press("available")
    tab.first("Queues", "queue-00177")
    expect(tab.row("Queues", "queue-00177").locator("[data-title=available]")).to_have_text("7")
    store.queue("queue-00188").put_many([b"a"] * 8)
    tab.first("Queues", "queue-00188")  # by itself
    assert sizes.largest < 100_000
    assert tab.page.locator("tr").count() < 60


@pytest.fixture
def crowd(request: pytest.FixtureRequest) -> Iterator[penstock.Store]:
    with penstock.open("memory:") as store:
        for number in range(request.param):
            store.create(f"queue-{number:05}")
        yield store


@pytest.mark.parametrize(
    "crowd", [200, pytest.param(QUEUES, marks=pytest.mark.long)], indirect=True, ids=["200", "10000"]
)
def test_many_queues_are_shown_page_by_page(browser: Browser, crowd: penstock.Store) -> None:
    queues = len(crowd.queues()) - 1
    with serving(crowd) as running, Tab(browser, running.url) as tab:
        show_pages(tab, crowd, queues)
        tab.check()


@pytest.mark.long
def test_a_console_that_is_open_costs_a_server_of_10_000_queues_little(browser: Browser) -> None:
    with penstock.open("memory:") as store:
        for number in range(QUEUES):
            store.create(f"queue-{number:05}")
        with serving(store) as running, Tab(browser, running.url) as tab:
            tab.open()
            expect(tab.row("Queues", "queue-00001")).to_be_visible()
            sizes, began, cpu = Sizes(tab), time.monotonic(), time.process_time()
            for _ in range(20):  # seconds; something always changes
                store.queue("queue-00001").put(b"a")
                tab.page.wait_for_timeout(1_000)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
            assert share < 0.25
            assert sizes.largest < 100_000


@pytest.mark.long
def test_a_million_messages_are_shown_page_by_page(
    browser: Browser, store: penstock.Store, server: RunningServer
) -> None:
    queue = store.create("million", max_attempts=1)
    for start in range(0, MESSAGES, 50_000):
        queue.put_many([f"message number {number}" for number in range(start, start + 50_000)])
    for message in queue.claim(3):
        message.fail(reason="no disk")
    with Tab(browser, server.url) as tab:
        sizes = Sizes(tab)
        tab.open("queues/million")
        tab.first("Messages", "1")
        tab.press("Newest")
        expect(tab.row("Messages", str(MESSAGES))).to_be_visible()
        tab.page.get_by_role("group", name="State").get_by_role("button", name="failed").click()
        tab.first("Messages", "1")
        assert tab.keys("Messages") == ["1", "2", "3"]
        tab.go("queues/million")
        tab.page.get_by_role("searchbox").fill("number 1999")
        expect(tab.row("Messages", "2000")).to_be_visible()
        tab.page.get_by_role("searchbox").fill("")
        tab.press("Purge…")
        with tab.dialog() as dialog:
            expect(dialog).to_contain_text("1,000,000 messages will be gone: 999,997 available, 3 failed.")
            tab.press("Cancel", dialog)
        assert sizes.largest < 200_000
        assert tab.page.locator("tr").count() < 60
        tab.check()
