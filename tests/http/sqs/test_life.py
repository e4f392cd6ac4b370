"""What SQS promises of messages, kept by the queue behind it."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.http.serving import serving, until
from tests.http.sqs.conftest import Service


def handle(message: dict[str, Any]) -> str:
    """A received message's receipt handle."""
    text: str = message["ReceiptHandle"]
    return text


# Headers and attributes


def test_a_python_program_sees_attributes_as_headers(service: Service) -> None:
    url = service.queue()
    attributes = {
        "type": {"DataType": "String", "StringValue": "order"},
        "size": {"DataType": "Number", "StringValue": "5"},
    }
    service.done("SendMessage", QueueUrl=url, MessageBody="m", MessageAttributes=attributes)
    [message] = service.behind(url).peek()
    assert message.headers["type"] == "order"
    assert set(message.headers) == {"type", "penstock.sqs"}


def test_headers_of_a_python_program_are_attributes(service: Service) -> None:
    url = service.queue()
    service.behind(url).put("é", headers={"type": "order", "odd name": "x"})
    [message] = service.receive(url, MessageAttributeNames=["All"])
    assert message["Body"] == "é"
    assert message["MessageAttributes"] == {
        "type": {"StringValue": "order", "DataType": "String"},
        "odd name": {"StringValue": "x", "DataType": "String"},
    }


def test_a_program_may_pass_on_a_message_with_all_of_its_attributes(service: Service) -> None:
    source, target = service.queue(), service.queue()
    attributes = {"size": {"DataType": "Number", "StringValue": "5"}}
    service.done("SendMessage", QueueUrl=source, MessageBody="m", MessageAttributes=attributes)
    [message] = service.behind(source).claim()
    service.behind(target).put(message.payload, headers=message.headers)
    assert service.receive(target, MessageAttributeNames=["All"])[0]["MessageAttributes"] == attributes


def test_bytes_of_a_python_program_come_as_base64_and_can_be_deleted(service: Service) -> None:
    url = service.queue()
    service.behind(url).put(b"\xff\0", headers={"a": "b"})
    [message] = service.receive(url)
    assert base64.b64decode(message["Body"]) == b"\xff\0"
    assert message["MessageAttributes"] == {"penstock.encoding": {"StringValue": "base64", "DataType": "String"}}
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(message))
    assert not any(service.behind(url).counts().values())


def test_a_group_of_a_standard_queue_is_kept_and_orders_nothing(service: Service) -> None:
    url = service.queue()
    for body in "ab":
        service.done("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId="tenant")
    received = service.receive(url, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"])
    assert [message["Attributes"] for message in received] == [{"MessageGroupId": "tenant"}] * 2


# Attributes of queues are settings


def test_attributes_are_settings_and_labels(service: Service) -> None:
    policy = '{"Statement": []}'
    url = service.queue(
        VisibilityTimeout="60", MessageRetentionPeriod="120", DelaySeconds="5", MaximumMessageSize="2048",
        ReceiveMessageWaitTimeSeconds="20", Policy=policy, KmsMasterKeyId="alias/a",
    )  # fmt: skip
    service.done("TagQueue", QueueUrl=url, Tags={"team": "a", "sqs": "b"})
    settings = service.behind(url).settings
    kept = (settings.lease, settings.retention, settings.delay, settings.max_payload, settings.max_attempts)
    assert kept == (60, 120, 5, 2048, 0)
    labels = dict(settings.labels or {})
    assert {name: labels[name] for name in labels if not name.startswith("penstock.sqs.")} == {
        "team": "a",
        "sqs": "b",
    }
    assert service.done("ListQueueTags", QueueUrl=url) == {"Tags": {"team": "a", "sqs": "b"}}
    told = service.done("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (told["Policy"], told["KmsMasterKeyId"], told["ReceiveMessageWaitTimeSeconds"]) == (
        policy,
        "alias/a",
        "20",
    )
    assert service.refused("TagQueue", QueueUrl=url, Tags={"penstock.sqs.Policy": "x"}) == "InvalidParameterValue"
    service.done("UntagQueue", QueueUrl=url, TagKeys=["team", "penstock.sqs.Policy"])
    assert service.done("ListQueueTags", QueueUrl=url) == {"Tags": {"sqs": "b"}}
    assert (
        service.done("GetQueueAttributes", QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
        == policy
    )


def test_an_attribute_that_is_emptied_is_gone(service: Service) -> None:
    dead = service.queue()
    arn = service.done("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    url = service.queue(RedrivePolicy=policy, Policy="{}")
    assert (service.behind(url).settings.max_attempts, service.behind(url).settings.dead_letter) == (
        3,
        service.behind(dead).name,
    )
    assert service.done("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == [url]
    service.done("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": "", "Policy": ""})
    told = service.done("GetQueueAttributes", QueueUrl=url, AttributeNames=["RedrivePolicy", "Policy"])
    assert told == {}
    assert service.behind(url).settings.max_attempts == 0


def redriving(resource: str, count: int) -> dict[str, str]:
    """A redrive policy as an attribute."""
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": f"arn:aws:{resource}", "maxReceiveCount": count})}


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"Nonsense": "1"}, "InvalidAttributeName"),
        ({"QueueArn": "x"}, "InvalidAttributeName"),
        ({"All": "x"}, "InvalidAttributeName"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "٣"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": ""}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "-1"}, "InvalidAttributeValue"),
        ({"SqsManagedSseEnabled": "yes"}, "InvalidAttributeValue"),
        ({"Policy": "[]"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{}"}, "InvalidParameterValue"),
        ({"RedrivePolicy": "no"}, "InvalidParameterValue"),
        (redriving("sqs:a:0:b", 0), "InvalidParameterValue"),
        (redriving("sqs:a:0:b", 1_001), "InvalidParameterValue"),
        (redriving("s3:::b", 1), "InvalidParameterValue"),
        (redriving("sqs:a:0:none", 1), "InvalidParameterValue"),
        (redriving("sqs:a:0:b.fifo", 1), "InvalidParameterValue"),
    ],
)  # fmt: skip
def test_an_attribute_that_amazon_refuses_is_refused(
    service: Service, attributes: dict[str, str], error: str
) -> None:
    url = service.queue()
    before = service.behind(url).settings
    assert service.refused("SetQueueAttributes", QueueUrl=url, Attributes=attributes) == error
    assert service.behind(url).settings == before
    assert service.refused("CreateQueue", QueueName="refused", Attributes=attributes) == error
    assert "refused" not in [queue.name for queue in service.store.queues()]


def test_the_type_of_a_queue_stays(service: Service) -> None:
    url, fifo = service.queue(), service.queue(".fifo")
    change = {"Attributes": {"FifoQueue": "true"}}
    assert service.refused("SetQueueAttributes", QueueUrl=url, **change) == "InvalidAttributeName"
    service.done("SetQueueAttributes", QueueUrl=fifo, **change)
    change = {"Attributes": {"FifoQueue": "false"}}
    assert service.refused("SetQueueAttributes", QueueUrl=fifo, **change) == "InvalidAttributeValue"


def test_permissions_are_statements_of_the_policy(service: Service) -> None:
    url = service.queue()
    arn = f"arn:aws:sqs:us-east-1:000000000000:{service.behind(url).name}"
    one, two = "111111111111", "222222222222"

    def policy() -> Any:
        told = service.done("GetQueueAttributes", QueueUrl=url, AttributeNames=["Policy"])
        return json.loads(told["Attributes"]["Policy"]) if told else None

    def add(label: str, accounts: list[str], actions: list[str]) -> dict[str, Any]:
        return {"QueueUrl": url, "Label": label, "AWSAccountIds": accounts, "Actions": actions}

    service.done("AddPermission", **add("a", [one], ["SendMessage"]))
    service.done("AddPermission", **add("b", [one, two], ["SendMessage", "ReceiveMessage"]))
    first = {"AWS": f"arn:aws:iam::{one}:root"}
    both = {"AWS": [f"arn:aws:iam::{account}:root" for account in (one, two)]}
    assert policy() == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {"Sid": "a", "Effect": "Allow", "Principal": first, "Action": "SQS:SendMessage", "Resource": arn},
            {
                "Sid": "b", "Effect": "Allow", "Principal": both,
                "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"], "Resource": arn,
            },
        ],
    }  # fmt: skip
    assert service.refused("AddPermission", **add("a", [two], ["SendMessage"])) == "InvalidParameterValue"
    assert service.refused("AddPermission", **add("c", [two], ["Explode"])) == "InvalidParameterValue"
    assert service.refused("AddPermission", **add("c", [], ["SendMessage"])) == "MissingParameter"
    assert service.refused("AddPermission", **add("c", [one], ["SendMessage"] * 8)) == "OverLimit"
    service.done("RemovePermission", QueueUrl=url, Label="a")
    assert [each["Sid"] for each in policy()["Statement"]] == ["b"]
    service.done("RemovePermission", QueueUrl=url, Label="b")
    assert policy() is None
    assert service.refused("RemovePermission", QueueUrl=url, Label="b") == "InvalidParameterValue"


def test_labels_that_a_python_program_wrote_break_nothing(service: Service) -> None:
    queue = service.store.create(
        "labelled",
        labels={f"penstock.sqs.{name}": "x" for name in ("Policy", "ReceiveMessageWaitTimeSeconds", "All")},
    )
    url = service.done("GetQueueUrl", QueueName=queue.name)["QueueUrl"]
    assert service.receive(url) == []
    told = service.done("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert told["Policy"] == "x"
    service.done("AddPermission", QueueUrl=url, Label="a", AWSAccountIds=["1"], Actions=["*"])
    service.done("RemovePermission", QueueUrl=url, Label="a")


# Settling


def test_a_message_that_is_deleted_late_is_gone_unless_somebody_has_received_it_since(service: Service) -> None:
    url = service.queue()
    queue = service.behind(url)
    queue.put("m")
    [late] = service.receive(url, VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    [later] = service.receive(url, VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(late))
    assert queue.counts()["available"] == 1
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(later))
    assert not any(queue.counts().values())


def test_a_message_of_another_consumer_is_not_deleted_with_an_older_handle(service: Service) -> None:
    url = service.queue()
    queue = service.behind(url)
    queue.put("m")
    [late] = service.receive(url, VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    service.receive(url)
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(late))
    assert queue.counts()["in_flight"] == 1


def test_a_handle_that_has_expired_is_refused_by_a_fifo_queue(service: Service) -> None:
    url = service.queue(".fifo")
    queue = service.behind(url)
    queue.put("m", group="g")
    [late] = service.receive(url, VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    assert service.refused("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(late)) == "InvalidParameterValue"
    assert queue.counts()["available"] == 1


def test_a_handle_of_another_queue_is_none(service: Service) -> None:
    one, other = service.queue(), service.queue()
    service.behind(one).put("m")
    [message] = service.receive(one)
    assert (
        service.refused("DeleteMessage", QueueUrl=other, ReceiptHandle=handle(message)) == "ReceiptHandleIsInvalid"
    )


def test_visibility_cannot_be_changed_once_it_has_ended(service: Service) -> None:
    url = service.queue()
    queue = service.behind(url)
    queue.put("m")
    [message] = service.receive(url, VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    change = {"QueueUrl": url, "ReceiptHandle": handle(message)}
    for seconds in (0, 60):
        error = service.refused("ChangeMessageVisibility", **change, VisibilityTimeout=seconds)
        assert error == "AWS.SimpleQueueService.MessageNotInflight"
    queue.purge()
    assert service.refused("ChangeMessageVisibility", **change, VisibilityTimeout=60) == "InvalidParameterValue"


def test_a_message_is_held_for_twelve_hours_in_all(tmp_path: Path) -> None:
    clock = penstock.SimulatedClock(int(time.time() * 1000) - 6 * 3600 * 1000)
    with penstock.open(tmp_path, clock=clock) as store, serving(store) as server:
        service = Service(store, server.url)
        url = service.queue()
        service.behind(url).put_many(["a", "b"])
        messages = service.receive(url, MaxNumberOfMessages=2, VisibilityTimeout=43_200)
        change = {"QueueUrl": url, "ReceiptHandle": handle(messages[0])}
        # received six hours ago: the store's clock is that much behind
        service.done("ChangeMessageVisibility", **change, VisibilityTimeout=21_500)
        assert (
            service.refused("ChangeMessageVisibility", **change, VisibilityTimeout=21_601)
            == "InvalidParameterValue"
        )
        entries = [
            {"Id": str(seconds), "ReceiptHandle": handle(messages[1]), "VisibilityTimeout": seconds}
            for seconds in (21_601, 43_200, 10)
        ]
        told = service.done("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
        assert [each["Id"] for each in told["Successful"]] == ["10"]
        assert [(each["Id"], each["Code"]) for each in told["Failed"]] == [
            ("21601", "InvalidParameterValue"),
            ("43200", "InvalidParameterValue"),
        ]


def test_a_message_given_back_counts_as_received_and_fails_for_good_at_last(service: Service) -> None:
    dead = service.queue()
    arn = f"arn:aws:sqs:us-east-1:000000000000:{service.behind(dead).name}"
    url = service.queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2}))
    service.behind(url).put("m")
    counts = []
    for _ in range(2):
        [message] = service.receive(url, AttributeNames=["ApproximateReceiveCount"])
        counts.append(message["Attributes"]["ApproximateReceiveCount"])
        service.done("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle(message), VisibilityTimeout=0)
    assert counts == ["1", "2"]
    assert service.receive(url) == []
    [message] = service.receive(dead, AttributeNames=["All"])
    source = f"arn:aws:sqs:us-east-1:000000000000:{service.behind(url).name}"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == source


def test_the_time_of_the_first_receive_stays(service: Service) -> None:
    url = service.queue()
    service.behind(url).put("m")
    times = []
    for _ in range(2):
        [message] = service.receive(url, AttributeNames=["ApproximateFirstReceiveTimestamp"])
        times.append(message["Attributes"]["ApproximateFirstReceiveTimestamp"])
        service.done("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle(message), VisibilityTimeout=0)
    assert times[0] == times[1]


def test_a_purge_removes_what_is_in_flight_too(service: Service) -> None:
    url = service.queue()
    for body in "ab":
        service.behind(url).put(body)
    service.receive(url)
    service.done("PurgeQueue", QueueUrl=url)
    assert not any(service.behind(url).counts().values())


def test_receipts_hold_after_a_restart(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store, serving(store) as server:
        service = Service(store, server.url)
        url = service.queue()
        service.done("SendMessage", QueueUrl=url, MessageBody="m")
        [message] = service.receive(url)
    with penstock.open(tmp_path) as store, serving(store) as server:
        service = Service(store, server.url)
        assert service.receive(url) == []
        service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(message))
        assert not any(service.behind(url).counts().values())


# FIFO queues


def test_a_key_of_a_group_is_one_of_that_group_only_if_the_queue_says_so(service: Service) -> None:
    for scope, count in (("queue", 1), ("messageGroup", 2)):
        url = service.queue(".fifo", DeduplicationScope=scope)
        for group in "aab":
            service.done(
                "SendMessage", QueueUrl=url, MessageBody=group, MessageGroupId=group, MessageDeduplicationId="k"
            )
        assert service.behind(url).counts()["available"] == count
        found = service.receive(url, MaxNumberOfMessages=10, AttributeNames=["MessageDeduplicationId"])
        assert [message["Attributes"] for message in found] == [{"MessageDeduplicationId": "k"}] * count


@pytest.mark.parametrize("missing", ["MessageGroupId", "MessageDeduplicationId"])
def test_a_batch_is_refused_if_an_entry_has_no_group_or_no_key(service: Service, missing: str) -> None:
    url = service.queue(".fifo")
    entry = {"MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "k"}
    entries = [{"Id": "a", **entry}, {"Id": "b", **{name: entry[name] for name in entry if name != missing}}]
    assert service.refused("SendMessageBatch", QueueUrl=url, Entries=entries) == "InvalidParameterValue"
    assert service.behind(url).counts()["available"] == 0


def test_a_receive_that_is_repeated_after_a_delete_brings_other_messages(service: Service) -> None:
    url = service.queue(".fifo")
    for body in "ab":
        service.behind(url).put(body, group="g")
    [first] = service.receive(url, ReceiveRequestAttemptId="r")
    assert [each["ReceiptHandle"] for each in service.receive(url, ReceiveRequestAttemptId="r")] == [handle(first)]
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(first))
    assert [each["Body"] for each in service.receive(url, ReceiveRequestAttemptId="r")] == ["b"]


def test_a_receive_that_is_repeated_after_the_visibility_ended_is_a_new_one(service: Service) -> None:
    url = service.queue(".fifo")
    queue = service.behind(url)
    queue.put("a", group="g")
    [first] = service.receive(url, ReceiveRequestAttemptId="r", VisibilityTimeout=0)
    until(lambda: queue.counts()["available"])
    [again] = service.receive(url, ReceiveRequestAttemptId="r")
    assert (again["Body"], handle(again) == handle(first)) == ("a", False)
    service.done("DeleteMessage", QueueUrl=url, ReceiptHandle=handle(again))


# Limits


def test_a_message_and_a_batch_have_a_mebibyte_at_most(service: Service) -> None:
    url, most = service.queue(), 1 << 20
    service.done("SendMessage", QueueUrl=url, MessageBody="x" * most)
    assert service.refused("SendMessage", QueueUrl=url, MessageBody="x" * (most + 1)) == "InvalidParameterValue"
    attributes = {"a": {"DataType": "String", "StringValue": "b"}}
    body = "x" * (most - 7)
    assert service.refused("SendMessage", QueueUrl=url, MessageBody=body, MessageAttributes=attributes) == (
        "InvalidParameterValue"
    )
    entries = [{"Id": str(n), "MessageBody": "x" * (most // 2 + n)} for n in range(2)]
    assert service.refused("SendMessageBatch", QueueUrl=url, Entries=entries) == (
        "AWS.SimpleQueueService.BatchRequestTooLong"
    )
    assert service.behind(url).counts()["available"] == 1


def test_a_body_in_which_every_character_is_escaped_is_taken(service: Service) -> None:
    url = service.queue()
    body = "é" * (1 << 19)
    service.done("SendMessage", QueueUrl=url, MessageBody=body)
    assert service.form("SendMessage", QueueUrl=url, MessageBody=body).status == 200
    assert [each["Body"] for each in service.receive(url, MaxNumberOfMessages=10)] == [body, body]


def test_a_message_beyond_its_queues_limit_fails_alone_in_a_batch(service: Service) -> None:
    url = service.queue(MaximumMessageSize="1024")
    entries = [{"Id": "long", "MessageBody": "x" * 1025}, {"Id": "short", "MessageBody": "x" * 1024}]
    told = service.done("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in told["Successful"]] == ["short"]
    assert [(each["Id"], each["Code"], each["SenderFault"]) for each in told["Failed"]] == [
        ("long", "InvalidParameterValue", True)
    ]


def test_a_body_with_a_control_character_fails_alone_in_a_batch(service: Service) -> None:
    url = service.queue()
    entries = [{"Id": "good", "MessageBody": "tab\tand\nline"}, {"Id": "bad", "MessageBody": "\x01"}]
    told = service.done("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in told["Successful"]] == ["good"]
    assert [(each["Id"], each["Code"]) for each in told["Failed"]] == [("bad", "InvalidMessageContents")]
    form = {
        "SendMessageBatchRequestEntry__1__Id": "bad", "SendMessageBatchRequestEntry__1__MessageBody": "\x01",
    }  # fmt: skip
    assert b"<Code>InvalidMessageContents</Code>" in service.form("SendMessageBatch", QueueUrl=url, **form).body
    raw = json.dumps({"QueueUrl": url, "Entries": entries}).replace("\\u0001", "\x01").encode()
    assert service.json("SendMessageBatch", raw).error == "MalformedInput"
    assert [each["Body"] for each in service.receive(url, MaxNumberOfMessages=10)] == ["tab\tand\nline"]


def test_a_full_queue_asks_to_try_again(service: Service) -> None:
    service.store.create("full", max_size=1).put("m")
    url = service.done("GetQueueUrl", QueueName="full")["QueueUrl"]
    told = service.json("SendMessage", {"QueueUrl": url, "MessageBody": "m"})
    assert (told.status, told.error) == (403, "RequestThrottled")


# Move tasks


def test_dead_letters_are_moved_back_in_the_background(service: Service) -> None:
    dead = service.queue()
    arn = f"arn:aws:sqs:us-east-1:000000000000:{service.behind(dead).name}"
    url = service.queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    source, target = service.behind(url), service.behind(dead)
    target.put_many(["of no other queue"] * 600)
    source.put_many(["m"] * 600)
    source.fail(*source.claim(600))
    until(lambda: target.counts()["available"] == 1_200)
    task = service.done("StartMessageMoveTask", SourceArn=arn)["TaskHandle"]

    def told() -> Any:
        return service.done("ListMessageMoveTasks", SourceArn=arn)["Results"][0]

    until(lambda: told()["Status"] == "COMPLETED")
    task_now = told()
    moved, found = task_now["ApproximateNumberOfMessagesMoved"], task_now["ApproximateNumberOfMessagesToMove"]
    assert (moved, found) == (600, 1_200)
    assert (source.counts()["available"], target.counts()["available"]) == (600, 600)
    assert (
        service.refused("CancelMessageMoveTask", TaskHandle=task) == "AWS.SimpleQueueService.UnsupportedOperation"
    )
    unknown = f"9{task}"
    assert service.refused("CancelMessageMoveTask", TaskHandle=unknown) == "ResourceNotFoundException"
    assert service.refused("CancelMessageMoveTask", TaskHandle="x") == "InvalidParameterValue"


def test_a_slow_move_can_be_cancelled(service: Service) -> None:
    dead, other = service.queue(), service.queue()
    arns = [f"arn:aws:sqs:us-east-1:000000000000:{service.behind(each).name}" for each in (dead, other)]
    service.queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arns[0], "maxReceiveCount": 1}))
    service.behind(dead).put_many(["m"] * 10)
    started = {"SourceArn": arns[0], "DestinationArn": arns[1], "MaxNumberOfMessagesPerSecond": 1}
    task = service.done("StartMessageMoveTask", **started)["TaskHandle"]
    assert service.refused("StartMessageMoveTask", **started) == "InvalidParameterValue"
    until(lambda: service.behind(other).counts()["available"])
    moved = service.done("CancelMessageMoveTask", TaskHandle=task)["ApproximateNumberOfMessagesMoved"]
    counts = [service.behind(each).counts()["available"] for each in (dead, other)]
    assert sum(counts) == 10
    assert moved <= counts[1] < 10
    assert service.done("ListMessageMoveTasks", SourceArn=arns[0])["Results"][0]["Status"] == "CANCELLED"


def test_a_move_whose_destination_goes_says_why_it_failed(service: Service) -> None:
    dead, other = service.queue(), service.queue()
    arns = [f"arn:aws:sqs:us-east-1:000000000000:{service.behind(each).name}" for each in (dead, other)]
    service.queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arns[0], "maxReceiveCount": 1}))
    service.behind(dead).put_many(["m"] * 10)
    moving = {"SourceArn": arns[0], "DestinationArn": arns[1], "MaxNumberOfMessagesPerSecond": 5}
    service.done("StartMessageMoveTask", **moving)
    until(lambda: service.behind(other).counts()["available"])
    service.done("DeleteQueue", QueueUrl=other)

    def told() -> Any:
        return service.done("ListMessageMoveTasks", SourceArn=arns[0])["Results"][0]

    until(lambda: told()["Status"] != "RUNNING")
    assert (told()["Status"], told()["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert service.refused("StartMessageMoveTask", **moving) == "ResourceNotFoundException"


def test_only_a_dead_letter_queue_is_moved(service: Service) -> None:
    service.store.create("plain")
    arn = "arn:aws:sqs:us-east-1:000000000000:"
    assert service.refused("StartMessageMoveTask", SourceArn=arn + "plain") == "InvalidParameterValue"
    assert service.refused("StartMessageMoveTask", SourceArn=arn + "none") == "ResourceNotFoundException"
    assert service.refused("ListMessageMoveTasks", SourceArn="none") == "InvalidParameterValue"
