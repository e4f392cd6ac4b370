"""How the console is used: with a token and its roles, by keyboard, on a phone, while a server comes and goes."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

import penstock
from penstock.contract import roles
from penstock.http.server import Access, RunningServer, tokens
from tests.console import pictures
from tests.console.tab import Tab
from tests.http.serving import serving

PLACES = [
    "", "queues/jobs", "queues/jobs?state=failed", "queues/jobs?message=1", "queues/jobs?tab=reasons",
    "queues/jobs?tab=settings", "queues/empty", "streams", "server",
]  # fmt: skip
SETTLED = "Promise.all(document.getAnimations().map((each) => each.finished)).then(() => null)"
LONG = "no-spaces-" * 20


@pytest.fixture(scope="module", autouse=True)
def filled(store: penstock.Store) -> None:
    jobs = store.create("jobs", max_attempts=1, description=LONG, labels={"team": LONG})
    jobs.put(json.dumps({"picture": LONG}), headers={LONG[:100]: LONG}, group=LONG)
    jobs.put_many([b"a", b"b", b"c"])
    [first, *_] = jobs.claim(2, lease=3600, consumer=LONG)
    first.fail(reason=LONG)
    store.create("empty")
    store.create("long-" + "q" * 240).put(b"x")


# Tokens


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("tokens") / "tokens")


@pytest.fixture(scope="module")
def secrets(token_file: str) -> dict[str, str]:
    held = {**roles.ROLES, "guest": roles.READ}
    return {name: tokens.create(token_file, name, role) for name, role in held.items()}


@pytest.fixture(scope="module")
def guarded(store: penstock.Store, token_file: str, secrets: dict[str, str]) -> Iterator[RunningServer]:
    with serving(store, access=Access(token_file)) as running:
        yield running


def sign_in(tab: Tab, secret: str) -> None:
    tab.page.get_by_label("Token").fill(secret)
    tab.page.keyboard.press("Enter")


def test_a_token_is_asked_for_and_kept_for_the_tab_only(
    browser: Browser, guarded: RunningServer, secrets: dict[str, str]
) -> None:
    with Tab(browser, guarded.url) as tab:
        tab.open("queues/jobs")
        expect(tab.page.get_by_label("Token")).to_be_focused()
        sign_in(tab, "pst_wrong")
        tab.shows("not, or no longer, known")
        sign_in(tab, "no token")
        tab.shows("A token is made of letters")
        sign_in(tab, secrets["read"])
        expect(tab.row("Messages", "1")).to_be_visible()
        tab.page.reload()
        expect(tab.row("Messages", "1")).to_be_visible()
        kept = tab.page.evaluate("[Object.values(sessionStorage), {...localStorage}, document.cookie]")
        assert kept == [[secrets["read"]], {}, ""]
        assert tab.context.cookies() == []
        assert secrets["read"] not in tab.page.content()
        other = tab.context.new_page()
        other.goto(f"{guarded.url}/-/")
        expect(other.get_by_label("Token")).to_be_visible()
        tab.press("Sign out")
        expect(tab.page.get_by_label("Token")).to_be_visible()
        assert tab.page.evaluate("sessionStorage.length") == 0
        tab.check()


@pytest.mark.parametrize(
    ("role", "offered", "hidden"),
    [
        ("read", ["all 4"], ["Put a message", "Redrive 1 failed", "Purge…", "Delete…", "Remove 1"]),
        ("write", ["Put a message"], ["Redrive 1 failed", "Purge…", "Remove 1"]),
        ("admin", ["Put a message", "Redrive 1 failed", "Move failed…", "Purge…", "Delete…", "Remove 1"], []),
    ],
)
def test_roles_decide_what_is_shown_and_offered(
    browser: Browser,
    guarded: RunningServer,
    secrets: dict[str, str],
    role: str,
    offered: list[str],
    hidden: list[str],
) -> None:
    with Tab(browser, guarded.url) as tab:
        tab.open("queues/jobs")
        sign_in(tab, secrets[role])
        if role == "write":
            tab.shows("Your token lacks the role read")
        else:
            tab.choose("1")
        for name in offered:
            expect(tab.page.get_by_role("button", name=name, exact=True)).to_be_visible()
        for name in hidden:
            expect(tab.page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        tab.go("queues/jobs?tab=settings")
        lease = tab.page.get_by_label("lease", exact=True)
        expect(lease).to_be_editable(editable=role == "admin")
        if role == "write":
            tab.go("")
            tab.shows("lacks the role read")  # the server's word
        tab.check()


def test_a_token_that_is_revoked_ends_the_session(
    browser: Browser, guarded: RunningServer, token_file: str, secrets: dict[str, str]
) -> None:
    with Tab(browser, guarded.url) as tab:
        tab.open()
        sign_in(tab, secrets["guest"])
        expect(tab.row("Queues", "jobs")).to_be_visible()
        tokens.revoke(token_file, "guest")
        expect(tab.page.get_by_label("Token")).to_be_visible()
        tab.shows("no longer, known")


# A server that goes away


def test_a_server_that_goes_away_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store", sync="never") as store:
        store.create("jobs").put(b"a")
        with serving(store) as running:
            tab = Tab(browser, running.url).__enter__()
            tab.open()
            expect(tab.row("Queues", "jobs").locator("[data-title=available]")).to_have_text("1")
            tab.page.evaluate("window.same = true")
        tab.shows("The server does not answer. What is shown is old; trying again.")
        expect(tab.row("Queues", "jobs")).to_be_visible()
        store.queue("jobs").put(b"b")
        with serving(store, port=urlsplit(running.url).port):
            tab.shows("Connected again.")
            expect(tab.row("Queues", "jobs").locator("[data-title=available]")).to_have_text("2")
            expect(tab.page.locator(".banner")).to_be_empty()
            assert tab.page.evaluate("window.same")
            tab.check()
        tab.context.close()


# Keyboard and screen readers


def test_a_message_is_put_with_the_keyboard_alone(tab: Tab, store: penstock.Store) -> None:
    store.create("typed")
    tab.open()
    keys = tab.page.keyboard
    expect(tab.row("Queues", "typed")).to_be_visible()
    keys.press("/")
    keys.type("typed")
    expect(tab.row("Queues", "jobs")).to_have_count(0)
    for _ in range(30):
        keys.press("Tab")
        if tab.page.evaluate("document.activeElement.textContent") == "typed":
            break
    keys.press("Enter")
    tab.shows("The queue is empty.")
    keys.press("c")
    with tab.dialog() as dialog:
        expect(dialog.get_by_label("Payload")).to_be_focused()
        keys.type("c/n?g o")  # no shortcuts while typing
        for _ in range(3):
            keys.press("Tab")  # past priority and delay
        for _ in range(10):
            keys.press("Tab")
            if tab.page.evaluate("document.activeElement.textContent") == "Put 1 message":
                break
        keys.press("Enter")
    tab.shows("Put as message 1.")
    assert [message.payload for message in store.queue("typed").messages()] == [b"c/n?g o"]


@pytest.mark.long
def test_shortcuts_are_listed_and_work(tab: Tab) -> None:
    tab.open()
    expect(tab.row("Queues", "jobs")).to_be_visible()
    keys = tab.page.keyboard
    keys.press("?")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("Go to streams and workers")
        keys.press("Escape")
    for key, title in (("s", "Streams and workers"), ("h", "Server"), ("o", "Overview")):
        keys.press("g")
        keys.press(key)
        expect(tab.page).to_have_title(f"{title} · Penstock")
        assert tab.page.evaluate("document.activeElement.id") == "main"
    keys.press("c")
    with tab.dialog():
        keys.press("Escape")
    keys.press("?")
    with tab.dialog() as dialog:
        dialog.get_by_label("Single keys work").uncheck()
        keys.press("Escape")
    keys.press("c")
    tab.press("Keyboard shortcuts")
    with tab.dialog() as dialog:  # the only one
        dialog.get_by_label("Single keys work").check()
        keys.press("Escape")


@pytest.mark.long
def test_the_focus_is_seen_goes_in_order_and_comes_back(tab: Tab) -> None:
    tab.open("queues/jobs")
    expect(tab.row("Messages", "1")).to_be_visible()
    page = tab.page
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.textContent"))
    assert order[:5] == ["Penstock", "Overview", "Streams", "Server", "?"]
    assert order[5:9] == ["last hour", "last day", "Put a message", "Redrive 1 failed"]
    purge = page.get_by_role("button", name="Purge…")
    purge.focus()
    page.keyboard.press("Enter")
    with tab.dialog():
        for _ in range(8):  # the focus stays inside
            page.keyboard.press("Tab")
            assert page.evaluate(
                "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
            )
        page.keyboard.press("Escape")
    expect(purge).to_be_focused()


def test_a_refresh_leaves_focus_and_choice_alone(tab: Tab, store: penstock.Store) -> None:
    queue = store.create("busy")
    queue.put_many([b"1", b"2", b"3"])
    tab.open("queues/busy")
    tab.choose("2")
    link = tab.row("Messages", "3").get_by_role("link")
    link.focus()
    [message] = queue.claim(lease=3600)
    expect(tab.row("Messages", message.id)).to_contain_text("in flight")
    expect(link).to_be_focused()
    expect(tab.page.get_by_role("checkbox", name="Message 2", exact=True)).to_be_checked()


def check_accessible(tab: Tab, where: str) -> None:
    """The guidelines for accessibility, as far as a program can tell: names, roles, contrast, landmarks."""
    found = Axe().run(tab.page).response["violations"]
    wrong = [(each["id"], node["html"], node["failureSummary"]) for each in found for node in each["nodes"]]
    assert wrong == [], where


def test_people_with_screen_readers_or_poor_sight_can_use_it(tab: Tab) -> None:
    for place in PLACES:
        tab.open(place)
        expect(tab.page.locator(".live")).to_have_text("Live")
        check_accessible(tab, place)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pictures.busy(tmp_path_factory.mktemp("busy") / "store") as url:
        yield url


@pytest.mark.long
@pytest.mark.parametrize("scheme", pictures.SCHEMES)
@pytest.mark.parametrize("width", pictures.SIZES)
def test_so_they_can_with_every_dialog_refusal_and_message(
    browser: Browser, busy: str, width: int, scheme: str
) -> None:
    with pictures.every_view(browser, busy, width, scheme) as views:
        for name, tab in views:
            tab.page.evaluate(SETTLED)
            check_accessible(tab, name)
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, name


# Phones


@pytest.mark.parametrize("scheme", ["dark", pytest.param("light", marks=pytest.mark.long)])
def test_on_a_phone_nothing_is_too_wide_or_hard_to_read(
    browser: Browser, server: RunningServer, scheme: str
) -> None:
    with Tab(browser, server.url, color_scheme=scheme) as tab:
        tab.page.set_viewport_size({"width": 390, "height": 844})
        colours = set()
        for place in PLACES:
            tab.open(place)
            tab.page.reload()
            expect(tab.page.locator(".live")).to_have_text("Live")
            wide = tab.page.evaluate(
                """() => [document.documentElement, ...document.querySelectorAll("dialog")].map(
                (each) => each.scrollWidth - each.clientWidth)"""
            )
            assert max(wide) <= 0, place
            check_accessible(tab, place)
            colours.add(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours == {"rgb(245, 246, 247)" if scheme == "light" else "rgb(14, 18, 21)"}
        tab.check()
