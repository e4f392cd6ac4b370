"""Kestrel's journal format, against byte vectors and on random entries."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.stores.journal import format as kestrel
from penstock.stores.journal import replay
from penstock.stores.journal.files import replay_order
from tests.stores.journal.journals import VECTORS

KINDS: dict[str, Any] = {
    f"{name} {opcode}": kind
    for opcode, (name, kind) in enumerate(
        {
            "ADD": kestrel.Add, "REMOVE": kestrel.Remove, "ADDX": kestrel.AddX,
            "REMOVE_TENTATIVE": kestrel.RemoveTentative, "SAVE_XID": kestrel.SaveXid, "UNREMOVE": kestrel.Unremove,
            "CONFIRM_REMOVE": kestrel.ConfirmRemove, "ADD_XID": kestrel.AddXid, "CONTINUE": kestrel.Continue,
            "REMOVE_TENTATIVE_XID": kestrel.RemoveTentativeXid,
        }.items()
    )
}  # fmt: skip
XID = st.integers(-(2**31), 2**31 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
DATA = st.binary(max_size=40)
ENTRIES = st.one_of(
    st.builds(kestrel.Add, XID, DATA),
    st.builds(kestrel.Remove),
    st.builds(kestrel.AddX, TIME, TIME, DATA),
    st.builds(kestrel.RemoveTentative),
    st.builds(kestrel.SaveXid, XID),
    st.builds(kestrel.Unremove, XID),
    st.builds(kestrel.ConfirmRemove, XID),
    st.builds(kestrel.AddXid, XID, TIME, TIME, DATA),
    st.builds(kestrel.StateDump, XID, XID),
    st.builds(kestrel.RemoveTentativeXid, XID),
)


@pytest.mark.parametrize("vector", VECTORS["encodings"], ids=lambda vector: vector["op"])
def test_an_entry_is_written_and_read_as_published(vector: dict[str, Any]) -> None:
    fields = [bytes.fromhex(value) if name == "data" else value for name, value in vector["fields"].items()]
    entry = KINDS[vector["op"]](*fields)
    assert kestrel.encode(entry).hex() == vector["hex"]
    assert kestrel.decode(bytes.fromhex(vector["hex"]), 0, "2.x") == (entry, len(vector["hex"]) // 2)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_a_folder_replays_as_published(vector: dict[str, Any], tmp_path: Path) -> None:
    for name, content in vector["files"].items():
        (tmp_path / name).write_bytes(bytes.fromhex(content))
    dialects = kestrel.DIALECTS if vector["dialect"] == "any" else [vector["dialect"]]
    for dialect in dialects:
        state = replay(tmp_path, "q", dialect)
        if vector.get("broken"):
            assert state.broken is not None
            continue
        expected = vector["replay"]
        assert [payload.hex() for payload in state.queue] == expected["queue"]
        assert {str(xid): payload.hex() for xid, payload in state.open.items()} == expected["open"]
        assert state.last_xid == expected["last_xid"]
        broken = vector["broken_file"]
        assert state.broken == (None if broken is None else (broken, vector["valid_bytes"]))
    assert {file.name: file.read_bytes().hex() for file in tmp_path.iterdir()} == vector["files"]


@given(st.lists(ENTRIES, max_size=8))
def test_any_entries_come_back_as_they_were(entries: list[kestrel.Entry]) -> None:
    data = b"".join(map(kestrel.encode, entries))
    offset, read = 0, []
    while offset < len(data):
        entry, offset = kestrel.decode(data, offset)
        read.append(entry)
    assert read == entries
    assert [type(entry) for entry in read] == [type(entry) for entry in entries]


@given(ENTRIES, st.data())
def test_an_entry_that_is_cut_off_is_broken_at_its_start(entry: kestrel.Entry, data: st.DataObject) -> None:
    whole = kestrel.encode(entry)
    if len(whole) == 1:
        return
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(kestrel.Broken) as caught:
        kestrel.decode(b"\x01" + whole[:cut], 1)
    assert caught.value.offset == 1


@given(st.binary(min_size=1, max_size=60), st.sampled_from(kestrel.DIALECTS))
def test_any_bytes_are_entries_or_broken(data: bytes, dialect: kestrel.Dialect) -> None:
    offset, broken = 0, None
    while offset < len(data) and broken is None:
        try:
            entry, end = kestrel.decode(data, offset, dialect)
        except kestrel.Broken as error:
            broken = error.offset
            continue
        assert kestrel.encode(entry) == data[offset:end]
        offset = end
    assert broken in (None, offset)


def test_a_broken_file_loses_only_its_own_rest(tmp_path: Path) -> None:
    item = [kestrel.encode(kestrel.AddX(1, 0, payload)) for payload in (b"a", b"b")]
    (tmp_path / "q.5").write_bytes(item[0] + b"\xff" + item[0])
    (tmp_path / "q").write_bytes(item[1] + b"\xfe")
    state = replay(tmp_path, "q")
    assert list(state.queue) == [b"a", b"b"]
    assert state.broken == ("q.5", 22)


def test_names_that_only_look_like_a_journal_are_left_alone() -> None:
    names = ["q.bak", "q.1.bak", "q.", "q.1x", "qq", "q+fan.1", "q~~1", "q.7.packed", "Q", "q.٣"]
    assert replay_order([*names, "q", "q.10", "q.9"], "q") == ["q.9", "q.10", "q"]


def test_xids_wrap_around_and_skip_zero_and_what_is_open(tmp_path: Path) -> None:
    entries: list[kestrel.Entry] = [
        kestrel.SaveXid(2**31 - 1),
        kestrel.AddX(0, 0, b"a"),
        kestrel.RemoveTentative(),
        kestrel.SaveXid(-1),
    ]
    entries += [kestrel.AddXid(1, 0, 0, b"b"), kestrel.RemoveTentative(), kestrel.AddX(0, 0, b"c")]
    entries += [kestrel.RemoveTentative()]
    (tmp_path / "q").write_bytes(b"".join(map(kestrel.encode, entries)))
    state = replay(tmp_path, "q")
    assert state.open == {-(2**31): b"a", 1: b"b", 2: b"c"}
    assert state.last_xid == 2


def test_a_dialect_is_one_of_two(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"dialect='1\.x' is none of doc, 2\.x"):
        replay(tmp_path, "q", "1.x")  # type: ignore[arg-type]
