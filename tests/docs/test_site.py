"""The documentation site: built without a warning, complete, and loading nothing from elsewhere."""

import html
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from penstock.cli import cli
from penstock.contract import roles
from penstock.http.server.openapi import document
from penstock.http.server.sqs.actions import ACTIONS

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
# Files that a page shows, by the page's name.
INCLUDED = [
    (str(page.relative_to(DOCS)), name)
    for page in sorted(DOCS.rglob("*.md"))
    for name in re.findall(r'--8<-- "(.+)"', page.read_text())
]
PICTURES = sorted({*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert built.stderr == ""
    return folder


class Loads(HTMLParser):
    """What a browser would load for a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in {"stylesheet", "icon", "preload", "preconnect", "manifest"}:
            return
        name = {"script": "src", "img": "src", "iframe": "src", "link": "href"}.get(tag)
        if name and (url := given.get(name)):
            self.urls.append(url)


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = {url for page in pages for url in Loads(page.read_text()).urls}
    assert [url for url in loaded if re.match(r"(https?:)?//", url)] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", sheet.read_text())


def shown(page: Path) -> str:
    """The text of a page as a reader copies it: without tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text()))


@pytest.mark.parametrize(("page", "name"), INCLUDED)
def test_a_page_shows_the_files_that_it_includes(site: Path, page: str, name: str) -> None:
    text = (ROOT / name).read_text()
    assert text.strip() in shown((site / page).with_suffix(".html"))


def test_the_guides_include_examples_and_deployment_files() -> None:
    names = {name for _, name in INCLUDED}
    assert {f"deploy/{each}" for each in ("penstock.toml", "penstock.service", "compose.yaml")} < names
    large = {"examples/pipeline.py", "examples/stream.py"}  # whole pipelines, to be run
    assert {f"examples/{each.name}" for each in (ROOT / "examples").glob("*.py")} - large <= names


def test_no_page_shows_the_markup_of_an_inclusion(site: Path) -> None:
    assert [page for page in site.rglob("*.html") if re.search(r"--8\s*<", shown(page))] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_every_picture_is_one(picture: Path) -> None:
    if picture.suffix == ".png":
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    else:
        drawn = ElementTree.fromstring(picture.read_text() or "<empty/>")
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(drawn) > 0


def commands(group: click.Group, path: str = "") -> list[str]:
    found = []
    for name, command in group.commands.items():
        found.append(path + name)
        if isinstance(command, click.Group):
            found += commands(command, f"{path}{name} ")
    return found


def test_every_command_with_its_options_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    assert all(f'id="{name.replace(" ", "-")}"' in page for name in commands(cli))
    for command in cli.commands.values():
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        assert all(option.opts[-1] in page for option in options)


def test_every_route_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "http.html").read_text()
    for path, methods in document()["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page


def test_every_action_of_sqs_with_its_role_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "sqs.html").read_text()
    for action in ACTIONS.values():
        assert f'id="{action.name.lower()}"' in page
        row = page[page.index(f"<td><code>{action.name}</code></td>") :].partition("</tr>")[0]
        allowed = "any" if action.role == roles.ANY_ROLE else roles.names(action.role)[0]
        assert allowed in row
        members = page[page.index(f'id="{action.name.lower()}"') :].partition("errors:")[0]
        assert all(f"<code>{each.name}</code>" in members for each in action.takes.members)


@pytest.mark.parametrize(
    "name", ["open", "Store.create", "Queue.claim", "Message", "work", "PenstockError", "QueueFull"]
)
def test_what_users_call_is_in_the_python_reference(site: Path, name: str) -> None:
    page = (site / "reference" / "python.html").read_text()
    assert re.search(rf'id="penstock\.([a-z.]+\.)?{re.escape(name)}"', page)


@pytest.mark.parametrize("name", ["python", "aio"])
def test_the_python_reference_shows_lists_and_examples_as_such(site: Path, name: str) -> None:
    page = (site / "reference" / f"{name}.html").read_text()
    paragraphs = re.findall(r"<p>(.*?)</p>", page, re.DOTALL)
    run_together = [each for each in paragraphs if len(re.findall(r"^\w+: ", each, re.MULTILINE)) > 1]
    assert run_together == []
    assert "<blockquote>" not in page
    assert '<details class="' not in page  # an item that was taken for an admonition


def test_the_search_finds_words_of_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "exactly once" in index
    assert "redrive" in index
