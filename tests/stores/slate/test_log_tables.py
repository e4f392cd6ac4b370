"""Entries of the log of a slate store as columns: the same as one by one."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import StoreCorrupt
from penstock.spark.tables import TABLES
from penstock.stores.slate import entries
from penstock.stores.slate.format import decode_metadata, encode_metadata
from penstock.stores.slate.log_tables import Entries
from penstock.stores.slate.snapshot import joined

TIME = st.integers(0, 2**42)
HEADERS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)
NOT_IN_THE_LOG = ("payload", "size")
SCHEMA = to_arrow_schema(TABLES["log"], timezone="UTC")


@st.composite
def values(draw: st.DrawFn) -> bytes:
    seq, priority, at = draw(st.integers(1, 2**60)), draw(st.integers(0, 255)), draw(TIME)
    headers = draw(st.one_of(HEADERS, st.just({f"header {number}": "x" for number in range(255)})))
    body = (b"12345", headers, draw(TIME), at)
    if draw(st.booleans()):
        expires_at = draw(st.sampled_from([0, at + 1_000, at + 1_234]))
        return encode_metadata(entries.metadata_of_put(seq, "jobs", priority, body, at + 5, expires_at))
    expires = draw(st.sampled_from([None, 0, at + 1_000, at + 1_234]))
    return encode_metadata(entries.metadata_of_published(seq, priority, body, at + 5, expires))


@given(st.lists(values(), min_size=1, max_size=5))
def test_columns_say_what_the_entries_say(some: list[bytes]) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name not in NOT_IN_THE_LOG])
    found = Entries(joined(some)).batch(schema, [], []).to_pylist()
    for row, metadata in zip(found, map(decode_metadata, some), strict=True):
        expires_at = entries.expires_at_of(metadata)
        assert (row["sequence"], row["id"], row["queue"], row["priority"], dict(row["headers"])) == (
            metadata.id,
            str(metadata.id),
            metadata.headers.get(entries.QUEUE_HEADER),
            entries.priority_of(metadata),
            entries.headers_of(metadata),
        )
        for name in ("created_at", "received_at", "visible_at"):
            assert round(row[name].timestamp() * 1000) == getattr(metadata, name)
        assert (row["expires_at"] and round(row["expires_at"].timestamp() * 1000)) == (expires_at or None)
        asked = None if expires_at is None else (expires_at - metadata.received_at) / 1000 if expires_at else 0
        assert row["retention"] == asked
    assert Entries(joined(some)).sizes.to_pylist() == [entries.size_of(decode_metadata(each)) for each in some]


@given(values(), st.integers(0, 400))
def test_an_entry_that_is_cut_off_is_refused(value: bytes, end: int) -> None:
    if end < len(value):
        with pytest.raises(StoreCorrupt):
            Entries(joined([value, value[:end]]))
