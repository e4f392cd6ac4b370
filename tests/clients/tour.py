"""All 23 actions of SQS in one walk, which every client takes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

# Carries out an action with its arguments and returns the answer; Refused if the server refused it.
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


class Refused(Exception):
    """What a client's error says."""


ATTRIBUTES = {
    "kind": {"DataType": "String", "StringValue": "order \u00e9"},
    "number": {"DataType": "Number", "StringValue": "12.5"},
}


def tour(ask: Ask, prefix: str) -> None:
    """Use every action, and check what it answers."""
    queue, dead = _queues(ask, prefix)
    _messages(ask, queue)
    _fifo(ask, f"{prefix}.fifo")
    _dead_letters(ask, queue, dead)
    for url in (queue, dead):
        ask("DeleteQueue", {"QueueUrl": url})
    assert "QueueUrls" not in _without_empty(ask("ListQueues", {"QueueNamePrefix": f"{prefix}-"}))
    with pytest.raises(Refused, match=r"NonExistentQueue|QueueDoesNotExist"):
        ask("SendMessage", {"QueueUrl": queue, "MessageBody": "x"})


def _queues(ask: Ask, prefix: str) -> tuple[str, str]:
    attributes = {"VisibilityTimeout": "60"}
    asked = {"QueueName": f"{prefix}-a", "Attributes": attributes, "tags": {"team": "a"}}
    queue, dead = (
        ask("CreateQueue", asked)["QueueUrl"],
        ask("CreateQueue", {"QueueName": f"{prefix}-b"})["QueueUrl"],
    )
    assert ask("GetQueueUrl", {"QueueName": f"{prefix}-a"})["QueueUrl"] == queue
    first = ask("ListQueues", {"QueueNamePrefix": f"{prefix}-", "MaxResults": 1})
    more = {"QueueNamePrefix": f"{prefix}-", "MaxResults": 1, "NextToken": first["NextToken"]}
    assert first["QueueUrls"] + ask("ListQueues", more)["QueueUrls"] == [queue, dead]
    ask("SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"DelaySeconds": "0"}})
    assert _attributes(ask, queue).items() >= {"VisibilityTimeout": "60", "DelaySeconds": "0"}.items()
    ask("TagQueue", {"QueueUrl": queue, "Tags": {"cost": "7"}})
    ask("UntagQueue", {"QueueUrl": queue, "TagKeys": ["team"]})
    assert ask("ListQueueTags", {"QueueUrl": queue})["Tags"] == {"cost": "7"}
    who = {"AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"]}
    ask("AddPermission", {"QueueUrl": queue, "Label": "label", **who})
    assert "label" in _attributes(ask, queue)["Policy"]
    ask("RemovePermission", {"QueueUrl": queue, "Label": "label"})
    assert "label" not in _attributes(ask, queue).get("Policy", "")
    return queue, dead


def _messages(ask: Ask, queue: str) -> None:
    body = "h\u00e9llo <&> \U0001f600"
    sent = ask("SendMessage", {"QueueUrl": queue, "MessageBody": body, "MessageAttributes": ATTRIBUTES})
    [message] = _receive(ask, queue, AttributeNames=["All"], MessageAttributeNames=["All"])
    assert (message["MessageId"], message["Body"], message["MessageAttributes"]) == (
        *(sent["MessageId"], body), ATTRIBUTES,
    )  # fmt: skip
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    receipt = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
    ask("ChangeMessageVisibility", {**receipt, "VisibilityTimeout": 600})
    ask("DeleteMessage", receipt)

    entries = [{"Id": str(number), "MessageBody": f"body {number}"} for number in range(3)]
    sent = ask("SendMessageBatch", {"QueueUrl": queue, "Entries": entries})
    assert [each["Id"] for each in sent["Successful"]] == ["0", "1", "2"]
    messages = _receive(ask, queue)
    assert sorted(each["Body"] for each in messages) == ["body 0", "body 1", "body 2"]
    receipts = [
        {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)
    ]
    wrong = {"Id": "wrong", "ReceiptHandle": "wrong"}
    entries = [{**each, "VisibilityTimeout": 600} for each in [*receipts, wrong]]  # type: ignore[dict-item]
    changed = ask("ChangeMessageVisibilityBatch", {"QueueUrl": queue, "Entries": entries})
    deleted = ask("DeleteMessageBatch", {"QueueUrl": queue, "Entries": [*receipts, wrong]})
    for told in (changed, deleted):
        assert [each["Id"] for each in told["Successful"]] == ["0", "1", "2"]
        assert [(each["Id"], each["Code"]) for each in told["Failed"]] == [("wrong", "ReceiptHandleIsInvalid")]


def _fifo(ask: Ask, name: str) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    queue = ask("CreateQueue", {"QueueName": name, "Attributes": attributes})["QueueUrl"]
    sent = [ask("SendMessage", {"QueueUrl": queue, "MessageBody": body, "MessageGroupId": "g"}) for body in "aab"]
    assert sent[0]["SequenceNumber"] == sent[1]["SequenceNumber"] < sent[2]["SequenceNumber"]
    messages = _receive(ask, queue)
    assert messages[0]["Body"] == "a"
    ask("PurgeQueue", {"QueueUrl": queue})
    ask("DeleteQueue", {"QueueUrl": queue})


def _dead_letters(ask: Ask, queue: str, dead: str) -> None:
    arn = _attributes(ask, dead)["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    ask("SetQueueAttributes", {"QueueUrl": queue, "Attributes": {"RedrivePolicy": policy}})
    assert ask("ListDeadLetterSourceQueues", {"QueueUrl": dead})["queueUrls"] == [queue]
    entries = [{"Id": str(number), "MessageBody": f"poison {number}"} for number in range(10)]
    ask("SendMessageBatch", {"QueueUrl": queue, "Entries": entries})
    given_back = [
        {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
        for number, each in enumerate(_receive(ask, queue))
    ]
    ask("ChangeMessageVisibilityBatch", {"QueueUrl": queue, "Entries": given_back})
    assert _attributes(ask, dead)["ApproximateNumberOfMessages"] == "10"
    for _ in range(3):  # so that the task runs for longer than a slow client takes to cancel it
        ask("SendMessageBatch", {"QueueUrl": dead, "Entries": entries})
    handle = ask("StartMessageMoveTask", {"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1})["TaskHandle"]
    [task] = ask("ListMessageMoveTasks", {"SourceArn": arn})["Results"]
    assert (task["SourceArn"], task["Status"]) == (arn, "RUNNING")
    assert ask("CancelMessageMoveTask", {"TaskHandle": handle})["ApproximateNumberOfMessagesMoved"] <= 10


def _receive(ask: Ask, queue: str, **options: Any) -> list[dict[str, Any]]:
    asked = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 5, **options}
    messages: list[dict[str, Any]] = ask("ReceiveMessage", asked)["Messages"]
    return messages


def _attributes(ask: Ask, queue: str) -> dict[str, str]:
    attributes: dict[str, str] = ask("GetQueueAttributes", {"QueueUrl": queue, "AttributeNames": ["All"]})[
        "Attributes"
    ]
    return attributes


def _without_empty(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if value}
