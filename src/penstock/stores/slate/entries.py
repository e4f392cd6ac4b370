"""Log entries: a message's metadata and headers, encoded and decoded. Pure.

Values that the document has no field for are in headers of our own:

    penstock.queue       the queue that the message was put into; published messages have none
    penstock.priority    other than 0
    penstock.group       the message's group; published messages have none
    penstock.expires_at  of a published message, if whole seconds of retention cannot express it
    penstock.size        of a published message's payload, as filters may ask for it
    penstock.crc32       of a payload that is an object beside the database, and in no record
    penstock.headers     the shortest headers as JSON, if there would be more than 255 with these
"""

import json
import zlib
from collections.abc import Mapping

from penstock.contract.message import MAX_HEADERS, PUBLISH_HEADER
from penstock.engine.storage import Body
from penstock.errors import StoreCorrupt
from penstock.stores.slate.format import MAX_INLINE, Metadata

QUEUE_HEADER = "penstock.queue"
PRIORITY_HEADER = "penstock.priority"
GROUP_HEADER = "penstock.group"
EXPIRES_AT_HEADER = "penstock.expires_at"
SIZE_HEADER = "penstock.size"
CHECKSUM_HEADER = "penstock.crc32"
MORE_HEADER = "penstock.headers"
OURS = {
    QUEUE_HEADER,
    PRIORITY_HEADER,
    GROUP_HEADER,
    EXPIRES_AT_HEADER,
    SIZE_HEADER,
    CHECKSUM_HEADER,
    MORE_HEADER,
}
_MAX_RETENTION = 2**32 - 1


def metadata_of_put(
    seq: int, queue: str, priority: int, body: Body, visible_at: int, expires_at: int, group: str | None = None
) -> Metadata:
    """The log entry of a message that is put into a queue."""
    own = {QUEUE_HEADER: queue}
    if priority:
        own[PRIORITY_HEADER] = str(priority)
    if group is not None:
        own[GROUP_HEADER] = group
    return _metadata(seq, body, visible_at, seconds(expires_at - body[3]) if expires_at else 0, own)


def metadata_of_published(
    seq: int, priority: int, body: Body, visible_at: int, expires_at: int | None
) -> Metadata:
    """The log entry of a published message. `expires_at` 0: never; None: by each queue's own retention."""
    own = {SIZE_HEADER: str(len(body[0]))}
    if priority:
        own[PRIORITY_HEADER] = str(priority)
    retention = seconds(expires_at - body[3]) if expires_at else 0
    if expires_at is not None and expires_at != (body[3] + 1000 * retention if retention else None):
        own[EXPIRES_AT_HEADER] = str(expires_at)
    return _metadata(seq, body, visible_at, retention, own)


def _metadata(seq: int, body: Body, visible_at: int, retention: int, own: dict[str, str]) -> Metadata:
    payload, headers, created_at, received_at = body
    if len(payload) > MAX_INLINE:
        own[CHECKSUM_HEADER] = f"{zlib.crc32(payload):08x}"
    if not headers:
        return Metadata(seq, created_at, received_at, visible_at, retention, own)
    return Metadata(seq, created_at, received_at, visible_at, retention, _fitting(headers, own))


def _fitting(headers: Mapping[str, str], own: dict[str, str]) -> dict[str, str]:
    """The message's headers and our own; the shortest are packed into one header if there are too many."""
    too_many = len(headers) + len(own) - MAX_HEADERS
    if too_many <= 0:
        return {**headers, **own}
    shortest = sorted(headers.items(), key=lambda header: len(header[0]) + len(header[1]))[: too_many + 1]
    names = {name for name, _ in shortest}
    rest = {name: value for name, value in headers.items() if name not in names}
    return {**rest, **own, MORE_HEADER: json.dumps(dict(shortest), ensure_ascii=False)}


def seconds(milliseconds: int) -> int:
    """A retention in whole seconds, rounded up."""
    return min(-(-milliseconds // 1000), _MAX_RETENTION)


def check_object(name: str, payload: bytes, checksum: str | None, what: str) -> None:
    """Compare a large payload with its log entry's checksum, if it has one; StoreCorrupt."""
    if checksum is not None and checksum != f"{zlib.crc32(payload):08x}":
        raise StoreCorrupt(f"{what} is damaged: the payload {name} has changed: restore that file from a backup")


def body_of(metadata: Metadata, payload: bytes) -> Body:
    """The message's body, as consumers get it."""
    headers = headers_of(metadata)
    if is_published(metadata):
        headers = {**headers, PUBLISH_HEADER: str(metadata.id)}
    return payload, headers, metadata.created_at, metadata.received_at


def headers_of(metadata: Metadata) -> dict[str, str]:
    """The headers that the producer gave."""
    headers = metadata.headers
    if OURS.isdisjoint(headers):
        return headers
    more = headers.get(MORE_HEADER)
    headers = {name: value for name, value in headers.items() if name not in OURS}
    if more is not None:
        headers.update(json.loads(more))
    return headers


def is_published(metadata: Metadata) -> bool:
    """Whether a message was published, not put into a queue."""
    return QUEUE_HEADER not in metadata.headers


def priority_of(metadata: Metadata) -> int:
    """The priority; 0 without a header."""
    return int(metadata.headers.get(PRIORITY_HEADER, 0))


def group_of(metadata: Metadata) -> str | None:
    """The message's group; None without one."""
    return metadata.headers.get(GROUP_HEADER)


def size_of(metadata: Metadata) -> int | None:
    """The payload size of a published message; None if another program wrote the entry."""
    size = metadata.headers.get(SIZE_HEADER)
    return None if size is None else int(size)


def expires_at_of(metadata: Metadata) -> int | None:
    """When a published message expires. 0: never; None: by each queue's own retention."""
    exactly = metadata.headers.get(EXPIRES_AT_HEADER)
    if exactly is not None:
        return int(exactly)
    return metadata.received_at + 1000 * metadata.retention if metadata.retention else None
