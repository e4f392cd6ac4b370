"""The console's pictures in docs/images: `python -m tests.console.pictures [FOLDER]` takes them anew.

With a folder, it takes every view and dialog as a desktop and a phone show them, light and dark, to be looked at.
"""

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import penstock
from penstock.contract import roles
from penstock.contract.loads import Loads
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.http.server import Access, tokens, watch
from penstock.system.clock import SystemClock
from penstock.wire import frames
from tests.console.tab import Tab
from tests.http.serving import ask, serving

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STEPS = 119  # of half a minute
REASONS = [
    "ConnectionError: no route to images-{}.example",
    "TimeoutError: no answer in {} s",
    "413: picture too large",
]
SIZES = {1440: 900, 390: 844}  # of a desktop and a phone
SCHEMES = ("light", "dark")
Act: TypeAlias = Callable[[Tab], object]


def press(*names: str) -> Act:
    """Presses buttons."""

    def act(tab: Tab) -> None:
        for name in names:
            tab.press(name)

    return act


def _choose(tab: Tab) -> None:
    boxes = tab.table("Messages").get_by_role("rowgroup").last.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(2).check()


def _remove(tab: Tab) -> None:
    _choose(tab)
    tab.press("Remove 2")


def _open(tab: Tab) -> None:
    tab.table("Messages").get_by_role("rowheader").first.get_by_role("link").click()


def _open_as_digits(tab: Tab) -> None:
    _open(tab)
    tab.press("Hex")


def _move_nowhere(tab: Tab) -> None:
    tab.press("Move failed…")
    tab.page.get_by_label("To queue").fill("nowhere")
    tab.page.get_by_role("button", name="Move", exact=False).last.click()
    tab.page.get_by_role("alert").filter(has_text="nowhere").wait_for()


def _open_example(tab: Tab) -> None:
    tab.table("Failure reasons").get_by_role("link").first.click()


def _follow(tab: Tab) -> None:
    with penstock.open(tab.url) as remote:
        streams = Streams(remote.run)
        after = streams.start("payments", "audit", "earliest").after
        streams.ahead("payments", "audit", after + 30, 0, 0, 1)
    tab.table("Followers").get_by_text("audit").wait_for()


def _put(tab: Tab) -> None:
    tab.press("Put a message")
    tab.page.get_by_text("Headers, group, key").click()


def _change(tab: Tab) -> None:
    tab.page.get_by_label("max_attempts", exact=True).fill("5")
    tab.page.get_by_label("lease", exact=True).fill("120")


def _change_and_save(tab: Tab) -> None:
    _change(tab)
    tab.press("Save")


def _go_away(tab: Tab) -> None:
    tab.context.set_offline(True)
    tab.page.get_by_text("The server does not answer").wait_for()


def _say(tab: Tab) -> None:
    _put(tab)
    tab.page.get_by_role("dialog").get_by_label("Payload").fill("a")
    tab.press("Put 1 message")
    tab.page.get_by_text("Put as message").wait_for()


# Of a busy server: where, and what is done there.
VIEWS: dict[str, tuple[str, Act]] = {
    "overview": ("", press()),
    "overview-found": ("?search=e&sort=available", press()),
    "overview-not-found": ("?search=nothing", press()),
    "new-queue": ("", press("New queue")),
    "shortcuts": ("", press("Keyboard shortcuts")),
    "queue": ("queues/resize", press()),
    "queue-day": ("queues/resize", press("last day")),
    "queue-empty": ("queues/empty", press()),
    "queue-missing": ("queues/nobody", press()),
    "queue-not-found": ("queues/resize?text=nothing-like-it", press()),
    "failed": ("queues/resize?state=failed", press()),
    "chosen": ("queues/resize", _choose),
    "put": ("queues/resize", _put),
    "redrive": ("queues/resize", lambda tab: tab.page.get_by_role("button", name="Redrive").click()),
    "move-refused": ("queues/resize", _move_nowhere),
    "remove": ("queues/resize", _remove),
    "purge": ("queues/resize", press("Purge…")),
    "delete": ("queues/resize", press("Delete…")),
    "message": ("queues/mail", _open),
    "message-hex": ("queues/mail", _open_as_digits),
    "message-failed": ("queues/resize?tab=reasons", _open_example),
    "message-gone": ("queues/resize?message=1000000", press()),
    "reasons": ("queues/resize?tab=reasons", press()),
    "settings": ("queues/resize?tab=settings", _change),
    "settings-save": ("queues/resize?tab=settings", _change_and_save),
    "streams": ("streams", _follow),
    "release": ("streams", lambda tab: tab.press("Release 40", tab.row("Streams", "nightly"))),
    "server": ("server", press()),
    "said": ("queues/mail", _say),
    "away": ("", _go_away),
}  # fmt: skip
# Of a server without anything in it.
NEW: dict[str, tuple[str, Act]] = {
    "new-overview": ("", press()), "new-queue-empty": ("queues/default", press()),
    "new-reasons": ("queues/default?tab=reasons", press()), "new-streams": ("streams", press()),
    "new-server": ("server", press()),
}  # fmt: skip


class Ahead(SystemClock):
    """A clock of which an hour passes at once, so that there is a history to show."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


@contextmanager
def busy(folder: Path) -> Iterator[str]:
    """The URL of a server with an hour of traffic behind it."""
    chance = random.Random(7)
    with (
        pytest.MonkeyPatch.context() as patch,
        penstock.open(folder, sync="never") as store,
        ExitStack() as stack,
    ):
        patch.setattr(watch, "_QUICK", 60.0)  # every round is taken, however long it takes
        patch.setattr(watch, "SystemClock", Ahead)
        running = stack.enter_context(serving(store))
        queues = {
            name: store.create(name, description=about, max_attempts=1 if name == "resize" else 3, keep_done=60)
            for name, about in {
                "invoices": "Invoices to print", "mail": "Mails to customers", "orders": "Orders of the shop",
                "payments": "", "resize": "Pictures to resize", "search-index": "",
            }.items()
        }  # fmt: skip
        store.create("empty")
        for step in range(STEPS):
            Ahead.seconds += 29.5  # and what a round takes: no step is left out
            for number, (name, queue) in enumerate(queues.items()):
                into = int(20 * (1.2 + math.sin(step / (9 + number) + number)) * (0.4 + chance.random()))
                out = int(20 * (1.15 + math.sin((step - 6) / (9 + number) + number)) * (0.4 + chance.random()))
                picture = {"picture": f"cat-{step}.jpg", "sizes": [320, 1280], "owner": f"customer-{step % 7}"}
                queue.put_many([penstock.Draft(json.dumps(picture), headers={"trace": f"{step:08x}"})] * into)
                for message in queue.claim(max(out, 1), consumer=f"{name}-{step % 3}"):
                    fails = chance.random() < (0.06 if name == "resize" else 0.002)
                    reason = chance.choice(REASONS).format(chance.randrange(1, 9))
                    if fails:
                        message.fail(reason=reason)
                    else:
                        message.ack()
            ask(running.url, "/-/api/overview")
        queues["resize"].claim(4, lease=600, consumer="resize-1")
        queues["resize"].put_many([penstock.Draft("later", delay=3600, group="customer-3", priority=5)] * 2)
        streams, loads = Streams(store.backend.run), Loads(store.backend.run)
        streams.begin("orders", "nightly", reader_name())
        streams.next("orders", "nightly", reader_name(), 0, 40, 1 << 20)
        load = loads.begin({"archive-2026": penstock.Settings()})
        loads.add(load, "0", 0, "archive-2026", frames.encode_entries([]))
        with penstock.open(running.url) as remote:
            for worker in ("resize-1", "resize-2"):
                for message in remote.queue("resize").claim(2, consumer=worker):
                    message.release()
        yield running.url


@contextmanager
def every_view(browser: Browser, busy_url: str, width: int, scheme: str) -> Iterator[Iterator[tuple[str, Tab]]]:
    """Every view and dialog of the console, as names and the tab that shows each."""
    with ExitStack() as stack:

        def opened(url: str) -> Tab:
            tab = stack.enter_context(Tab(browser, url, color_scheme=scheme))
            tab.page.set_viewport_size({"width": width, "height": SIZES[width]})
            return tab

        def shown(tab: Tab, views: dict[str, tuple[str, Act]]) -> Iterator[tuple[str, Tab]]:
            for name, (place, act) in views.items():
                tab.page.goto("about:blank")
                tab.open(place)
                tab.page.locator(".live:text('Live')").wait_for()
                tab.page.wait_for_timeout(400)  # what comes after the first answer
                act(tab)
                yield name, tab

        def all_of_them() -> Iterator[tuple[str, Tab]]:
            yield from shown(opened(busy_url), VIEWS)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            store = stack.enter_context(penstock.open(folder / "new", sync="never"))
            yield from shown(opened(stack.enter_context(serving(store)).url), NEW)
            file = str(folder / "tokens")
            secret = tokens.create(file, "ada", roles.READ)
            tab = opened(stack.enter_context(serving(store, access=Access(file))).url)
            tab.open("queues/default")
            yield "login", tab
            for text, name in (("pst_wrong", "login-refused"), (secret, "reader")):
                tab.page.get_by_label("Token").fill(text)
                tab.press("Sign in")
                tab.page.get_by_text("no longer, known" if text != secret else "Live").wait_for()
                tab.page.wait_for_timeout(400)
                yield name, tab

        yield all_of_them()


def take(tab: Tab, path: Path, whole: bool = False) -> None:
    """A picture of what a tab shows."""
    tab.page.wait_for_timeout(300)  # texts that come by and by
    if whole:
        tab.page.evaluate("scrollTo(0, 0)")  # else the head of the page is where it was
    tab.page.screenshot(path=path, full_page=whole and tab.page.locator("dialog").count() == 0)
    Image.open(path).quantize(256).save(path, optimize=True)  # a third of the bytes


def take_for_docs(browser: Browser, url: str, place: str, path: Path, scheme: str) -> None:
    """A picture for the documents."""
    with Tab(browser, url, color_scheme=scheme) as tab:
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        tab.open(place)
        tab.page.locator(".live:text('Live')").wait_for()
        tab.page.wait_for_timeout(400)
        take(tab, path)


def main(folder: str | None = None) -> None:
    """Take the pictures."""
    with (
        tempfile.TemporaryDirectory() as store,
        busy(Path(store) / "data") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if folder is None:
            take_for_docs(browser, url, "", IMAGES / "console.png", "light")
            take_for_docs(browser, url, "queues/resize", IMAGES / "console-queue.png", "dark")
        else:
            Path(folder).mkdir(exist_ok=True)
            for width in SIZES:
                for scheme in SCHEMES:
                    with every_view(browser, url, width, scheme) as views:
                        for name, tab in views:
                            take(tab, Path(folder) / f"{name}-{scheme}-{width}.png", whole=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
