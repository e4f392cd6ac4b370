"""What the console shows: every view, with real queues, messages and streams."""

import base64
import json
import os
import socket
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import penstock
from penstock.contract.loads import Loads
from penstock.contract.stream_operations import Streams
from penstock.http.server import RunningServer
from penstock.wire import frames
from tests.console.tab import Tab
from tests.http.serving import serving

GONE = f"2147483647-1-1@x@{socket.gethostname()}"  # a reader that has ended


@pytest.fixture(scope="module", autouse=True)
def filled(store: penstock.Store) -> None:
    """Queues in every state."""
    jobs = store.create(
        "jobs", description="Pictures to resize", max_attempts=2, keep_done=3600, labels={"team": "a"}
    )
    payload = json.dumps({"picture": "cat.jpg", "id": 12345678901234567890, "sizes": [1, 2]})
    jobs.put(payload, headers={"kind": "image"}, priority=3)
    jobs.put(b"\x00\xff\x01binary", group="customer 7")
    jobs.put("plain text", delay=3600)
    jobs.put("done soon")
    jobs.put_many([f"fails {number}" for number in range(3)])
    for message in jobs.claim(6, consumer="worker-1"):
        if message.payload == b"done soon":
            message.ack()
        elif message.payload.startswith(b"fails"):
            message.fail(reason=f"no route to host-{message.id}")
        else:
            message.release()
    for message in jobs.claim(9, consumer="worker-2"):
        if message.payload.startswith(b"fails"):
            message.fail(reason=f"no route to host-{message.id}")
        else:
            message.release()
    [held] = jobs.claim(1, lease=3600, consumer="worker-3")
    assert jobs.counts() == {"delayed": 1, "available": 1, "in_flight": 1, "done": 1, "failed": 3}, held
    store.create("many").put_many([f"message number {number}" for number in range(120)])
    store.create("empty")


def test_the_overview_shows_every_queue_with_its_counts(tab: Tab) -> None:
    tab.open()
    expect(tab.row("Queues", "jobs")).to_be_visible()
    assert tab.keys("Queues") == ["default", "empty", "jobs", "many"]
    cells = tab.cells("Queues", "jobs")
    assert [cells[name] for name in ("available", "in flight", "delayed", "failed", "done")] == [
        "1",
        "1",
        "1",
        "3",
        "1",
    ]
    totals = tab.page.locator(".tiles")
    expect(totals).to_contain_text("available121")
    expect(totals).to_contain_text("failed3")
    assert tab.page.title() == "Overview · Penstock"


def test_what_is_wrong_is_on_top_and_leads_to_its_reasons(tab: Tab) -> None:
    tab.open()
    problem = tab.page.locator(".problems li").first
    expect(problem).to_contain_text("jobs: 3 messages have failed.")
    problem.get_by_role("link").click()
    row = tab.table("Failure reasons").get_by_role("row").nth(1)
    expect(row).to_contain_text("no route to host-")
    expect(row).to_contain_text("3")
    row.get_by_role("link").click()
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("#2 failed")
        tab.press("Close", dialog)


def test_queues_are_searched_and_sorted_by_the_server(tab: Tab) -> None:
    tab.open()
    tab.press("available")
    tab.first("Queues", "many")
    expect(tab.page.get_by_role("columnheader", name="available")).to_have_attribute("aria-sort", "descending")
    tab.page.get_by_role("searchbox").fill("mpt")
    tab.first("Queues", "empty")
    assert tab.keys("Queues") == ["empty"]
    tab.page.reload()  # the address has it
    tab.first("Queues", "empty")
    assert tab.keys("Queues") == ["empty"]
    tab.page.get_by_role("searchbox").fill("<nothing>")
    tab.shows("No queue has <nothing> in its name.")


def test_what_changes_is_shown_without_loading_again(tab: Tab, store: penstock.Store) -> None:
    tab.open()
    expect(tab.row("Queues", "empty")).to_be_visible()
    tab.page.evaluate("window.same = true")
    [id_] = store.queue("empty").put_many([b"now"])
    expect(tab.row("Queues", "empty").locator("[data-title=available]")).to_have_text("1")
    tab.go("queues/empty")
    expect(tab.row("Messages", id_)).to_be_visible()
    store.queue("empty").remove(id_)
    tab.shows("The queue is empty. Put a message:")
    assert tab.page.evaluate("window.same")


def test_a_queue_shows_its_past_and_its_messages(tab: Tab) -> None:
    tab.open("queues/jobs")
    expect(tab.row("Messages", "1")).to_be_visible()
    tab.shows("Pictures to resize")
    tab.shows("team=a")
    assert tab.legend("Depth") == {"waiting": "2", "in flight": "1", "failed": "3"}
    assert tab.keys("Messages") == ["1", "2", "3", "4", "5", "6", "7"]
    assert "group customer 7" in tab.cells("Messages", "2")["about"]
    assert tab.cells("Messages", "3")["about"].startswith("due in 59 m")
    assert tab.cells("Messages", "4")["about"].endswith("by worker-1")
    tab.press("last day")
    expect(tab.page.locator("figure").first).to_contain_text("the last day")


def test_messages_are_listed_by_state_and_by_a_text(tab: Tab) -> None:
    tab.open("queues/jobs")
    tab.page.get_by_role("group", name="State").get_by_role("button", name="failed").click()
    expect(tab.row("Messages", "1")).to_have_count(0)
    assert tab.keys("Messages") == ["5", "6", "7"]
    tab.page.get_by_role("searchbox").fill("HOST-6")
    expect(tab.row("Messages", "5")).to_have_count(0)
    assert tab.keys("Messages") == ["6"]
    tab.page.get_by_role("searchbox").fill("nowhere")
    tab.shows("No message has nowhere in it.")


def test_messages_are_shown_page_by_page(tab: Tab) -> None:
    tab.open("queues/many")
    tab.first("Messages", "1")
    tab.press("Next →")
    tab.first("Messages", "51")
    tab.press("Next →")
    tab.first("Messages", "101")
    assert len(tab.keys("Messages")) == 20
    expect(tab.page.get_by_role("button", name="Next →")).to_be_disabled()
    tab.press("← Before")
    tab.first("Messages", "51")
    tab.press("← Before")
    tab.first("Messages", "1")
    tab.press("Newest")
    expect(tab.row("Messages", "120")).to_be_visible()


def test_a_message_opens_with_everything_about_it(tab: Tab, downloads: Path) -> None:
    tab.open("queues/jobs?message=1")
    with tab.dialog() as dialog:
        payload = dialog.locator("pre")
        expect(payload).to_have_text(
            '{\n  "picture": "cat.jpg",\n  "id": 12345678901234567890,\n  "sizes": [\n    1,\n    2\n  ]\n}'
        )
        tab.press("Text", dialog)
        expect(payload).to_have_text('{"picture": "cat.jpg", "id": 12345678901234567890, "sizes": [1, 2]}')
        tab.press("Hex", dialog)
        expect(payload).to_contain_text(
            '00000000  7b 22 70 69 63 74 75 72  65 22 3a 20 22 63 61 74  {"picture": "cat'
        )
        expect(dialog.get_by_role("row", name="kind image")).to_be_visible()
        expect(dialog).to_contain_text("#1 released")
        expect(dialog).to_contain_text("by worker-1")
        tab.press("Close", dialog)
    expect(tab.page).to_have_url(f"{tab.url}/-/#/queues/jobs")


@pytest.mark.long
def test_a_payload_of_any_bytes_is_downloaded_as_it_is(tab: Tab, downloads: Path) -> None:
    tab.open("queues/jobs?message=2")
    with tab.dialog() as dialog:
        expect(dialog.get_by_role("button", name="Text", exact=True)).to_be_disabled()
        expect(dialog.locator("pre")).to_contain_text("00 ff 01 62 69 6e 61 72  79")
        with tab.page.expect_download() as download:
            tab.press("Download", dialog)
        assert download.value.suggested_filename == "jobs-2.bin"
        assert download.value.path().read_bytes() == b"\x00\xff\x01binary"
        tab.press("Close", dialog)


def test_settings_are_shown_as_the_document_explains_them(tab: Tab, store: penstock.Store) -> None:
    tab.open("queues/jobs?tab=settings")
    for name, value in (("max_attempts", "2"), ("keep_done", "3600"), ("labels", "team=a"), ("filter", "")):
        expect(tab.page.get_by_label(name, exact=True)).to_have_value(value)
    tab.shows("Claims after which a message that is not acknowledged is failed; 0 = no limit.")
    assert tab.page.locator("[data-setting]").count() == len(dict(store.queue("jobs").settings))


def test_streams_followers_loads_and_workers_are_shown(
    tab: Tab, store: penstock.Store, server: RunningServer
) -> None:
    streams, loads = Streams(store.backend.run), Loads(store.backend.run)
    store.create("read").put_many([b"a", b"b", b"c"])
    streams.begin("read", "nightly", GONE)
    assert streams.next("read", "nightly", GONE, 0, 2, 1 << 20) == 1
    with penstock.open(server.url) as remote:
        [message] = remote.queue("read").claim(consumer="worker-9")
        message.release()
        followers = Streams(remote.run)
        followers.ahead("read", "audit", followers.start("read", "audit", "earliest").after + 1, 0, 0, 1)
    load = loads.begin({"new": penstock.Settings()})
    loads.add(load, "0", 0, "new", frames.encode_entries([]))
    tab.open("streams")
    expect(tab.row("Streams", "nightly")).to_be_visible()
    cells = tab.cells("Streams", "nightly")
    assert (cells["queue"], cells["batch"], cells["holds"], cells["lag"]) == ("read", "1", "2", "1")
    assert "has ended" in cells["reader"]
    expect(tab.row("Workers", "worker-9").locator("[data-title=queue]")).to_have_text("read")
    cells = tab.cells("Followers", "audit")
    assert (cells["queue"], cells["lag"]) == ("read", "2")
    cells = tab.cells("Loads", load)
    assert (cells["parts"], cells["new queues"]) == ("1", "new")
    loads.abort(load)


def test_the_server_tells_how_it_is(tab: Tab) -> None:
    tab.open("server")
    tab.shows("The server is well.")
    tab.shows(penstock.__version__)
    tab.shows("journal")
    expect(tab.page.locator(".meter")).to_contain_text("free")


def test_what_is_not_there_is_said(tab: Tab) -> None:
    tab.open("queues/nobody")
    tab.shows("there is no queue 'nobody'")
    tab.open("queues/jobs?message=99")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("There is no such message any more")
        tab.press("Close", dialog)


def test_a_new_store_teaches_the_first_commands(browser: Browser, tmp_path: Path) -> None:
    with (
        penstock.open(tmp_path / "new", sync="never") as store,
        serving(store) as running,
        Tab(browser, running.url) as tab,
    ):
        tab.open()
        tab.shows("Nothing is wrong.")
        tab.shows(f"penstock --store {running.url} put jobs 'resize cat.jpg'")
        tab.press("default")
        tab.shows("The queue is empty. Put a message:")
        tab.shows(f"penstock --store {running.url} put default 'resize cat.jpg'")
        tab.go("streams")
        tab.shows("readStream")
        tab.shows(f"penstock --store {running.url} work jobs")
        tab.check()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long) for kind in ("memory:", "text:{}", "folder:{}", "slate:{}")],
)
def test_every_store_is_shown(browser: Browser, tmp_path: Path, kind: str) -> None:
    with penstock.open(kind.format(tmp_path / "store")) as store, serving(store) as running:
        jobs = store.create("jobs")
        jobs.put(b"first", headers={"kind": "image"})
        [message] = jobs.claim(consumer="me")
        message.fail(reason="no disk")
        with Tab(browser, running.url) as tab:
            tab.open()
            expect(tab.row("Queues", "jobs").locator("[data-title=available]")).to_have_text("1")
            tab.go(f"queues/jobs?message={message.id}")
            with tab.dialog() as dialog:
                expect(dialog).to_contain_text("no disk")
                expect(dialog.locator("pre")).to_have_text("first")
                tab.press("Close", dialog)
            for place, said in (
                ("queues/jobs?tab=reasons", ""),
                ("streams", "Workers seen lately"),
                ("server", "well"),
            ):
                tab.go(place)
                tab.shows(said)
            tab.check()


def test_texts_of_the_page_have_no_secret(tab: Tab) -> None:
    """A receipt would let a reader settle another's message."""
    tab.open("queues/jobs?message=1")
    with tab.dialog() as dialog:
        expect(dialog.locator("pre")).to_be_visible()
        assert "receipt" not in dialog.inner_text().lower()
        tab.press("Close", dialog)
    assert os.path.sep + "store" not in tab.page.content()
    assert base64.b64encode(b"binary").decode() not in tab.page.content()
