import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock.spark
from tests.stores.slate.servers import S3, environment


@pytest.fixture(scope="package", autouse=True)
def java_in_a_hurry() -> Iterator[None]:
    """Java for processes that live for minutes: what it compiles is never run often enough to compile it twice."""
    with environment({"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}):
        yield


@pytest.fixture(scope="package")
def s3() -> Iterator[S3]:
    """An S3 server, which Spark's processes know of from their beginning on."""
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """The URL of a store in a bucket of its own."""
    with environment(s3.variables()):
        yield f"slate:s3://{s3.new_bucket()}/queues"


@pytest.fixture(scope="package")
def spark(s3: S3) -> Iterator[SparkSession]:
    """One session for all tests of Spark; whoever changes its settings puts them back."""
    before = signal.getsignal(signal.SIGINT)  # PySpark's own takes its place
    with environment(s3.variables()):
        started = penstock.spark.session("local[2]")
    yield started
    started.stop()
    signal.signal(signal.SIGINT, before)
