"""What an error of Spark's is about, in one line."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import errors
from penstock.errors import InvalidArgument, LeaseExpired, PenstockError, QueueNotFound, StoreCorrupt
from penstock.spark.errors import as_ours, cause, is_of_spark
from tests.stores.journal.journals import flip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("store")
    with penstock.open(folder) as store:
        store.create("jobs").put_many([b"one", b"two " * 1000])
    flip(folder / "jobs", (folder / "jobs").read_bytes().index(b"two ") + 2000)
    return folder


def failure(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of whatever kind it may be
        call()
    return caught.value


def load(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").option("store", str(folder)).options(**options).load()


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"queue": "lost"}, QueueNotFound, "there is no queue 'lost' in the store"),
        ({"table": "log"}, InvalidArgument, "table 'log' is for slate stores, and "),
        ({"store": "/nowhere"}, PenstockError, "no store at /nowhere: `penstock --store "),
        ({}, StoreCorrupt, "message 2 of queue 'jobs' is damaged, at offset"),  # found by a task
    ],
)
def test_what_penstock_raised_in_a_process_of_spark_is_found_again(
    spark: SparkSession, store: Path, options: dict[str, str], kind: type[PenstockError], says: str
) -> None:
    error = failure(lambda: load(spark, store, **options).collect())
    assert is_of_spark(error)
    assert type(as_ours(error)) is kind
    assert cause(error).startswith(says)
    assert "\n" not in cause(error)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELEC 1", "Syntax error at or near 'SELEC' (line 1, pos 0)"),
        ("SELECT nope FROM range(3)", "A column, variable, or function parameter with name `nope` cannot be"),
        ("SELECT * FROM lost", "The table or view `lost` cannot be found. Verify the spelling"),
        ("SELECT 1 / 0", "Division by zero. Use `try_divide` to tolerate divisor being 0"),
        ("SELECT * FROM parquet.`/nowhere`", "Path does not exist: file:/nowhere"),
    ],
)
def test_an_error_of_sparks_own_is_one_line_too(spark: SparkSession, query: str, says: str) -> None:
    error = failure(lambda: spark.sql(query).collect())
    assert is_of_spark(error)
    assert type(as_ours(error)) is PenstockError
    assert cause(error).startswith(says)
    assert "\n" not in cause(error)


def test_of_java_and_of_a_function_that_failed_the_line_that_says_why_is_shown(spark: SparkSession) -> None:
    unknown = failure(lambda: spark.read.format("lost").load())
    assert is_of_spark(unknown)
    assert cause(unknown).startswith("Failed to find the data source: lost.")
    failed = failure(lambda: spark.sparkContext.parallelize([0]).map(lambda number: 1 // number).sum())
    assert cause(failed) == "ZeroDivisionError: integer division or modulo by zero"


def test_an_error_of_ours_stays_as_it_is() -> None:
    lost = LeaseExpired("jobs", ["1.0000000000000000"])
    assert as_ours(lost) is lost
    assert not is_of_spark(lost)
    assert not is_of_spark(ValueError("x"))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.PenstockError)
    ],
)
def test_every_error_of_ours_is_known_by_its_name(name: str) -> None:
    found = as_ours(
        RuntimeError(f"Traceback\n  File x\npenstock.contract.errors.{name}: what it says\n\tat java.lang.Thread")
    )
    assert str(found) == "what it says"
    assert type(found) is (PenstockError if name == "LeaseExpired" else getattr(errors, name))
