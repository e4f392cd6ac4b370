"""A tab of a browser with the console in it, as a person sees and uses it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from playwright.sync_api import Browser, Locator, Page, expect

# Runs before the scripts of each page. A text that became a script would set `pwned`.
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""
_ANSWERED = re.compile(r"Failed to load resource: (the server responded with a status of|net::ERR_)")


class Tab:
    """A tab with a console."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        self.url = url
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, **context)
        self.context.add_init_script(_WATCH)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self._note(said.type, said.text))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not _ANSWERED.match(text):  # a refusal is logged by the browser, too
            self.errors.append(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def check(self) -> None:
        """No script has failed, no text has become one, and nothing was against the content security policy."""
        assert self.errors == []
        if self.page.url != "about:blank":
            assert self.page.evaluate("[window.violations, window.pwned]") in ([[], None], [None, None])

    def open(self, place: str = "") -> None:
        """Load the console at a place such as `queues/jobs`."""
        self.page.goto(f"{self.url}/-/#/{place}")

    def go(self, place: str) -> None:
        """Go to a place of the console that is loaded."""
        self.page.evaluate("place => { location.hash = place }", f"#/{place}")

    # What a person sees

    def shows(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text)

    def table(self, name: str) -> Locator:
        return self.page.get_by_role("table", name=name, exact=True)

    def row(self, table: str, key: str) -> Locator:
        """The row of a table whose first cell has this text."""
        header = self.page.get_by_role("rowheader", name=key, exact=True)
        return self.table(table).get_by_role("row").filter(has=header)

    def cells(self, table: str, key: str) -> dict[str, str]:
        """The cells of a row by the titles of their columns."""
        cells = self.row(table, key).locator("[data-title]")
        return {cell.get_attribute("data-title") or "": cell.inner_text() for cell in cells.all()}

    def keys(self, table: str) -> list[str]:
        """The first cells of a table."""
        return self.table(table).get_by_role("rowheader").all_inner_texts()

    def first(self, table: str, key: str) -> None:
        """Wait until the first row of a table is this one."""
        expect(self.table(table).get_by_role("rowheader").first).to_have_text(key)

    def legend(self, chart: str) -> dict[str, str]:
        """The latest values of a chart."""
        figure = self.page.locator("figure").filter(has_text=chart)
        return dict(key.inner_text().rsplit(None, 1) for key in figure.locator(".key").all())

    # What a person does

    def press(self, name: str, inside: Locator | None = None) -> None:
        """Press a button, or follow a link, by its name."""
        place = inside or self.page
        place.get_by_role("button", name=name, exact=True).or_(
            place.get_by_role("link", name=name, exact=True)
        ).click()

    @contextmanager
    def dialog(self) -> Iterator[Locator]:
        """The dialog that has opened; it must close."""
        dialog = self.page.get_by_role("dialog").last
        expect(dialog).to_be_visible()
        name = dialog.get_attribute("aria-labelledby")
        yield dialog
        expect(self.page.locator(f"dialog[aria-labelledby={name}]")).to_have_count(0)

    def confirm(self, question: str, button: str) -> None:
        """Read what a dialog says, and agree."""
        with self.dialog() as dialog:
            expect(dialog).to_contain_text(question)
            self.press(button, dialog)

    def choose(self, *ids: str) -> None:
        """Tick messages."""
        for id_ in ids:
            self.page.get_by_role("checkbox", name=f"Message {id_}", exact=True).check()
