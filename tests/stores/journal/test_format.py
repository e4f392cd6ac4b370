"""What Penstock writes inside Kestrel's format: columns, records, groups, bodies, xids. Bytes only, no files."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract.message import Attempt, Plain
from penstock.contract.message import Entry as Draft
from penstock.contract.settings import Settings
from penstock.rules.recent import RecentReceipts, pack
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
    StreamBegin,
    StreamClaim,
    StreamDelete,
    StreamFail,
    StreamFollow,
    StreamRelease,
    StreamReplay,
    StreamSettle,
    Update,
)
from penstock.rules.records import Remove as RemoveRecord
from penstock.rules.rows import CLAIM_COLUMNS, COLUMNS, Page
from penstock.rules.state import StateSnapshot
from penstock.rules.streams import Batch, Failure, Stream, StreamsSnapshot
from penstock.stores.journal import bodies, fields, groups
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.format import (
    DIALECTS,
    AddX,
    ConfirmRemove,
    Dialect,
    Entry,
    Remove,
    RemoveTentative,
    SaveXid,
)
from penstock.stores.journal.format import decode as decode_entry
from penstock.stores.journal.groups import PERIOD, xid_before, xid_of
from penstock.stores.journal.kestrel import Replay
from penstock.stores.journal.records import (
    PageImage,
    RestImage,
    StreamsImage,
    decode_all,
    encode_page,
    encode_put,
    encode_record,
    encode_rest,
    encode_streams,
)

I64 = st.integers(-(2**63), 2**63 - 1)
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
TIME = st.integers(0, 2**62)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = {"q": I64, "Q": U64, "I": U32}
SEQS = st.lists(U64, min_size=1, max_size=20) | st.builds(
    lambda first, count: list(range(first, first + count)), st.integers(1, 2**40), st.integers(1, 50)
)


def read_entries(data: bytes) -> list[Entry]:
    entries, offset = [], 0
    while offset < len(data):
        entry, offset = decode_entry(data, offset)
        entries.append(entry)
    return entries


class TestColumns:
    @given(st.sampled_from("qQI"), st.data())
    def test_any_column_comes_back_as_it_was(self, typecode: str, data: st.DataObject) -> None:
        values = data.draw(st.lists(VALUES[typecode], min_size=1, max_size=30))
        encoded = fields.encode_column(typecode, values)
        reader = fields.Reader(memoryview(encoded + b"!!"))
        assert (reader.column(typecode, len(values)).tolist(), reader.offset) == (values, len(encoded))

    @pytest.mark.parametrize(
        ("typecode", "values"),
        [
            ("q", [-(2**63), 2**63 - 1]),
            ("Q", [0, 2**64 - 1]),
            ("q", [2**63 - 1, -(2**63)]),
            ("Q", [5, 2**63 + 10]),
        ],
    )
    def test_the_widest_steps_come_back(self, typecode: str, values: list[int]) -> None:
        encoded = fields.encode_column(typecode, values)
        assert fields.Reader(memoryview(encoded)).column(typecode, 2).tolist() == values

    @given(st.sampled_from("qQI"), st.integers(0, 10**6), st.integers(1, 1000), st.integers(3, 200))
    def test_what_is_constant_or_counts_up_takes_few_bytes(
        self, typecode: str, first: int, step: int, count: int
    ) -> None:
        steps = list(range(first, first + step * count, step))
        assert len(fields.encode_column(typecode, [first] * count)) == 9
        assert len(fields.encode_column(typecode, steps)) == 17
        reader = fields.Reader(memoryview(fields.encode_column(typecode, steps)))
        assert reader.column(typecode, count).tolist() == steps

    @given(st.lists(TEXT | st.none(), min_size=1, max_size=20))
    def test_any_texts_come_back_as_they_were(self, texts: list[str | None]) -> None:
        encoded = fields.encode_texts(texts)
        reader = fields.Reader(memoryview(encoded))
        assert (reader.texts(len(texts)), reader.offset) == (texts, len(encoded))

    def test_a_text_that_a_thousand_rows_share_is_written_once(self) -> None:
        assert len(fields.encode_texts(["worker-7"] * 1000)) < 30


RECORDS = st.one_of(
    st.builds(Claim, TIME, SEQS, TIME, TEXT, U64),
    st.builds(Pop, TIME, SEQS, TEXT),
    st.builds(Ack, TIME, SEQS),
    st.builds(Fail, TIME, SEQS, TIME, TEXT | st.none()),
    st.builds(Release, TIME, SEQS),
    st.builds(Extend, TIME, SEQS, TIME),
    st.builds(RemoveRecord, TIME, SEQS),
    st.builds(Redrive, TIME, SEQS),
    st.builds(
        Update,
        TIME,
        st.builds(Settings, max_size=U32, keep_done=U32 | st.none(), filter=TEXT | st.none(), description=TEXT),
    ),
    st.builds(StreamBegin, TIME, TEXT, TEXT),
    st.builds(StreamClaim, TIME, TEXT, U64, SEQS, U64),
    st.builds(StreamFail, TIME, TEXT, U64, SEQS, TEXT | st.none(), U64),
    st.builds(StreamReplay, TIME, TEXT, U64),
    st.builds(StreamSettle, TIME, TEXT, U64),
    st.builds(StreamRelease, TIME, TEXT, U64),
    st.builds(StreamDelete, TIME, TEXT),
    st.builds(StreamFollow, TIME, TEXT, TEXT, U64),
)


@st.composite
def puts(draw: st.DrawFn) -> tuple[Put, Bodies]:
    count = draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    first = draw(st.integers(1, 2**50))
    keyed = draw(st.lists(st.integers(first, first + count - 1), unique=True, max_size=count))
    names = draw(st.lists(TEXT.filter(bool), unique=True, min_size=len(keyed), max_size=len(keyed)))
    put = Put(draw(TIME), first, column(I64), column(I64), column(I64), dict(zip(names, keyed, strict=True)))
    return put, Bodies(column(U32), column(U32), column(U32))


def same_put(read: tuple[Record, Bodies | None], put: Put, places: Bodies) -> bool:
    record, found = read
    assert isinstance(record, Put)
    assert found is not None
    lists = [list(column) for column in (*record[2:5], *found)]
    return (record.at, record.first, record.keys, lists) == (
        put.at,
        put.first,
        put.keys,
        [list(column) for column in (*put[2:5], *places)],
    )


HELD = st.tuples(U32, TIME, st.lists(U32, unique=True), st.dictionaries(U32, TEXT | st.none()))


class TestRecords:
    @given(st.lists(RECORDS, max_size=6))
    def test_any_records_come_back_as_they_were_one_after_the_other(self, records: list[Record]) -> None:
        data = b"".join(map(encode_record, records))
        read = list(decode_all(memoryview(data)))
        assert read == [(record, None) for record in records]
        assert [type(item[0]) for item in read] == [type(record) for record in records]

    @given(puts(), RECORDS, puts())
    def test_any_put_comes_back_with_where_its_bodies_are(
        self, one: tuple[Put, Bodies], between: Record, other: tuple[Put, Bodies]
    ) -> None:
        data = encode_put(*one) + encode_record(between) + encode_put(*other)
        first, middle, last = decode_all(memoryview(data))
        assert isinstance(first, tuple)
        assert isinstance(last, tuple)
        assert same_put(first, *one)  # type: ignore[arg-type]
        assert middle == (between, None)
        assert same_put(last, *other)  # type: ignore[arg-type]

    def test_a_record_of_a_later_version_is_refused_and_named(self) -> None:
        with pytest.raises(ValueError, match="a record of kind 200: a later version of Penstock"):
            list(decode_all(memoryview(encode_record(Ack(0, [1])) + bytes([200]))))

    def test_a_put_is_not_encoded_without_its_bodies(self) -> None:
        with pytest.raises(TypeError, match="encode_put"):
            encode_record(Put(0, 1, [0], [0], [0], {}))


@st.composite
def pages(draw: st.DrawFn) -> tuple[Page, list[int]]:
    """A page with gaps, claimed or not, and the positions of the rows that are there."""
    size = draw(st.integers(1, 6))
    page = Page()
    page.state = bytearray(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)))
    for name in COLUMNS:
        typecode = getattr(page, name).typecode
        allowed = st.integers(0, 2**31 - 1) if name == "attempts" else VALUES[typecode]  # more are damage
        values = draw(st.lists(allowed, min_size=size, max_size=size))
        setattr(page, name, array(typecode, values))
    page.live = sum(map(bool, page.state))
    if draw(st.booleans()):
        claims = page.for_claims(draw(st.integers(0, size - 1)))
        claims.grow(size)
        for at in range(size):
            claims.claimed_at[at], claims.ends_at[at], claims.nonce[at] = draw(I64), draw(I64), draw(U64)
            claims.consumer[at], claims.reason[at] = draw(TEXT | st.none()), draw(TEXT | st.none())
    if draw(st.booleans()):
        page.shrink()
    rows = [row for row, state in enumerate(page.state) if state]
    return page, rows


def cells(page: Page, row: int) -> list[Any]:
    values = [page.state[row], *[getattr(page, name)[row] for name in COLUMNS]]
    if page.claims is not None:
        claims = page.for_claims(row)
        values += [getattr(claims, name)[row] for name in CLAIM_COLUMNS]
    return values


class TestImages:
    @given(pages(), st.integers(0, 2**30), st.data())
    def test_rows_of_a_page_come_back_with_their_claims(
        self, given_page: tuple[Page, list[int]], number: int, data: st.DataObject
    ) -> None:
        page, rows = given_page
        part = sorted(data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True)))
        keys = page.keys()
        positions = [keys[row] for row in part]
        where = Bodies(*([getattr(page, name)[row] for row in part] for name in ("place", "size", "crc")))
        [image] = decode_all(memoryview(encode_page(number << 10, page, positions, part, where)))
        assert isinstance(image, PageImage)
        assert (image.first, image.page.live) == (number << 10, len(part))
        assert list(image.page.keys())[: len(part)] == positions
        for row, original in enumerate(part):
            assert cells(image.page, row) == cells(page, original)

    @given(
        st.lists(st.tuples(st.integers(1, 10**6), U64, st.sampled_from([1, 2, 3]), st.integers(0, 90_000))),
        st.dictionaries(TEXT.filter(bool), st.integers(1, 2**50), max_size=5),
        st.dictionaries(
            st.integers(1, 2**50),
            st.lists(
                st.builds(
                    Attempt, st.integers(1, 2**32 - 1), TEXT | st.none(), TIME, TIME,
                    st.sampled_from(["acked", "failed", "released"]), TEXT | st.none(),
                ),
                min_size=1,
                max_size=3,
            ),
            max_size=4,
        ),
        st.integers(1, 2**60),
        st.integers(1, 2**60),
    )  # fmt: skip
    def test_receipts_keys_and_attempts_come_back(
        self,
        settled: list[tuple[int, int, int, int]],
        keys: dict[str, int],
        history: dict[int, list[Attempt]],
        next_seq: int,
        next_group: int,
    ) -> None:
        receipts, now = RecentReceipts(), 1_700_000_000_000
        for seq, nonce, outcome, later in settled:
            now += later
            receipts.add([seq], [nonce], outcome, now)
        known = [(now + number, key, seq) for number, (key, seq) in enumerate(keys.items())]
        packed = {seq: b"".join(map(pack, attempts)) for seq, attempts in history.items()}
        snapshot = StateSnapshot(next_seq, [], receipts, known, packed)
        [image] = decode_all(memoryview(encode_rest(snapshot, next_group)))
        assert isinstance(image, RestImage)
        assert image.next_group == next_group
        assert (image.snapshot.next_seq, image.snapshot.keys, image.snapshot.history) == (next_seq, known, packed)
        assert [tuple(map(list, minute[1:])) for minute in image.snapshot.receipts.dump()] == [
            tuple(map(list, minute[1:])) for minute in receipts.dump()
        ]
        for seq, nonce, _, _ in settled:
            assert image.snapshot.receipts.outcome(seq, nonce) == receipts.outcome(seq, nonce)

    @given(
        st.dictionaries(
            TEXT,
            st.tuples(
                TEXT,
                U32,
                st.none() | U32,
                st.none()
                | st.tuples(
                    U32,
                    TIME,
                    st.lists(U32, unique=True),
                    st.dictionaries(U32, st.builds(Failure, TEXT | st.none(), st.sampled_from([0, 0, 5]))),
                ),
            ),
            max_size=3,
        ),
        st.integers(1, 2**60),
    )
    def test_streams_come_back_as_they_were(
        self, streams: dict[str, tuple[str, int, int | None, Any]], last: int
    ) -> None:
        known = {
            name: Stream(reader, None, settled, settled // 2, position=position)
            for name, (reader, settled, position, _) in streams.items()
        }
        for name, (*_, held) in streams.items():
            if held is not None:
                number, at, seqs, failures = held
                known[name].held = Batch(number, at, sorted(seqs), failures)
        [image] = decode_all(memoryview(encode_streams(StreamsSnapshot(last, known))))
        assert isinstance(image, StreamsImage)
        assert image.snapshot.last_batch == last

        def shown(each: Stream) -> tuple[Any, ...]:
            held = each.held and (each.held.number, each.held.at, list(each.held.seqs), each.held.failures)
            return each.reader, each.settled, each.before, each.position, held

        assert {name: shown(each) for name, each in image.snapshot.streams.items()} == {
            name: shown(each) for name, each in known.items()
        }


def group_of(content: bytes, records: bytes, xid: int = 6, number: int = 9, at: int = 1_700_000_000_000) -> bytes:
    buffer = bytearray(groups.HEAD_SIZE) + content
    groups.seal(buffer, records, xid, number, at)
    return bytes(buffer)


def read_group(data: bytes, offset: int = 0) -> groups.Group | None:
    head = groups.head(data, offset)
    return None if head is None else groups.read(memoryview(data), offset, head)


PUT_HEX = "".join(
    [
        "0406000000",  # SAVE_XID 6
        "022d0000000068e5cf8b0100000000000000000000",  # ADDX, size 45, time, no expiry
        "895053544b0d0a1a68a8000000500000000900000000000000",  # magic and "h", length, tail, number
        "364ed24501",  # crc32 of the head, REMOVE
        "02120000000068e5cf8b01000000000000000000006869",  # ADDX, size 18, time, no expiry, "hi"
        "03",  # REMOVE_TENTATIVE: it is transaction 7
        "02520000000068e5cf8b0100000000000000000000",  # ADDX, size 82, time, no expiry
        "895053544b0d0a1a74",  # magic and "t"
        "010068e5cf8b0100000700000000000000",  # put one: at, seq
        "00000000000000000068e5cf8b0100000000000000000000",  # priority, visible_at, expires_at
        "38000000180000007795a4c1",  # offset, size and crc32 of its body
        "648f818101",  # crc32 of all that, REMOVE
    ]
)
ACK_HEX = "".join(
    [
        "0407000000",  # SAVE_XID 7
        "022d0000000068e5cf8b0100000000000000000000",  # ADDX, size 45, time, no expiry
        "895053544b0d0a1a68760000003d0000000b00000000000000",  # magic and "h", length, tail, number
        "67ee1d8101",  # crc32 of the head, REMOVE
        "0607000000",  # CONFIRM_REMOVE 7
        "02330000000068e5cf8b0100000000000000000000",  # ADDX, size 51, time, no expiry
        "895053544b0d0a1a74",  # magic and "t"
        "050068e5cf8b01000001000000000700000000000000",  # ack: at, one seq, constant, 7
        "7e0d041c01",  # crc32 of all that, REMOVE
    ]
)


class TestGroups:
    @given(
        st.binary(max_size=60),
        st.binary(max_size=60),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 2**63),
        TIME,
    )
    def test_a_group_is_read_as_it_was_sealed(
        self, content: bytes, records: bytes, xid: int, number: int, at: int
    ) -> None:
        data = b"before" + group_of(content, records, xid, number, at) + b"after"
        group = read_group(data, 6)
        assert group is not None
        assert (group.number, group.at, bytes(group.records)) == (number, at, records)
        assert 6 + group.length == len(data) - 5
        assert len(content) + len(records) + groups.OVERHEAD == group.length

    def test_a_flipped_bit_in_any_byte_is_noticed(self) -> None:
        whole = group_of(bytes.fromhex("01") * 9, encode_record(Ack(1, [1])))
        for at in range(len(whole)):
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[at] ^= 1 << bit
                assert read_group(bytes(flipped)) is None, (at, bit)

    def test_a_group_that_is_cut_off_anywhere_is_noticed(self) -> None:
        whole = group_of(bytes.fromhex("01") * 9, encode_record(Ack(1, [1])))
        for size in range(len(whole)):
            assert read_group(whole[:size]) is None

    def test_zeros_and_a_filling_are_no_group(self) -> None:
        assert read_group(bytes(1000)) is None
        assert read_group(b"\x01" * 1000) is None

    @given(st.binary(max_size=100))
    def test_the_next_group_is_found_after_any_bytes(self, garbage: bytes) -> None:
        assert groups.next_head(garbage + group_of(b"", b""), 0) == len(garbage)
        assert groups.next_head(garbage + group_of(b"", b""), len(garbage) + 1) is None

    def test_a_group_is_nothing_to_a_reader_of_the_document_but_its_messages(self) -> None:
        state = Replay()
        for entry in read_entries(group_of(bodies.encode([Draft(b"hi")], 7, 5, [0], "doc").parts[0], b"records")):
            state.apply(entry)
        assert (list(state.queue), state.open, state.last_xid) == ([], {7: b"hi"}, 7)

    def test_a_put_has_always_had_these_bytes(self) -> None:
        now = 1_700_000_000_000
        [body] = bodies.encode([Draft(b"hi")], 7, now, [0], "doc").parts
        record = encode_put(
            Put(now, 7, [0], [now], [0], {}), Bodies([groups.HEAD_SIZE], [24], [bodies.checksum(body)])
        )
        assert group_of(body, record).hex() == PUT_HEX

    def test_an_ack_has_always_had_these_bytes(self) -> None:
        now = 1_700_000_000_000
        assert group_of(bodies.confirm([7]), encode_record(Ack(now, [7])), 7, 11).hex() == ACK_HEX

    def test_the_bytes_of_a_put_are_these_entries(self) -> None:
        now = 1_700_000_000_000
        entries = read_entries(bytes.fromhex(PUT_HEX))
        assert [type(entry) for entry in entries] == [SaveXid, AddX, Remove, AddX, RemoveTentative, AddX, Remove]
        assert (entries[0], entries[3]) == (SaveXid(6), AddX(now, 0, b"hi"))

    def test_the_bytes_of_an_ack_are_these_entries(self) -> None:
        entries = read_entries(bytes.fromhex(ACK_HEX))
        assert [type(entry) for entry in entries] == [SaveXid, AddX, Remove, ConfirmRemove, AddX, Remove]
        assert (entries[0], entries[3]) == (SaveXid(7), ConfirmRemove(7))


HEADERS = st.dictionaries(TEXT.filter(bool), TEXT, max_size=4)
DRAFTS = st.builds(
    Draft,
    st.binary(max_size=60),
    headers=HEADERS | st.none(),
    created_at=st.integers(0, 253_402_300_799_999) | st.none(),
)


def decode_one(body: bytes) -> tuple[Any, ...]:
    [decoded] = bodies.decode(body, [0], [len(body)], [bodies.checksum(body)])
    return tuple(decoded)


def expected(draft: Draft, at: int) -> tuple[Any, ...]:
    return (draft.payload, draft.headers or {}, at if draft.created_at is None else draft.created_at, at)


class TestBodies:
    @given(st.lists(DRAFTS, min_size=1, max_size=5), st.integers(1, 2**40), TIME, st.sampled_from(DIALECTS))
    def test_any_messages_come_back_as_they_were(
        self, drafts: list[Draft], first: int, at: int, dialect: Dialect
    ) -> None:
        parts, sizes, crcs = bodies.encode(drafts, first, at, [0] * len(drafts), dialect)
        starts = [0]
        for size in sizes[:-1]:
            starts.append(starts[-1] + size)
        decoded = bodies.decode(b"".join(parts), starts, sizes, crcs)
        assert list(map(tuple, decoded)) == [expected(draft, at) for draft in drafts]

    @given(DRAFTS, st.integers(1, 2**40), TIME, TIME, st.sampled_from(DIALECTS), st.sampled_from(DIALECTS))
    def test_a_message_is_the_same_after_any_packing(
        self, draft: Draft, seq: int, at: int, expires_at: int, dialect: Dialect, other: Dialect
    ) -> None:
        [body] = bodies.encode([draft], seq, at, [expires_at], dialect).parts
        for packed in (
            bodies.repack(body, seq, False, other),
            bodies.repack(body, seq, True, other),
            bodies.repack(bodies.repack(body, seq, False, other), seq, False, dialect),
            bodies.repack(bodies.repack(body, seq, False, other), seq, True, dialect),
        ):
            assert decode_one(packed) == expected(draft, at)
            assert read_entries(packed)[0][-2:] == (expires_at, draft.payload)

    @given(DRAFTS, st.integers(1, 2**40), st.sampled_from(DIALECTS))
    def test_any_reader_sees_the_payload_as_an_open_transaction(
        self, draft: Draft, seq: int, dialect: Dialect
    ) -> None:
        [body] = bodies.encode([draft], seq, 5, [0], dialect).parts
        for data in (body, bodies.repack(body, seq, False, "doc"), bodies.repack(body, seq, False, "2.x")):
            state = Replay(last_xid=xid_before(seq))
            for entry in read_entries(data):
                state.apply(entry)
            assert (list(state.queue), state.open) == ([], {xid_of(seq): draft.payload})

    @given(DRAFTS, st.integers(1, 2**40), st.sampled_from(DIALECTS))
    def test_a_message_that_is_done_is_nothing_to_any_reader(
        self, draft: Draft, seq: int, dialect: Dialect
    ) -> None:
        state = Replay()
        for entry in read_entries(
            bodies.repack(bodies.encode([draft], seq, 5, [0], dialect).parts[0], seq, True, dialect)
        ):
            state.apply(entry)
        assert (list(state.queue), state.open) == ([], {})

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_a_flipped_bit_in_any_byte_of_a_body_is_damage(self, dialect: Dialect) -> None:
        [body] = bodies.encode([Draft(b"payload", headers={"a": "b"})], 3, 5, [0], dialect).parts
        crc = bodies.checksum(body)
        for at in range(len(body)):
            for bit in range(8):
                flipped = bytearray(body)
                flipped[at] ^= 1 << bit
                with pytest.raises(bodies.Damaged):
                    bodies.decode(bytes(flipped), [0], [len(body)], [crc])
        with pytest.raises(bodies.Damaged):
            bodies.decode(body[:-1], [0], [len(body)], [crc])

    @given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.sampled_from(DIALECTS), TIME)
    def test_many_plain_payloads_are_written_as_if_one_by_one(
        self, payloads: list[bytes], dialect: Dialect, expires_at: int
    ) -> None:
        many = bodies.encode(Plain(payloads), 5, 7, [expires_at] * len(payloads), dialect)
        single = [
            bodies.encode([Draft(payload)], 5 + number, 7, [expires_at], dialect)
            for number, payload in enumerate(payloads)
        ]
        assert b"".join(many.parts) == b"".join(each.parts[0] for each in single)
        assert many.sizes == [each.sizes[0] for each in single]
        assert many.crcs == [each.crcs[0] for each in single]

    @given(DRAFTS, st.integers(1, 2**40), TIME, st.sampled_from(DIALECTS))
    def test_no_body_is_longer_than_was_reckoned_with(
        self, draft: Draft, seq: int, at: int, dialect: Dialect
    ) -> None:
        [body] = bodies.encode([draft], seq, at, [0], dialect).parts
        most = bodies.OVERHEAD + len(draft.payload) + bodies.meta_size(draft)
        assert max(len(body), len(bodies.repack(body, seq, False, "doc"))) <= most

    @given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
    def test_transactions_are_confirmed_in_any_number(self, seqs: Sequence[int]) -> None:
        assert read_entries(bodies.confirm(seqs)) == [ConfirmRemove(xid_of(seq)) for seq in seqs]


class TestXids:
    @pytest.mark.parametrize(
        ("seq", "xid"),
        [
            (1, 1),
            (2, 2),
            (2**31 - 1, 2**31 - 1),
            (2**31, -(2**31)),
            (PERIOD, -1),
            (PERIOD + 1, 1),
            (2 * PERIOD + 3, 3),
        ],
    )
    def test_they_count_through_all_32_bits_and_never_are_zero(self, seq: int, xid: int) -> None:
        assert xid_of(seq) == xid

    @given(st.integers(1, 2**50))
    def test_the_one_after_before_is_the_one_that_was_meant(self, seq: int) -> None:
        xid = xid_of(seq)
        assert xid != 0
        assert -(2**31) <= xid < 2**31
        state = Replay(last_xid=xid_before(seq))
        state.apply(AddX(0, 0, b""))
        state.apply(RemoveTentative())
        assert list(state.open) == [xid]

    @given(st.integers(1, 2**50), st.integers(1, PERIOD - 1))
    def test_messages_less_than_a_period_apart_have_different_ones(self, seq: int, apart: int) -> None:
        assert xid_of(seq) != xid_of(seq + apart)
        assert xid_of(seq) == xid_of(seq + PERIOD)
