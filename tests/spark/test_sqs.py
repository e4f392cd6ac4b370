"""What SQS clients send, Spark reads: the program of docs/sqs.md runs as written."""

import json
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from tests.docs.test_sqs import programs
from tests.http.serving import serving


def send(url: str, action: str, **members: object) -> None:
    headers = {"X-Amz-Target": f"AmazonSQS.{action}"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(members).encode(), headers)).close()


@pytest.mark.long  # a stream from its first batch to its last
def test_from_sqs_to_spark_in_five_lines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = [each for each in programs() if "readStream" in each]
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with penstock.open(tmp_path / "data") as store, serving(store) as server:
        send(server.url, "CreateQueue", QueueName="orders")
        typed = {"type": {"DataType": "String", "StringValue": "order"}}
        entries = [{"Id": str(n), "MessageBody": f"é{n}", "MessageAttributes": typed} for n in range(10)]
        send(server.url, "SendMessageBatch", QueueUrl="/000000000000/orders", Entries=entries)
        for path in ('store="data"', '"orders.checkpoint"', 'path="orders"', 'parquet("orders"'):
            program = program.replace(path, path.replace('"', f'"{tmp_path}/', 1))  # Java is in another folder
        exec(program, {})
        assert not any(store.queue("orders").counts().values())
    shown = capsys.readouterr().out
    assert all(f"é{n}" in shown for n in range(10))
    assert shown.count("order ") + shown.count("order|") == 10
