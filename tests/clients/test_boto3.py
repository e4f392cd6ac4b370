"""boto3 in both protocols: what programs do with standard queues."""

import hashlib
import json
import struct
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from tests.clients.conftest import Service
from tests.clients.kit import boto, boto_resource

ATTRIBUTES: dict[str, Any] = {
    "kind": {"DataType": "String", "StringValue": "order \u00e9"},
    "number": {"DataType": "Number", "StringValue": "12345678901234567890.5"},
    "exact": {"DataType": "Number.int", "StringValue": "7"},
    "picture": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
}


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def md5_of_attributes(attributes: dict[str, Any]) -> str:
    """As Amazon describes it: by name, each part with its length before it."""
    hashed = hashlib.md5()
    for name in sorted(attributes):
        value = attributes[name]
        binary = "BinaryValue" in value
        content = value["BinaryValue"] if binary else value["StringValue"].encode()
        hashed.update(_sized(name.encode()) + _sized(value["DataType"].encode()))
        hashed.update((b"\x02" if binary else b"\x01") + _sized(content))
    return hashed.hexdigest()


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def receive(sqs: Any, url: str, **options: Any) -> list[Any]:
    """The messages that come; waits for the first."""
    answer = sqs.receive_message(**{"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 10, **options})
    messages: list[Any] = answer.get("Messages", [])
    return messages


def receive_now(sqs: Any, url: str, **options: Any) -> list[Any]:
    return receive(sqs, url, WaitTimeSeconds=0, **options)


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"]))
    attributes: dict[str, str] = answer["Attributes"]
    return attributes


def code(error: Any) -> str:
    """The error's code, without the prefix that one protocol has and the other has not."""
    return str(error.value.response["Error"]["Code"]).rpartition(".")[2]


# Messages


def test_a_message_comes_as_it_was_sent_with_its_checksums(sqs: Any, queue: str) -> None:
    body = "h\u00e9llo\t<&>\r\n\U0001f600 ]]>"
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=ATTRIBUTES)
    assert sent["MD5OfMessageBody"] == md5(body)
    assert sent["MD5OfMessageAttributes"] == md5_of_attributes(ATTRIBUTES)
    [message] = receive(sqs, queue, MessageAttributeNames=["All"], AttributeNames=["All"])
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], body)
    assert message["MD5OfBody"] == md5(body)
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert message["Attributes"]["SentTimestamp"] <= message["Attributes"]["ApproximateFirstReceiveTimestamp"]
    assert "SenderId" in message["Attributes"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], []),
        (["number", "absent"], ["number"]),
        (["ki.*", "exact"], ["exact", "kind"]),
        ([".*"], ["exact", "kind", "number", "picture"]),
    ],
)
def test_only_the_attributes_that_were_asked_for_come(
    sqs: Any, queue: str, names: list[str], found: list[str]
) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)
    [message] = receive(sqs, queue, MessageAttributeNames=names, AttributeNames=["ApproximateReceiveCount"])
    assert sorted(message.get("MessageAttributes", {})) == found
    if found:
        assert message["MD5OfMessageAttributes"] == md5_of_attributes({name: ATTRIBUTES[name] for name in found})
    assert list(message["Attributes"]) == ["ApproximateReceiveCount"]


def test_the_trace_header_travels_with_the_message(sqs: Any, queue: str) -> None:
    trace = {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageSystemAttributes={"AWSTraceHeader": trace})
    assert sent["MD5OfMessageSystemAttributes"] == md5_of_attributes({"AWSTraceHeader": trace})
    [message] = receive(sqs, queue, AttributeNames=["AWSTraceHeader"])
    assert message["Attributes"] == {"AWSTraceHeader": trace["StringValue"]}


def test_a_receive_that_waits_is_answered_by_the_message(sqs: Any, queue: str) -> None:
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(receive(sqs, queue, WaitTimeSeconds=20)))
    waiting.start()
    sqs.send_message(QueueUrl=queue, MessageBody="late")
    waiting.join()
    assert [each["Body"] for each in got] == ["late"]
    assert not receive_now(sqs, queue)


def test_a_receive_that_waits_in_vain_is_answered_when_its_time_is_over(sqs: Any, service: Service) -> None:
    told = {"ReceiveMessageWaitTimeSeconds": "1"}
    url = sqs.create_queue(QueueName=service.name(), Attributes=told)["QueueUrl"]
    begun = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=url)  # waits as long as the queue says
    assert time.monotonic() - begun >= 1


def test_a_received_message_is_nobody_elses_until_its_visibility_ends(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [first] = receive(sqs, queue, VisibilityTimeout=1)
    assert receive_now(sqs, queue) == []
    [second] = receive(sqs, queue, VisibilityTimeout=600, AttributeNames=["All"])
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"


def test_visibility_can_be_given_up_and_prolonged(sqs: Any, queue: str) -> None:
    for body in "ab":
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    first = receive(sqs, queue, VisibilityTimeout=600)
    [a, b] = sorted(first, key=lambda each: each["Body"])
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=a["ReceiptHandle"], VisibilityTimeout=0)
    [again] = receive(sqs, queue, VisibilityTimeout=1)
    assert again["Body"] == "a"
    entries = [
        {"Id": "b", "ReceiptHandle": b["ReceiptHandle"], "VisibilityTimeout": 0},
        {"Id": "no", "ReceiptHandle": "nonsense", "VisibilityTimeout": 0},
    ]
    changed = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in changed["Successful"]] == ["b"]
    [failed] = changed["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("no", "ReceiptHandleIsInvalid", True)


def test_a_delete_may_be_repeated(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    for _ in range(3):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_a_message_that_is_delayed_comes_later(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=1)
    counts = attributes_of(sqs, queue)
    assert counts["ApproximateNumberOfMessagesDelayed"] == "1"
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert [each["Body"] for each in receive(sqs, queue)] == ["later"]


def test_a_batch_says_of_each_message_how_it_went(sqs: Any, queue: str) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": f"id-{number}", "MessageBody": f"body {number}"} for number in range(9)
    ]
    entries[3]["MessageAttributes"] = ATTRIBUTES
    entries.append({"Id": "late", "MessageBody": "x", "DelaySeconds": 901})
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in sent["Successful"]] == [f"id-{number}" for number in range(9)]
    assert sent["Successful"][3]["MD5OfMessageAttributes"] == md5_of_attributes(ATTRIBUTES)
    [failed] = sent["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("late", "InvalidParameterValue", True)
    messages = receive(sqs, queue)
    assert sorted(each["Body"] for each in messages) == [f"body {number}" for number in range(9)]
    entries = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=[*entries, {"Id": "no", "ReceiptHandle": "no"}])
    assert [each["Id"] for each in deleted["Successful"]] == [str(number) for number in range(9)]
    assert [each["Id"] for each in deleted["Failed"]] == ["no"]


# Queues


def test_a_queue_is_found_by_its_name_and_gone_when_deleted(sqs: Any, service: Service) -> None:
    name = service.name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url.endswith(f"/{name}")
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name)


def test_attributes_are_kept_and_changed(sqs: Any, service: Service) -> None:
    told = {"VisibilityTimeout": "77", "DelaySeconds": "3", "MessageRetentionPeriod": "3600",
            "MaximumMessageSize": "2048", "ReceiveMessageWaitTimeSeconds": "4"}  # fmt: skip
    name = service.name()
    url = sqs.create_queue(QueueName=name, Attributes=told)["QueueUrl"]
    every = attributes_of(sqs, url)
    assert every.items() >= told.items()
    assert every["QueueArn"].endswith(f":{name}")
    assert int(every["CreatedTimestamp"]) <= int(every["LastModifiedTimestamp"])
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5", "Policy": policy})
    assert attributes_of(sqs, url, "VisibilityTimeout", "Policy") == {"VisibilityTimeout": "5", "Policy": policy}
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "6"})


def test_queues_are_listed_by_prefix_and_page(sqs: Any, service: Service) -> None:
    prefix = service.name("-page-")
    urls = [sqs.create_queue(QueueName=f"{prefix}{number}")["QueueUrl"] for number in range(5)]
    assert sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"] == urls
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]


def test_tags_and_permissions_are_kept(sqs: Any, queue: str) -> None:
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "a", "cost": "7"})
    sqs.untag_queue(QueueUrl=queue, TagKeys=["cost"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "a"}
    sqs.add_permission(QueueUrl=queue, Label="x", AWSAccountIds=["123456789012"], Actions=["SendMessage"])
    assert json.loads(attributes_of(sqs, queue)["Policy"])["Statement"][0]["Sid"] == "x"
    sqs.remove_permission(QueueUrl=queue, Label="x")
    assert "Sid" not in attributes_of(sqs, queue).get("Policy", "")


def test_a_purge_leaves_nothing(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    sqs.purge_queue(QueueUrl=queue)
    assert receive_now(sqs, queue) == []


# Dead letters


def test_what_fails_too_often_waits_in_the_dead_letter_queue_and_is_moved_back(
    sqs: Any, queue: str, service: Service
) -> None:
    dead = sqs.create_queue(QueueName=service.name("-dead"))["QueueUrl"]
    arn = attributes_of(sqs, dead)["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "2"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    kept = json.loads(attributes_of(sqs, queue)["RedrivePolicy"])
    assert (kept["deadLetterTargetArn"], int(kept["maxReceiveCount"])) == (arn, 2)
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [queue]

    sent = sqs.send_message(QueueUrl=queue, MessageBody="poison", MessageAttributes=ATTRIBUTES)
    for _ in range(2):
        [message] = receive(sqs, queue)
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert receive_now(sqs, queue) == []
    [message] = receive(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert message["Body"] == "poison"
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["Attributes"]["DeadLetterQueueSourceArn"].endswith(queue.rpartition("/")[2])
    sqs.change_message_visibility(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)

    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    assert handle
    [again] = receive(sqs, queue, MessageAttributeNames=["All"])
    assert (again["Body"], again["MessageAttributes"]) == ("poison", ATTRIBUTES)
    [task] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["SourceArn"] == arn
    while task["Status"] == "RUNNING":
        [task] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 1


def test_a_move_that_has_ended_cannot_be_cancelled(sqs: Any) -> None:
    with pytest.raises(sqs.exceptions.ResourceNotFoundException):
        sqs.cancel_message_move_task(TaskHandle=f"0-{0:016x}")
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        sqs.cancel_message_move_task(TaskHandle="bm90aGluZw==")
    assert code(raised) == "InvalidParameterValue"


# Errors


@pytest.mark.parametrize(
    ("action", "arguments", "error"),
    [
        ("send_message", {"MessageBody": ""}, "MissingParameter InvalidParameterValue"),
        ("send_message", {"MessageBody": "\x00"}, "InvalidMessageContents"),
        ("send_message", {"MessageBody": "x", "DelaySeconds": 901}, "InvalidParameterValue"),
        ("send_message", {"MessageBody": "x" * (1 << 20) + "x"}, "InvalidParameterValue"),
        ("send_message_batch", {"Entries": []}, "EmptyBatchRequest"),
        (
            "send_message_batch",
            {"Entries": [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "x"}]},
            "BatchEntryIdsNotDistinct",
        ),
        (
            "send_message_batch",
            {"Entries": [{"Id": f"{number}", "MessageBody": "x"} for number in range(11)]},
            "TooManyEntriesInBatchRequest",
        ),
        ("send_message_batch", {"Entries": [{"Id": "a b", "MessageBody": "x"}]}, "InvalidBatchEntryId"),
        (
            "send_message_batch",
            {"Entries": [{"Id": f"{number}", "MessageBody": "x" * 600_000} for number in range(2)]},
            "BatchRequestTooLong",
        ),
        ("receive_message", {"MaxNumberOfMessages": 11}, "InvalidParameterValue"),
        ("receive_message", {"WaitTimeSeconds": 21}, "InvalidParameterValue"),
        ("delete_message", {"ReceiptHandle": "nonsense"}, "ReceiptHandleIsInvalid"),
        (
            "change_message_visibility",
            {"ReceiptHandle": "nonsense", "VisibilityTimeout": 0},
            "ReceiptHandleIsInvalid",
        ),
        ("set_queue_attributes", {"Attributes": {"DelaySeconds": "901"}}, "InvalidAttributeValue"),
        ("set_queue_attributes", {"Attributes": {"NoSuchThing": "1"}}, "InvalidAttributeName"),
        ("send_message", {"MessageBody": "x", "MessageDeduplicationId": "x"}, "InvalidParameterValue"),
    ],
)
def test_an_error_is_of_the_kind_that_amazon_gives(
    sqs: Any, queue: str, action: str, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        getattr(sqs, action)(QueueUrl=queue, **arguments)
    assert code(raised) in error.split()
    status = 404 if error == "ReceiptHandleIsInvalid" else 400
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert attributes_of(sqs, queue)["ApproximateNumberOfMessages"] == "0"


def test_errors_have_their_classes(sqs: Any, queue: str) -> None:
    gone = queue + "-gone"
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as raised:
        sqs.send_message(QueueUrl=gone, MessageBody="x")
    assert raised.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle="nonsense")
    with pytest.raises(sqs.exceptions.EmptyBatchRequest):
        sqs.delete_message_batch(QueueUrl=queue, Entries=[])
    with pytest.raises(sqs.exceptions.ClientError) as raised:
        sqs.create_queue(QueueName="no/such name")
    assert code(raised) == "InvalidParameterValue"


# Only the newer botocore


def test_system_attributes_are_asked_for_by_their_newer_name(service: Service) -> None:
    with closing(boto(service.url)) as sqs:
        url = sqs.create_queue(QueueName=service.name())["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        [message] = receive(sqs, url, MessageSystemAttributeNames=["SentTimestamp"])
    assert list(message["Attributes"]) == ["SentTimestamp"]


@pytest.mark.parametrize("protocol", ["json", "query"])
def test_the_resources_of_boto3_work(service: Service, protocol: str) -> None:
    resource = boto_resource(service.url, protocol)
    queue = resource.create_queue(QueueName=service.name(), Attributes={"VisibilityTimeout": "30"})
    queue.send_messages(Entries=[{"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "two"}])
    assert queue.attributes["ApproximateNumberOfMessages"] == "2"
    first, second = queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=10, AttributeNames=["All"])
    assert first.attributes["ApproximateReceiveCount"] == "1"
    first.change_visibility(VisibilityTimeout=600)
    first.delete()
    queue.delete_messages(Entries=[{"Id": "x", "ReceiptHandle": second.receipt_handle}])
    assert resource.get_queue_by_name(QueueName=queue.url.rpartition("/")[2]).url == queue.url
    assert queue.url in [each.url for each in resource.queues.all()]
    queue.purge()
    queue.delete()
