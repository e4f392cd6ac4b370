"""The console's pictures in docs/images: `python -m tests.console.pictures [FOLDER]` takes them anew.

With a folder, it takes every view at the widths of a desktop and a phone, light and dark, to be looked at.
"""

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import penstock
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import reader_name
from penstock.http.server import watch
from penstock.system.clock import SystemClock
from tests.console.tab import Tab
from tests.http.serving import ask, serving

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STEPS = 119  # of half a minute
REASONS = [
    "ConnectionError: no route to images-{}.example",
    "TimeoutError: no answer in {} s",
    "413: picture too large",
]
VIEWS = {
    "overview": "", "queue": "queues/resize", "failed": "queues/resize?state=failed",
    "message": "queues/resize?message=2", "reasons": "queues/resize?tab=reasons",
    "settings": "queues/resize?tab=settings", "empty": "queues/empty", "streams": "streams", "server": "server",
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
    setattr(watch, "_QUICK", 60.0)  # noqa: B010 - every round is taken, however long it takes
    setattr(watch, "SystemClock", Ahead)  # noqa: B010 - of this process alone; it is no public name
    with penstock.open(folder, sync="never") as store, serving(store) as running:
        queues = {
            name: store.create(name, description=about, max_attempts=1 if name == "resize" else 3, keep_done=60)
            for name, about in {
                "invoices": "Invoices to print", "mail": "Mails to customers", "orders": "Orders of the shop",
                "payments": "", "resize": "Pictures to resize", "search-index": "",
            }.items()
        }  # fmt: skip
        store.create("empty")
        for step in range(STEPS):
            Ahead.seconds += 30
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
        streams = Streams(store.backend.run)
        streams.begin("orders", "nightly", reader_name())
        streams.next("orders", "nightly", reader_name(), 0, 40, 1 << 20)
        with penstock.open(running.url) as remote:
            for worker in ("resize-1", "resize-2"):
                for message in remote.queue("resize").claim(2, consumer=worker):
                    message.release()
        yield running.url


def take(browser: Browser, url: str, place: str, path: Path, width: int, height: int, scheme: str) -> None:
    """A picture of a view."""
    with Tab(browser, url, color_scheme=scheme) as tab:
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.open(place)
        tab.page.locator(".live:text('Live')").wait_for()
        tab.page.wait_for_timeout(700)
        tab.page.screenshot(path=path)
    Image.open(path).quantize(256).save(path, optimize=True)  # a third of the bytes


def main(folder: str | None = None) -> None:
    """Take the pictures."""
    with (
        tempfile.TemporaryDirectory() as store,
        busy(Path(store) / "data") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if folder is None:
            take(browser, url, "", IMAGES / "console.png", 1280, 800, "light")
            take(browser, url, "queues/resize", IMAGES / "console-queue.png", 1280, 800, "dark")
        else:
            Path(folder).mkdir(exist_ok=True)
            for name, place in VIEWS.items():
                for width, height in ((1440, 900), (390, 844)):
                    for scheme in ("light", "dark"):
                        path = Path(folder) / f"{name}-{scheme}-{width}.png"
                        take(browser, url, place, path, width, height, scheme)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
