"""What SQS clients send, Spark reads: the program of docs/sqs.md runs as written."""

import json
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
import penstock.spark
from tests.clients.kit import boto
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


def test_boto3_and_spark_share_a_queue(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as store, serving(store) as server, closing(boto(server.url)) as sqs:
        url, answers = (sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("orders", "answers"))
        kind = {"type": {"DataType": "String", "StringValue": "order"}}
        sqs.send_message(QueueUrl=url, MessageBody="from boto3", MessageAttributes=kind)
        table = spark.read.format("penstock").options(store=str(tmp_path / "data"), queue="orders").load()
        [row] = table.selectExpr("CAST(payload AS STRING) body", "headers['type'] type", "state").collect()
        assert tuple(row) == ("from boto3", "order", "available")
        rows = spark.createDataFrame(
            [(b"from Spark", {"type": "answer"})], "payload BINARY, headers MAP<STRING, STRING>"
        )
        rows.write.format("penstock").options(store=server.url, queue="answers").mode("append").save()
        [message] = sqs.receive_message(QueueUrl=answers, MessageAttributeNames=["All"])["Messages"]
        assert message["Body"] == "from Spark"
        assert message["MessageAttributes"]["type"]["StringValue"] == "answer"
