"""Deployment files and the documents about them agree with the program."""

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest

import penstock
from penstock.cli import cli
from penstock.contract.roles import ROLES
from penstock.http.server import serve_in_thread
from tests.http.test_server_monitoring import ask, scrape

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_the_settings_of_the_example_are_settings() -> None:
    example = tomllib.loads((ROOT / "deploy" / "penstock.toml").read_text())
    assert set(example) == {"store", "serve"}
    assert set(example["serve"]) <= {option.name for option in cli.commands["serve"].params}


def test_the_unit_starts_the_server_with_that_file() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "penstock.service")
    assert unit["Service"]["ExecStart"].endswith("/penstock serve --config /etc/penstock/penstock.toml")
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_variables_of_the_image_are_settings() -> None:
    known = {
        name
        for option in [*cli.params, *cli.commands["serve"].params]
        for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or ())
    }
    given = re.findall(r"\b(PENSTOCK_\w+)=", (ROOT / "Containerfile").read_text())
    assert len(given) == 4
    assert set(given) <= known


def test_the_metrics_of_the_document_are_those_of_the_server(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        server = serve_in_thread(store)
        try:
            ask(server.url, "/default/messages", "POST", b"a")
            there = {re.sub(r"_(bucket|sum|count)$", "", key.split()[0]) for key in scrape(server.url)}
        finally:
            server.stop()
    named = {
        re.sub(r"_bucket$", "", name)
        for name in re.findall(r"penstock_(?:queue|commit|http|store|info)\w*", OPERATIONS)
    }
    assert named == {name for name in there if name.startswith("penstock_")}


@pytest.mark.parametrize("flag", [option.opts[0] for option in cli.commands["serve"].params])
def test_every_setting_is_in_the_document(flag: str) -> None:
    assert flag == "--json" or f"`{flag}" in OPERATIONS


def test_every_role_is_in_the_document() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    assert all(f"| `{role}` |" in text for role in ROLES)
