"""One queue, two languages: what boto3 sends, Penstock's Python claims, and the other way round."""

from contextlib import closing
from typing import Any

import penstock
from tests.clients.conftest import Service
from tests.clients.kit import boto
from tests.clients.test_boto3 import ATTRIBUTES, receive


def test_boto3_sends_and_python_claims(service: Service, sqs: Any, queue: str) -> None:
    body = "h\u00e9llo \U0001f600"
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=ATTRIBUTES)
    with penstock.open(service.url) as store:
        [message] = store.queue(queue.rpartition("/")[2]).claim(lease=600)
        assert (message.id, message.payload.decode()) == (sent["MessageId"], body)
        assert message.headers["kind"] == "order \u00e9"
        message.ack()
    assert sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"][
        "ApproximateNumberOfMessagesNotVisible"
    ] == "0"  # fmt: skip


def test_python_puts_and_boto3_receives(service: Service, sqs: Any) -> None:
    name = service.name()
    jobs = service.store.create(name)
    message_id = jobs.put("text", headers={"kind": "order"})
    jobs.put(b"\xff\x00")
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    text, binary = receive(sqs, url, MessageAttributeNames=["All"])
    assert (text["MessageId"], text["Body"]) == (message_id, "text")
    assert text["MessageAttributes"] == {"kind": {"StringValue": "order", "DataType": "String"}}
    assert (binary["Body"], binary["MessageAttributes"]["penstock.encoding"]["StringValue"]) == ("/wA=", "base64")
    for each in (text, binary):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    assert sum(jobs.counts().values()) == 0


def test_what_boto3_copies_to_another_queue_python_still_reads(service: Service) -> None:
    """A program that forwards messages with their attributes loses nothing of them."""
    first, second = (service.store.create(service.name()) for _ in range(2))
    first.put("text", headers={"kind": "order"}, group="g")
    with closing(boto(service.url)) as sqs:
        here, there = (sqs.get_queue_url(QueueName=each.name)["QueueUrl"] for each in (first, second))
        [message] = receive(sqs, here, MessageAttributeNames=["All"], AttributeNames=["All"])
        sqs.send_message(
            QueueUrl=there,
            MessageBody=message["Body"],
            MessageAttributes=message["MessageAttributes"],
            MessageGroupId=message["Attributes"]["MessageGroupId"],
        )
    [copied] = second.claim()
    assert (copied.payload, copied.headers["kind"]) == (b"text", "order")
