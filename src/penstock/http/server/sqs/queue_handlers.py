"""Handlers of the actions on queues: attributes, tags, permissions, move tasks.

From a call to operations of the contract, from their results to the answer. They decide nothing about messages.
"""

import base64
import json
from collections.abc import Callable
from typing import Any

from penstock.contract import names
from penstock.contract.operations import (
    Create,
    Delete,
    Lookup,
    Messages,
    Purge,
    Queues,
    Remove,
    Show,
    Update,
)
from penstock.contract.settings import Settings
from penstock.errors import InvalidArgument, QueueExists, QueueNotFound
from penstock.http.server.sqs import attributes
from penstock.http.server.sqs.actions import ACTIONS, MOST_LISTED
from penstock.http.server.sqs.calls import Call, Handler, queue_of_arn
from penstock.http.server.sqs.errors import SqsError, no_queue
from penstock.http.server.sqs.shapes import invalid, missing
from penstock.wire import jsons

_MOST_PERMITTED = 7  # actions of a permission

# Queues


async def _create_queue(call: Call) -> dict[str, Any]:
    """An existing queue is as good as a new one if it has the attributes that are given."""
    given, name = call.given, call.given["QueueName"]
    wanted = given.get("Attributes", {})
    settings = attributes.new_settings(name, wanted, given.get("tags", {}), queue_of_arn)
    try:
        await call.run(Create(name, settings))
    except QueueNotFound:
        raise _no_dead_letter_queue(wanted) from None
    except QueueExists:
        there = attributes.told(await call.run(Show(name)), call.arn)
        asked = attributes.asked(name, wanted, settings, call.arn)
        for attribute, value in asked.items():
            if there.get(attribute, "") != value:
                raise SqsError(
                    "QueueNameExists",
                    f"A queue already exists with the same name and a different value for attribute {attribute}",
                ) from None
    return {"QueueUrl": call.url(name)}


async def _get_queue_url(call: Call) -> dict[str, Any]:
    name = call.given["QueueName"]
    if not names.is_legal(name):
        raise no_queue()
    await call.run(Lookup(name))
    return {"QueueUrl": call.url(name)}


async def _delete_queue(call: Call) -> dict[str, Any]:
    await call.run(Delete(names.deletable(call.queue)))
    return {}


async def _list_queues(call: Call) -> dict[str, Any]:
    prefix = call.given.get("QueueNamePrefix", "")
    return _page(
        call, "QueueUrls", [each.name for each in await call.run(Queues()) if each.name.startswith(prefix)]
    )


async def _list_dead_letter_source_queues(call: Call) -> dict[str, Any]:
    await call.settings()
    sources = [each.name for each in await call.run(Queues()) if each.settings.dead_letter == call.queue]
    return {"queueUrls": [], **_page(call, "queueUrls", sources)}


def _page(call: Call, member: str, found: list[str]) -> dict[str, Any]:
    """A page of queue URLs. The token is the name of the last queue of the page before."""
    token, most = call.given.get("NextToken"), call.given.get("MaxResults")
    if token is not None:
        try:
            after = base64.urlsafe_b64decode(token).decode()
        except ValueError:
            raise invalid("NextToken", token[:80], "It is none of ours") from None
        found = [name for name in found if name > after]
    page = sorted(found)[: most or MOST_LISTED]
    answer: dict[str, Any] = {member: [call.url(name) for name in page]} if page else {}
    if most is not None and len(found) > len(page):
        answer["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return answer


async def _get_queue_attributes(call: Call) -> dict[str, Any]:
    selected = attributes.selected(tuple(call.given.get("AttributeNames", ())))
    told = attributes.told(await call.run(Show(call.queue)), call.arn)
    chosen = {name: value for name, value in told.items() if name in selected}
    return {"Attributes": chosen} if chosen else {}


async def _set_queue_attributes(call: Call) -> dict[str, Any]:
    given = call.given["Attributes"]
    await _change(call, lambda there: attributes.changes(call.queue, given, there, queue_of_arn))
    return {}


async def _purge_queue(call: Call) -> dict[str, Any]:
    """Messages in flight too; those that are received while it runs stay."""
    queue, purging = call.queue, call.memory.purging
    if queue in purging:
        raise SqsError("PurgeQueueInProgress", f"Another PurgeQueue of {queue} is under way.")
    purging.add(queue)
    try:
        held = [each.id async for each in call.backend.listed(Messages(queue, state="in_flight", fields=("id",)))]
        await call.run(Purge(queue))
        if held:
            await call.run(Remove(queue, held))
    finally:
        purging.discard(queue)
    return {}


async def _change(call: Call, change: Callable[[Settings], dict[str, Any]]) -> None:
    """Change settings that depend on those there are."""
    async with call.memory.changing:
        wanted = change(await call.settings())
        try:
            await call.run(Update(call.queue, wanted))
        except QueueNotFound:
            if wanted.get("dead_letter") is None:
                raise
            raise _no_dead_letter_queue(call.given["Attributes"]) from None


def _no_dead_letter_queue(given: dict[str, str]) -> SqsError:
    return invalid("RedrivePolicy", given.get("RedrivePolicy", ""), "Dead letter target does not exist")


# Tags and permissions


async def _list_queue_tags(call: Call) -> dict[str, Any]:
    tags = attributes.tags(await call.settings())
    return {"Tags": tags} if tags else {}


async def _tag_queue(call: Call) -> dict[str, Any]:
    given = call.given["Tags"]

    def change(there: Settings) -> dict[str, Any]:
        attributes.checked_tags({**attributes.tags(there), **given})
        return {"labels": {**(there.labels or {}), **given}}

    await _change(call, change)
    return {}


async def _untag_queue(call: Call) -> dict[str, Any]:
    gone = {key for key in call.given["TagKeys"] if not attributes.is_own(key)}
    await _change(
        call,
        lambda there: {"labels": {name: each for name, each in (there.labels or {}).items() if name not in gone}},
    )
    return {}


async def _add_permission(call: Call) -> dict[str, Any]:
    given, arn = call.given, call.arn(call.queue)
    accounts, actions = given["AWSAccountIds"], given["Actions"]
    if not accounts or not actions:
        raise missing("Actions" if accounts else "AWSAccountIds")
    if len(actions) > _MOST_PERMITTED:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {_MOST_PERMITTED}.")
    for action in actions:
        if action != "*" and action not in ACTIONS:
            raise invalid("ActionName", f"SQS:{action[:80]}", "It is no action of this service")
    statement = {
        "Sid": given["Label"],
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{account}:root" for account in accounts])},
        "Action": _one_or_all([f"SQS:{action}" for action in actions]),
        "Resource": arn,
    }

    def change(there: Settings) -> dict[str, Any]:
        policy, statements = _policy(there)
        if any(each.get("Sid") == given["Label"] for each in statements):
            raise invalid("Label", given["Label"], "Already exists")
        document = {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", **policy}
        return _with_policy(call, there, {**document, "Statement": [*statements, statement]})

    await _change(call, change)
    return {}


def _one_or_all(texts: list[str]) -> str | list[str]:
    """As Amazon writes policies: a single value without a list."""
    return texts[0] if len(texts) == 1 else texts


async def _remove_permission(call: Call) -> dict[str, Any]:
    label = call.given["Label"]

    def change(there: Settings) -> dict[str, Any]:
        policy, statements = _policy(there)
        left = [each for each in statements if each.get("Sid") != label]
        if len(left) == len(statements):
            raise invalid("Label", label, "can't find label")
        return _with_policy(call, there, {**policy, "Statement": left} if left else None)

    await _change(call, change)
    return {}


def _policy(there: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A queue's policy, and its statements."""
    try:
        policy = jsons.loads_object(attributes.kept(there, "Policy").encode())
    except InvalidArgument:  # somebody has written the label
        policy = {}
    statements = policy.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    return policy, [each for each in statements if isinstance(each, dict)]


def _with_policy(call: Call, there: Settings, policy: dict[str, Any] | None) -> dict[str, Any]:
    text = "" if policy is None else json.dumps(policy, separators=(",", ":"))
    return attributes.changes(call.queue, {"Policy": text}, there, queue_of_arn)


# Move tasks


async def _start_message_move_task(call: Call) -> dict[str, Any]:
    given = call.given
    source = await _queue_of(call, "SourceArn")
    target = await _queue_of(call, "DestinationArn") if given.get("DestinationArn") else None
    if not any(each.settings.dead_letter == source for each in await call.run(Queues())):
        raise SqsError("InvalidParameterValueException", "Source queue must be configured as a Dead Letter Queue.")
    task = call.memory.tasks.start(source, target, given.get("MaxNumberOfMessagesPerSecond"))
    return {"TaskHandle": task.handle}


async def _list_message_move_tasks(call: Call) -> dict[str, Any]:
    source = await _queue_of(call, "SourceArn")
    tasks = call.memory.tasks.of(source)[: call.given.get("MaxResults", 1)]
    return {"Results": [task.told(call.arn) for task in tasks]}


async def _cancel_message_move_task(call: Call) -> dict[str, Any]:
    return {"ApproximateNumberOfMessagesMoved": call.memory.tasks.cancel(call.given["TaskHandle"])}


async def _queue_of(call: Call, member: str) -> str:
    """The queue whose ARN is given; SqsError if there is none."""
    queue = queue_of_arn(call.given[member])
    try:
        await call.run(Lookup(queue))
    except QueueNotFound:
        raise SqsError(
            "ResourceNotFoundException",
            f"The resource that you specified for the {member} parameter doesn't exist.",
        ) from None
    return queue


HANDLERS: dict[str, Handler] = {
    "CreateQueue": _create_queue,
    "GetQueueUrl": _get_queue_url,
    "DeleteQueue": _delete_queue,
    "ListQueues": _list_queues,
    "ListDeadLetterSourceQueues": _list_dead_letter_source_queues,
    "GetQueueAttributes": _get_queue_attributes,
    "SetQueueAttributes": _set_queue_attributes,
    "PurgeQueue": _purge_queue,
    "ListQueueTags": _list_queue_tags,
    "TagQueue": _tag_queue,
    "UntagQueue": _untag_queue,
    "AddPermission": _add_permission,
    "RemovePermission": _remove_permission,
    "StartMessageMoveTask": _start_message_move_task,
    "ListMessageMoveTasks": _list_message_move_tasks,
    "CancelMessageMoveTask": _cancel_message_move_task,
}
