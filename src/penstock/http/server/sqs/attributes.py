"""Queue attributes of SQS and settings of a queue. Pure functions.

Attributes that are settings are kept as settings. The others are kept as labels whose names start with
`penstock.sqs.`, and given back. All other labels are the queue's tags.
"""

import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.contract.settings import QueueInfo, Settings
from penstock.http.server.sqs.actions import LONGEST, LONGEST_LEASE, QUEUE_ATTRIBUTES, SETTABLE, TOLD
from penstock.http.server.sqs.errors import SqsError
from penstock.http.server.sqs.messages import FIFO
from penstock.http.server.sqs.shapes import invalid

PREFIX = "penstock.sqs."
MOMENT = 0.001  # seconds of a lease that stands for a visibility timeout of 0
_MOST_RECEIVES = 1_000
_DEFAULT_RETENTION = 345_600
_FLAGS = {"true": "true", "false": "false"}


class _Number(NamedTuple):
    lowest: int
    highest: int


_TEXTS = ("KmsMasterKeyId",)
_OBJECTS = ("Policy", "RedriveAllowPolicy")
_BOOLEANS = ("ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled")
_CHOICES = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_OF_FIFO = ("FifoQueue", "ContentBasedDeduplication", *_CHOICES)
_NUMBERS = {
    "VisibilityTimeout": _Number(0, LONGEST_LEASE),
    "MaximumMessageSize": _Number(1_024, LONGEST),
    "MessageRetentionPeriod": _Number(60, 1_209_600),
    "DelaySeconds": _Number(0, 900),
    "ReceiveMessageWaitTimeSeconds": _Number(0, 20),
    "KmsDataKeyReusePeriodSeconds": _Number(60, 86_400),
}
# Attributes that are settings: the setting, and its value from the number
_SETTINGS: dict[str, tuple[str, Callable[[int], float]]] = {
    "VisibilityTimeout": ("lease", lambda given: given or MOMENT),
    "MaximumMessageSize": ("max_payload", int),
    "MessageRetentionPeriod": ("retention", int),
    "DelaySeconds": ("delay", int),
}


def new_settings(
    name: str, given: Mapping[str, str], tags: Mapping[str, str], known: Callable[[str], str]
) -> Settings:
    """The settings of a new queue; SqsError. `known` gives the queue of an ARN."""
    is_fifo = name.endswith(FIFO)
    if is_fifo != (given.get("FifoQueue") == "true"):
        raise SqsError(
            "InvalidParameterValueException",
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end "
            "with .fifo suffix and be 1 to 80 in length, and its attribute FifoQueue is true.",
        )
    standard = Settings(
        max_attempts=0, retention=_DEFAULT_RETENTION, max_payload=LONGEST, max_lease=LONGEST_LEASE,
        labels={**checked_tags(tags), **stamped({}, "CreatedTimestamp")},
    )  # fmt: skip
    return standard.changed(changes(name, given, standard, known))


def changes(name: str, given: Mapping[str, str], there: Settings, known: Callable[[str], str]) -> dict[str, Any]:
    """The settings that change with attributes; SqsError."""
    changed: dict[str, Any] = {}
    labels = dict(there.labels or {})
    for attribute, text in given.items():
        if attribute not in SETTABLE:
            what = "cannot be set" if attribute in TOLD else "does not exist"
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {attribute}: it {what}.")
        if attribute in _OF_FIFO and not name.endswith(FIFO):
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {attribute}: it is of FIFO queues only.")
        if attribute == "FifoQueue" and checked(attribute, text) == "false":
            raise _invalid(attribute, "the type of a queue cannot be changed: create another queue")
        if attribute == "RedrivePolicy":
            changed |= _redrive(text, name, known)
            continue
        value = checked(attribute, text)
        if attribute in _SETTINGS:
            setting, convert = _SETTINGS[attribute]
            changed[setting] = convert(int(value))
        elif value:
            labels[PREFIX + attribute] = value
        else:
            labels.pop(PREFIX + attribute, None)
    changed["labels"] = stamped(labels, "LastModifiedTimestamp")
    return changed


def checked(attribute: str, text: str) -> str:
    """The value of an attribute; SqsError."""
    if attribute in _NUMBERS:
        lowest, highest = _NUMBERS[attribute]
        if not text.isascii() or not text.isdigit() or len(text) > 9 or not lowest <= int(text) <= highest:
            raise _invalid(attribute, f"give {lowest} to {highest}")
        return str(int(text))
    if attribute in _BOOLEANS:
        if text.lower() not in _FLAGS:
            raise _invalid(attribute, "give true or false")
        return text.lower()
    if attribute in _CHOICES and text not in _CHOICES[attribute]:
        raise _invalid(attribute, f"give {' or '.join(_CHOICES[attribute])}")
    if attribute in _OBJECTS and text and _object(text) is None:
        raise _invalid(attribute, "give a JSON object")
    return text


def _redrive(text: str, name: str, known: Callable[[str], str]) -> dict[str, Any]:
    """The settings of a RedrivePolicy; an empty one ends redriving."""
    if not text:
        return {"dead_letter": None, "max_attempts": 0}
    policy = _object(text)
    if policy is None:
        raise invalid("RedrivePolicy", text, "It is no JSON object")
    target, most = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    try:
        count = int(str(most))
    except ValueError:
        count = 0
    if not isinstance(target, str) or not 1 <= count <= _MOST_RECEIVES:
        reason = f"Give deadLetterTargetArn, and maxReceiveCount of 1 to {_MOST_RECEIVES}"
        raise invalid("RedrivePolicy", text, reason)
    queue = known(target)
    if queue.endswith(FIFO) != name.endswith(FIFO):
        reason = "The dead-letter queue of a FIFO queue is a FIFO queue, of others it is none"
        raise invalid("RedrivePolicy", text, reason)
    return {"dead_letter": queue, "max_attempts": count}


def _object(text: str) -> dict[str, Any] | None:
    """The members of a JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else None


def _invalid(attribute: str, advice: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {attribute}: {advice}.")


def stamped(labels: Mapping[str, str], name: str) -> dict[str, str]:
    """Labels with the time of now as an attribute."""
    return {**labels, PREFIX + name: str(int(time.time()))}


def kept(settings: Settings, attribute: str) -> str:
    """An attribute that is kept as a label."""
    return (settings.labels or {}).get(PREFIX + attribute, "")


def wait_of(settings: Settings) -> int:
    """Seconds that a receive waits which does not say how long."""
    text = kept(settings, "ReceiveMessageWaitTimeSeconds")
    return min(int(text), 20) if text.isdigit() and len(text) < 3 else 0


def told(info: QueueInfo, arn: Callable[[str], str]) -> dict[str, str]:
    """All attributes of a queue. `arn` gives that of a queue."""
    settings, counts = info.settings, info.counts
    own = {name.removeprefix(PREFIX): value for name, value in (settings.labels or {}).items() if is_own(name)}
    attributes = {
        "ApproximateNumberOfMessages": counts["available"],
        "ApproximateNumberOfMessagesNotVisible": counts["in_flight"],
        "ApproximateNumberOfMessagesDelayed": counts["delayed"],
        "CreatedTimestamp": "0",
        "LastModifiedTimestamp": own.get("CreatedTimestamp", "0"),
        "QueueArn": arn(info.name),
        "VisibilityTimeout": int(settings.lease),
        "MaximumMessageSize": settings.max_payload,
        "MessageRetentionPeriod": int(settings.retention),
        "DelaySeconds": int(settings.delay),
        "ReceiveMessageWaitTimeSeconds": "0",
    }
    if info.name.endswith(FIFO):
        attributes |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
    attributes |= {name: value for name, value in own.items() if name in QUEUE_ATTRIBUTES}
    if settings.dead_letter is not None and settings.max_attempts:
        policy = {"deadLetterTargetArn": arn(settings.dead_letter), "maxReceiveCount": settings.max_attempts}
        attributes["RedrivePolicy"] = json.dumps(policy, separators=(",", ":"))
    return {name: str(value) for name, value in attributes.items()}


def asked(name: str, given: Mapping[str, str], new: Settings, arn: Callable[[str], str]) -> dict[str, str]:
    """The attributes that are given for a queue, as told() has them."""
    all_told = told(QueueInfo(name, new, dict.fromkeys(("available", "in_flight", "delayed"), 0)), arn)
    return {attribute: all_told.get(attribute, "") for attribute in given}


def is_own(label: str) -> bool:
    """Whether a label is an attribute, and no tag."""
    return label.startswith(PREFIX)


def tags(settings: Settings) -> dict[str, str]:
    """A queue's tags."""
    return {name: value for name, value in (settings.labels or {}).items() if not is_own(name)}


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """New tags; SqsError."""
    for key, value in tags.items():
        if not 1 <= len(key) <= 128 or len(value) > 256 or is_own(key):
            raise SqsError(
                "InvalidParameterValueException",
                f"Tag {key[:128]!r}: a key has 1 to 128 characters and does not start with {PREFIX}, a value has "
                "at most 256.",
            )
    if len(tags) > 50:
        raise SqsError("InvalidParameterValueException", f"{len(tags)} tags: a queue has at most 50.")
    return dict(tags)


@lru_cache(maxsize=256)
def selected(names: tuple[str, ...]) -> frozenset[str]:
    """The attributes that a request asks for; SqsError for an unknown one."""
    for name in names:
        if name not in QUEUE_ATTRIBUTES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return frozenset(QUEUE_ATTRIBUTES if "All" in names else names)
