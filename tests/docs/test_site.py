"""The documentation site: built without a warning, complete, and loading nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from penstock.cli import cli
from penstock.http.server.openapi import document

ROOT = Path(__file__).parent.parent.parent


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


@pytest.mark.parametrize(
    "name", ["open", "Store.create", "Queue.claim", "Message", "work", "PenstockError", "QueueFull"]
)
def test_what_users_call_is_in_the_python_reference(site: Path, name: str) -> None:
    page = (site / "reference" / "python.html").read_text()
    assert re.search(rf'id="penstock\.([a-z.]+\.)?{re.escape(name)}"', page)


def test_the_search_finds_words_of_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "exactly once" in index
    assert "redrive" in index
