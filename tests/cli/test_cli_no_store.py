"""Commands on a path where there is no store: those that read make none, those that write may."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.contract.kinds import exists

KINDS = ["{}", "journal:{}", "text:{}", "{}.tq", "folder:{}", "slate:{}"]
READING = [
    ["list"], ["show"], ["show", "jobs"], ["peek"], ["peek", "jobs"], ["claim"], ["pop"], ["ack", "jobs", "r"],
    ["fail", "jobs", "r"], ["release", "jobs", "r"], ["delete", "jobs", "--yes"], ["purge", "--yes"],
    ["revoke", "jobs", "1"], ["redrive", "jobs"], ["remove", "jobs", "1"], ["put", "jobs", "x"],
    ["work", "jobs", "--", "true"],
    ["doctor"], ["pack"], ["pack", "--spark"], ["expire"], ["backup", "copy"], ["archive", "old"],
    ["report", "--out", "page"], ["sql", "SELECT 1"], ["load", "x.json", "jobs"], ["route", "--once"], ["streams"],
    ["streams", "release", "s"], ["streams", "delete", "s"],
]  # fmt: skip


def run(url: str, *arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["--store", url, *arguments], input=b"")
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_reads_makes_no_store(kind: str, arguments: list[str], here: Path) -> None:
    url = kind.format("dta")
    result = run(url, *arguments)
    if arguments[0] == "put" and url == "dta.tq":
        assert "there is no queue 'jobs'" in result.output  # the file is its queue, and was made
        return
    make = "touch dta.tq" if url == "dta.tq" else f"penstock --store {url} create jobs"
    assert (result.exit_code, result.output) == (1, f"penstock: no store at {url}: `{make}` makes one\n")
    assert os.listdir(here) == []


@pytest.mark.parametrize("kind", ["dta", "journal:dta", "text:dta", "folder:dta", "slate:dta"])
@pytest.mark.parametrize("command", ["list", "claim", "doctor", "streams"])
def test_an_empty_folder_is_no_store_and_stays_empty(kind: str, command: str, here: Path) -> None:
    (here / "dta").mkdir()
    result = run(kind, command)
    assert result.exit_code == 1
    assert f"no store at {kind}: " in result.output
    assert os.listdir("dta") == []


@pytest.mark.parametrize("kind", ["text:.", "folder:.", "slate:."])
def test_a_folder_of_other_things_is_no_store_and_stays_as_it_is(kind: str, here: Path) -> None:
    (here / "Makefile").write_text("all:\n")
    (here / "db").mkdir()
    result = run(kind, "list")
    assert result.exit_code == 1
    assert f"no store at {kind}: " in result.output
    assert sorted(os.listdir(here)) == ["Makefile", "db"]


NOTHING_OF_A_STORE = [
    (["dta", "journal:dta"], ".gitkeep"), (["dta"], ".gitignore"), (["dta"], ".penstock/"), (["dta"], "empty"),
    (["text:dta"], "x.tq/"), (["slate:dta"], "db/wal/"), (["slate:dta"], "db/manifest/app.json"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "name"), NOTHING_OF_A_STORE, ids=[name for _, name in NOTHING_OF_A_STORE])
@pytest.mark.parametrize("command", ["list", "peek", "show", "claim", "doctor", "streams"])
def test_a_folder_with_nothing_of_a_store_in_it_stays_as_it_is(
    command: str, kinds: list[str], name: str, here: Path
) -> None:
    path = here / "dta" / name
    path.parent.mkdir(parents=True)
    path.mkdir() if name.endswith("/") else path.touch()
    before = sorted(here.rglob("*"))
    for kind in kinds:
        result = run(kind, command)
        assert result.exit_code == 1
        assert f"no store at {kind}: " in result.output
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("command", ["list", "peek", "show", "claim", "doctor", "streams", "pack"])
def test_a_source_tree_is_no_journal_store_for_any_command(command: str, here: Path) -> None:
    files = {"Makefile": "all:\n\techo\n", "LICENSE": "Permission is hereby granted"}
    for name, text in files.items():
        (here / name).write_text(text)
    result = run(".", command)
    assert result.exit_code == 1
    assert "'LICENSE' in it is no journal, so that nothing was touched" in result.output
    assert "give the folder of a store" in result.output
    assert {each.name: each.read_text() for each in here.iterdir()} == files


def test_a_link_that_leads_nowhere_is_no_store_and_leads_nowhere_afterwards(here: Path) -> None:
    (here / "jobs.tq").symlink_to(here / "elsewhere.tq")
    assert run("jobs.tq", "list").output == "penstock: no store at jobs.tq: `touch jobs.tq` makes one\n"
    assert os.listdir(here) == ["jobs.tq"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_advice_makes_a_store_that_commands_then_read(kind: str) -> None:
    url = kind.format("dta")
    advice = run(url, "list").output.split("`")[1]
    if advice.startswith("touch "):
        Path(advice.removeprefix("touch ")).touch()
    else:
        assert run(*advice.split()[2:]).output == "created jobs\n"
    assert run(url, "list").exit_code == 0
    assert exists(url)


@pytest.mark.parametrize("url", ["text:dta.tq", "sub/dta.tq", "text:my sub/dta.tq"])
def test_the_advice_for_a_file_works_in_a_shell(url: str) -> None:
    subprocess.run(run(url, "list").output.split("`")[1], shell=True, check=True)
    assert run(url, "list").exit_code == 0


def test_a_mistyped_store_in_the_environment_is_said_and_not_made(here: Path) -> None:
    result = CliRunner().invoke(cli, ["list"], env={"PENSTOCK_STORE": "my dta"})
    assert result.output == "penstock: no store at my dta: `penstock --store 'my dta' create jobs` makes one\n"
    assert result.exit_code == 1
    assert os.listdir(here) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments", [["put", "default", "x"], ["publish", "x"]], ids=" ".join)
def test_a_command_that_writes_makes_the_store(kind: str, arguments: list[str]) -> None:
    url = kind.format("dta")
    assert run(url, *arguments).exit_code == 0
    assert exists(url)


def test_completion_makes_no_store(here: Path) -> None:
    words = {"COMP_WORDS": "penstock --store dta peek ", "COMP_CWORD": "4"}
    result = CliRunner().invoke(cli, prog_name="penstock", env={"_PENSTOCK_COMPLETE": "bash_complete", **words})
    assert result.output.strip() == ""
    assert os.listdir(here) == []


def test_opening_in_a_program_still_makes_the_store(here: Path) -> None:
    for kind in KINDS:
        url = kind.format(kind.partition(":")[0].strip("{}.") or "plain")
        assert not exists(url)
        penstock.open(url).close()
        assert exists(url)


def test_what_cannot_be_looked_at_is_told_from_what_is_not_there(here: Path) -> None:
    (here / "file").write_bytes(b"x")
    result = run("text:file", "list")
    assert result.exit_code == 1
    assert "no store at" not in result.output
