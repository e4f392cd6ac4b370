"""The command line on a text store."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main as _main  # noqa: F401 - so that all commands are there
from penstock.cli.app import cli


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_text("# mine\n-resize cat.jpg\n\n=two\n lines\n!three\n-\x1b[2J\n")
    return path


def run(path: Path, *arguments: str, colour: bool = False) -> Result:
    return CliRunner().invoke(cli, ["--store", str(path), *arguments], color=colour, catch_exceptions=False)


def test_a_file_is_shown_as_it_is_and_a_terminal_is_safe(path: Path) -> None:
    ran = run(path, "show", "--entries")
    assert ran.exit_code == 0
    assert ran.stdout == "# mine\n-resize cat.jpg\n\n=two\n lines\n!three\n-\\x1b[2J\n"


def test_a_file_is_coloured_by_state(path: Path) -> None:
    run(path, "claim", "jobs")
    ran = run(path, "show", "jobs", "--entries", colour=True)
    assert "\x1b[33m-resize cat.jpg\x1b[0m" in ran.stdout
    assert "\x1b[31m!three\x1b[0m" in ran.stdout


def test_entries_come_as_json(path: Path) -> None:
    entries = json.loads(run(path, "show", "--entries", "--json").stdout)
    assert [entry["state"] for entry in entries] == ["comment", "available", "done", "failed", "available"]
    assert (entries[2]["offset"], entries[2]["length"], entries[2]["text"]) == (24, 12, "two\nlines")


def test_a_message_goes_through_the_command_line(path: Path) -> None:
    run(path, "put", "jobs", "hello", "--priority", "-1")
    [claimed] = json.loads(run(path, "claim", "default", "--json").stdout)
    assert claimed["payload"] == "hello"
    assert run(path, "ack", "jobs", claimed["receipt"]).exit_code == 0
    assert "=hello\n" in path.read_text()
    [packed] = json.loads(run(path, "pack", "--json").stdout)
    assert packed["freed"] > 0
    assert path.read_text() == "# mine\n-resize cat.jpg\n\n!three\n-\x1b[2J\n"


def test_other_stores_have_no_entries_to_show(tmp_path: Path) -> None:
    assert run(tmp_path / "data", "create", "jobs").exit_code == 0
    ran = run(tmp_path / "data", "show", "--entries")
    assert ran.exit_code == 1
    assert "--entries is for text stores" in ran.stderr
