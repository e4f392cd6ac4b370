"""Handlers of the actions on messages: send, receive, settle.

From a call to operations of the contract, from their results to the answer. The rules of a queue decide what
happens to its messages.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.contract.message import Entry, Message, Plain
from penstock.contract.operations import Ack, Attempts, Claim, Extend, Fail, OneMessage, Put, Release, Remove
from penstock.errors import LeaseExpired, PayloadTooLarge, PenstockError
from penstock.http.server.sqs import attributes, messages
from penstock.http.server.sqs.actions import LONGEST, LONGEST_LEASE, MOST_ENTRIES
from penstock.http.server.sqs.calls import Call, Handler
from penstock.http.server.sqs.errors import SqsError, as_sqs
from penstock.http.server.sqs.messages import FIFO
from penstock.http.server.sqs.shapes import invalid, is_plain, missing

_ENTRY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_MOST_BYTES = 16 << 20  # bytes of payloads of one answer
_REASON = "its visibility timeout was set to 0"


# Sending


class _Keying(NamedTuple):
    """How messages of a FIFO queue get their keys."""

    by_content: bool
    by_group: bool


async def _send_message(call: Call) -> dict[str, Any]:
    keyed = await _keying(call)
    entry, size, answer = _drafted(call.given, keyed)
    messages.check_size(size, call.backend.max_payload(call.queue))
    [sent] = await call.run(Put(call.queue, [entry]))
    return {**answer, **await _sent(call, sent)}


async def _send_message_batch(call: Call) -> dict[str, Any]:
    """One durable step for the entries that are valid."""
    batch, keyed = _checked_batch(call, "SendMessage"), await _keying(call)
    most, total = call.backend.max_payload(call.queue), 0
    if keyed is not None:
        _check_fifo(batch, keyed)
    elif payloads := _payloads(batch, most, call.is_unescaped):
        with suppress(PayloadTooLarge):  # of a store whose settings are not in memory: see below
            ids = await call.run(Put(call.queue, Plain(payloads)))
            return {
                "Successful": [
                    {"Id": name, "MD5OfMessageBody": messages.md5_of(payload), "MessageId": sent}
                    for (name, _), payload, sent in zip(batch, payloads, ids, strict=True)
                ],
                "Failed": [],
            }
    drafted: list[tuple[str, Entry, dict[str, Any]]] = []
    failed: list[dict[str, Any]] = []
    for name, given in batch:
        try:
            if isinstance(given, SqsError):
                raise given
            entry, size, answer = _drafted(given, keyed)
            total += size
            messages.check_size(size, most)
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
    ids = []
    try:
        if drafted:
            ids = await call.run(Put(call.queue, [entry for _, entry, _ in drafted]))
    except PayloadTooLarge:  # of a store whose settings are not in memory: each entry by itself
        ids = []
        for name, entry, _ in list(drafted):
            try:
                [sent] = await call.run(Put(call.queue, [entry]))
                ids.append(sent)
            except PenstockError as error:
                failed.append(_failed(name, as_sqs(error)))
                drafted = [each for each in drafted if each[0] != name]
    for (name, _, answer), sent in zip(drafted, ids, strict=True):
        more = {"MessageId": sent} if keyed is None else await _sent(call, sent)
        successful.append({"Id": name, **answer, **more})
    return {"Successful": successful, "Failed": failed}


def _check_fifo(batch: list[tuple[str, Any]], keyed: _Keying) -> None:
    """Refuse the whole batch, as Amazon does, if an entry has no group or no key."""
    for _, given in batch:
        if isinstance(given, dict):
            if "MessageGroupId" not in given:
                raise SqsError("InvalidParameterValueException", missing("MessageGroupId").message)
            messages.check_key(given, keyed.by_content)


def _payloads(batch: list[tuple[str, Any]], most: int, unescaped: bool) -> list[bytes] | None:
    """The payloads of a batch whose entries have nothing but bodies that are right; they are checked together."""
    bodies: list[str] = [given["MessageBody"] for _, given in batch if isinstance(given, dict) and len(given) == 2]
    if len(bodies) < len(batch) or not (unescaped or is_plain("".join(bodies))):
        return None
    payloads = [body.encode() for body in bodies]
    sizes = list(map(len, payloads))
    return payloads if max(sizes) <= most and sum(sizes) <= LONGEST else None


async def _keying(call: Call) -> _Keying | None:
    """None for a queue that is not FIFO."""
    if not call.queue.endswith(FIFO):
        return None
    settings = await call.settings()
    return _Keying(
        attributes.kept(settings, "ContentBasedDeduplication") == "true",
        attributes.kept(settings, "DeduplicationScope") == "messageGroup",
    )


def _drafted(given: dict[str, Any], keyed: _Keying | None) -> tuple[Entry, int, dict[str, Any]]:
    """The message of a request, the bytes that count for limits, and the first members of the answer; SqsError."""
    payload = messages.payload_of(given["MessageBody"])
    if keyed is None and len(given) == 2:  # a body, and the queue's URL or the entry's id
        return Entry(payload), len(payload), {"MD5OfMessageBody": messages.md5_of(payload)}
    sent = messages.sent(given, keyed is not None)
    key = group = None
    delay: int | None = given.get("DelaySeconds")
    if keyed is None:
        if "MessageDeduplicationId" in given:
            raise _not_for(given["MessageDeduplicationId"], "MessageDeduplicationId")
    else:
        if "MessageGroupId" not in given:
            raise missing("MessageGroupId")
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


async def _receive_message(call: Call) -> dict[str, Any]:
    given, queue = call.given, call.queue
    wanted = messages.wanted(
        [*given.get("AttributeNames", ()), *given.get("MessageSystemAttributeNames", ())],
        given.get("MessageAttributeNames", ()),
    )
    wait, lease = given.get("WaitTimeSeconds"), given.get("VisibilityTimeout")
    if wait is None:
        wait = attributes.wait_of(await call.settings())
    if lease is not None:
        lease = lease or attributes.MOMENT
    again = given.get("ReceiveRequestAttemptId") if queue.endswith(FIFO) else None
    taken = None if again is None else await _received_before(call, again, lease)
    if taken is None:
        count = given.get("MaxNumberOfMessages", 1)
        taken = await call.run(Claim(queue, count, lease, wait, call.request.peer, _MOST_BYTES))
        if again is not None and taken:
            call.memory.remember(queue, again, taken)
    if not taken:
        return {}
    arn, firsts = call.arn(queue) if wanted.system else "", {}
    if "ApproximateFirstReceiveTimestamp" in wanted.system:
        try:
            firsts = await _first_claims(call, taken)
        except asyncio.CancelledError:  # the client has gone
            call.memory.give_back(Release(queue, [message.receipt or "" for message in taken]))
            raise
    return {"Messages": [messages.as_sqs(message, wanted, arn, firsts.get(message.id)) for message in taken]}


async def _first_claims(call: Call, taken: Sequence[Message]) -> dict[str, int]:
    """When messages that came back were first claimed, by id."""
    firsts = {}
    for message in taken:
        if message.attempts > 1:
            made = await call.run(Attempts(call.queue, message.id))
            firsts[message.id] = min((each.claimed_at for each in made), default=message.claimed_at or 0)
    return firsts


async def _received_before(call: Call, again: str, lease: float | None) -> list[Message] | None:
    """The messages of an earlier receive with the same attempt id, if all are held; their leases begin anew."""
    before = call.memory.recall(call.queue, again)
    if before is None:
        return None
    held = await call.run(Extend(call.queue, [each.receipt for each in before], lease))
    found: list[Message] = []
    for each in before:
        message = await call.run(OneMessage(call.queue, each.id))
        if held.lost or message is None:
            return None
        message.receipt = each.receipt
        found.append(message)
    return found


# Settling


async def _delete_message(call: Call) -> dict[str, Any]:
    handle = messages.parsed(call.given["ReceiptHandle"], call.queue)
    errors = await _delete(call, [handle])
    if handle in errors:
        raise errors[handle]
    return {}


async def _delete_message_batch(call: Call) -> dict[str, Any]:
    return await _each(call, "DeleteMessage", lambda given: (), lambda handles, given: _delete(call, handles))


async def _change_message_visibility(call: Call) -> dict[str, Any]:
    handle = messages.parsed(call.given["ReceiptHandle"], call.queue)
    errors = await _hold(call, [handle], call.given["VisibilityTimeout"])
    if handle in errors:
        raise errors[handle]
    return {}


async def _change_message_visibility_batch(call: Call) -> dict[str, Any]:
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
    errors: _Errors = {}
    if seconds:
        errors = {handle: _beyond(seconds) for handle in handles if await _is_beyond(call, handle, seconds)}
    receipts, lost = [handle.receipt for handle in handles if handle not in errors], set[str]()
    if seconds == 0:
        try:
            await call.run(Fail(call.queue, receipts, 0, _REASON))
        except LeaseExpired as error:
            lost = set(error.receipts)
    elif receipts:
        lost = set((await call.run(Extend(call.queue, receipts, seconds))).lost)
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


async def _is_beyond(call: Call, handle: messages.Handle, seconds: int) -> bool:
    """Whether a message would be held for more than twelve hours since it was received."""
    message = await call.run(OneMessage(call.queue, handle.id))
    if message is None or message.claimed_at is None or message.attempts != handle.attempt:
        return False
    held = int(time.time() * 1000 - message.claimed_at) // 1000
    return held + seconds > LONGEST_LEASE


def _beyond(seconds: int) -> SqsError:
    reason = f"Total VisibilityTimeout for the message is beyond the limit [{LONGEST_LEASE} seconds]"
    return invalid("VisibilityTimeout", seconds, reason)


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


HANDLERS: dict[str, Handler] = {
    "SendMessage": _send_message,
    "SendMessageBatch": _send_message_batch,
    "ReceiveMessage": _receive_message,
    "DeleteMessage": _delete_message,
    "DeleteMessageBatch": _delete_message_batch,
    "ChangeMessageVisibility": _change_message_visibility,
    "ChangeMessageVisibilityBatch": _change_message_visibility_batch,
}
