"""The encoding of a batch plan: where the messages of a stream's batch are stored, sent by the store's owner.

u32 big-endian   length of the head
head             JSON: {"files": [[number, name, path], ...]}
rows             pages as records of stores/journal/records.py, back to back
"""

import struct

from penstock.contract.streams import BatchPlan
from penstock.stores.journal.records import PageImage, decode_all, encode_rows
from penstock.wire import jsons

_LENGTH = struct.Struct(">I")


def encode_plan(plan: BatchPlan) -> bytes:
    """The bytes of a plan."""
    head = jsons.dumps({"files": plan.files})
    return b"".join([_LENGTH.pack(len(head)), head, *[encode_rows(first, page) for first, page in plan.pages]])


def decode_plan(data: bytes) -> BatchPlan:
    """The plan that bytes encode; ValueError if they encode none."""
    (length,) = _LENGTH.unpack_from(data)
    files = jsons.loads_object(data[_LENGTH.size : _LENGTH.size + length])["files"]
    rows = decode_all(memoryview(data)[_LENGTH.size + length :])
    pages = [(item.first, item.page) for item in rows if isinstance(item, PageImage)]
    return BatchPlan(pages, [(int(number), str(name), str(path)) for number, name, path in files])
