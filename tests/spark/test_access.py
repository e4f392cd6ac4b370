"""Spark and a server that asks for tokens: the environment has one, also for Spark's workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.contract import roles
from penstock.http.server import Access, serve_in_thread, tokens

LIFE = """
import sys
import penstock.spark

url = sys.argv[1]
spark = penstock.spark.session("local[1]")
rows = spark.createDataFrame([(b"a",), (b"b",)], "payload binary")
rows.write.format("penstock").mode("append").option("store", url).option("queue", "default").save()
read = spark.read.format("penstock").option("store", url).load()
print("read", sorted(bytes(row.payload) for row in read.collect()))
"""


@pytest.mark.long
def test_spark_brings_the_token_of_the_environment(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    secret = tokens.create(path, "spark", roles.READ | roles.WRITE)

    with penstock.open(tmp_path / "store") as store:
        server = serve_in_thread(store, access=Access(path))
        try:
            environment = {**os.environ, "PENSTOCK_TOKEN": secret}
            command = [sys.executable, "-c", LIFE, server.url]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        finally:
            server.stop()
    assert "read [b'a', b'b']" in done.stdout, done.stderr
    assert secret not in done.stderr
