"""A message as its log entry and its payload record, and back. Pure.

What the document has no field for rides in headers of our own: the queue that a message was put into (one that was
published has none), a priority other than 0, of published ones the size, which filters may ask for, and when
exactly they expire if whole seconds do not say; the checksum of a payload that is an object beside the database,
which no record covers; and headers that would be more than 255 with these.
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
EXPIRES_AT_HEADER = "penstock.expires_at"
SIZE_HEADER = "penstock.size"
CHECKSUM_HEADER = "penstock.crc32"
MORE_HEADER = "penstock.headers"
OURS = {QUEUE_HEADER, PRIORITY_HEADER, EXPIRES_AT_HEADER, SIZE_HEADER, CHECKSUM_HEADER, MORE_HEADER}
_MAX_RETENTION = 2**32 - 1


def metadata_of_put(seq: int, queue: str, priority: int, body: Body, visible_at: int, expires_at: int) -> Metadata:
    """What the log says of a message that was put into a queue."""
    own = {QUEUE_HEADER: queue}
    if priority:
        own[PRIORITY_HEADER] = str(priority)
    return _metadata(seq, body, visible_at, seconds(expires_at - body[3]) if expires_at else 0, own)


def metadata_of_published(
    seq: int, priority: int, body: Body, visible_at: int, expires_at: int | None
) -> Metadata:
    """What the log says of a message that was published; None: each queue's own retention counts."""
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
    """All headers, the shortest of them in one if they are too many."""
    too_many = len(headers) + len(own) - MAX_HEADERS
    if too_many <= 0:
        return {**headers, **own}
    shortest = sorted(headers.items(), key=lambda header: len(header[0]) + len(header[1]))[: too_many + 1]
    names = {name for name, _ in shortest}
    rest = {name: value for name, value in headers.items() if name not in names}
    return {**rest, **own, MORE_HEADER: json.dumps(dict(shortest), ensure_ascii=False)}


def seconds(milliseconds: int) -> int:
    """A retention in whole seconds, none of them too few."""
    return min(-(-milliseconds // 1000), _MAX_RETENTION)


def check_object(name: str, payload: bytes, checksum: str | None, what: str) -> None:
    """Compare a payload with what the log says; StoreCorrupt. Versions before this one said nothing."""
    if checksum is not None and checksum != f"{zlib.crc32(payload):08x}":
        raise StoreCorrupt(f"{what} is damaged: the payload {name} has changed: put that file back from a backup")


def body_of(metadata: Metadata, payload: bytes) -> Body:
    """What consumers see of a message, beside what its queue knows."""
    headers = headers_of(metadata)
    if is_published(metadata):
        headers = {**headers, PUBLISH_HEADER: str(metadata.id)}
    return payload, headers, metadata.created_at, metadata.received_at


def headers_of(metadata: Metadata) -> dict[str, str]:
    """The headers that a message was given."""
    headers = metadata.headers
    if OURS.isdisjoint(headers):
        return headers
    more = headers.get(MORE_HEADER)
    headers = {name: value for name, value in headers.items() if name not in OURS}
    if more is not None:
        headers.update(json.loads(more))
    return headers


def is_published(metadata: Metadata) -> bool:
    """Whether a message was published, and not put into one queue."""
    return QUEUE_HEADER not in metadata.headers


def priority_of(metadata: Metadata) -> int:
    """A message's priority."""
    return int(metadata.headers.get(PRIORITY_HEADER, 0))


def size_of(metadata: Metadata) -> int | None:
    """How long the payload of a published message is, if the log says so."""
    size = metadata.headers.get(SIZE_HEADER)
    return None if size is None else int(size)


def expires_at_of(metadata: Metadata) -> int | None:
    """When a published message expires, 0 if never; None: that is for each queue to say."""
    exactly = metadata.headers.get(EXPIRES_AT_HEADER)
    if exactly is not None:
        return int(exactly)
    return metadata.received_at + 1000 * metadata.retention if metadata.retention else None
