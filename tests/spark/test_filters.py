import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from penstock.contract.message import LATEST
from penstock.errors import InvalidFilter
from penstock.filters import MAX_BYTES, Expression, Filter, Subject, parse
from penstock.spark.filters import column, condition
from tests.filters.test_filters import (
    NAMES,
    TEXTS,
    cast_leaves,
    field_leaves,
    numbers,
    text_leaves,
    trees,
    written,
)

ALMOST_NUMBERS = ["+", "-", "--7", "+-7", "7-", "7L", "7.", ".7", "1e3", "0x7", "1_000", "1,000", "NaN", "true"]
ALMOST_NUMBERS += ["-0", "+0", "²", "\u22127", "\uff17"]
ALMOST_NUMBERS += ["- 7", "7 ", "7\n", "\n7", "\t7", "7\r\n", "7\0", "\0", "\x1f7", "7\x7f", "\x857", "\xa07"]
ALMOST_NUMBERS += ["7\u2003", "\ufeff7", "-9223372036854775808", "-9223372036854775809", "+9223372036854775807"]
ALMOST_NUMBERS += ["0" * 40 + "7", "-" + "0" * 40 + "7", "9" * 19, "9" * 20, "1" * 5000, "0" * 5000]
TRICKY = [
    "${x}",
    "$",
    "''",
    "\\'",
    "\\n",
    "\\",
    "\r",
    "\u2028",
    "\0",
    "a\0b",
    "?",
    ":x",
    "--",
    "/* x */",
    "%_%",
    "ß",
]

texts = st.sampled_from(TEXTS + ALMOST_NUMBERS + TRICKY) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=4
)
times = st.sampled_from([0, 1, 7, 10, 999, 1000, LATEST]) | st.integers(0, LATEST)
subjects = st.builds(
    Subject,
    st.dictionaries(st.sampled_from(NAMES), texts, max_size=8),
    numbers,
    st.integers(0, 20),
    times,
    times,
    times,
)
any_tree = trees(text_leaves(NAMES) | field_leaves | cast_leaves)


def gathered(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Many small examples at once, because every question to Spark takes a while."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found


def table(spark: SparkSession, subjects: list[Subject], folder: Path) -> DataFrame:
    """The messages as Spark reads them: from files, so that nothing is worked out ahead."""
    rows = [
        (number, subject.headers, subject.priority, bytes(subject.size), *subject[3:])
        for number, subject in enumerate(subjects)
    ]
    stamps = ["created_at", "received_at", "visible_at"]
    schema = "number INT, headers MAP<STRING, STRING>, priority BIGINT, payload BINARY, "
    raw = spark.createDataFrame(rows, schema + ", ".join(f"{name} BIGINT" for name in stamps))
    messages = raw.selectExpr(
        "number", "headers", "priority", "payload", *(f"timestamp_millis({name}) AS {name}" for name in stamps)
    )
    messages.coalesce(1).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def answers(messages: DataFrame, filters: list[Filter]) -> list[list[bool | None]]:
    """Spark's answers, by message and filter."""
    columns = [column(wanted).alias(f"f{number}") for number, wanted in enumerate(filters)]
    return [list(row)[1:] for row in sorted(messages.select("number", *columns).collect())]


def disagreements(messages: DataFrame, subjects: list[Subject], filters: list[Filter]) -> list[str]:
    return [
        f"{wanted.text!r} of {subject}: Spark says {answer}, Python {expected}; as SQL {condition(wanted)}"
        for subject, row in zip(subjects, answers(messages, filters), strict=True)
        for wanted, answer in zip(filters, row, strict=True)
        if answer is not (expected := wanted.evaluate(subject))
    ]


def spelled(tree: Expression) -> Callable[[Any], Filter]:
    return lambda rng: parse(written(tree, rng))


filters = any_tree.flatmap(lambda tree: st.randoms(use_true_random=False).map(spelled(tree)))


@contextmanager
def configured(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    before = {name: str(spark.conf.get(name)) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, text in before.items():
            spark.conf.set(name, text)


COMPILED = {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY", "spark.sql.codegen.wholeStage": "true"}
INTERPRETED = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"}
ODD = {"spark.sql.ansi.enabled": "false", "spark.sql.parser.escapedStringLiterals": "true"}


@pytest.mark.parametrize(("conf", "count"), [(COMPILED, 40), (INTERPRETED, 200), (INTERPRETED | ODD, 50)])
def test_spark_and_python_give_the_same_answer_to_any_filter_about_any_message(
    spark: SparkSession, tmp_path: Path, conf: dict[str, str], count: int
) -> None:
    messages, wanted = gathered(subjects, 100), gathered(filters, count)
    stored = table(spark, messages, tmp_path / "messages")
    with configured(spark, conf):
        assert disagreements(stored, messages, wanted) == []


def test_a_header_is_the_same_integer_for_spark_as_for_python(spark: SparkSession, tmp_path: Path) -> None:
    messages = [Subject({"n": text}, 0, 0, 0, 0, 0) for text in TEXTS + ALMOST_NUMBERS + TRICKY]
    wanted = [
        parse(text) for text in ("n = 7", "n < 0", "n = priority", "n NOT IN (7, 0)", "n BETWEEN -7 AND size")
    ]
    assert disagreements(table(spark, messages, tmp_path / "messages"), messages, wanted) == []


def test_spark_selects_the_messages_that_the_filter_matches(spark: SparkSession, tmp_path: Path) -> None:
    messages, wanted = gathered(subjects, 50), gathered(filters, 20)
    stored = table(spark, messages, tmp_path / "messages")
    selected = [
        stored.where(column(one)).select(lit(number).alias("filter"), "number")
        for number, one in enumerate(wanted)
    ]
    found = {(row["filter"], row["number"]) for row in reduce(DataFrame.union, selected).collect()}
    assert found == {
        (number, at)
        for number, one in enumerate(wanted)
        for at, message in enumerate(messages)
        if one.matches(message)
    }


def test_the_size_may_come_from_a_column_of_its_own(spark: SparkSession) -> None:
    messages = spark.sql("SELECT * FROM VALUES (5L), (6L) AS t(bytes)")
    assert [list(row) for row in messages.select(column("size > 5", size="bytes")).collect()] == [[False], [True]]
    assert condition("size BETWEEN 1 AND 2", size="a + b") == "((a + b) >= 1L) AND ((a + b) <= 2L)"


def test_a_filter_that_is_none_is_refused_as_everywhere() -> None:
    with pytest.raises(InvalidFilter, match="unexpected == at column 3"):
        column("a == 'x'")


def test_a_plain_filter_is_plain_sql() -> None:
    assert (
        condition(parse("type = 'order' AND note LIKE 'x%'"))
        == "(headers['type'] = 'order') AND (headers['note'] LIKE 'x%')"
    )
    assert condition("a = 'it''s'") == "headers['a'] = CAST(X'69742773' AS STRING)"


PIECES = ["%a", "_", "a_", "%a_", "_a%", "%", "a", r"\%", "%ab%b", "_%", "😀"]


@pytest.mark.long
def test_no_pattern_is_too_long_or_takes_long(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["a" * 60_000, "b" * 60_000, "ab" * 30_000, "😀" * 15_000, "%" * 30_000, ""]
    messages = [Subject({"a": text}, 0, 0, 0, 0, 0) for text in texts]
    patterns = [piece * ((MAX_BYTES - 20) // len(piece.encode())) for piece in PIECES]
    patterns += ["%a%b" * 10 + "%c", "%a%a%c", "%a_b%c%"]
    wanted = [parse(f"a LIKE '{pattern}'") for pattern in patterns]
    assert disagreements(table(spark, messages, tmp_path / "messages"), messages, wanted) == []


@pytest.mark.long
def test_the_largest_filters_fit(spark: SparkSession, tmp_path: Path) -> None:
    messages = [Subject({"a": text}, 0, 0, 0, 0, 0) for text in ("7", "8999", "9001", "x")]
    chain = " OR ".join(f"a = 't{number}'" for number in range(500))
    wanted = [parse(f"{opening * 32}a = '7'{closing * 32}") for opening, closing in [("(", ")"), ("NOT (", ")")]]
    wanted += [
        parse(f"a IN ({', '.join(map(str, range(9000)))})"),
        parse(chain),
        parse(chain.replace("OR", "AND")),
    ]
    assert disagreements(table(spark, messages, tmp_path / "messages"), messages, wanted) == []


def processor_time(spark: SparkSession) -> float:
    """The seconds that the processor has worked for this thread, and for the one that serves it in Java."""
    java: Any = spark.sparkContext._jvm
    threads = java.java.lang.management.ManagementFactory.getThreadMXBean()
    return time.thread_time() + float(threads.getCurrentThreadCpuTime()) / 1e9


def test_a_hundred_filters_are_planned_in_seconds(spark: SparkSession, tmp_path: Path) -> None:
    stored = table(spark, [Subject({"type": "t7"}, 3, 0, 0, 0, 0)], tmp_path / "messages")
    texts = [f"type = 't{number}' AND (priority < {number} OR region IN ('eu', 'us'))" for number in range(100)]
    started = processor_time(spark)
    selected = stored.select([column(text).alias(f"f{number}") for number, text in enumerate(texts)])
    selected.explain()
    assert processor_time(spark) - started < 20
    assert selected.collect()[0].asDict() == {f"f{number}": number == 7 for number in range(100)}
