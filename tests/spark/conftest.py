import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock.spark


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of Spark; whoever changes its settings puts them back."""
    before = signal.getsignal(signal.SIGINT)  # PySpark's own takes its place
    started = penstock.spark.session("local[2]")
    yield started
    started.stop()
    signal.signal(signal.SIGINT, before)
