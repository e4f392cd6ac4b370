"""Finding messages: a page of short descriptions for people, by state and by a text that occurs in a message."""

from collections.abc import AsyncIterator
from typing import Any

from penstock.contract.message import MESSAGE_FIELDS, Message
from penstock.contract.monitoring import LOOKED_AT, PREVIEW
from penstock.contract.operations import Lookup, Messages
from penstock.wire import jsons

_MOST = 8 << 20  # bytes of payloads that one page looks at, beyond its last message
_CHUNK = 250  # messages that are asked for at a time
_TOLD = tuple(name for name in MESSAGE_FIELDS if name not in ("payload", "headers", "receipt", "queue"))


async def find(backend: Any, queue: str, state: str | None, text: str, after: str, limit: int) -> dict[str, Any]:
    """The first messages after an id, how many were looked at, and the id after which the next page begins."""
    await backend.run(Lookup(queue))
    wanted, found = text.casefold(), list[dict[str, Any]]()
    looked = size = 0
    last: str | None = None  # of the messages that were looked at
    listed: AsyncIterator[Message] = backend.listed(Messages(queue, _CHUNK, state=state, after=after))
    async for message in listed:
        if len(found) == limit or looked == LOOKED_AT or size > _MOST:
            return {"messages": found, "looked": looked, "next": last}
        looked, size, last = looked + 1, size + len(message.payload), message.id
        if not wanted or _has(message, wanted):
            found.append(_told(message))
    return {"messages": found, "looked": looked, "next": None}


def _has(message: Message, wanted: str) -> bool:
    """Whether a text occurs in a message. In payloads only the case of ASCII is ignored: they may be large."""
    texts = (
        message.id,
        message.group,
        message.consumer,
        message.reason,
        *message.headers,
        *message.headers.values(),
    )
    if any(text and wanted in text.casefold() for text in texts):
        return True
    return wanted.encode(errors="replace") in message.payload.lower()


def _told(message: Message) -> dict[str, Any]:
    preview = message.payload[:PREVIEW].decode(errors="replace")
    return {**jsons.message_as_json(message, _TOLD), "size": len(message.payload), "preview": preview}
