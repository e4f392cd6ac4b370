"""Spark on a path where there is no store: nothing is made, and one line says so."""

import os
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from penstock.contract.kinds import exists
from penstock.spark import jobs
from penstock.spark.errors import as_ours, cause

KINDS = ["{}", "text:{}", "{}.tq", "text:{}.tq", "folder:{}", "slate:{}"]


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


@pytest.mark.long
def test_a_bucket_without_a_store_and_one_that_is_not_there_are_named(
    spark: SparkSession, bucket: str, tmp_path: Path
) -> None:
    for url, why in (
        (bucket, f"no store at {bucket}: `penstock --store {bucket} create jobs` makes one"),
        ("slate:s3://no-such-bucket/queues", "has no bucket 'no-such-bucket': make it"),
    ):
        with pytest.raises(PySparkException) as raised:
            spark.read.format("penstock").option("store", url).load()
        assert why in cause(raised.value)
        reader = spark.readStream.format("penstock").options(
            store=url, queue="default", mode="consume", stream="s"
        )
        with pytest.raises(PySparkException) as raised:
            penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
        assert why in cause(raised.value)
    assert not exists(bucket)


@pytest.mark.parametrize("kind", ["{}", "text:{}", "folder:{}", "slate:{}"])
def test_a_folder_of_other_things_stays_as_it_is(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    (folder / "src").mkdir(parents=True)
    for name in ("Makefile", "LICENSE"):
        (folder / name).write_text("all:\n")
    url = kind.format(folder)
    why = "'LICENSE' in it is no journal" if kind == "{}" else f"no store at {url}: `"
    with pytest.raises(PySparkException) as raised:
        spark.read.format("penstock").option("store", url).load().collect()
    assert why in cause(raised.value)
    with pytest.raises(PySparkException) as raised:
        spark.sql("SELECT 'x' AS payload").write.format("penstock").mode("append").options(
            store=url, queue="default"
        ).save()
    assert why in cause(raised.value)
    reader = spark.readStream.format("penstock").options(store=url, queue="default")
    with pytest.raises(PySparkException) as raised:
        penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
    assert why in cause(raised.value)
    assert sorted(os.listdir(folder)) == ["LICENSE", "Makefile", "src"]


@pytest.mark.parametrize("mode", ["follow", "consume"])
@pytest.mark.parametrize("kind", ["{}", "journal:{}", "slate:{}"])
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


@pytest.mark.parametrize("options", [{}, {"mode": "follow", "stream": "s"}, {"mode": "consume", "stream": "s"}])
@pytest.mark.parametrize("url", ["memory:", "memory:name", "file:///data"])
def test_a_stream_of_a_store_that_spark_cannot_open_is_refused_in_one_line(
    url: str, options: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    reader = spark.readStream.format("penstock").options(store=url, queue="default", **options)
    with pytest.raises(PySparkException) as raised:
        penstock.spark.drain(reader, "noop", tmp_path / "checkpoint")
    assert isinstance(as_ours(raised.value), penstock.NotSupported)
    assert cause(raised.value).startswith(f"store {url!r}: Spark works with ")
