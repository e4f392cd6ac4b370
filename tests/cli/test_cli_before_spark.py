"""Commands that run on Spark refuse what is wrong before Java starts."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.errors import InvalidArgument
from penstock.spark.jobs.files import columns_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the store `data`, and a Java that leaves a note if it is started."""
    monkeypatch.chdir(tmp_path)
    with penstock.open("data") as store:
        store.create("jobs")
    java = tmp_path / "jvm" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho started >> {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jvm"))
    Path("rows.json").write_text('{"body": "a", "kind": "x"}\n{"body": "b", "urgency": 1}\n')
    Path("rows.csv").write_text("body,kind\na,x\n")
    pa.parquet.write_table(pa.table({"body": ["a"], "kind": ["x"]}), "rows.parquet")
    Path("file").write_text("no folder")
    return tmp_path


def run(*arguments: str, store: str = "data") -> Result:
    return CliRunner().invoke(cli, ["--store", store, *arguments], input="")


WRONG = [
    (["load", "rows.json", "job"], "there is no queue 'job' in 'data'; is it 'jobs'?"),
    (["load", "rows.json", "jobs"], "which of the columns body, kind, urgency is the payload?"),
    (["load", "rows.json", "jobs", "--payload-column", "bdy"], "no column 'bdy'; there are body, kind, urgency"),
    (["load", "rows.csv", "jobs", "--payload-column", "bdy"], "there is no column 'bdy'; there are body, kind"),
    (["load", "rows.parquet", "jobs", "--payload-column", "bdy"], "no column 'bdy'; there are body, kind"),
    (["load", "rows.csv", "jobs", "--payload-json", "--priority", "rank"], "there is no column 'rank'"),
    (["load", "rows.csv", "jobs", "--payload-json", "--header", "a=rank"], "there is no column 'rank'"),
    (["load", "rows.csv", "jobs", "--payload-json", "--group", "rank"], "there is no column 'rank'"),
    (["load", "rows.csv", "--payload-json", "--queue-column", "rank"], "there is no column 'rank'"),
    (["load", "rows.csv", "jobs", "--payload-json", "--payload-column", "body"], "a column, or the row as JSON?"),
    (["load", "row.json", "jobs"], "there is no file 'row.json'"),
    (["load", "*.orc", "jobs"], "there is no file '*.orc'"),
    (["load", "file", "jobs"], "what is in 'file'? Say so with --format"),
    (["load", "rows.json"], "into which queue?"),
    (["load", "rows.json", "jobs", "--id", "a b"], "id 'a b': give 1 to 100"),
    (["convert", "dta", "copy"], "no store at dta"),
    (["convert", "data", "journal:data"], "'data' and 'journal:data' are the same store"),
    (["convert", "data", "memory:"], "Spark works with stores on disk"),
    (["convert", "data", "file/copy"], "is a file: give a folder"),
    (["pack", "job", "--spark"], "is it 'jobs'?"),
    (["archive", "file/old"], "is a file: give a folder"),
    (["archive", "data/old"], "would be inside of the store"),
    (["archive", "old", "--id", "a b"], "id 'a b': give 1 to 100"),
    (["report", "--out", "file"], "'file' is a file"),
    (["report", "--out", "file/page"], "is a file: give a folder"),
    (["report", "--out", "page", "--window", "1 yard"], "window '1 yard': give a number and a unit"),
    (["report", "--out", "page", "--archive", "old"], "there is no archive 'old': no such folder"),
    (["route", "--once"], "keeps no log"),
    (["sql", " ; "], "there is no query"),
    (["sql", "SELECT 1", "--master", "sparc://host:7077"], "'sparc://host:7077' is no cluster"),
    (["sql", "SELECT 1", "--master", "spark://host"], "'spark://host' is no cluster"),
    (["streams", "settle", "old"], "'old' is no checkpoint of a query"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), WRONG, ids=[" ".join(each) for each, _ in WRONG])
def test_a_mistake_is_said_before_java_starts(arguments: list[str], says: str, here: Path) -> None:
    before = sorted(here.rglob("*"))
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert says in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output
    assert not (here / "started").exists()
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [["archive", "old"], ["report", "--out", "page"], ["sql", "SELECT 1"], ["load", "rows.csv", "jobs"]],
    ids=" ".join,
)
def test_a_folder_of_something_else_is_no_store_and_java_does_not_start(arguments: list[str], here: Path) -> None:
    (here / "other").mkdir()
    (here / "other" / "LICENSE").write_text("Permission is hereby granted")
    assert run(*arguments, store="other").exit_code == 1
    assert not (here / "started").exists()


@pytest.mark.long
def test_java_starts_once_everything_is_right(here: Path) -> None:
    """The Java of these tests leaves its note: so the tests above can fail."""
    run("load", "rows.csv", "jobs", "--payload-column", "body", "--dry-run")
    assert (here / "started").exists()


# Columns of files


def test_the_columns_of_each_format_are_found(here: Path) -> None:
    pa.orc.write_table(pa.table({"body": ["a"], "kind": ["x"]}), "rows.orc")
    with gzip.open("rows.json.gz", "wt") as file:
        file.write('{"body": 1}\n')
    assert columns_of("rows.json", "json", {}) == ["body", "kind", "urgency"]
    assert columns_of("rows.json.gz", "json", {}) == ["body"]
    assert columns_of("rows.orc", "orc", {}) == ["body", "kind"]
    assert columns_of("rows.parquet", "parquet", {}) == ["body", "kind"]
    assert columns_of("rows.csv", "csv", {"header": "true", "sep": ","}) == ["body", "kind"]
    assert columns_of("rows.csv", "csv", {"header": "true", "sep": ";"}) == ["body,kind"]
    assert columns_of(f"file:{here}/rows.csv", "text", {}) == ["value"]


def test_the_columns_of_many_json_files_are_those_of_all_lines(here: Path) -> None:
    Path("more.json").write_text('{"body": 1}\n\n{"late": 2}\n')
    assert columns_of("*.json", "json", {}) == ["body", "kind", "late", "urgency"]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("x.json", '{"a": 1}\nno json\n', "json"),
        ("x.json", "[1]\n", "json"),
        ("x.json", f'{{"a": "{"x" * (9 << 20)}"}}\n', "json"),
        ("x.csv", 'a,"b\nc",d\n1,2,3\n', "csv"),
        ("x.csv", "a,,b\n1,2,3\n", "csv"),
        ("x.csv", "a,A\n1,2\n", "csv"),
        ("x.csv.bz2", "a,b\n", "csv"),
        ("x.parquet", "no parquet", "parquet"),
        ("day=1/x.json", json.dumps({"a": 1}), "json"),
    ],
)
def test_where_spark_might_find_other_columns_it_decides(name: str, content: str, kind: str, here: Path) -> None:
    path = here / "rows" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert columns_of("rows", kind, {"header": "true", "sep": ","} if kind == "csv" else {}) is None


def test_options_of_spark_and_other_places_are_left_to_spark() -> None:
    assert columns_of("rows.json", "json", {"multiLine": "true"}) is None
    assert columns_of("rows.csv", "csv", {"header": "false", "sep": ","}) is None
    assert columns_of("s3a://bucket/rows.json", "json", {}) is None
    assert columns_of("rows.{json,csv}", "json", {}) is None


def test_a_folder_without_files_is_said(here: Path) -> None:
    (here / "empty").mkdir()
    (here / "empty" / "_SUCCESS").touch()
    with pytest.raises(InvalidArgument, match="there are no files in 'empty'"):
        columns_of("empty", "json", {})
