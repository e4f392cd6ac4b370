"""boto3 in both protocols: FIFO queues."""

from typing import Any

import pytest

from tests.clients.conftest import Service
from tests.clients.test_boto3 import attributes_of, code, receive, receive_now


def send(sqs: Any, url: str, body: str, group: str = "g", key: str | None = None, **more: Any) -> Any:
    key = f"{group}-{body}" if key is None else key
    return sqs.send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=key, **more
    )


def test_a_group_is_handed_out_in_order_and_waits_for_what_is_in_flight(sqs: Any, fifo: str) -> None:
    for number in range(4):
        for group in "ab":
            send(sqs, fifo, f"{group}{number}", group)
    [first] = receive(sqs, fifo, MaxNumberOfMessages=1, AttributeNames=["All"])
    assert first["Body"] == "a0"
    assert first["Attributes"]["MessageGroupId"] == "a"
    assert first["Attributes"]["MessageDeduplicationId"] == "a-a0"
    others = receive(sqs, fifo)
    assert [each["Body"] for each in others] == ["b0", "b1", "b2", "b3"][: len(others)]
    assert others
    assert receive_now(sqs, fifo) == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
    [second] = receive(sqs, fifo, MaxNumberOfMessages=1)
    assert second["Body"] == "a1"


def test_sequence_numbers_grow(sqs: Any, fifo: str) -> None:
    sent = [send(sqs, fifo, str(number))["SequenceNumber"] for number in range(3)]
    assert sent == sorted(sent, key=int)
    assert len(set(sent)) == 3
    [message] = receive(sqs, fifo, AttributeNames=["SequenceNumber"], MaxNumberOfMessages=1)
    assert message["Attributes"]["SequenceNumber"] == sent[0]


def test_a_message_sent_twice_is_there_once(sqs: Any, fifo: str) -> None:
    first, again = send(sqs, fifo, "x", key="same"), send(sqs, fifo, "x", key="same")
    assert first["MessageId"] == again["MessageId"]
    assert first["SequenceNumber"] == again["SequenceNumber"]
    assert attributes_of(sqs, fifo)["ApproximateNumberOfMessages"] == "1"


def test_messages_can_be_told_apart_by_their_content(sqs: Any, service: Service) -> None:
    told = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = sqs.create_queue(QueueName=service.name(".fifo"), Attributes=told)["QueueUrl"]
    for body in ("x", "x", "y"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g")
    assert attributes_of(sqs, url)["ApproximateNumberOfMessages"] == "2"


def test_a_batch_keeps_its_order(sqs: Any, fifo: str) -> None:
    entries = [
        {
            "Id": str(number),
            "MessageBody": str(number),
            "MessageGroupId": "g",
            "MessageDeduplicationId": str(number),
        }
        for number in range(10)
    ]
    sent = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]
    assert [each["Id"] for each in sent] == [str(number) for number in range(10)]
    assert all(each["SequenceNumber"] for each in sent)
    got: list[str] = []
    while len(got) < 10:
        messages = receive(sqs, fifo)
        got += [each["Body"] for each in messages]
        entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
        sqs.delete_message_batch(QueueUrl=fifo, Entries=entries)
    assert got == [str(number) for number in range(10)]


def test_a_receive_that_is_repeated_brings_the_same_messages(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "x")
    first = receive(sqs, fifo, ReceiveRequestAttemptId="once")
    again = receive(sqs, fifo, ReceiveRequestAttemptId="once")
    assert [each["MessageId"] for each in first] == [each["MessageId"] for each in again]
    assert len(first) == 1


def test_a_fifo_queue_asks_for_what_it_needs(sqs: Any, fifo: str, service: Service) -> None:
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageDeduplicationId="x")
    assert code(raised) == "MissingParameter"
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
    assert code(raised) == "InvalidParameterValue"
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        send(sqs, fifo, "x", DelaySeconds=1)
    assert code(raised) == "InvalidParameterValue"
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        sqs.create_queue(QueueName=service.name(), Attributes={"FifoQueue": "true"})
    assert code(raised) == "InvalidParameterValue"


def test_attributes_of_high_throughput_are_kept(sqs: Any, service: Service) -> None:
    told = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    url = sqs.create_queue(QueueName=service.name(".fifo"), Attributes=told)["QueueUrl"]
    assert attributes_of(sqs, url).items() >= told.items()
