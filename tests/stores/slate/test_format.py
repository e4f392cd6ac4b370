"""The slate store's records, byte for byte: vectors computed by hand, round trips, and the order of keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract.settings import Settings
from penstock.errors import StoreCorrupt
from penstock.rules.rows import AVAILABLE, DELAYED, Rows
from penstock.stores.slate import extensions
from penstock.stores.slate import format as records
from penstock.stores.slate import pages as bucket_records
from penstock.stores.slate.extensions import Claimed, Receipt, Recent, Size
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


@given(ids, names, buckets, times)
def test_keys_say_what_they_are_of(message: int, queue: str, bucket: int, time: int) -> None:
    assert records.parse_key(records.payload_key(message)) == Key(records.PAYLOAD, number=message)
    assert records.parse_key(records.attempts_key(message)) == Key(records.ATTEMPTS, number=message)
    log = records.log_prefix(records.LOG_KEY + "/news") + message.to_bytes(8)
    assert records.parse_key(log) == Key(records.LOG, records.LOG_KEY + "/news", message)
    for kind in (records.ACTIVE, records.DONE, records.FAILED, records.SIZES, records.CLAIMS, records.RECENT):
        assert records.parse_key(records.queue_key(kind, queue, bucket)) == Key(kind, queue, bucket)
    for kind in (records.CONFIG, records.SETTINGS, records.POSITION):
        assert records.parse_key(records.queue_key(kind, queue)) == Key(kind, queue)
    assert records.parse_key(extensions.expiry_key(time, message)) == Key(records.EXPIRY, "", message, time)
    assert records.parse_key(records.SEQ_BLOCK_KEY) == Key(records.SEQ_BLOCK)
    assert records.parse_key(extensions.CLOCK_KEY) == Key(records.CLOCK)
    assert records.parse_key(extensions.LOG_END_KEY) == Key(records.LOG_END)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("02 01 00 00 00 00 00 00 00 01", "of version 2"),
        ("01 7F 'x' 00", "of type 127"),
        ("01 06 'x' 00 | 00 00 00 00 00 00 00 01", "of type 6"),
        ("01 05 00 00", "of type 5"),
        ("01 02 'x'", "no end of its name"),
        ("01 02 'x' 01 09 00", "an escape that is none"),
        ("01 02 'x' 00 01", "does not end with a number"),
    ],
)
def test_unknown_versions_and_types_are_refused(key: str, message: str) -> None:
    with pytest.raises(StoreCorrupt, match=message):
        records.parse_key(as_bytes(key))


@given(st.binary(max_size=300))
def test_a_payload_comes_back(payload: bytes) -> None:
    assert records.decode_payload(records.encode_payload(payload)) == payload


@given(texts)
def test_a_uri_comes_back(uri: str) -> None:
    assert records.decode_payload(records.encode_uri(uri)) == uri


def test_the_largest_payload_that_a_record_holds_has_65_535_bytes() -> None:
    assert records.decode_payload(records.encode_payload(bytes(65_535))) == bytes(65_535)
    with pytest.raises(ValueError, match="at most 65535"):
        records.encode_payload(bytes(65_536))


entries = st.builds(Available, ids, u8, times, times, u16)
claimed = st.builds(InFlight, ids, u8, times, times, u16)


@given(st.lists(entries, max_size=5), st.lists(claimed, max_size=5))
def test_active_messages_come_back(available: list[Available], in_flight: list[InFlight]) -> None:
    assert records.decode_active(records.encode_active(available, in_flight)) == (available, in_flight)


@given(st.lists(st.builds(Settled, ids, times, u16), max_size=5))
def test_settled_messages_come_back(settled: list[Settled]) -> None:
    assert records.decode_settled(records.encode_settled(settled)) == settled


@given(st.lists(texts, max_size=5))
def test_attempts_come_back(consumers: list[str]) -> None:
    assert records.decode_attempts(records.encode_attempts(consumers)) == consumers


@given(st.builds(Metadata, ids, times, times, times, u32, st.dictionaries(texts, texts, max_size=5)))
def test_metadata_comes_back(metadata: Metadata) -> None:
    assert records.decode_metadata(records.encode_metadata(metadata)) == metadata


@given(st.builds(Config, st.none() | st.text(min_size=1, max_size=40), u16, u32))
def test_a_config_comes_back(config: Config) -> None:
    assert records.decode_config(records.encode_config(config)) == config


@given(st.builds(SeqBlock, u64, u64))
def test_a_seq_block_comes_back(block: SeqBlock) -> None:
    assert records.decode_seq_block(records.encode_seq_block(block)) == block


@given(st.lists(st.builds(Size, ids, u32, u8), max_size=5))
def test_sizes_come_back(sizes: list[Size]) -> None:
    assert extensions.decode_sizes(columns(extensions.SIZE, len(sizes), zip(*sizes, strict=True))) == sizes


optional = st.none() | texts


@given(
    st.lists(
        st.builds(Claimed, ids, u8, times, times, times, u64, optional, optional, st.binary(max_size=9)),
        max_size=4,
    )
)
def test_claims_come_back(claims: list[Claimed]) -> None:
    assert extensions.decode_claims(extensions.encode_claims(claims)) == claims


@given(times, st.lists(st.builds(Receipt, ids, u64, u8), max_size=4), st.lists(st.tuples(ids, texts), max_size=4))
def test_recent_ones_come_back(at: int, receipts: list[Receipt], keys: list[tuple[int, str]]) -> None:
    assert extensions.decode_recent(extensions.encode_recent(Recent(at, receipts, keys))) == Recent(
        at, receipts, keys
    )


@pytest.mark.parametrize("keep_done", [None, 0, 0.5, 60, 60.5])
def test_settings_come_back(keep_done: float | None) -> None:
    settings = Settings(
        keep_done=keep_done, filter="a = 'ö'", start="beginning", priorities=(1, 9), description="für alle"
    )
    config = extensions.config_of(settings)
    assert config.keep_done == {None: 0, 0: 1, 0.5: 1, 60: 60, 60.5: 61}[keep_done]
    assert extensions.decode_settings(extensions.encode_settings(settings), config) == settings


def test_a_queue_of_another_program_has_what_the_config_says() -> None:
    assert extensions.settings_from(Config("a = 1", 3, 0)) == Settings(
        filter="a = 1", max_attempts=3, keep_done=None
    )
    assert extensions.settings_from(Config(None, 3, 9)) == Settings(max_attempts=3, keep_done=9)


@pytest.mark.parametrize("more", [b"", b"\x00"])
@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (records.decode_payload, records.encode_payload(b"x")),
        (records.decode_active, records.encode_active([Available(1, 1, 1, 1, 1)], [])),
        (records.decode_settled, records.encode_settled([(1, 1, 1)])),
        (records.decode_attempts, records.encode_attempts(["x"])),
        (records.decode_metadata, records.encode_metadata(Metadata(1, 1, 1, 1, 1, {"a": "b"}))),
        (records.decode_config, records.encode_config(Config("x", 1, 1))),
        (records.decode_seq_block, records.encode_seq_block(SeqBlock(1, 1))),
        (extensions.decode_claims, extensions.encode_claims([Claimed(1, 1, 1, 1, 1, 1, None, "x", b"y")])),
        (extensions.decode_recent, extensions.encode_recent(Recent(1, [Receipt(1, 1, 1)], [(1, "x")]))),
        (extensions.decode_position, extensions.encode_position(1, False)),
    ],
)
def test_a_value_that_is_too_short_or_too_long_is_refused(decode: object, value: bytes, more: bytes) -> None:
    assert callable(decode)
    for damaged in [value + b"\x00"] if more else [value[:size] for size in range(len(value))]:
        with pytest.raises(Undecodable):
            decode(damaged)


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
    written = bucket_records.encode_lone(number, lone)
    assert written is not None
    thawed = bucket_records.decode(number, {records.ACTIVE: written}, now)
    assert thawed is not None
    assert thawed.page.as_lone() == (*lone[:6], 0, extensions.PUBLISHED)
    page, _ = rows[seq]
    assert {records.ACTIVE: written} == bucket_records.encode(number, page, lambda seq: b"")
