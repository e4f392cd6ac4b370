"""`penstock console`: a server for this person, and their browser."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.harness.children import Child
from tests.http.serving import ask, serving, until


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which a browser writes the addresses that it is to open."""
    browser, pages = tmp_path / "browser", tmp_path / "pages"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {pages}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    return pages


def console(store: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "--store", store, "console", *options]


@pytest.mark.long
def test_it_serves_on_this_machine_and_opens_the_browser(tmp_path: Path, opened: Path) -> None:
    with penstock.open(tmp_path / "store") as store:  # another process that has it open is no hindrance
        store.create("jobs").put(b"a")
        with Child(console(str(tmp_path / "store")), tmp_path / "errors") as child:
            address, shows, what = child.read_line().split(" ", 2)
            assert (shows, what.strip()) == ("shows", str(tmp_path / "store"))
            assert address.startswith("http://127.0.0.1:")
            until(opened.exists)
            until(lambda: opened.read_text() == f"{address}\n")
            assert b"Penstock" in ask(address, "/-/")[2]
            overview = json.loads(ask(address, "/-/api/overview")[2])
            assert {row["queue"]: row["counts"]["available"] for row in overview["queues"]} == {
                "default": 0,
                "jobs": 1,
            }
            assert child.stop(signal.SIGINT) == 0
    assert (tmp_path / "errors").read_text() == ""


def test_without_a_browser_it_prints_where_it_is(tmp_path: Path, opened: Path) -> None:
    penstock.open(tmp_path / "store").close()
    with Child(console(str(tmp_path / "store"), "--no-browser", "--json"), tmp_path / "errors") as child:
        told = json.loads("".join(iter(child.read_line, "}\n")) + "}")
        assert ask(told["url"], "/-/")[0] == 200
        taken = told["url"].split(":")[2].split("/")[0]
        other = subprocess.run(console(str(tmp_path / "store"), "--port", taken), capture_output=True, text=True)
        assert other.returncode == 1
        assert f"cannot listen on 127.0.0.1 port {taken}" in other.stderr
        assert child.stop() == 0
    assert not opened.exists()


def test_of_a_server_it_opens_the_console_that_is_there(tmp_path: Path, opened: Path) -> None:
    with penstock.open(tmp_path / "store") as store, serving(store) as running:
        done = subprocess.run(console(running.url), capture_output=True, text=True, env=os.environ, check=True)
        assert done.stdout == f"{running.url}/-/ shows {running.url}\n"
        until(opened.exists)
        assert opened.read_text() == f"{running.url}/-/\n"


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = subprocess.run(console(str(tmp_path / "store")), capture_output=True, text=True)
    assert done.returncode == 1
    assert "no store at" in done.stderr
    assert not (tmp_path / "store").exists()
