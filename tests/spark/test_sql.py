"""SQL on a store: its views, and the command that asks."""

import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock.cli import cli
from penstock.spark.values import as_json, as_text, is_number
from tests.spark.reads import varied

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


def ask(store: Path, *arguments: str, code: int = 0) -> Result:
    """Ask in this process, of the session that it has."""
    result = CliRunner().invoke(cli, ["--store", str(store), "sql", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def run(store: Path, *arguments: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Ask as people do, with all that Java and its processes have to say."""
    command = [*COMMAND, "--store", str(store), "sql", "--master", "local[1]", *arguments]
    environment = os.environ | {"TZ": "Asia/Tokyo", "PYTHONUTF8": "1"}
    result = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def test_every_table_is_a_view(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with penstock.open("store") as store:
        queue = varied(store)
        penstock.spark.views(spark, Path("store"))  # not where Spark's own processes are
        counts = spark.sql("SELECT state, count(*) AS n FROM penstock_messages GROUP BY state").collect()
        assert {row.state: row.n for row in counts} == {name: n for name, n in queue.counts().items() if n}
        joined = "SELECT count(*) FROM penstock_attempts JOIN penstock_messages USING (queue, id)"
        assert spark.sql(joined).collect()[0][0] == spark.table("penstock_attempts").count() > 0
        queue.purge()
        penstock.spark.views(spark, "journal:store")
        (row,) = spark.sql("SELECT * FROM penstock_queues WHERE name = 'varied'").collect()
        assert (row.available, row.in_flight) == (0, 1)


@pytest.mark.usefixtures("spark")
def test_a_question_is_answered_with_a_table_or_with_json(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        before = int(time.time() * 1000)
        queue.put("caf\N{LATIN SMALL LETTER E WITH ACUTE}\x1b[31m", headers={"type": "order", "n": "1"})
        queue.put(b"\xff\x00")
        table = ask(tmp_path, "SELECT id, headers, payload, priority FROM penstock_messages WHERE queue = 'jobs'")
        assert table.stderr == ""
        assert [line.split() for line in table.stdout.splitlines() if line.strip()][2:] == [
            ["1", "type=order,", "n=1", "caf\N{LATIN SMALL LETTER E WITH ACUTE}\\x1b[31m", "0"],
            ["2", "(2", "bytes,", "not", "text)", "0"],
        ]
        answer = run(tmp_path, "-", "--json", "--limit", "2", stdin="SELECT * FROM penstock_messages")
    assert answer.stderr == ""
    found = json.loads(answer.stdout)
    assert [row["payload"] for row in found] == ["caf\N{LATIN SMALL LETTER E WITH ACUTE}\x1b[31m", None]
    assert found[1]["payload_base64"] == "/wA="
    assert found[0]["headers"] == {"type": "order", "n": "1"}
    received = datetime.datetime.fromisoformat(found[0]["received_at"])
    assert before <= received.timestamp() * 1000 <= time.time() * 1000
    assert found[0]["received_at"].endswith("Z")


NO_COLUMN = "penstock: A column, variable, or function parameter with"


@pytest.mark.long
def test_a_question_that_cannot_be_answered_is_an_error_of_one_line(tmp_path: Path) -> None:
    penstock.open(tmp_path).close()
    result = run(tmp_path, "SELECT nope FROM penstock_queues", code=1)
    assert result.stdout == ""
    assert result.stderr.startswith(NO_COLUMN)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("store", "query", "says"),
    [
        ("nowhere", "SELECT count(*) FROM penstock_messages", "penstock: no store at "),
        ("store", "SELECT nope FROM penstock_queues", NO_COLUMN),
    ],
)
def test_a_session_that_a_program_has_outlives_a_question_that_cannot_be_answered(
    spark: SparkSession, tmp_path: Path, store: str, query: str, says: str
) -> None:
    penstock.open(tmp_path / "store").close()
    result = ask(tmp_path / store, query, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith(says)
    assert result.stderr.count("\n") == 1
    assert spark.sql("SELECT 1").collect()[0][0] == 1


def test_the_help_shows_how_to_ask() -> None:
    result = CliRunner().invoke(cli, ["sql", "--help"])
    assert result.exit_code == 0
    assert 'penstock sql "SELECT queue, state, count(*) FROM penstock_messages GROUP BY ALL"' in result.output


VALUES = [
    ("CAST(NULL AS STRING)", None, ""),
    ("true", True, "true"),
    ("7", 7, "7"),
    ("CAST('NaN' AS DOUBLE)", "nan", "nan"),
    ("CAST(1.50 AS DECIMAL(5,2))", "1.50", "1.50"),
    ("DATE '2024-02-29'", "2024-02-29", "2024-02-29"),
    ("TIMESTAMP '2024-02-29 12:00:00.5 UTC'", "2024-02-29T12:00:00.500Z", "2024-02-29T12:00:00.500Z"),
    ("TIMESTAMP_NTZ '2024-02-29 12:00:00'", "2024-02-29T12:00:00", "2024-02-29T12:00:00"),
    ("array(1, NULL)", [1, None], "1, "),
    ("map('a', X'00FF', 'b', X'41')", {"a": "AP8=", "b": "A"}, "a=AP8=, b=A"),
    (
        "struct(1 AS n, array(TIMESTAMP '2024-02-29 12:00:00 UTC') AS t)",
        {"n": 1, "t": ["2024-02-29T12:00:00.000Z"]},
        "n=1, t=2024-02-29T12:00:00.000Z",
    ),
]


def test_values_of_every_type_are_shown(spark: SparkSession) -> None:
    expressions = ", ".join(f"{sql} AS c{number}" for number, (sql, _, _) in enumerate(VALUES))
    frame = spark.sql(f"SELECT {expressions}, X'41' AS text, X'FF' AS other")
    (row,) = frame.collect()
    kinds = [field.dataType for field in frame.schema]
    expected: dict[str, Any] = {f"c{number}": value for number, (_, value, _) in enumerate(VALUES)}
    found = as_json(frame.columns, kinds, row)
    assert found == expected | {"text": "A", "other": None, "other_base64": "/w=="}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    shown = [as_text(value, kind) for value, kind in zip(row, kinds, strict=True)]
    assert shown[: len(VALUES)] == [text for _, _, text in VALUES]
    assert [is_number(kind) for kind in kinds[:5]] == [False, False, True, True, True]
