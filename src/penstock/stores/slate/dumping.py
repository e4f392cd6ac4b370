"""The rows of a slate store in a folder, for people: each key and value as bytes, and what it is."""

import os
import re
from collections.abc import Iterator

from penstock.stores.slate import followed, own, stream_records
from penstock.stores.slate import format as records
from penstock.stores.slate.binding import blocking, load
from penstock.stores.slate.format import parse_key

_SECONDS = 60.0
_AT_ONCE = 1_000
_TEXT = re.compile(rb"[ -~]{4,}")
NAMES = {
    records.PAYLOAD: "payload",
    records.ACTIVE: "active",
    records.DONE: "done",
    records.FAILED: "failed",
    records.ATTEMPTS: "attempts",
    records.CONFIG: "config",
    records.SETTINGS: "settings",
    records.SIZES: "sizes",
    records.CLAIMS: "claims",
    records.RECENT: "recent",
    records.POSITION: "position",
    records.EXPIRY: "expiry",
    records.CLOCK: "clock",
    records.LOG_END: "log end",
    records.INSTANCE: "instance",
    records.LOAD: "load",
    records.RUN: "run",
    records.SINK: "sink",
    records.BATCHES: "batches",
    records.STREAM: "stream",
    records.FAILURES: "failures",
    records.KEPT: "kept",
    records.FOLLOWED: "followed",
    records.HELD_BACK: "held back",
    records.LOG: "log entry",
    records.SEQ_BLOCK: "SeqBlock",
}
DECODERS = {
    records.PAYLOAD: records.decode_payload,
    records.ACTIVE: records.decode_active,
    records.DONE: records.decode_settled,
    records.FAILED: records.decode_settled,
    records.ATTEMPTS: records.decode_attempts,
    records.CONFIG: records.decode_others_config,
    records.SETTINGS: bytes.decode,
    records.SIZES: own.decode_sizes,
    records.CLAIMS: own.decode_claims,
    records.RECENT: own.decode_recent,
    records.POSITION: own.decode_position,
    records.EXPIRY: bytes,
    records.CLOCK: own.decode_clock,
    records.LOG_END: own.decode_log_end,
    records.INSTANCE: own.decode_instance,
    records.LOAD: bytes.decode,
    records.RUN: bytes.decode,
    records.SINK: bytes.decode,
    records.BATCHES: stream_records.decode_last_batch,
    records.STREAM: stream_records.decode_stream,
    records.FAILURES: stream_records.decode_failures,
    records.KEPT: stream_records.decode_kept,
    records.FOLLOWED: followed.decode_marks,
    records.HELD_BACK: followed.decode_held,
    records.LOG: records.decode_metadata,
    records.SEQ_BLOCK: records.decode_seq_block,
}


def rows(folder: str | os.PathLike[str]) -> Iterator[tuple[bytes, bytes]]:
    """Every row of the store in a folder, by a reader that changes nothing, whoever has the store open."""
    ffi = load()
    builder = ffi.ObjectStoreBuilder(ffi.ObjectStoreType.LOCAL)
    builder.with_config("local_path", os.path.abspath(folder))
    reader = blocking(ffi.DbReaderBuilder("db", builder.build()).build(), _SECONDS)
    try:
        scan = reader.scan(ffi.KeyRange(start=b"\x00", start_inclusive=True, end=b"\xff", end_inclusive=True))
        iterator = blocking(scan, _SECONDS)
        while found := blocking(iterator.next_batch(_AT_ONCE), _SECONDS):
            for row in found:
                yield row.key, row.value
    finally:
        blocking(reader.shutdown(), _SECONDS)


def dump(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Every row as three lines: what it is, its key, its value; bytes are hexadecimal, with texts in quotes."""
    for key, value in rows(folder):
        kind = parse_key(key).kind
        decoded = str(DECODERS[kind](value))  # type: ignore[operator]
        yield f"{NAMES[kind]}: {decoded if len(decoded) <= 300 else decoded[:300] + ' ...'}"
        yield f"    {readable(key)}"
        yield f"    {readable(value[:200])}{' ...' if len(value) > 200 else ''}".rstrip()


def readable(data: bytes) -> str:
    """Bytes in hexadecimal, with texts of four and more characters in quotes."""
    parts, end = [], 0
    for text in _TEXT.finditer(data):
        parts += [data[end : text.start()].hex(" "), f"'{text[0].decode()}'"]
        end = text.end()
    return " ".join(filter(None, [*parts, data[end:].hex(" ")]))
