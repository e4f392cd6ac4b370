"""Reads a slate store's database by OpenData-Queue's document alone."""

from collections import defaultdict
from pathlib import Path

from penstock.stores.slate import format as records
from penstock.stores.slate.doctor import rows

__all__ = ["payloads", "rows"]


def payloads(folder: Path | str) -> dict[str, dict[str, list[bytes]]]:
    """The payloads of each queue: of its active messages, of those that are done, of those that have failed."""
    kept: dict[int, bytes] = {}
    listed: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for key, value in rows(folder):
        kind, queue, number, *_ = records.parse_key(key)
        if kind == records.PAYLOAD:
            content = records.decode_payload(value)
            kept[number] = (Path(folder) / content).read_bytes() if isinstance(content, str) else content
        elif kind == records.ACTIVE:
            available, in_flight = records.decode_active(value)
            listed[queue]["active"] += [each[0] for each in (*available, *in_flight)]
        elif kind in (records.DONE, records.FAILED):
            name = "done" if kind == records.DONE else "failed"
            listed[queue][name] += [each.id for each in records.decode_settled(value)]
    return {
        queue: {name: [kept[message] for message in messages] for name, messages in lists.items()}
        for queue, lists in listed.items()
    }
