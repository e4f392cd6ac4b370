"""Records of the ledger, and images of a queue's state, as bytes in the tail of a commit group.

Each begins with a byte that names its kind. To change one, give it a new kind and keep reading the old. Integers
are little-endian; `column`, `texts`, `list` and `text` are as in fields.py. A message's `offset` counts from the
start of its group.

    1 put one   i64 at, u64 seq, i64 priority, i64 visible_at, i64 expires_at, u32 offset, u32 size, u32 crc32
    2 put       i64 at, u64 first, u32 count, columns as above from priority on, list of those with a key, texts
    3 claim     i64 at, i64 lease_until, u64 nonce, text consumer, list of seqs
    4 pop       i64 at, text consumer, list          5 ack       i64 at, list
    6 fail      i64 at, i64 visible_at, text, list   7 release   i64 at, list
    8 extend    i64 at, i64 lease_until, list        9 remove    i64 at, list
   10 redrive   i64 at, list
   13 restore   i64 at, u64 first, u32 count, u8 state each, columns of attempts, claimed_at, settled_at, texts
                consumers and reasons, u32 count of those with earlier attempts: u32 position, u32 length, attempts
   14 load      text name of the load that this group's messages came with, see loads.py
   27 update    i64 at, text: all settings of the queue from here on, as JSON
   29 put       as 2, then texts: the group of each message
   31 put       as 29, then text: the queue that the messages are taken from, list of their numbers there

Records of streams:

   15 begin     i64 at, text stream, text reader
   16 claim     i64 at, u64 batch, u64 nonce, text stream, list of seqs
   17 fail      i64 at, u64 batch, text stream, text reason, list of seqs
   18 replay    i64 at, u64 batch, text stream      19 settle, 20 release   likewise
   21 delete    i64 at, text stream
   24 follow    i64 at, u64 position, text stream, text reader
   25 fail      as 17, with u64 delay in milliseconds after the batch

Images, with which a packed journal or a saved index begins:

   11 page      u64 first, u32 count, column of positions, the columns of rules/rows.py (with the place as offset),
                u8 whether they follow: the columns of claims
   12 rest      u64 number of the next group, u64 next_seq, receipts, keys and attempts: a state but its pages
   22 streams   u64 number of the last batch, u32 count, each: text stream, text reader, u64 settled, u64 before,
                i64 position (-1: it does not follow), u8 whether it holds a batch, that: u64 number, i64 at, list
                of seqs, list of those to fail, texts why
   23 kept      text stream, a page as 11 or 30 has it: messages of the last batch that it has settled
   26 streams   as 22, with u64 delay of each that is to fail after the texts
   30 page      as 11, then texts: the group of each message
   32 taken     text queue, list: messages that puts have taken from another queue, and that may still be there
   28 settings  text: all settings as JSON; first of all, and only if they have changed since the queue was made
"""

import json
import operator
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from sys import intern
from typing import NamedTuple

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.rules.recent import RecentReceipts, SettledMinute
from penstock.rules.records import (
    Ack,
    Claim,
    Extend,
    Fail,
    Pop,
    Put,
    Record,
    Redrive,
    Release,
    Remove,
    Restore,
    StreamBegin,
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamFollow,
    StreamRecord,
    StreamRelease,
    StreamReplay,
    StreamSettle,
    Taken,
    Update,
)
from penstock.rules.rows import PAGE as PAGE_SIZE
from penstock.rules.rows import Page, is_constant
from penstock.rules.state import StateSnapshot
from penstock.rules.streams import Batch, Failure, Stream, StreamsSnapshot, compact
from penstock.stores.journal.fields import (
    COUNTING,
    LAST,
    MOST,
    U32,
    U64,
    Bodies,
    Reader,
    check_count,
    encode_column,
    encode_list,
    encode_text,
    encode_texts,
)

PUT_ONE = 1
_PUT, _CLAIM, _POP, _ACK, _FAIL, _RELEASE, _EXTEND, _REMOVE, _REDRIVE, _PAGE, _REST, _RESTORE, _LOAD = range(2, 15)
_BEGIN, _BATCH, _FAIL_BATCH, _REPLAY, _SETTLE, _RELEASE_BATCH, _DELETE, _STREAMS, _KEPT = range(15, 24)
_FOLLOW, _FAIL_LATER, _STREAMS_LATER, _UPDATE, _SETTINGS, _PUT_GROUPS, _PAGE_GROUPS, _PUT_TAKEN, _TAKEN = range(
    24, 33
)
PUT_ONE_FIELDS = struct.Struct("<BqQqqqIII")
_PUT_FIELDS = struct.Struct("<BqQI")
_NUMBERING = struct.Struct("<qQ")  # time and first number, after the kind of a put or a restore
_AT = struct.Struct("<Bq")
_AT_AND_TIME = struct.Struct("<Bqq")
_AT_AND_NUMBER = struct.Struct("<BqQ")
_CLAIM_FIELDS = struct.Struct("<BqqQ")
_BATCH_FIELDS = struct.Struct("<BqQQ")
_PAGE_FIELDS = struct.Struct("<BQI")
_REST_FIELDS = struct.Struct("<BQQI")
_MINUTE = struct.Struct("<qI")
_HELD = struct.Struct("<Qq")
_I64 = struct.Struct("<q")
_SIMPLE: dict[int, type[Ack] | type[Release] | type[Remove] | type[Redrive]] = {
    _ACK: Ack, _RELEASE: Release, _REMOVE: Remove, _REDRIVE: Redrive,
}  # fmt: skip
_OF_BATCHES: dict[int, type[StreamReplay] | type[StreamSettle] | type[StreamRelease]] = {
    _REPLAY: StreamReplay, _SETTLE: StreamSettle, _RELEASE_BATCH: StreamRelease,
}  # fmt: skip
_KINDS: dict[type, int] = {record: kind for kinds in (_SIMPLE, _OF_BATCHES) for kind, record in kinds.items()}
_STATES = bytes(range(1, len(STATES) + 1))
_MOST_ATTEMPTS = 2**31


class LoadName(NamedTuple):
    """The load that the messages of a group came with."""

    name: str


class PageImage(NamedTuple):
    """A page of rows."""

    first: int
    page: Page


class RestImage(NamedTuple):
    """A state without its pages, and the number of the next group."""

    snapshot: StateSnapshot
    next_group: int


class StreamsImage(NamedTuple):
    """All streams, without the messages that they keep."""

    snapshot: StreamsSnapshot


class KeptImage(NamedTuple):
    """A page of messages that a stream keeps."""

    stream: str
    first: int
    page: Page


class TakenImage(NamedTuple):
    """Messages that a put has taken from another queue."""

    taken: Taken


class SettingsImage(NamedTuple):
    """The changed settings of a queue."""

    settings: Settings


Image = PageImage | RestImage | StreamsImage | KeptImage | SettingsImage | TakenImage
Recorded = tuple[Record, Bodies | None]
Item = Recorded | Image | LoadName

# Encoding


def encode_put(record: Put, bodies: Bodies) -> bytes:
    """A put, with the places of the bodies."""
    at, first, priority, visible_at, expires_at, keys, groups, taken = record
    if len(priority) == 1 and not keys and not groups and taken is None:
        return PUT_ONE_FIELDS.pack(
            PUT_ONE, at, first, priority[0], visible_at[0], expires_at[0],
            bodies.offset[0], bodies.size[0], bodies.crc[0],
        )  # fmt: skip
    return b"".join(
        (
            _PUT_FIELDS.pack(_PUT_TAKEN if taken else _PUT_GROUPS if groups else _PUT, at, first, len(priority)),
            *[encode_column("q", column) for column in (priority, visible_at, expires_at)],
            *[encode_column("I", column) for column in bodies],
            encode_list(list(keys.values())),
            encode_texts(list(keys)) if keys else b"",
            encode_texts(groups or [None] * len(priority)) if groups or taken else b"",
            b"" if taken is None else encode_text(taken.queue) + encode_list(taken.seqs),
        )
    )


def encode_record(record: Record) -> bytes:
    """Any record but a put."""
    match record:
        case Claim(at, seqs, lease_until, consumer, nonce):
            return _CLAIM_FIELDS.pack(_CLAIM, at, lease_until, nonce) + encode_text(consumer) + encode_list(seqs)
        case Ack(at, seqs) | Release(at, seqs) | Remove(at, seqs) | Redrive(at, seqs):
            return _AT.pack(_KINDS[type(record)], at) + encode_list(seqs)
        case Pop(at, seqs, consumer):
            return _AT.pack(_POP, at) + encode_text(consumer) + encode_list(seqs)
        case Fail(at, seqs, visible_at, reason):
            return _AT_AND_TIME.pack(_FAIL, at, visible_at) + encode_text(reason) + encode_list(seqs)
        case Extend(at, seqs, lease_until):
            return _AT_AND_TIME.pack(_EXTEND, at, lease_until) + encode_list(seqs)
        case Restore():
            return _encode_restore(record)
        case Update(at, settings):
            return _AT.pack(_UPDATE, at) + _encode_settings(settings)
        case Put():
            raise TypeError("a put is encoded with encode_put()")
        case _:
            return _encode_stream_record(record)


def _encode_restore(record: Restore) -> bytes:
    at, first, states, attempts, claimed_at, settled_at, consumers, reasons, history = record
    parts = [
        _PUT_FIELDS.pack(_RESTORE, at, first, len(states)),
        states,
        encode_column("I", attempts),
        encode_column("q", claimed_at),
        encode_column("q", settled_at),
        encode_texts(consumers),
        encode_texts(reasons),
        U32.pack(len(history)),
    ]
    for seq, packed in history.items():
        parts += [U32.pack(seq - first), U32.pack(len(packed)), packed]
    return b"".join(parts)


def _encode_stream_record(record: StreamRecord) -> bytes:
    match record:
        case StreamBegin(at, stream, reader):
            return _AT.pack(_BEGIN, at) + encode_text(stream) + encode_text(reader)
        case StreamClaim(at, stream, batch, seqs, nonce):
            return _BATCH_FIELDS.pack(_BATCH, at, batch, nonce) + encode_text(stream) + encode_list(seqs)
        case StreamFail(at, stream, batch, seqs, reason, delay):
            later = delay and _BATCH_FIELDS.pack(_FAIL_LATER, at, batch, delay)
            start = later or _AT_AND_NUMBER.pack(_FAIL_BATCH, at, batch)
            return start + encode_text(stream) + encode_text(reason) + encode_list(seqs)
        case StreamReplay(at, stream, batch) | StreamSettle(at, stream, batch) | StreamRelease(at, stream, batch):
            return _AT_AND_NUMBER.pack(_KINDS[type(record)], at, batch) + encode_text(stream)
        case StreamFollow(at, stream, reader, position):
            return _AT_AND_NUMBER.pack(_FOLLOW, at, position) + encode_text(stream) + encode_text(reader)
        case StreamDelete(at, stream):
            return _AT.pack(_DELETE, at) + encode_text(stream)


def encode_load(name: str) -> bytes:
    """The name of the load that the messages of a group came with."""
    return bytes([_LOAD]) + encode_text(name)


def encode_page(
    first: int,
    page: Page,
    positions: Sequence[int],
    rows: Sequence[int],
    bodies: Bodies,
    stream: str | None = None,
) -> bytes:
    """Some rows of a page: their positions in it, their rows in its columns, and the places of their bodies.

    `stream` keeps them, if they are no messages of the queue.
    """
    whole = len(rows) == len(page.state)

    def picked(typecode: str, column: "array[int]") -> bytes:
        return encode_column(typecode, column if whole else array(typecode, [column[row] for row in rows]))

    parts = [
        b"" if stream is None else bytes([_KEPT]) + encode_text(stream),
        _PAGE_FIELDS.pack(_PAGE if page.groups is None else _PAGE_GROUPS, first, len(rows)),
        encode_column("I", positions),
        bytes(page.state) if whole else bytes(page.state[row] for row in rows),
        picked("q", page.priority),
        picked("q", page.visible_at),
        picked("q", page.expires_at),
        picked("I", page.attempts),
        encode_column("Q", bodies.offset),
        encode_column("I", bodies.size),
        encode_column("I", bodies.crc),
        bytes([page.claims is not None]),
    ]
    if page.claims is not None:
        claims = page.for_claims(rows[-1])
        parts += [
            encode_column("q", [claims.claimed_at[row] for row in rows]),
            encode_column("q", [claims.ends_at[row] for row in rows]),
            encode_column("Q", [claims.nonce[row] for row in rows]),
            encode_texts([claims.consumer[row] for row in rows]),
            encode_texts([claims.reason[row] for row in rows]),
        ]
    if page.groups is not None:
        parts.append(encode_texts([page.group(row) for row in rows]))
    return b"".join(parts)


def encode_rows(first: int, page: Page, stream: str | None = None) -> bytes:
    """The rows of a page that have a message, with their places."""
    keys = page.keys()
    rows = [row for row, state in enumerate(page.state) if state]
    if len(rows) == len(page.state):
        positions, bodies = list(keys[: len(rows)]), Bodies(page.place, page.size, page.crc)
    else:
        positions = [keys[row] for row in rows]
        bodies = Bodies(*([column[row] for row in rows] for column in (page.place, page.size, page.crc)))
    return encode_page(first, page, positions, rows, bodies, stream)


def _encode_settings(settings: Settings) -> bytes:
    return encode_text(json.dumps(settings.stored()))


def encode_settings_image(snapshot: StateSnapshot) -> bytes:
    """The settings, if they were changed; else no bytes."""
    return b"" if snapshot.settings is None else bytes([_SETTINGS]) + _encode_settings(snapshot.settings)


def encode_taken_images(snapshot: StateSnapshot) -> bytes:
    """What puts have taken from other queues, unless it has left those; else no bytes."""
    return b"".join(bytes([_TAKEN]) + encode_text(queue) + encode_list(seqs) for queue, seqs in snapshot.taken)


def encode_rest(snapshot: StateSnapshot, next_group: int) -> bytes:
    """A state without its pages, and the number of the next group."""
    minutes = [minute for minute in snapshot.receipts.dump() if minute.seqs]
    parts = [_REST_FIELDS.pack(_REST, next_group, snapshot.next_seq, len(minutes))]
    for began, seqs, nonces, outcomes in minutes:
        parts += [_MINUTE.pack(began, len(seqs)), encode_column("q", seqs), encode_column("Q", nonces), outcomes]
    parts.append(U32.pack(len(snapshot.keys)))
    if snapshot.keys:
        ends, keys, seqs = zip(*snapshot.keys, strict=True)
        parts += [encode_column("q", ends), encode_column("Q", seqs), encode_texts(keys)]
    parts.append(U32.pack(len(snapshot.history)))
    for seq, attempts in snapshot.history.items():
        parts += [U64.pack(seq), U32.pack(len(attempts)), attempts]
    return b"".join(parts)


def encode_streams(snapshot: StreamsSnapshot) -> bytes:
    """All streams of a queue, without the messages that they keep; no bytes if there never was a stream."""
    if not snapshot.last_batch and not snapshot.streams:
        return b""
    held_now = [stream.held for stream in snapshot.streams.values() if stream.held is not None]
    later = any(failure.delay for held in held_now for failure in held.failures.values())
    kind = _STREAMS_LATER if later else _STREAMS
    parts = [bytes([kind]), U64.pack(snapshot.last_batch), U32.pack(len(snapshot.streams))]
    for name, stream in snapshot.streams.items():
        parts += [encode_text(name), encode_text(stream.reader), U64.pack(stream.settled), U64.pack(stream.before)]
        held, position = stream.held, stream.position
        parts += [_I64.pack(-1 if position is None else position), bytes([held is not None])]
        if held is not None:
            failed = sorted(held.failures)
            parts += [_HELD.pack(held.number, held.at), encode_list(held.seqs), encode_list(failed)]
            parts.append(encode_texts([held.failures[seq].reason for seq in failed]) if failed else b"")
            parts += [U64.pack(held.failures[seq].delay) for seq in failed] if later else []
    return b"".join(parts)


# Decoding


def decode_all(data: memoryview, most: int = MOST) -> Iterator[Item]:
    """The records and images of a group, in order; a record has at most `most` messages."""
    reader = Reader(data, most)
    while reader.offset < len(data):
        if data[reader.offset] not in _DECODE:
            kind = data[reader.offset]
            raise ValueError(f"a record of kind {kind}: a later version of Penstock wrote it, and can read it")
        yield _DECODE[data[reader.offset]](reader)
    if reader.offset > len(data):
        raise ValueError("the last record is cut off")


def renumber(data: bytearray, at: int, first: int) -> tuple[str, list[Recorded]]:
    """Give staged records their time and numbers, in place; the name of their load, and the records."""
    load, records = "", []
    reader = Reader(memoryview(data))
    while reader.offset < len(data):
        if data[reader.offset] != _LOAD:
            _NUMBERING.pack_into(data, reader.offset + 1, at, first)
        item = _DECODE[data[reader.offset]](reader)
        if isinstance(item, LoadName):
            load = item.name
        elif not isinstance(item, Image):
            records.append(item)
    return load, records


def _decode_put_one(reader: Reader) -> Item:
    _, at, seq, priority, visible_at, expires_at, start, size, crc = reader.fields(PUT_ONE_FIELDS)
    return Put(at, seq, [priority], [visible_at], [expires_at], {}), Bodies([start], [size], [crc])


def _decode_put(reader: Reader) -> Item:
    kind, at, first, count = reader.fields(_PUT_FIELDS)
    check_count(count, reader.most)
    priority, visible_at, expires_at = [reader.column("q", count) for _ in range(3)]
    bodies = Bodies(*[reader.column("I", count) for _ in range(3)])
    keyed = reader.numbers()
    texts = reader.texts(len(keyed)) if keyed else []
    keys = {text or "": seq for text, seq in zip(texts, keyed, strict=True)}
    groups = reader.texts(count) if kind != _PUT else []
    taken = Taken(reader.name(), reader.numbers()) if kind == _PUT_TAKEN else None
    return Put(at, first, priority, visible_at, expires_at, keys, groups if any(groups) else (), taken), bodies


def _decode_claim(reader: Reader) -> Item:
    _, at, lease_until, nonce = reader.fields(_CLAIM_FIELDS)
    consumer = reader.name()
    return Claim(at, reader.numbers(), lease_until, consumer, nonce), None


def _decode_pop(reader: Reader) -> Item:
    _, at = reader.fields(_AT)
    consumer = reader.name()
    return Pop(at, reader.numbers(), consumer), None


def _decode_fail(reader: Reader) -> Item:
    _, at, visible_at = reader.fields(_AT_AND_TIME)
    reason = reader.text()
    return Fail(at, reader.numbers(), visible_at, reason), None


def _decode_extend(reader: Reader) -> Item:
    _, at, lease_until = reader.fields(_AT_AND_TIME)
    return Extend(at, reader.numbers(), lease_until), None


def _decode_simple(reader: Reader) -> Item:
    kind, at = reader.fields(_AT)
    return _SIMPLE[kind](at, reader.numbers()), None


def _decode_restore(reader: Reader) -> Item:
    _, at, first, count = reader.fields(_PUT_FIELDS)
    states = reader.raw(check_count(count, reader.most))
    attempts, claimed_at, settled_at = [reader.column(typecode, count) for typecode in "Iqq"]
    consumers, reasons = reader.texts(count), reader.texts(count)
    history: dict[int, bytes] = {}
    for _ in range(reader.u32()):
        position = reader.u32()
        history[first + position] = reader.raw(reader.u32())
    return Restore(at, first, states, attempts, claimed_at, settled_at, consumers, reasons, history), None


def _decode_update(reader: Reader) -> Item:
    _, at = reader.fields(_AT)
    return Update(at, _decode_settings(reader)), None


def _decode_taken(reader: Reader) -> TakenImage:
    reader.u8()
    return TakenImage(Taken(reader.name(), reader.numbers()))


def _decode_settings_image(reader: Reader) -> SettingsImage:
    reader.u8()
    return SettingsImage(_decode_settings(reader))


def _decode_settings(reader: Reader) -> Settings:
    try:
        return Settings(**json.loads(reader.name()))
    except RecursionError:
        raise ValueError("impossible settings") from None


def _decode_load(reader: Reader) -> Item:
    reader.u8()
    return LoadName(reader.name())


def _decode_stream_record(reader: Reader) -> Item:
    kind, at = reader.fields(_AT)
    if kind in (_BEGIN, _DELETE):
        stream = reader.name()
        return StreamDelete(at, stream) if kind == _DELETE else StreamBegin(at, stream, reader.name()), None
    batch = reader.u64()
    number = reader.u64() if kind in (_BATCH, _FAIL_LATER) else 0
    stream = reader.name()
    if kind == _BATCH:
        return StreamClaim(at, stream, batch, reader.numbers(), number), None
    if kind == _FOLLOW:
        return StreamFollow(at, stream, reader.name(), batch), None
    if kind in (_FAIL_BATCH, _FAIL_LATER):
        reason = reader.text()
        return StreamFail(at, stream, batch, reader.numbers(), reason, number), None
    return _OF_BATCHES[kind](at, stream, batch), None


def _decode_page(reader: Reader) -> PageImage:
    kind, first, count = reader.fields(_PAGE_FIELDS)
    positions = reader.column("I", check_count(count, PAGE_SIZE))
    page = Page()
    page.state = bytearray(reader.raw(count))
    page.priority, page.visible_at, page.expires_at = [reader.column("q", count) for _ in range(3)]
    page.attempts, page.place, page.size, page.crc = [reader.column(typecode, count) for typecode in "IQII"]
    page.live = count
    if reader.u8():
        claims = page.for_claims(count - 1)
        claims.claimed_at, claims.ends_at, claims.nonce = [reader.column(typecode, count) for typecode in "qqQ"]
        claims.consumer, claims.reason = reader.texts(count), reader.texts(count)
    if kind == _PAGE_GROUPS:
        page.put_into([text if text is None else intern(text) for text in reader.texts(count)], 0)
    dense = positions == COUNTING[:count]
    ascending = dense or (all(map(operator.lt, positions, positions[1:])) and positions[-1] < PAGE_SIZE)
    possible = not page.state.translate(None, _STATES)
    attempts = page.attempts[:1] if is_constant(page.attempts) else page.attempts
    possible = possible and max(attempts) < _MOST_ATTEMPTS
    if first % PAGE_SIZE or first > LAST or not ascending or not possible:
        raise ValueError("an impossible page")
    if not dense:
        page.positions = {position: row for row, position in enumerate(positions)}
    return PageImage(first, page)


def _decode_rest(reader: Reader) -> RestImage:
    def checked(count: int) -> int:
        return check_count(count, len(reader.data) - reader.offset)

    _, next_group, next_seq, minutes = reader.fields(_REST_FIELDS)
    check_count(max(next_seq, next_group), LAST)
    receipts = RecentReceipts()
    for _ in range(minutes):
        began, count = reader.fields(_MINUTE)
        seqs, nonces = reader.column("q", checked(count)), reader.column("Q", count)
        receipts.load(SettledMinute(began, seqs, nonces, reader.raw(count)))
    keys: list[tuple[int, str, int]] = []
    if count := checked(reader.u32()):
        ends, seqs, texts = reader.column("q", count), reader.column("Q", count), reader.texts(count)
        keys = [(end, text or "", seq) for end, text, seq in zip(ends, texts, seqs, strict=True)]
    history: dict[int, bytes] = {}
    for _ in range(reader.u32()):
        seq = reader.u64()
        history[seq] = reader.raw(reader.u32())
    return RestImage(StateSnapshot(next_seq, [], receipts, keys, history), next_group)


def _decode_streams(reader: Reader) -> StreamsImage:
    later = reader.u8() == _STREAMS_LATER
    last_batch, count = reader.u64(), reader.u32()
    streams: dict[str, Stream] = {}
    for _ in range(count):
        name = reader.name()
        stream = streams[name] = Stream(reader.name(), None, reader.u64(), reader.u64())
        (position,) = reader.fields(_I64)
        stream.position = None if position < 0 else position
        if reader.u8():
            number, at = reader.fields(_HELD)
            stream.held = Batch(number, at, compact(reader.numbers()))
            failed = reader.numbers()
            for seq, reason in zip(failed, reader.texts(len(failed)) if failed else (), strict=True):
                stream.held.failures[seq] = Failure(reason, reader.u64() if later else 0)
    return StreamsImage(StreamsSnapshot(last_batch, streams))


def _decode_kept(reader: Reader) -> KeptImage:
    reader.u8()
    stream = reader.name()
    return KeptImage(stream, *_decode_page(reader))


_DECODE: dict[int, Callable[[Reader], Item]] = {
    PUT_ONE: _decode_put_one,
    _PUT: _decode_put,
    _PUT_GROUPS: _decode_put,
    _PUT_TAKEN: _decode_put,
    _TAKEN: _decode_taken,
    _CLAIM: _decode_claim,
    _POP: _decode_pop,
    _FAIL: _decode_fail,
    _EXTEND: _decode_extend,
    _PAGE: _decode_page,
    _PAGE_GROUPS: _decode_page,
    _REST: _decode_rest,
    _RESTORE: _decode_restore,
    _LOAD: _decode_load,
    _STREAMS: _decode_streams,
    _STREAMS_LATER: _decode_streams,
    _KEPT: _decode_kept,
    _UPDATE: _decode_update,
    _SETTINGS: _decode_settings_image,
    **dict.fromkeys(_SIMPLE, _decode_simple),
    **dict.fromkeys([*range(_BEGIN, _STREAMS), _FOLLOW, _FAIL_LATER], _decode_stream_record),
}
