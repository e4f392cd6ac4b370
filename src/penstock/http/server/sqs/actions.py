"""The 23 actions of SQS: members with types and limits, answers, errors, roles, and what carries them out.

Both protocols, the checks of requests and the table in the docs are made from these declarations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.contract.roles import ADMIN, ANY_ROLE, CONSUME, READ, WRITE
from penstock.http.server.sqs.shapes import (
    Blob,
    Entries,
    Flag,
    Listing,
    Long,
    Member,
    Shape,
    Structure,
    Table,
    Text,
    Whole,
)

MOST_ENTRIES = 10  # of a batch
LONGEST = 1_048_576  # bytes of a message, and of a batch
LONGEST_LEASE = 43_200  # seconds
MOST_LISTED = 1_000

# Queue attributes that can be set, and those that only the queue tells
SETTABLE = (
    "Policy", "VisibilityTimeout", "MaximumMessageSize", "MessageRetentionPeriod", "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds", "RedrivePolicy", "FifoQueue", "ContentBasedDeduplication", "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds", "DeduplicationScope", "FifoThroughputLimit", "RedriveAllowPolicy",
    "SqsManagedSseEnabled",
)  # fmt: skip
TOLD = (
    "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
)  # fmt: skip
SYSTEM = (
    "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
    "MessageDeduplicationId", "MessageGroupId", "AWSTraceHeader", "DeadLetterQueueSourceArn",
)  # fmt: skip
QUEUE_ATTRIBUTES = ("All", *SETTABLE, *TOLD)
SYSTEM_ATTRIBUTES = ("All", *SYSTEM)
SENT_SYSTEM_ATTRIBUTES = ("AWSTraceHeader",)


@dataclass(frozen=True)
class Action:
    """An action: request, answer, errors of its own, the role it needs, and the operations that carry it out."""

    name: str
    role: int
    takes: Structure
    gives: Structure
    errors: Sequence[str]
    runs: str
    note: str = ""
    polls: bool = False  # may wait for long, and stops when the client has gone


def _structure(*members: Member) -> Structure:
    return Structure(members)


def _needs(name: str, shape: Shape) -> Member:
    return Member(name, shape, required=True)


_TEXT = Text()
_ID = Text(1, 128, r"[!-~]+")
_NAME = Text(1, 80, r"[A-Za-z0-9_-]+(\.fifo)?")
_LABEL = Text(1, 80, r"[A-Za-z0-9_-]+")
_QUEUE = _needs("QueueUrl", Text(1))
_HANDLE = _needs("ReceiptHandle", Text(1))
_TIMEOUT = Whole(0, LONGEST_LEASE)
_ATTRIBUTES = Table(_TEXT, "Attribute")
_TAGS = Table(_TEXT, "Tag", "Key", "Value")
_SELECTED = Listing(_TEXT, "AttributeName")
_VALUE = _structure(
    Member("StringValue", _TEXT),
    Member("BinaryValue", Blob()),
    Member("StringListValues", Listing(_TEXT, "StringListValue")),
    Member("BinaryListValues", Listing(Blob(), "BinaryListValue")),
    _needs("DataType", _TEXT),
)
_PAGE = (Member("NextToken", _TEXT), Member("MaxResults", Whole(1, MOST_LISTED)))
_MESSAGE = (
    _needs("MessageBody", Text(1)),
    Member("DelaySeconds", Whole(0, 900)),
    Member("MessageAttributes", Table(_VALUE, "MessageAttribute")),
    Member("MessageSystemAttributes", Table(_VALUE, "MessageSystemAttribute")),
    Member("MessageDeduplicationId", _ID),
    Member("MessageGroupId", _ID),
)
_SUMS = (
    Member("MD5OfMessageAttributes", _TEXT),
    Member("MD5OfMessageSystemAttributes", _TEXT),
)
_ENTRY_ID = _needs("Id", _TEXT)
_FAILED = _structure(
    _ENTRY_ID, _needs("SenderFault", Flag()), _needs("Code", _TEXT), Member("Message", _TEXT)
)  # fmt: skip


def _batch(name: str, *members: Member) -> Structure:
    """The request of a batch. An entry's own members are checked one by one, as each fails alone."""
    return _structure(
        _QUEUE, _needs("Entries", Entries(_structure(_ENTRY_ID, *members), f"{name}BatchRequestEntry"))
    )


def _results(name: str, *members: Member) -> Structure:
    """The answer to a batch."""
    return _structure(
        _needs("Successful", Listing(_structure(_ENTRY_ID, *members), f"{name}BatchResultEntry")),
        _needs("Failed", Listing(_FAILED, "BatchResultErrorEntry")),
    )


_NOTHING = _structure()
_URL = _structure(Member("QueueUrl", _TEXT))
_USUAL = ("InvalidAddress", "InvalidSecurity", "RequestThrottled", "UnsupportedOperation")
_OF_QUEUE = (*_USUAL, "QueueDoesNotExist")
_OF_BATCH = (
    *_OF_QUEUE, "BatchEntryIdsNotDistinct", "EmptyBatchRequest", "InvalidBatchEntryId",
    "TooManyEntriesInBatchRequest",
)  # fmt: skip
_OF_KEYS = (
    "KmsAccessDenied", "KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired",
    "KmsThrottled",
)  # fmt: skip
_OF_TASK = (*_USUAL, "ResourceNotFoundException")

_ALL = (
    Action(
        "AddPermission",
        ADMIN,
        _structure(
            _QUEUE,
            _needs("Label", _LABEL),
            _needs("AWSAccountIds", Listing(_TEXT, "AWSAccountId")),
            _needs("Actions", Listing(_TEXT, "ActionName")),
        ),
        _NOTHING,
        (*_OF_QUEUE, "OverLimit"),
        "`update` of labels",
        "kept in the queue's `Policy` and given back; tokens and their roles decide who may do what",
    ),
    Action(
        "CancelMessageMoveTask",
        ADMIN,
        _structure(_needs("TaskHandle", Text(1))),
        _structure(Member("ApproximateNumberOfMessagesMoved", Long())),
        _OF_TASK,
        "stops the task",
    ),
    Action(
        "ChangeMessageVisibility",
        CONSUME,
        _structure(_QUEUE, _HANDLE, _needs("VisibilityTimeout", _TIMEOUT)),
        _NOTHING,
        (*_OF_QUEUE, "MessageNotInflight", "ReceiptHandleIsInvalid"),
        "`extend`; `fail` for 0",
        "counts from now; at most 12 hours since the message was received",
    ),
    Action(
        "ChangeMessageVisibilityBatch",
        CONSUME,
        _batch("ChangeMessageVisibility", _HANDLE, Member("VisibilityTimeout", _TIMEOUT)),
        _results("ChangeMessageVisibility"),
        _OF_BATCH,
        "`extend`; `fail` for 0",
    ),
    Action(
        "CreateQueue",
        ADMIN,
        _structure(_needs("QueueName", _NAME), Member("Attributes", _ATTRIBUTES), Member("tags", _TAGS)),
        _URL,
        (*_USUAL, "InvalidAttributeName", "InvalidAttributeValue", "QueueDeletedRecently", "QueueNameExists"),
        "`create`",
        "a name is free again as soon as its queue is deleted",
    ),
    Action(
        "DeleteMessage",
        CONSUME,
        _structure(_QUEUE, _HANDLE),
        _NOTHING,
        (*_OF_QUEUE, "InvalidIdFormat", "ReceiptHandleIsInvalid"),
        "`ack`",
    ),
    Action(
        "DeleteMessageBatch",
        CONSUME,
        _batch("DeleteMessage", _HANDLE),
        _results("DeleteMessage"),
        _OF_BATCH,
        "`ack`",
    ),
    Action("DeleteQueue", ADMIN, _structure(_QUEUE), _NOTHING, _OF_QUEUE, "`delete`"),
    Action(
        "GetQueueAttributes",
        ANY_ROLE,
        _structure(_QUEUE, Member("AttributeNames", _SELECTED)),
        _structure(Member("Attributes", _ATTRIBUTES)),
        (*_OF_QUEUE, "InvalidAttributeName"),
        "`show`",
        "counts are exact",
    ),
    Action(
        "GetQueueUrl",
        ANY_ROLE,
        _structure(_needs("QueueName", Text(1)), Member("QueueOwnerAWSAccountId", _TEXT)),
        _URL,
        _OF_QUEUE,
        "`settings`",
    ),
    Action(
        "ListDeadLetterSourceQueues",
        READ,
        _structure(_QUEUE, *_PAGE),
        _structure(_needs("queueUrls", Listing(_TEXT, "QueueUrl")), Member("NextToken", _TEXT)),
        _OF_QUEUE,
        "`queues`",
    ),
    Action(
        "ListMessageMoveTasks",
        READ,
        _structure(_needs("SourceArn", Text(1)), Member("MaxResults", Whole(1, 10))),
        _structure(
            Member(
                "Results",
                Listing(
                    _structure(
                        Member("TaskHandle", _TEXT),
                        Member("Status", _TEXT),
                        Member("SourceArn", _TEXT),
                        Member("DestinationArn", _TEXT),
                        Member("MaxNumberOfMessagesPerSecond", Whole()),
                        Member("ApproximateNumberOfMessagesMoved", Long()),
                        Member("ApproximateNumberOfMessagesToMove", Long()),
                        Member("FailureReason", _TEXT),
                        Member("StartedTimestamp", Long()),
                    ),
                    "ListMessageMoveTasksResultEntry",
                ),
            )
        ),
        _OF_TASK,
        "the tasks of this server",
        "a restarted server knows none of before; the messages are in one of the two queues",
    ),
    Action(
        "ListQueues",
        READ,
        _structure(Member("QueueNamePrefix", _TEXT), *_PAGE),
        _structure(Member("QueueUrls", Listing(_TEXT, "QueueUrl")), Member("NextToken", _TEXT)),
        _USUAL,
        "`queues`",
    ),
    Action(
        "ListQueueTags",
        ANY_ROLE,
        _structure(_QUEUE),
        _structure(Member("Tags", _TAGS)),
        _OF_QUEUE,
        "`settings`",
        "tags are labels",
    ),
    Action(
        "PurgeQueue",
        ADMIN,
        _structure(_QUEUE),
        _NOTHING,
        (*_OF_QUEUE, "PurgeQueueInProgress"),
        "`purge`, then `remove` of what is in flight",
        "done when it answers, so only a purge at the same time is refused",
    ),
    Action(
        "ReceiveMessage",
        CONSUME,
        _structure(
            _QUEUE,
            Member("AttributeNames", _SELECTED),
            Member("MessageSystemAttributeNames", Listing(_TEXT, "MessageSystemAttributeName")),
            Member("MessageAttributeNames", Listing(_TEXT, "MessageAttributeName")),
            Member("MaxNumberOfMessages", Whole(1, MOST_ENTRIES)),
            Member("VisibilityTimeout", _TIMEOUT),
            Member("WaitTimeSeconds", Whole(0, 20)),
            Member("ReceiveRequestAttemptId", _ID),
        ),
        _structure(
            Member(
                "Messages",
                Listing(
                    _structure(
                        Member("MessageId", _TEXT),
                        Member("ReceiptHandle", _TEXT),
                        Member("MD5OfBody", _TEXT),
                        Member("Body", _TEXT),
                        Member("Attributes", Table(_TEXT, "Attribute")),
                        Member("MD5OfMessageAttributes", _TEXT),
                        Member("MessageAttributes", Table(_VALUE, "MessageAttribute")),
                    ),
                    "Message",
                ),
            )
        ),
        (*_OF_QUEUE, "OverLimit", *_OF_KEYS),
        "`claim`",
        "every message that is available is found, also without waiting; of a group one message at a time",
        polls=True,
    ),
    Action(
        "RemovePermission",
        ADMIN,
        _structure(_QUEUE, _needs("Label", _LABEL)),
        _NOTHING,
        _OF_QUEUE,
        "`update` of labels",
        "as AddPermission",
    ),
    Action(
        "SendMessage",
        WRITE,
        _structure(_QUEUE, *_MESSAGE),
        _structure(
            Member("MD5OfMessageBody", _TEXT),
            *_SUMS,
            Member("MessageId", _TEXT),
            Member("SequenceNumber", _TEXT),
        ),
        (*_OF_QUEUE, "InvalidMessageContents", *_OF_KEYS),
        "`put`",
        "answered once the message is on stable storage",
    ),
    Action(
        "SendMessageBatch",
        WRITE,
        _batch("SendMessage", *_MESSAGE),
        _results(
            "SendMessage",
            _needs("MessageId", _TEXT),
            _needs("MD5OfMessageBody", _TEXT),
            *_SUMS,
            Member("SequenceNumber", _TEXT),
        ),
        (*_OF_BATCH, "BatchRequestTooLong", *_OF_KEYS),
        "`put` of all entries in one step",
    ),
    Action(
        "SetQueueAttributes",
        ADMIN,
        _structure(_QUEUE, _needs("Attributes", _ATTRIBUTES)),
        _NOTHING,
        (*_OF_QUEUE, "InvalidAttributeName", "InvalidAttributeValue", "OverLimit"),
        "`update`",
        "applies at once",
    ),
    Action(
        "StartMessageMoveTask",
        ADMIN,
        _structure(
            _needs("SourceArn", Text(1)),
            Member("DestinationArn", _TEXT),
            Member("MaxNumberOfMessagesPerSecond", Whole(1, 500)),
        ),
        _structure(Member("TaskHandle", _TEXT)),
        _OF_TASK,
        "`redrive`, or `move` to a destination, in the background",
        "a server that stops leaves the rest where it is; start the task again",
    ),
    Action(
        "TagQueue", ADMIN, _structure(_QUEUE, _needs("Tags", _TAGS)), _NOTHING, _OF_QUEUE, "`update` of labels"
    ),
    Action(
        "UntagQueue",
        ADMIN,
        _structure(_QUEUE, _needs("TagKeys", Listing(_TEXT, "TagKey"))),
        _NOTHING,
        _OF_QUEUE,
        "`update` of labels",
    ),
)
ACTIONS = {action.name: action for action in _ALL}
