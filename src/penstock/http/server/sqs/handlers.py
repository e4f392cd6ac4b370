"""The handlers of the actions: from a call to operations of the contract, from their results to the answer.

They decide nothing about messages: that is done by the rules of the queue.
"""

import asyncio
import base64
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from penstock.contract import names
from penstock.contract.message import Entry, Message
from penstock.contract.operations import (
    Ack,
    Attempts,
    Claim,
    Create,
    Delete,
    Extend,
    Fail,
    Lookup,
    Messages,
    OneMessage,
    Purge,
    Put,
    Queues,
    Remove,
    Show,
    Update,
)
from penstock.contract.settings import FIVE_MINUTES, Settings
from penstock.errors import LeaseExpired, PayloadTooLarge, PenstockError, QueueExists
from penstock.http.server.sqs import attributes, messages
from penstock.http.server.sqs.actions import LONGEST, MOST_ENTRIES, MOST_LISTED
from penstock.http.server.sqs.calls import Call, queue_of, queue_of_arn
from penstock.http.server.sqs.errors import SqsError, as_sqs, no_queue
from penstock.http.server.sqs.messages import FIFO
from penstock.http.server.sqs.moving import MoveTasks
from penstock.http.server.sqs.shapes import invalid

Handler = Callable[[Call], Awaitable[dict[str, Any]]]
HANDLERS: dict[str, Handler] = {}
_ENTRY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_MOST_BYTES = 16 << 20  # bytes of payloads of one answer
_AGAIN = 1_000  # received batches that are remembered by their attempt ids
_REASON = "its visibility timeout was set to 0"


class _Received(NamedTuple):
    """The messages of a receive with an attempt id."""

    until: float
    receipts: list[str]
    messages: list[tuple[str, str]]  # (id, receipt)


class Memory:
    """What a server remembers for SQS while it runs: nothing of it is needed for a message."""

    def __init__(self, backend: Any) -> None:
        self.changing = asyncio.Lock()  # labels are read and written as a whole
        self.purging: set[str] = set()
        self.received: OrderedDict[tuple[str, str], _Received] = OrderedDict()
        self.tasks = MoveTasks(backend)


def handles(name: str) -> Callable[[Handler], Handler]:
    """Make a function the handler of an action."""

    def register(handler: Handler) -> Handler:
        HANDLERS[name] = handler
        return handler

    return register


# Queues


@handles("CreateQueue")
async def create_queue(call: Call) -> dict[str, Any]:
    """An existing queue is as good as a new one if it has the attributes that are given."""
    given, name = call.given, call.given["QueueName"]
    wanted = given.get("Attributes", {})
    settings = attributes.new_settings(name, wanted, given.get("tags", {}), queue_of_arn)
    try:
        await call.run(Create(name, settings))
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


@handles("GetQueueUrl")
async def get_queue_url(call: Call) -> dict[str, Any]:
    name = call.given["QueueName"]
    if not names.is_legal(name):
        raise no_queue()
    await call.run(Lookup(name))
    return {"QueueUrl": call.url(name)}


@handles("DeleteQueue")
async def delete_queue(call: Call) -> dict[str, Any]:
    await call.run(Delete(names.deletable(call.queue)))
    return {}


@handles("ListQueues")
async def list_queues(call: Call) -> dict[str, Any]:
    prefix = call.given.get("QueueNamePrefix", "")
    return _page(
        call, "QueueUrls", [each.name for each in await call.run(Queues()) if each.name.startswith(prefix)]
    )


@handles("ListDeadLetterSourceQueues")
async def list_dead_letter_source_queues(call: Call) -> dict[str, Any]:
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


@handles("GetQueueAttributes")
async def get_queue_attributes(call: Call) -> dict[str, Any]:
    selected = attributes.selected(tuple(call.given.get("AttributeNames", ())))
    told = attributes.told(await call.run(Show(call.queue)), call.arn)
    chosen = {name: value for name, value in told.items() if name in selected}
    return {"Attributes": chosen} if chosen else {}


@handles("SetQueueAttributes")
async def set_queue_attributes(call: Call) -> dict[str, Any]:
    given = call.given["Attributes"]
    await _change(call, lambda there: attributes.changes(call.queue, given, there, queue_of_arn))
    return {}


@handles("PurgeQueue")
async def purge_queue(call: Call) -> dict[str, Any]:
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
        await call.run(Update(call.queue, change(await call.settings())))


# Tags and permissions


@handles("ListQueueTags")
async def list_queue_tags(call: Call) -> dict[str, Any]:
    tags = attributes.tags(await call.settings())
    return {"Tags": tags} if tags else {}


@handles("TagQueue")
async def tag_queue(call: Call) -> dict[str, Any]:
    given = call.given["Tags"]

    def change(there: Settings) -> dict[str, Any]:
        attributes.checked_tags({**attributes.tags(there), **given})
        return {"labels": {**(there.labels or {}), **given}}

    await _change(call, change)
    return {}


@handles("UntagQueue")
async def untag_queue(call: Call) -> dict[str, Any]:
    gone = {key for key in call.given["TagKeys"] if not attributes.is_own(key)}
    await _change(
        call,
        lambda there: {"labels": {name: each for name, each in (there.labels or {}).items() if name not in gone}},
    )
    return {}


@handles("AddPermission")
async def add_permission(call: Call) -> dict[str, Any]:
    given, arn = call.given, call.arn(call.queue)
    if len(given["Actions"]) > 7:
        raise SqsError("OverLimit", f"{len(given['Actions'])} Actions were found, maximum allowed is 7.")
    statement = {
        "Sid": given["Label"],
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in given["AWSAccountIds"]]},
        "Action": [f"SQS:{action}" for action in given["Actions"]],
        "Resource": arn,
    }

    def change(there: Settings) -> dict[str, Any]:
        policy, statements = _policy(there)
        if any(each.get("Sid") == given["Label"] for each in statements):
            raise invalid("Label", given["Label"], "Already exists")
        document = {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy", **policy}
        return _with_policy(call, there, {**document, "Statement": [*statements, statement]})

    await _change(call, change)
    return {}


@handles("RemovePermission")
async def remove_permission(call: Call) -> dict[str, Any]:
    label = call.given["Label"]

    def change(there: Settings) -> dict[str, Any]:
        policy, statements = _policy(there)
        left = [each for each in statements if each.get("Sid") != label]
        if len(left) == len(statements):
            raise invalid("Label", label, "Can't find label on existing policy")
        return _with_policy(call, there, {**policy, "Statement": left} if left else None)

    await _change(call, change)
    return {}


def _policy(there: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A queue's policy, and its statements."""
    policy: dict[str, Any] = json.loads(attributes.kept(there, "Policy") or "{}")
    statements = policy.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    return policy, [each for each in statements if isinstance(each, dict)]


def _with_policy(call: Call, there: Settings, policy: dict[str, Any] | None) -> dict[str, Any]:
    text = "" if policy is None else json.dumps(policy, separators=(",", ":"))
    return attributes.changes(call.queue, {"Policy": text}, there, queue_of_arn)


# Sending


@handles("SendMessage")
async def send_message(call: Call) -> dict[str, Any]:
    keyed = await _keying(call)
    entry, size, answer = _drafted(call, call.given, keyed)
    if size > LONGEST:
        raise messages.too_long()
    [sent] = await call.run(Put(call.queue, [entry]))
    return {**answer, **await _sent(call, sent)}


@handles("SendMessageBatch")
async def send_message_batch(call: Call) -> dict[str, Any]:
    """One durable step for the entries that are valid."""
    batch, keyed = _checked_batch(call, "SendMessage"), await _keying(call)
    most, total = call.backend.max_payload(call.queue), 0
    drafted: list[tuple[str, Entry, dict[str, Any]]] = []
    failed: list[dict[str, Any]] = []
    for name, given in batch:
        try:
            if isinstance(given, SqsError):
                raise given
            entry, size, answer = _drafted(call, given, keyed)
            total += size
            if len(entry.payload) > most:
                raise messages.too_long()
            drafted.append((name, entry, answer))
        except SqsError as error:
            failed.append(_failed(name, error))
    if total > LONGEST:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {LONGEST} bytes. You have sent {total} bytes.",
        )
    if not drafted:
        await call.settings()  # QueueNotFound
    successful: list[dict[str, Any]] = []
    try:
        ids: list[str] = []
        if drafted:
            ids = await call.run(Put(call.queue, [entry for _, entry, _ in drafted]))
    except PayloadTooLarge:  # of a store whose settings are not in memory: each entry by itself
        ids = []
        for name, entry, _ in list(drafted):
            try:
                [sent] = await call.run(Put(call.queue, [entry]))
                ids.append(sent)
            except PayloadTooLarge as error:
                failed.append(_failed(name, as_sqs(error)))
                drafted = [each for each in drafted if each[0] != name]
    for (name, _, answer), sent in zip(drafted, ids, strict=True):
        successful.append({"Id": name, **answer, **await _sent(call, sent)})
    return {"Successful": successful, "Failed": failed}


class _Keying(NamedTuple):
    """How messages of a FIFO queue get their keys."""

    by_content: bool
    by_group: bool


async def _keying(call: Call) -> _Keying | None:
    """None for a queue that is not FIFO."""
    if not call.queue.endswith(FIFO):
        return None
    settings = await call.settings()
    return _Keying(
        attributes.kept(settings, "ContentBasedDeduplication") == "true",
        attributes.kept(settings, "DeduplicationScope") == "messageGroup",
    )


def _drafted(call: Call, given: dict[str, Any], keyed: _Keying | None) -> tuple[Entry, int, dict[str, Any]]:
    """The message of a request, the bytes that count for limits, and the first members of the answer; SqsError."""
    payload = messages.payload_of(given["MessageBody"])
    sent = messages.sent(given, keyed is not None)
    key = group = None
    delay: int | None = given.get("DelaySeconds")
    if keyed is None:
        if "MessageDeduplicationId" in given:
            raise _not_for(given["MessageDeduplicationId"], "MessageDeduplicationId")
    else:
        if "MessageGroupId" not in given:
            raise SqsError("MissingParameterException", "The request must contain the parameter MessageGroupId.")
        if delay:
            raise _not_for(delay, "DelaySeconds")
        delay, group = None, given["MessageGroupId"]
        key = messages.key_of(given, payload, *keyed)
    answer = {"MD5OfMessageBody": messages.md5_of(payload), **sent.sums}
    entry = Entry(payload, headers=sent.headers, delay=delay, key=key, group=group)
    return entry, len(payload) + sent.size, answer


def _not_for(value: object, name: str) -> SqsError:
    return invalid(name, value, "The request include parameter that is not valid for this queue type")


async def _sent(call: Call, sent: str) -> dict[str, Any]:
    """The id of a message that was sent; its number in a FIFO queue."""
    if not call.queue.endswith(FIFO):
        return {"MessageId": sent}
    at = 0
    if not messages.is_ordered(sent):
        message = await call.run(OneMessage(call.queue, sent))
        at = 0 if message is None else message.received_at
    return {"MessageId": sent, "SequenceNumber": messages.sequence(sent, at)}


# Receiving


@handles("ReceiveMessage")
async def receive_message(call: Call) -> dict[str, Any]:
    given, queue = call.given, call.queue
    wanted = messages.wanted(
        [*given.get("AttributeNames", ()), *given.get("MessageSystemAttributeNames", ())],
        given.get("MessageAttributeNames", ()),
    )
    wait, lease = given.get("WaitTimeSeconds"), given.get("VisibilityTimeout")
    if wait is None:
        wait = int(attributes.kept(await call.settings(), "ReceiveMessageWaitTimeSeconds", "0"))
    if lease is not None:
        lease = lease or attributes.MOMENT
    again = given.get("ReceiveRequestAttemptId") if queue.endswith(FIFO) else None
    taken = None if again is None else await _received_before(call, again, lease)
    if taken is None:
        count = given.get("MaxNumberOfMessages", 1)
        taken = await call.run(Claim(queue, count, lease, wait, call.request.peer, _MOST_BYTES))
        if again is not None and taken:
            _remember(call, again, taken)
    if not taken:
        return {}
    arn = call.arn(queue)
    firsts = await _first_claims(call, taken) if "ApproximateFirstReceiveTimestamp" in wanted.system else {}
    return {"Messages": [messages.as_sqs(message, wanted, arn, firsts.get(message.id)) for message in taken]}


async def _first_claims(call: Call, taken: Sequence[Message]) -> dict[str, int]:
    """When messages that came back were first claimed, by id."""
    firsts = {}
    for message in taken:
        if message.attempts > 1:
            made = await call.run(Attempts(call.queue, message.id))
            firsts[message.id] = min((each.claimed_at for each in made), default=message.claimed_at or 0)
    return firsts


def _remember(call: Call, again: str, taken: Sequence[Message]) -> None:
    received = call.memory.received
    now = asyncio.get_running_loop().time()
    given = [(message.id, message.receipt or "") for message in taken]
    received[call.queue, again] = _Received(now + FIVE_MINUTES / 1000, [receipt for _, receipt in given], given)
    while len(received) > _AGAIN or (received and next(iter(received.values())).until < now):
        received.popitem(last=False)


async def _received_before(call: Call, again: str, lease: float | None) -> list[Message] | None:
    """The messages of an earlier receive with the same attempt id, if all are held; their leases begin anew."""
    before = call.memory.received.get((call.queue, again))
    if before is None or before.until < asyncio.get_running_loop().time():
        return None
    held = await call.run(Extend(call.queue, before.receipts, lease))
    found: list[Message] = []
    for each, receipt in before.messages:
        message = await call.run(OneMessage(call.queue, each))
        if held.lost or message is None:
            del call.memory.received[call.queue, again]
            return None
        message.receipt = receipt
        found.append(message)
    return found


# Settling


@handles("DeleteMessage")
async def delete_message(call: Call) -> dict[str, Any]:
    handle = messages.parsed(call.given["ReceiptHandle"], call.queue)
    errors = await _delete(call, [handle])
    if handle in errors:
        raise errors[handle]
    return {}


@handles("DeleteMessageBatch")
async def delete_message_batch(call: Call) -> dict[str, Any]:
    return await _each(call, "DeleteMessage", lambda given: (), lambda handles, given: _delete(call, handles))


@handles("ChangeMessageVisibility")
async def change_message_visibility(call: Call) -> dict[str, Any]:
    handle = messages.parsed(call.given["ReceiptHandle"], call.queue)
    errors = await _hold(call, [handle], call.given["VisibilityTimeout"])
    if handle in errors:
        raise errors[handle]
    return {}


@handles("ChangeMessageVisibilityBatch")
async def change_message_visibility_batch(call: Call) -> dict[str, Any]:
    return await _each(
        call,
        "ChangeMessageVisibility",
        lambda given: given.get("VisibilityTimeout"),
        lambda handles, seconds: _hold(call, handles, seconds),
    )


_Errors = dict[messages.Handle, SqsError]


async def _each(
    call: Call,
    action: str,
    kind: Callable[[dict[str, Any]], Any],
    settle: Callable[[list[messages.Handle], Any], Awaitable[_Errors]],
) -> dict[str, Any]:
    """Settle the entries of a batch, those of a kind together."""
    failed: list[dict[str, Any]] = []
    parts: dict[Any, dict[str, messages.Handle]] = {}
    for name, given in _checked_batch(call, action):
        try:
            if isinstance(given, SqsError):
                raise given
            parts.setdefault(kind(given), {})[name] = messages.parsed(given["ReceiptHandle"], call.queue)
        except SqsError as error:
            failed.append(_failed(name, error))
    if not parts:
        await call.settings()  # QueueNotFound
    successful = []
    for each, named in parts.items():
        errors = await settle(list(named.values()), each)
        for name, handle in named.items():
            if handle in errors:
                failed.append(_failed(name, errors[handle]))
            else:
                successful.append({"Id": name})
    return {"Successful": successful, "Failed": failed}


async def _delete(call: Call, handles: Sequence[messages.Handle]) -> _Errors:
    """Acknowledge messages. As on AWS, a message that nobody else has received since is deleted also late."""
    try:
        await call.run(Ack(call.queue, [handle.receipt for handle in handles]))
        return {}
    except LeaseExpired as error:
        lost = set(error.receipts)
    errors: _Errors = {}
    for handle in handles:
        if handle.receipt not in lost:
            continue
        message = await call.run(OneMessage(call.queue, handle.id))
        if message is None or message.state == "done":
            continue
        if call.queue.endswith(FIFO):
            errors[handle] = _expired(handle)
        elif message.attempts == handle.attempt and message.state != "in_flight":
            await call.run(Remove(call.queue, [handle.id]))
    return errors


async def _hold(call: Call, handles: Sequence[messages.Handle], seconds: int | None) -> _Errors:
    """Extend the leases of messages; 0 seconds: give them back."""
    receipts = [handle.receipt for handle in handles]
    if seconds == 0:
        try:
            await call.run(Fail(call.queue, receipts, 0, _REASON))
            lost = set()
        except LeaseExpired as error:
            lost = set(error.receipts)
    else:
        lost = set((await call.run(Extend(call.queue, receipts, seconds))).lost)
    errors: _Errors = {}
    for handle in handles:
        if handle.receipt in lost:
            message = await call.run(OneMessage(call.queue, handle.id))
            if message is None or message.state == "done":
                errors[handle] = invalid(
                    "ReceiptHandle",
                    handle.receipt,
                    "Message does not exist or is not available for visibility timeout change",
                )
            elif message.state == "in_flight" or call.queue.endswith(FIFO):
                errors[handle] = _expired(handle)
            else:
                errors[handle] = SqsError("MessageNotInflight", "The message referred to isn't in flight.")
    return errors


def _expired(handle: messages.Handle) -> SqsError:
    return invalid("ReceiptHandle", handle.receipt, "The receipt handle has expired")


# Batches


def _checked_batch(call: Call, action: str) -> list[tuple[str, Any]]:
    """The entries of a batch by their ids: members, or why one is refused; SqsError if all are."""
    entries: list[tuple[str, Any]] = call.given["Entries"]
    if not entries:
        raise SqsError(
            "EmptyBatchRequest", f"There should be at least one {action}BatchRequestEntry in the request."
        )
    if len(entries) > MOST_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MOST_ENTRIES}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for name, _ in entries:
        if not _ENTRY.fullmatch(name):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at "
                "most 80 letters long.",
            )
        if name in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {name} repeated.")
        seen.add(name)
    return entries


def _failed(name: str, error: SqsError) -> dict[str, Any]:
    """An entry of a batch that failed."""
    return {"Id": name, "SenderFault": error.fault.of_sender, "Code": error.fault.code, "Message": error.message}


# Move tasks


@handles("StartMessageMoveTask")
async def start_message_move_task(call: Call) -> dict[str, Any]:
    given = call.given
    source = await _queue_there(call, given["SourceArn"])
    target = await _queue_there(call, given["DestinationArn"]) if given.get("DestinationArn") else None
    if not any(each.settings.dead_letter == source for each in await call.run(Queues())):
        raise invalid("SourceArn", given["SourceArn"], "Source queue must be configured as a Dead Letter Queue")
    task = call.memory.tasks.start(source, target, given.get("MaxNumberOfMessagesPerSecond"))
    return {"TaskHandle": task.handle}


@handles("ListMessageMoveTasks")
async def list_message_move_tasks(call: Call) -> dict[str, Any]:
    source = await _queue_there(call, call.given["SourceArn"])
    tasks = call.memory.tasks.of(source)[: call.given.get("MaxResults", 1)]
    return {"Results": [task.told(call.arn) for task in tasks]}


@handles("CancelMessageMoveTask")
async def cancel_message_move_task(call: Call) -> dict[str, Any]:
    return {"ApproximateNumberOfMessagesMoved": call.memory.tasks.cancel(call.given["TaskHandle"])}


async def _queue_there(call: Call, arn: str) -> str:
    """The queue of an ARN; SqsError if there is none."""
    queue = queue_of_arn(arn)
    try:
        await call.run(Lookup(queue))
    except PenstockError:
        raise SqsError(
            "ResourceNotFoundException",
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ) from None
    return queue


__all__ = ["HANDLERS", "Memory", "queue_of"]
