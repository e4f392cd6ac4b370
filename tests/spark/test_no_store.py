"""Spark on a path where there is no store: nothing is made, and one line says so."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock.spark import jobs
from penstock.spark.errors import as_ours, cause

KINDS = ["{}", "text:{}", "{}.tq", "folder:{}", "slate:{}"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_of_no_store_makes_none(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    url = kind.format(tmp_path / "dta")
    for schema in ("", "id string"):
        reader = spark.read.format("penstock").option("store", url)
        with pytest.raises(PySparkException) as raised:
            (reader.schema(schema) if schema else reader).load().collect()
        assert cause(raised.value).startswith(f"no store at {url}: `")
    with pytest.raises(PySparkException) as raised:
        spark.sql("SELECT 'x' AS payload").write.format("penstock").mode("append").options(
            store=url, queue="default"
        ).save()
    assert cause(raised.value).startswith(f"no store at {url}: `")
    with pytest.raises(penstock.PenstockError, match="no store at "):
        jobs.convert(spark, url, str(tmp_path / "copy"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", ["follow", "consume"])
@pytest.mark.parametrize("kind", ["{}", "slate:{}"])
def test_a_stream_of_no_store_makes_none(kind: str, mode: str, spark: SparkSession, tmp_path: Path) -> None:
    url = kind.format(tmp_path / "dta")
    reader = spark.readStream.format("penstock").options(store=url, queue="default", mode=mode, stream="s")
    with pytest.raises(PySparkException) as raised:
        penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
    assert cause(raised.value).startswith(f"no store at {url}: `")
    assert not (tmp_path / "dta").exists()


def test_a_log_of_no_store_makes_none(spark: SparkSession, tmp_path: Path) -> None:
    url = f"slate:{tmp_path / 'dta'}"
    reader = spark.readStream.format("penstock").options(store=url, table="log")
    with pytest.raises(PySparkException) as raised:
        penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
    assert cause(raised.value).startswith(f"no store at {url}: `")
    assert not (tmp_path / "dta").exists()


@pytest.mark.parametrize("kind", ["text:{}", "{}.tq", "folder:{}"])
@pytest.mark.parametrize("options", [{}, {"mode": "follow"}, {"mode": "consume", "stream": "s"}])
def test_a_stream_of_a_store_that_has_none_is_refused_in_one_line(
    kind: str, options: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    url = kind.format(tmp_path / "store")
    penstock.open(url).close()
    reader = spark.readStream.format("penstock").options(store=url, **options)
    with pytest.raises(PySparkException) as raised:
        penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
    assert isinstance(as_ours(raised.value), penstock.NotSupported)
    assert cause(raised.value).startswith(f"store {url!r} ")
