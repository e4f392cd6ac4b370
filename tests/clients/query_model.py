"""botocore's model of SQS in the query protocol, with the names that versions before 1.31.81 had in it."""

from typing import Any

Model = dict[str, Any]

_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_MEMBERS = {
    "Attributes": "Attribute",
    "BinaryListValues": "BinaryListValue",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "StringListValues": "StringListValue",
    "Tags": "Tag",
    "tags": "Tag",
}
_LISTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
_CODES = {  # of errors; the others are named as their shape, some without a prefix
    "OverLimit": "OverLimit",
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "ResourceNotFoundException": "ResourceNotFoundException",
}
_PREFIXED = {
    "BatchEntryIdsNotDistinct",
    "BatchRequestTooLong",
    "EmptyBatchRequest",
    "InvalidBatchEntryId",
    "MessageNotInflight",
    "PurgeQueueInProgress",
    "QueueDeletedRecently",
    "TooManyEntriesInBatchRequest",
    "UnsupportedOperation",
}


def as_query(model: Model) -> Model:
    """The same service in the older protocol."""
    metadata = {name: value for name, value in model["metadata"].items() if name in _KEPT}
    operations = {
        name: {**each, "output": {**each["output"], "resultWrapper": f"{name}Result"}}
        if "output" in each
        else each
        for name, each in model["operations"].items()
    }
    return {
        **model,
        "metadata": {**metadata, "protocol": "query", "protocols": ["query"], "xmlNamespace": _NAMESPACE},
        "operations": operations,
        "shapes": {name: _shape(name, each) for name, each in model["shapes"].items()},
    }


_KEPT = {"apiVersion", "endpointPrefix", "serviceFullName", "serviceId", "signatureVersion", "uid"}


def _shape(name: str, shape: Model) -> Model:
    if shape["type"] == "list":
        entry = _LISTS.get(name) or name.removesuffix("List")  # of batches: the name of the entry
        return {**shape, "member": {**shape["member"], "locationName": entry}}
    if shape["type"] == "map":
        key, value = ("Key", "Value") if name == "TagMap" else ("Name", "Value")
        named = {"key": {**shape["key"], "locationName": key}, "value": {**shape["value"], "locationName": value}}
        return {**shape, **named}
    if shape.get("exception"):
        code = _CODES.get(name, f"AWS.SimpleQueueService.{name}" if name in _PREFIXED else name)
        return {**shape, "error": {"code": code, "httpStatusCode": 400, "senderFault": True}}
    if shape["type"] == "structure":
        members = {
            member: {**each, "locationName": _MEMBERS[member]} if member in _MEMBERS else each
            for member, each in shape["members"].items()
        }
        return {**shape, "members": members}
    return shape
