"""The records of streams, byte for byte: vectors computed by hand, round trips, and what keys say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StoreCorrupt
from penstock.rules.rows import IN_FLIGHT, PAGE, Page, Rows
from penstock.rules.streams import Failure, picked
from penstock.stores.slate import extensions, pages
from penstock.stores.slate import format as records
from penstock.stores.slate.extensions import Kept, KeptPage, StreamRow
from penstock.stores.slate.format import Key, Undecodable
from tests.stores.slate.test_format import as_bytes, ids, names, texts, times, u8, u32, u64
from tests.stores.slate.test_format import buckets as bucket_numbers


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (extensions.batches_key("jobs"), "01 14 | 'jobs' 00"),
        (extensions.stream_key("jobs", "nightly"), "01 15 | 'jobs' 00 | 'nightly' 00"),
        (
            extensions.failures_key("jobs", "a", 0),
            "01 16 | 'jobs' 00 | 'a' 00 | 00 00 00 00 00 00 00 00",
        ),
        (extensions.kept_key("jobs", "a", 258), "01 17 | 'jobs' 00 | 'a' 00 | 00 00 00 00 00 00 01 02"),
    ],
)
def test_keys_are_these_bytes(key: bytes, expected: str) -> None:
    assert key == as_bytes(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
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


@given(names, names, bucket_numbers)
def test_keys_say_what_they_are_of(queue: str, stream: str, bucket: int) -> None:
    parse = records.parse_key
    assert parse(extensions.batches_key(queue)) == Key(records.BATCHES, queue)
    assert parse(extensions.stream_key(queue, stream)) == Key(records.STREAM, queue, stream=stream)
    failures, kept = (key(queue, stream, bucket) for key in (extensions.failures_key, extensions.kept_key))
    assert parse(failures) == Key(records.FAILURES, queue, bucket, stream=stream)
    assert parse(kept) == Key(records.KEPT, queue, bucket, stream=stream)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("01 13 'x' 00", "of type 19"),
        ("01 14 'x' 00 | 's' 00", "of type 20"),
        ("01 15 'x' 00 | 's' 00 | 00 00 00 00 00 00 00 01", "of type 21"),
        ("01 15 'x' 00 | 's'", "no end of its name"),
        ("01 16 'x' 00 | 's' 00", "does not end with a number"),
        ("01 17 'x' 00", "no end of its name"),
        ("01 18 'x' 00 | 00", "of type 24"),
        ("01 19 'x' 00 | 00", "does not end with a number"),
        ("01 1a 'x' 00", "of type 26"),
    ],
)
def test_unknown_types_are_refused(key: str, message: str) -> None:
    with pytest.raises(StoreCorrupt, match=message):
        records.parse_key(as_bytes(key))


@given(st.builds(StreamRow, texts, u64, u64, st.none() | times, st.none() | st.tuples(u64, times)))
def test_a_stream_comes_back(row: StreamRow) -> None:
    assert extensions.decode_stream(extensions.encode_stream(row)) == row


@given(st.dictionaries(ids, st.builds(Failure, st.none() | texts, u64), max_size=5))
def test_failures_come_back(failures: dict[int, Failure]) -> None:
    assert extensions.decode_failures(extensions.encode_failures(failures)) == failures


@given(
    times, st.lists(st.builds(Kept, ids, u8, times, times, u32, u32, u8), max_size=5), st.dictionaries(ids, texts)
)
def test_kept_messages_come_back(at: int, kept: list[Kept], reasons: dict[int, str]) -> None:
    value = extensions.encode_kept(at, len(kept), zip(*kept, strict=True), list(reasons.items()))
    assert extensions.decode_kept(value) == KeptPage(at, kept, reasons)


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
    columns = (page.state, page.priority, page.visible_at, page.expires_at, page.attempts, page.size, page.crc)
    told = (claims.claimed_at, claims.ends_at, claims.consumer, claims.reason)
    return [(keys[at], *[each[at] for each in (*columns, *told)]) for at, state in enumerate(page.state) if state]


@pytest.mark.parametrize("more", [b"", b"\x00"])
@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (extensions.decode_last_batch, extensions.encode_last_batch(1)),
        (extensions.decode_stream, extensions.encode_stream(StreamRow("x", 1, 1, 1, (1, 1)))),
        (extensions.decode_failures, extensions.encode_failures({1: Failure("x"), 2: Failure(None)})),
        (extensions.decode_kept, extensions.encode_kept(1, 1, [(1,)] * 7, [(1, "x")])),
    ],
)
def test_a_value_that_is_too_short_or_too_long_is_refused(decode: object, value: bytes, more: bytes) -> None:
    assert callable(decode)
    for damaged in [value + b"\x00"] if more else [value[:size] for size in range(len(value))]:
        with pytest.raises(Undecodable):
            decode(damaged)
