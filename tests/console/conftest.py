"""One Chromium for all tests of the console, and a server for each module."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

import penstock
from penstock.http.server import RunningServer
from tests.console.tab import Tab
from tests.http.serving import serving

NAMES = ("chromium", "chromium-browser", "google-chrome")
Launch: TypeAlias = Callable[..., Browser]
PATIENCE = 30_000  # milliseconds until an expectation counts as disappointed: the machine may be busy


@pytest.fixture(scope="package")
def launch() -> Iterator[Launch]:
    """Launches browsers. The package is its scope: Playwright's event loop would be in the way of other tests."""
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        pytest.skip("the console's tests need Chromium: run `make tools` as root, or install a package chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:

        def launch(*arguments: str) -> Browser:
            return playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", *arguments])

        yield launch


@pytest.fixture(scope="package")
def browser(launch: Launch) -> Iterator[Browser]:
    browser = launch()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path_factory.mktemp("console") / "store", sync="never") as store:
        yield store


@pytest.fixture(scope="module")
def server(store: penstock.Store) -> Iterator[RunningServer]:
    with serving(store) as running:
        yield running


@pytest.fixture(scope="module")
def shared(browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """A tab that the tests of a module share."""
    with Tab(browser, server.url) as tab:
        yield tab


@pytest.fixture
def tab(shared: Tab) -> Iterator[Tab]:
    """The tab, at no page yet; afterwards no script has failed, and nothing was against the policy."""
    shared.page.goto("about:blank")
    yield shared
    shared.check()


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    return tmp_path / "downloads"
