"""Names, payloads, headers and reasons are data, whatever is in them; pages of other origins change nothing."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, expect

import penstock
from penstock.contract import roles
from penstock.http.server import Access, RunningServer, console, tokens
from tests.console.conftest import Launch
from tests.console.tab import Tab
from tests.http.serving import ask, serving

FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", r"document\.write", r"\beval\b", "new Function", "DOMParser",
    "createContextualFragment", r"\.srcdoc", r"document\.cookie", "localStorage",
)  # fmt: skip
CONSOLE = files("penstock.http").joinpath("console")
SCRIPT = "<script>window.pwned=1</script>"
IMAGE = "<img src=x onerror=window.pwned=1>"
TURNED = "\u202egnp.exe\u2066 \u200f\ufeff"
HOSTILE = [
    SCRIPT, IMAGE, f"\"'><svg onload=window.pwned=1>{SCRIPT}", "javascript:window.pwned=1", "]]>--><!--",
    f"a\x00b\x1b[31m{TURNED}", "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}",
    "\U0001f4a5" * 300, "\ud7ff\uffff",
]  # fmt: skip
NAMES = [
    SCRIPT, IMAGE, "\"onmouseover='window.pwned=1'x=\"", "..", "a/b?c#d&e=f%2F", "javascript:window.pwned=1",
    "%00%0d", "x" * 255, "__proto__", "constructor",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def filled(store: penstock.Store) -> None:
    for name in NAMES:
        store.create(name.replace(" ", "/"), description=f"{SCRIPT} {TURNED}", labels={IMAGE: SCRIPT})
    queue = store.create("hostile", max_attempts=1)
    for text in HOSTILE:
        queue.put(text, headers={text[:200]: text}, group=text[:60])
    for text in HOSTILE:
        [message] = queue.claim(consumer=text[:60])
        message.fail(reason=text)
    queue.put(f'{{"{IMAGE}": "{SCRIPT}", "__proto__": {{"pwned": 1}}}}')
    queue.put(b"<html>" * 2_000_000)  # 12 MB
    queue.put(b"[" * 100_000 + b"]" * 100_000)


def test_hostile_names_are_shown_and_lead_to_their_queues(tab: Tab, store: penstock.Store) -> None:
    tab.open()
    for name in (name.replace(" ", "/") for name in NAMES):
        tab.row("Queues", name).get_by_role("link").click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text(name)
        tab.shows("No browser can ask for something by the name of .." if name == ".." else "The queue is empty.")
        tab.page.go_back()


@pytest.mark.parametrize(
    "text",
    [*HOSTILE[::3], *(pytest.param(text, marks=pytest.mark.long) for text in [*HOSTILE[1::3], *HOSTILE[2::3]])],
    ids=range(len(HOSTILE)),
)
def test_hostile_messages_are_data(tab: Tab, store: penstock.Store, text: str) -> None:
    [message] = [each for each in store.queue("hostile").messages("failed") if each.payload == text.encode()]
    tab.open(f"queues/hostile?message={message.id}")
    with tab.dialog() as dialog:
        expect(dialog.locator("pre")).to_be_visible()
        shown = dialog.inner_text()
        for sign, code in (("\x00", "␀"), ("\x1b", "␛"), ("\u202e", "⟨U+202E⟩"), ("\u2066", "⟨U+2066⟩")):
            assert sign not in shown
            assert (code in shown) == (sign in text)
        if not re.search(r"[^ -~]", text):
            assert shown.count(text) >= 4  # payload, header, reason of message and attempt
        assert dialog.locator("script, img, iframe, svg, object, embed, [onerror], [onload]").count() == 0
        tab.press("Hex", dialog)
        tab.press("Close", dialog)
    tab.check()


def test_hostile_texts_in_lists_are_data(tab: Tab) -> None:
    tab.open("queues/hostile")
    expect(tab.row("Messages", "1")).to_contain_text(SCRIPT)
    tab.go("queues/hostile?tab=reasons")
    expect(tab.table("Failure reasons")).to_contain_text(IMAGE)
    tab.go("queues/hostile?text=" + quote(SCRIPT))
    expect(tab.row("Messages", "1")).to_be_visible()
    tab.go("")
    expect(tab.row("Queues", "hostile")).to_be_visible()
    assert tab.page.locator("main script, main img, main iframe").count() == 0


def test_json_huge_and_deep_payloads_are_shown(tab: Tab) -> None:
    first = len(HOSTILE) + 1
    tab.open(f"queues/hostile?message={first}")
    with tab.dialog() as dialog:
        expect(dialog.locator("pre")).to_contain_text(f'"{SCRIPT}"')
        tab.press("Close", dialog)
    tab.open(f"queues/hostile?message={first + 1}")
    with tab.dialog() as dialog:
        expect(dialog).to_contain_text("This is the beginning; the download has all 11.4 MiB.")
        tab.press("Close", dialog)
    tab.open(f"queues/hostile?message={first + 2}")
    with tab.dialog() as dialog:
        expect(dialog.locator("pre")).to_contain_text(re.compile(r"\[\s+\[\s+\["))
        tab.press("Close", dialog)


def test_no_script_of_ours_makes_markup() -> None:
    """The policy refuses it, too; but scripts that never try are easier to trust."""
    scripts = {each.name: each.read_text() for each in CONSOLE.iterdir() if each.name.endswith(".js")}
    assert len(scripts) > 8
    for name, script in scripts.items():
        assert re.findall("|".join(FORBIDDEN), script) == [], name
        assert re.findall(r"""["'`]https?://""", script.replace('"http://www.w3.org/2000/svg"', "")) == [], name
    page = CONSOLE.joinpath("index.html").read_text()
    assert not re.search(r"<script(?! type=\"module\" src=)|\bon\w+=|style=|<style|//", page)


def test_the_page_and_its_files_are_guarded_and_kept(server: RunningServer) -> None:
    status, headers, body = ask(server.url, "/-/")
    assert (status, headers["Cache-Control"]) == (200, "no-store")
    for part in (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
        "connect-src 'self'", "form-action 'none'", "frame-ancestors 'none'", "base-uri 'none'",
        "require-trusted-types-for 'script'",
    ):  # fmt: skip
        assert part in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    linked = re.findall(rb'(?:src|href)="([^"]+)"', body)
    assert len(linked) == 3
    for path in [each.decode() for each in linked] + [
        f"console/{console.version()}/{name}" for name in ("api.js", "dom.js")
    ]:
        status, headers, _ = ask(server.url, f"/-/{path}")
        assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert "immutable" in headers["Cache-Control"]
    for path in (
        "console/0/app.js",
        f"console/{console.version()}/..%2Fserver%2Fpage.py",
        f"console/{console.version()}/",
    ):
        assert ask(server.url, f"/-/{path}")[0] == 404


def test_the_root_leads_browsers_to_the_console_and_programs_to_the_documents(server: RunningServer) -> None:
    assert ask(server.url, "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")[1]["Location"] == "/-/"
    for accept in ("*/*", "application/json"):
        assert ask(server.url, "/", Accept=accept)[1]["Location"] == "/-/docs"


# Pages of others


@contextmanager
def evil_site(page: bytes) -> Iterator[str]:
    """A server of another origin with one page."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *said: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://localhost:{site.server_address[1]}/"
        site.shutdown()


# How many answers it could read.
ATTACKS = """async (target) => {
  const queue = "-/api/queues/victim/";
  const json = { "Content-Type": "application/json", Authorization: "Bearer guess" };
  const body = '{"messages": [{"payload": "evil"}]}';
  const tried = [];
  for (const path of ["victim/messages", queue + "purge", queue + "put", queue + "redrive"]) {
    for (const credentials of ["omit", "include"]) {
      tried.push(fetch(target + path, { method: "POST", mode: "no-cors", credentials, body }));
      tried.push(fetch(target + path, { method: "POST", mode: "cors", credentials, body, headers: json }));
    }
  }
  tried.push(fetch(target + "victim/messages?lease=3600", { mode: "no-cors" }));
  tried.push(fetch(target + "victim", { method: "DELETE", mode: "cors" }));
  const image = new Image();
  tried.push(new Promise((done) => { image.onload = image.onerror = done; }));
  image.src = target + "victim/messages";
  const answers = await Promise.allSettled(tried);
  return answers.filter((each) => each.status === "fulfilled" && each.value.type === "cors").length;
}"""
FORMS = """(target) => {
  for (const path of ["victim/messages", "-/api/queues/victim/purge"]) {
    for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
      const [form, frame] = [document.createElement("form"), document.createElement("iframe")];
      frame.name = path + enctype;
      Object.assign(form, { method: "POST", action: target + path, enctype, target: frame.name });
      document.body.append(form, frame);
      form.submit();
    }
  }
}"""


@pytest.mark.parametrize("guarded", [False, True], ids=["without tokens", "with tokens"])
def test_a_page_of_another_origin_changes_nothing_and_reads_nothing(
    browser: Browser, tmp_path: Path, guarded: bool
) -> None:
    secret = tokens.create(str(tmp_path / "tokens"), "me", roles.ADMIN)
    access = Access(str(tmp_path / "tokens")) if guarded else None
    with (
        penstock.open(tmp_path / "store", sync="never") as store,
        serving(store, access=access) as running,
        evil_site(b"<!doctype html><title>Evil</title>") as evil,
        Tab(browser, running.url) as tab,
    ):
        store.create("victim").put(b"untouched")
        tab.open()
        if guarded:
            tab.page.get_by_label("Token").fill(secret)
            tab.press("Sign in")
        expect(tab.row("Queues", "victim")).to_be_visible()  # its person is logged in, in another tab
        page = tab.context.new_page()
        page.goto(evil)
        assert page.evaluate(ATTACKS, f"{running.url}/") == 0
        posted: list[int] = []
        page.on("response", lambda answer: posted.append(answer.status))
        page.evaluate(FORMS, f"{running.url}/")
        while len(posted) < 6:
            page.wait_for_timeout(20)
        assert set(posted) == {401 if guarded else 403}
        [message] = store.queue("victim").messages()
        assert (message.payload, message.attempts, message.state) == (b"untouched", 0, "available")


def test_the_console_is_shown_in_no_frame(browser: Browser, server: RunningServer) -> None:
    with (
        evil_site(f"<!doctype html><iframe src='{server.url}/-/'></iframe>".encode()) as evil,
        Tab(browser, server.url) as tab,
    ):
        tab.page.goto(evil)
        frame = tab.page.frames[1]
        assert frame.locator("main").count() == 0
        assert "Penstock" not in frame.content()


def test_a_rebound_name_reaches_nothing(launch: Launch, server: RunningServer, store: penstock.Store) -> None:
    """The page's own name leads to this machine: to the browser it is one origin."""
    port = urlsplit(server.url).port
    chromium = launch("--host-resolver-rules=MAP rebound.example 127.0.0.1")
    try:
        page = chromium.new_page()
        answer = page.goto(f"http://rebound.example:{port}/-/")
        assert answer is not None
        assert answer.status == 403
        assert "--allow-host" in answer.text()
        before = store.queue("hostile").counts()
        status = page.evaluate(
            "fetch('/-/api/queues/hostile/purge', {method: 'POST'}).then(answer => answer.status)"
        )
        assert status == 403
        assert store.queue("hostile").counts() == before
    finally:
        chromium.close()
