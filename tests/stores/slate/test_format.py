"""The slate store's records, byte for byte: vectors computed by hand, round trips, the order of keys, pages."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.rows import AVAILABLE, DELAYED, IN_FLIGHT, PAGE, Page, Rows
from penstock.rules.streams import Failure, picked
from penstock.stores.slate import extensions, pages
from penstock.stores.slate import format as records
from penstock.stores.slate.extensions import (
    Claimed,
    Kept,
    KeptPage,
    Marks,
    Receipt,
    Recent,
    Retained,
    Size,
    StreamRow,
)
from penstock.stores.slate.format import (
    Available,
    Config,
    InFlight,
    Key,
    Metadata,
    SeqBlock,
    Settled,
    Undecodable,
    array,
    columns,
    terminated,
    unterminated,
    utf8,
)

ids = st.integers(1, records.MAX_ID)
times = st.integers(0, 2**53)
u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
texts = st.text(max_size=40)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
buckets = st.integers(0, records.MAX_ID >> records.BUCKET_BITS)


def as_bytes(text: str) -> bytes:
    """Bytes as they are written in the documents: hexadecimal, with texts in quotes."""
    parts = text.split("'")
    return b"".join(
        part.encode() if number % 2 else bytes.fromhex(part.replace("|", " ")) for number, part in enumerate(parts)
    )


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (records.payload_key(258), "01 01 | 00 00 00 00 00 00 01 02"),
        (records.attempts_key(1), "01 05 | 00 00 00 00 00 00 00 01"),
        (records.queue_key(records.ACTIVE, "jobs"), "01 02 | 'jobs' 00"),
        (records.queue_key(records.ACTIVE, "jobs", 3), "01 02 | 'jobs' 00 | 00 00 00 00 00 00 00 03"),
        (records.queue_key(records.DONE, "a/b:~"), "01 03 | 'a/b:~' 00"),
        (records.queue_key(records.FAILED, "jobs"), "01 04 | 'jobs' 00"),
        (records.queue_key(records.CONFIG, "jobs"), "01 06 | 'jobs' 00"),
        (records.queue_key(records.SETTINGS, "jobs"), "01 07 | 'jobs' 00"),
        (
            records.log_prefix(records.LOG_KEY) + (7).to_bytes(8),
            "01 01 | 'opendata-queue/messages/metadata' 00 | 00 00 00 00 00 00 00 07",
        ),
        (records.SEQ_BLOCK_KEY, "01 02"),
        (extensions.expiry_key(256, 2), "01 0C | 00 00 00 00 00 00 01 00 | 00 00 00 00 00 00 00 02"),
        (extensions.CLOCK_KEY, "01 0D"),
        (extensions.LOG_END_KEY, "01 0E"),
        (records.queue_key(records.LOAD, "load"), "01 0F | 'load' 00"),
        (records.queue_key(records.BATCHES, "jobs"), "01 14 | 'jobs' 00"),
        (extensions.stream_key(records.STREAM, "jobs", "nightly"), "01 15 | 'jobs' 00 | 'nightly' 00"),
        (
            extensions.stream_key(records.FAILURES, "jobs", "a", 0),
            "01 16 | 'jobs' 00 | 'a' 00 | 00 00 00 00 00 00 00 00",
        ),
        (
            extensions.stream_key(records.KEPT, "jobs", "a", 258),
            "01 17 | 'jobs' 00 | 'a' 00 | 00 00 00 00 00 00 01 02",
        ),
    ],
)
def test_keys_are_these_bytes(key: bytes, expected: str) -> None:
    assert key == as_bytes(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (records.encode_payload(b"hello"), "01 | 05 00 'hello'"),
        (records.encode_uri("objects/7"), "02 | 09 00 'objects/7'"),
        (records.encode_active([], []), "00 00 | 00 00"),
        (
            records.encode_active([Available(258, 3, 1000, 0, 2)], [InFlight(1, 255, 256, 257, 65_535)]),
            "01 00 | 02 01 00 00 00 00 00 00 | 03 | E8 03 00 00 00 00 00 00 | 00 00 00 00 00 00 00 00 | 02 00 |"
            "01 00 | 01 00 00 00 00 00 00 00 | FF | 00 01 00 00 00 00 00 00 | 01 01 00 00 00 00 00 00 | FF FF",
        ),
        (records.encode_settled([]), "00 00"),
        (
            records.encode_settled([Settled(5, 1000, 1)]),
            "01 00 | 05 00 00 00 00 00 00 00 | E8 03 00 00 00 00 00 00 | 01 00",
        ),
        (records.encode_attempts(["host:1", "größe"]), "02 00 | 06 00 'host:1' | 07 00 'größe'"),
        (records.encode_config(Config("a = 'b'", 5, 60)), "07 00 'a = ' 27 'b' 27 | 05 00 | 3C 00 00 00"),
        (records.encode_config(Config(None, 0, 0)), "00 00 | 00 00 | 00 00 00 00"),
        (
            records.encode_metadata(Metadata(2, 1000, 1001, 1002, 60, {"type": "order"})),
            "02 00 00 00 00 00 00 00 | E8 03 00 00 00 00 00 00 | E9 03 00 00 00 00 00 00 |"
            "EA 03 00 00 00 00 00 00 | 3C 00 00 00 | 01 | 04 00 'type' | 05 00 'order'",
        ),
        (
            records.encode_seq_block(SeqBlock(4096, 1024)),
            "00 00 00 00 00 00 10 00 | 00 00 00 00 00 00 04 00",
        ),
        (columns(extensions.SIZE, 1, [(7,), (1024,), (1,)]), "01 00 | 07 00 00 00 00 00 00 00 | 00 04 00 00 | 01"),
        (
            extensions.encode_claims([Claimed(1, 2, 3, 4, 5, 6, "me", None, b"xy")]),
            "01 00 | 01 00 00 00 00 00 00 00 | 02 | 03 00 00 00 00 00 00 00 | 04 00 00 00 00 00 00 00 |"
            "05 00 00 00 00 00 00 00 | 06 00 00 00 00 00 00 00 | 01 02 00 'me' | 00 | 02 00 00 00 'xy'",
        ),
        (
            extensions.encode_recent(Recent(9, [Receipt(1, 2, 3)], [(4, "k")])),
            "09 00 00 00 00 00 00 00 | 01 00 | 01 00 00 00 00 00 00 00 | 02 00 00 00 00 00 00 00 | 03 |"
            "01 00 | 04 00 00 00 00 00 00 00 | 01 00 'k'",
        ),
        (extensions.encode_position(258, True), "02 01 00 00 00 00 00 00 | 01"),
        (extensions.encode_clock(258), "02 01 00 00 00 00 00 00"),
        (extensions.encode_log_end(258), "02 01 00 00 00 00 00 00"),
        (extensions.encode_last_batch(258), "02 01 00 00 00 00 00 00"),
        (
            extensions.encode_stream(StreamRow("me", 2, 1, None, None)),
            "02 00 'me' | 02 00 00 00 00 00 00 00 | 01 00 00 00 00 00 00 00 | FF FF FF FF FF FF FF FF | 00",
        ),
        (
            extensions.encode_stream(StreamRow("", 0, 0, 258, (3, 1000))),
            "00 00 | 00 00 00 00 00 00 00 00 | 00 00 00 00 00 00 00 00 | 02 01 00 00 00 00 00 00 |"
            "01 | 03 00 00 00 00 00 00 00 | E8 03 00 00 00 00 00 00",
        ),
        (
            extensions.encode_failures({7: Failure("odd"), 8: Failure(None)}),
            "02 00 | 07 00 00 00 00 00 00 00 | 01 03 00 'odd' | 08 00 00 00 00 00 00 00 | 00",
        ),
        (
            extensions.encode_failures({7: Failure("odd", 1000), 8: Failure(None)}),
            "02 00 | 07 00 00 00 00 00 00 00 | 01 03 00 'odd' | 08 00 00 00 00 00 00 00 | 00 |"
            "01 00 | 07 00 00 00 00 00 00 00 | E8 03 00 00 00 00 00 00",
        ),
        (
            extensions.encode_kept(1000, 1, [(7,), (3,), (1001,), (0,), (2,), (1024,), (1,)], [(7, "no")]),
            "E8 03 00 00 00 00 00 00 | 01 00 | 07 00 00 00 00 00 00 00 | 03 | E9 03 00 00 00 00 00 00 |"
            "00 00 00 00 00 00 00 00 | 02 00 00 00 | 00 04 00 00 | 01 |"
            "01 00 | 07 00 00 00 00 00 00 00 | 02 00 'no'",
        ),
    ],
)
def test_values_are_these_bytes(value: bytes, expected: str) -> None:
    assert value == as_bytes(expected)


def test_terminated_bytes_escape_what_would_end_them() -> None:
    assert terminated(b"\x00\x01\xffa") == as_bytes("01 01 01 02 01 03 'a' 00")


@given(st.binary(max_size=40), st.binary(max_size=9))
def test_terminated_bytes_come_back(data: bytes, rest: bytes) -> None:
    found, end = unterminated(b"??" + terminated(data) + rest, 2)
    assert (found, end) == (data, 2 + len(terminated(data)))


@given(st.lists(names, max_size=8, unique=True), st.sampled_from([records.ACTIVE, records.DONE, records.CONFIG]))
def test_the_order_of_queue_keys_is_that_of_names(queues: list[str], kind: int) -> None:
    assert sorted(queues, key=lambda name: records.queue_key(kind, name)) == sorted(queues)


@given(names, st.lists(buckets, max_size=8, unique=True))
def test_the_order_of_buckets_is_that_of_their_numbers(queue: str, numbers: list[int]) -> None:
    ordered = sorted(numbers, key=lambda number: records.queue_key(records.ACTIVE, queue, number))
    assert ordered == sorted(numbers)


@given(st.lists(ids, max_size=8, unique=True))
def test_the_order_of_messages_is_that_of_their_ids(messages: list[int]) -> None:
    log = records.log_prefix(records.LOG_KEY)
    for key in (records.payload_key, records.attempts_key, lambda each: log + each.to_bytes(8)):
        assert sorted(messages, key=key) == sorted(messages)


@given(ids, names, buckets, times, names)
def test_keys_say_what_they_are_of(message: int, queue: str, bucket: int, time: int, stream: str) -> None:
    assert records.parse_key(records.payload_key(message)) == Key(records.PAYLOAD, number=message)
    assert records.parse_key(records.attempts_key(message)) == Key(records.ATTEMPTS, number=message)
    log = records.log_prefix(records.LOG_KEY + "/news") + message.to_bytes(8)
    assert records.parse_key(log) == Key(records.LOG, records.LOG_KEY + "/news", message)
    for kind in (records.ACTIVE, records.DONE, records.FAILED, records.SIZES, records.CLAIMS, records.RECENT):
        assert records.parse_key(records.queue_key(kind, queue, bucket)) == Key(kind, queue, bucket)
    for kind in (records.CONFIG, records.SETTINGS, records.POSITION, records.BATCHES):
        assert records.parse_key(records.queue_key(kind, queue)) == Key(kind, queue)
    assert records.parse_key(extensions.expiry_key(time, message)) == Key(records.EXPIRY, "", message, time)
    assert records.parse_key(records.SEQ_BLOCK_KEY) == Key(records.SEQ_BLOCK)
    assert records.parse_key(extensions.CLOCK_KEY) == Key(records.CLOCK)
    assert records.parse_key(extensions.LOG_END_KEY) == Key(records.LOG_END)
    key = extensions.stream_key(records.STREAM, queue, stream)
    assert records.parse_key(key) == Key(records.STREAM, queue, stream=stream)
    for kind in (records.FAILURES, records.KEPT):
        key = extensions.stream_key(kind, queue, stream, bucket)
        assert records.parse_key(key) == Key(kind, queue, bucket, stream=stream)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("02 01 00 00 00 00 00 00 00 01", "of version 2"),
        ("01 7F 'x' 00", "of type 127"),
        ("01 06 'x' 00 | 00 00 00 00 00 00 00 01", "of type 6"),
        ("01 05 00 00", "of type 5"),
        ("01 02 'x'", "no end of its name"),
        ("01 02 'x' 01 09 00", "an invalid escape"),
        ("01 02 'x' 00 01", "does not end with a number"),
        ("01 13 'x' 00", "of type 19"),
        ("01 14 'x' 00 | 's' 00", "of type 20"),
        ("01 15 'x' 00 | 's' 00 | 00 00 00 00 00 00 00 01", "of type 21"),
        ("01 15 'x' 00 | 's'", "no end of its name"),
        ("01 16 'x' 00 | 's' 00", "does not end with a number"),
        ("01 17 'x' 00", "no end of its name"),
        ("01 18 'x' 00 | 00", "of type 24"),
        ("01 19 'x' 00 | 00", "does not end with a number"),
        ("01 1a 'x' 00 | 00", "of type 26"),
        ("01 1b 'x' 00", "of type 27"),
    ],
)
def test_unknown_versions_and_types_are_refused(key: str, message: str) -> None:
    with pytest.raises(StoreCorrupt, match=message):
        records.parse_key(as_bytes(key))


def test_the_largest_payload_that_a_record_holds_has_65_535_bytes() -> None:
    assert records.decode_payload(records.encode_payload(bytes(65_535))) == bytes(65_535)
    with pytest.raises(ValueError, match="at most 65535"):
        records.encode_payload(bytes(65_536))


optional = st.none() | texts
messages = st.builds(Available, ids, u8, times, times, u16)
claimed = st.builds(InFlight, ids, u8, times, times, u16)
claims = st.builds(Claimed, ids, u8, times, times, times, u64, optional, optional, st.binary(max_size=9))
receipts = st.builds(Receipt, ids, u64, u8)
kept = st.builds(Kept, ids, u8, times, times, u32, u32, u8)


def several(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=5)


def encode_kept(page: KeptPage) -> bytes:
    values = zip(*page.messages, strict=True)
    return extensions.encode_kept(page.claimed_at, len(page.messages), values, list(page.reasons.items()))


# fmt: off
VALUES: dict[str, tuple[Any, Any, st.SearchStrategy[Any], Any]] = {
    # Of each record: how it is written and read, what it may hold, and one value.
    "payload": (records.encode_payload, records.decode_payload, st.binary(max_size=300), b"x"),
    "URI": (records.encode_uri, records.decode_payload, texts, "x"),
    "active": (lambda value: records.encode_active(*value), records.decode_active,
               st.tuples(several(messages), several(claimed)), ([Available(1, 1, 1, 1, 1)], [])),
    "settled": (records.encode_settled, records.decode_settled,
                several(st.builds(Settled, ids, times, u16)), [(1, 1, 1)]),
    "attempts": (records.encode_attempts, records.decode_attempts, several(texts), ["x"]),
    "metadata": (records.encode_metadata, records.decode_metadata,
                 st.builds(Metadata, ids, times, times, times, u32, st.dictionaries(texts, texts, max_size=5)),
                 Metadata(1, 1, 1, 1, 1, {"a": "b"})),
    "config": (records.encode_config, records.decode_config,
               st.builds(Config, st.none() | st.text(min_size=1, max_size=40), u16, u32), Config("x", 1, 1)),
    "SeqBlock": (records.encode_seq_block, records.decode_seq_block,
                 st.builds(SeqBlock, u64, u64), SeqBlock(1, 1)),
    "sizes": (lambda sizes: columns(extensions.SIZE, len(sizes), zip(*sizes, strict=True)),
              extensions.decode_sizes, several(st.builds(Size, ids, u32, u8)), [Size(1, 1, 1)]),
    "claims": (extensions.encode_claims, extensions.decode_claims, several(claims),
               [Claimed(1, 1, 1, 1, 1, 1, None, "x", b"y")]),
    "recent": (extensions.encode_recent, extensions.decode_recent,
               st.builds(Recent, times, several(receipts), several(st.tuples(ids, texts))),
               Recent(1, [Receipt(1, 1, 1)], [(1, "x")])),
    "position": (lambda value: extensions.encode_position(*value), extensions.decode_position,
                 st.tuples(ids, st.booleans()), (1, False)),
    "clock": (extensions.encode_clock, extensions.decode_clock, times, 1),
    "log end": (extensions.encode_log_end, extensions.decode_log_end, u64, 1),
    "instance": (extensions.encode_instance, extensions.decode_instance, texts, "x"),
    "batches": (extensions.encode_last_batch, extensions.decode_last_batch, u64, 1),
    "stream": (extensions.encode_stream, extensions.decode_stream,
               st.builds(StreamRow, texts, u64, u64, st.none() | times, st.none() | st.tuples(u64, times)),
               StreamRow("x", 1, 1, 1, (1, 1))),
    "failures": (extensions.encode_failures, extensions.decode_failures,
                 st.dictionaries(ids, st.builds(Failure, optional, u64), max_size=5),
                 {1: Failure("x"), 2: Failure(None)}),
    "kept": (encode_kept, extensions.decode_kept,
             st.builds(KeptPage, times, several(kept), st.dictionaries(ids, texts)),
             KeptPage(1, [Kept(1, 1, 1, 1, 1, 1, 1)], {1: "x"})),
    "followed": (extensions.encode_marks, extensions.decode_marks,
                 st.builds(Marks, u64, u64, u64), Marks(1, 1, 1)),
    "held back": (extensions.encode_retained, extensions.decode_retained, st.builds(Retained, u32, u8),
                  Retained(1, 1)),
}
# fmt: on


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_what_was_written_is_read_as_it_was(name: str, data: st.DataObject) -> None:
    encode, decode, values, _ = VALUES[name]
    value = data.draw(values)
    assert decode(encode(value)) == value


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_too_short_or_too_long_is_refused(name: str) -> None:
    encode, decode, _, example = VALUES[name]
    value = encode(example)
    for damaged in (value + b"\x00", *(value[:size] for size in range(len(value)))):
        with pytest.raises(Undecodable):
            decode(damaged)


@pytest.mark.parametrize("keep_done", [None, 0, 0.5, 60, 60.5])
def test_settings_come_back(keep_done: float | None) -> None:
    made = Settings(
        keep_done=keep_done, filter="a = 'ö'", start="beginning", priorities=(1, 9), description="für alle"
    )
    config = extensions.config_of(made)
    assert config.keep_done == {None: 0, 0: 1, 0.5: 1, 60: 60, 60.5: 61}[keep_done]
    assert extensions.decode_settings(extensions.encode_settings(made), config) == made


def test_a_queue_of_another_program_has_what_the_config_says() -> None:
    assert extensions.settings_from(Config("a = 1", 3, 0)) == Settings(
        filter="a = 1", max_attempts=3, keep_done=None
    )
    assert extensions.settings_from(Config(None, 3, 9)) == Settings(max_attempts=3, keep_done=9)


def test_a_payload_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(StoreCorrupt, match="a payload of type 03; known are 01, bytes, and 02, a URI"):
        records.decode_payload(b"\x03abc")


def test_what_no_array_or_text_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 65535"):
        array([b""] * 65_536)
    with pytest.raises(ValueError, match="the most is 65535"):
        utf8("x" * 65_536)


@given(
    st.integers(1, 2**50),
    st.integers(64, 1022),
    st.tuples(st.integers(0, 255), st.integers(0, 2**42), st.integers(0, 2**42), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**42),
)
def test_a_bucket_with_one_published_message_is_written_as_any_other_but_for_its_size(
    number: int, position: int, message: tuple[int, int, int, int], now: int
) -> None:
    priority, visible_at, expires_at, size = message
    rows = Rows((number << records.BUCKET_BITS) + position)
    seq = rows.next_seq
    rows.append_one(DELAYED if visible_at > now else AVAILABLE, priority, visible_at, expires_at)
    rows.place(seq, (0,), (size,), (extensions.PUBLISHED,))
    lone = rows.lone(number)
    assert lone is not None
    written = pages.encode_lone(number, lone)
    assert written is not None
    thawed = pages.decode(number, {records.ACTIVE: written}, now)
    assert thawed is not None
    assert thawed.page.as_lone() == (*lone[:6], 0, extensions.PUBLISHED)
    page, _ = rows[seq]
    assert {records.ACTIVE: written} == pages.encode(number, page, lambda seq: b"")


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, PAGE - 1), st.tuples(u32, u8, u32, st.none() | texts), min_size=1, max_size=40),
    st.integers(0, 9),
)
def test_a_page_that_is_kept_comes_back(drawn: dict[int, tuple[int, int, int, str | None]], number: int) -> None:
    rows, first = Rows(number * PAGE), number * PAGE
    rows.append(bytes([IN_FLIGHT]) * PAGE, [7] * PAGE, [8] * PAGE, [9] * PAGE)
    for position, (size, flags, attempts, reason) in drawn.items():
        page, at = rows[first + position]
        claims = page.for_claims(at)
        page.size[at], page.crc[at], page.attempts[at] = size, flags, attempts
        claims.claimed_at[at], claims.consumer[at], claims.reason[at] = 5, "stream:s", reason
    [(_, kept)] = picked(rows, sorted(first + position for position in drawn)).pages()
    found = pages.decode_kept(pages.encode_kept(number, kept), "stream:s")
    assert content(found) == content(kept)


def content(page: Page) -> list[tuple[object, ...]]:
    keys, claims = page.keys(), page.for_claims(len(page.state) - 1)
    told_first = (page.state, page.priority, page.visible_at, page.expires_at, page.attempts, page.size, page.crc)
    told = (claims.claimed_at, claims.ends_at, claims.consumer, claims.reason)
    return [
        (keys[at], *[each[at] for each in (*told_first, *told)]) for at, state in enumerate(page.state) if state
    ]
