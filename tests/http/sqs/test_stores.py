"""SQS in front of every kind of store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.http.serving import serving
from tests.http.sqs.conftest import Service

KINDS = ("memory:", "journal:{}", "text:{}", "folder:{}", "slate:{}")


@pytest.fixture(scope="module", params=KINDS)
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    url = request.param.format(tmp_path_factory.mktemp("sqs") / "store")
    with penstock.open(url) as store, serving(store) as server:
        yield Service(store, server.url)


def test_a_message_lives_and_dies(service: Service) -> None:
    url = service.queue(VisibilityTimeout="60", Policy="{}")
    attributes = {
        "a": {"DataType": "String", "StringValue": "é"},
        "b": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    entries = [{"Id": str(n), "MessageBody": f"m{n}", "MessageAttributes": attributes} for n in range(3)]
    sent = service.done("SendMessageBatch", QueueUrl=url, Entries=entries)["Successful"]
    options = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    received = service.receive(url, MaxNumberOfMessages=10, **options)
    assert [message["MessageId"] for message in received] == [each["MessageId"] for each in sent]
    assert [message["MessageAttributes"] for message in received] == [attributes] * 3
    assert [message["MD5OfMessageAttributes"] for message in received] == [
        each["MD5OfMessageAttributes"] for each in sent
    ]
    assert service.receive(url) == []
    handles = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(received)]
    held = service.done(
        "ChangeMessageVisibilityBatch",
        QueueUrl=url,
        Entries=[{**handles[0], "VisibilityTimeout": 0}, {**handles[1], "VisibilityTimeout": 90}],
    )
    assert (len(held["Successful"]), held["Failed"]) == (2, [])
    [again] = service.receive(url, AttributeNames=["ApproximateReceiveCount"])
    assert (again["MessageId"], again["Attributes"]) == (sent[0]["MessageId"], {"ApproximateReceiveCount": "2"})
    handles[0]["ReceiptHandle"] = again["ReceiptHandle"]
    for _ in range(2):  # a second delete of the same messages is as good as the first
        deleted = service.done("DeleteMessageBatch", QueueUrl=url, Entries=handles)
        assert (len(deleted["Successful"]), deleted["Failed"]) == (3, [])
    assert not any(service.behind(url).counts().values())


def test_a_fifo_queue_keeps_order_and_numbers(service: Service) -> None:
    url = service.queue(".fifo", ContentBasedDeduplication="true")
    numbers = [
        service.done("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="g")["SequenceNumber"]
        for body in ("a", "b", "a")
    ]
    assert numbers[0] == numbers[2] <= numbers[1]
    bodies: list[str] = []
    while found := service.receive(url, MaxNumberOfMessages=10, AttributeNames=["All"]):
        assert [message["Attributes"]["SequenceNumber"] for message in found] == [numbers[len(bodies)]]
        bodies += [message["Body"] for message in found]
        service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=found[0]["ReceiptHandle"])
    assert bodies == ["a", "b"]


def test_a_purge_empties_a_queue(service: Service) -> None:
    url = service.queue()
    service.behind(url).put_many(["a", "b"])
    service.receive(url)
    service.done("PurgeQueue", QueueUrl=url)
    assert not any(service.behind(url).counts().values())
    service.done("DeleteQueue", QueueUrl=url)
    assert (
        service.refused("GetQueueUrl", QueueName=url.rpartition("/")[2])
        == "AWS.SimpleQueueService.NonExistentQueue"
    )


def test_a_store_of_one_queue_says_that_it_cannot_have_another(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "jobs.tq") as store, serving(store) as server:
        service = Service(store, server.url)
        told = service.json("CreateQueue", {"QueueName": "other"})
        assert (told.status, told.error) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
        [url] = service.done("ListQueues")["QueueUrls"]
        service.done("SendMessage", QueueUrl=url, MessageBody="m")
        assert [message["Body"] for message in service.receive(url)] == ["m"]
