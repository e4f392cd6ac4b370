"""Writing through a server that keeps a slate store, or that is the guest of a process that has it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import penstock
from penstock.http.server import serve_in_thread
from penstock.stores.slate.snapshot import place_at
from tests.spark.streams import forget_last
from tests.spark.test_stream_sink import payloads, texts
from tests.spark.test_stream_sink import write as write_stream


class Served:
    """A slate store, and the URL of a server of it."""

    def __init__(self, url: str, owned: bool) -> None:
        self.owner = penstock.open(url)
        self.store = self.owner if owned else penstock.open(url)
        self.server = serve_in_thread(self.store)
        self.url = self.server.url

    def stop(self) -> None:
        self.server.stop()
        self.store.close()
        self.owner.close()


@pytest.fixture(params=["folder", "folder of another process", pytest.param("bucket", marks=pytest.mark.long)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    bucket = request.param == "bucket"
    url = request.getfixturevalue("bucket") if bucket else f"slate:{tmp_path / 'store'}"
    made = Served(url, owned=request.param != "folder of another process")
    yield made
    left = place_at(url).list_loads()
    made.stop()
    assert left == []


def test_a_batch_of_a_stream_lands_once(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    source, checkpoint = texts(tmp_path / "texts", 1, 2), tmp_path / "checkpoint"
    served.store.create("out")
    write_stream(spark, source, served.url, checkpoint)
    forget_last(checkpoint)
    write_stream(spark, source, served.url, checkpoint)
    assert payloads(served.store) == ["1a", "1b", "2a", "2b"]
    write_stream(spark, source, served.url, tmp_path / "named", sinkId="nightly")
    shutil.rmtree(tmp_path / "named")
    with pytest.raises(StreamingQueryException, match="give the new query a sinkId of its own"):
        write_stream(spark, source, served.url, tmp_path / "named", sinkId="nightly")
    assert len(payloads(served.store)) == 8
