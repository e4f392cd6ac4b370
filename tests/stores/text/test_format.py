"""The TextQueue format, byte by byte: offsets, lengths, entries, skipped lines."""

from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.stores.text import format as text_format
from penstock.stores.text.format import COMMENT, Entry, Problem, Variable, encode, fitting, parse, parse_one, scan

VECTORS: list[tuple[bytes, list[Entry]]] = [
    (b"", []),
    (b"\n\n\n", []),
    (b"-a", [Entry(0, 2, "-", b"a")]),
    (b"-a\n", [Entry(0, 3, "-", b"a")]),
    (b"-\n", [Entry(0, 2, "-", b"")]),
    (b"-", [Entry(0, 1, "-", b"")]),
    (b"-a\n=b\n!c\n#d\n", [Entry(0, 3, "-", b"a"), Entry(3, 3, "=", b"b"), Entry(6, 3, "!", b"c"),
                         Entry(9, 3, "#", b"d")]),
    (b"\n\n-a\n\n\n-b\n", [Entry(2, 3, "-", b"a"), Entry(7, 3, "-", b"b")]),
    (b"-a\n b\n  c\n", [Entry(0, 10, "-", b"a\nb\n c")]),
    (b"-a\n\n b", [Entry(0, 6, "-", b"a\nb")]),
    (b"-a\n \n", [Entry(0, 5, "-", b"a\n")]),
    (b"-  padded  \n", [Entry(0, 12, "-", b"  padded  ")]),
    (b"-a\r\n", [Entry(0, 4, "-", b"a")]),
    (b"--=!# \\\n", [Entry(0, 8, "-", b"-=!# \\")]),
    (b"-a\n\\v=1  \n\\w", [Entry(0, 12, "-", b"a", (Variable(4, b"v=1  "), Variable(11, b"w")))]),
    (b"#c\n d\n\\v\n", [Entry(0, 9, "#", b"c\nd", (Variable(7, b"v"),))]),
    ("-größe\n".encode(), [Entry(0, 9, "-", "größe".encode())]),
    (b"-\xff\n", [Entry(0, 3, "-", b"\xff")]),
]  # fmt: skip


@pytest.mark.parametrize(("data", "entries"), VECTORS)
def test_bytes_are_read_to_entries_with_exact_offsets(data: bytes, entries: list[Entry]) -> None:
    assert parse(data) == (entries, [])
    for entry in entries:
        own = data[entry.offset : entry.offset + entry.length]
        assert parse_one(own, entry.offset) == entry
        for variable in entry.variables:
            assert data[variable.offset : variable.offset + len(variable.raw)] == variable.raw
            assert data[variable.offset - 1 : variable.offset] == b"\\"


def test_what_belongs_to_nothing_is_skipped_and_named_by_its_line() -> None:
    found = parse(b" continuation\n\\variable\n\n-a\n\\v\n not of a\n?new\n of it\n\\too\n-b\n\xc3\xa4rger\n")
    assert [entry.content for entry in found.entries] == [b"a", b"b"]
    assert found.problems == [
        Problem(1, 0, "it continues nothing"),
        Problem(2, 14, "it is a variable of nothing"),
        Problem(6, 31, "it continues a variable, which has one line only"),
        Problem(7, 41, "nothing is known that begins with '?'"),
        Problem(11, 61, "nothing is known that begins with 'ä'"),
    ]


@given(st.text(), st.lists(st.text().filter(lambda text: "\n" not in text)))
def test_any_text_and_any_variables_come_back(text: str, variables: list[str]) -> None:
    try:
        content, raw = text.encode(), [each.encode() for each in variables]
    except UnicodeEncodeError:
        return
    data = encode("-", content, raw)
    assume(data.count(b"\n") != data.count(b"\r\n"))  # else it reads as an entry with the other line ends
    data = b"-before\n" + data + b"-after\n"
    [before, entry, after] = parse(data).entries
    assert (before.text, entry.text, after.text) == ("before", text, "after")
    assert [each.raw for each in entry.variables] == raw
    assert data[entry.offset : entry.offset + entry.length] == encode("-", content, raw)


@given(st.lists(st.sampled_from([b"-", b"=", b"#", b"!", b" ", b"\\", b"\n", b"?", b"a", b"\r", b"\xc3\xa4"])))
@example([b"-", b"\r", b"\n", b"\n"])
def test_whatever_the_bytes_are_entries_lie_in_order_and_do_not_overlap(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    end = 0
    for entry in parse(data).entries:
        assert entry.offset >= end
        assert data[entry.offset : entry.offset + 1].decode() == entry.control
        end = entry.offset + entry.length
        assert entry.content == parse_one(data[entry.offset : end], entry.offset).content
    assert end <= len(data)


def test_a_large_file_is_scanned_alike_by_columns_and_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(0)
    data = b"".join(random.choices([b"-", b"=x", b"\n", b"\n", b"\\", b" ", b"words and words"], k=200_000))
    monkeypatch.setattr(text_format, "_BLOCK", 1_000)
    by_line = scan(data)
    monkeypatch.setattr(text_format, "_WORTH", 0)
    assert scan(data) == by_line
    assert len(by_line.offsets) > 10_000
    assert scan(b"-") == scan(b"-\n")


def test_a_value_fills_its_bytes_and_what_does_not_fit_is_refused() -> None:
    variable = Variable(10, b"mutex=     ")
    assert fitting(variable, b"me", "mutex") == (16, b"me   ")
    assert fitting(variable, b"else") == (10, b"else       ")
    with pytest.raises(InvalidArgument, match="6 bytes, the variable has room for 5: reserve more"):
        fitting(variable, b"longer", "mutex")
    with pytest.raises(InvalidArgument, match="has a newline"):
        fitting(variable, b"a\nb")


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has a newline"):
        encode(COMMENT, b"a", [b"two\nlines"])
    with pytest.raises(InvalidArgument, match="is none of"):
        encode("+", b"a")
