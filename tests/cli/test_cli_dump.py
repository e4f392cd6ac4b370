"""`penstock dump`: journal files, text files and slate stores as they are on disk, damaged ones too."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cli import cli
from penstock.stores.journal import dumping
from penstock.stores.journal.format import (
    Add,
    AddX,
    ConfirmRemove,
    Continue,
    Entry,
    Remove,
    RemoveTentative,
    SaveXid,
    encode,
)
from tests.stores.slate.opendata import Writer


def dump(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["dump", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def lines(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dump(*arguments, "--json", code=code).stdout.splitlines()]


def named(pieces: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [piece for piece in pieces if piece["entry"] == name]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The journal of a closed store: a put of two messages, a claim, an ack."""
    with penstock.open(tmp_path / "store", clock=penstock.SimulatedClock()) as store:
        jobs = store.create("jobs")
        jobs.put_many([penstock.Draft("one", headers={"kind": "a"}), b"\xff two"])
        [claimed] = jobs.claim(consumer="me")
        claimed.ack()
    return tmp_path / "store" / "jobs"


# Journals


def test_a_journal_is_shown_by_groups_entries_and_records(journal: Path) -> None:
    pieces = lines(journal)
    assert [(piece["number"], piece["depth"]) for piece in named(pieces, "group")] == [(1, 0), (2, 0), (3, 0)]
    assert [piece["entry"] for piece in pieces if piece["depth"] == 1][:9] == [
        "SAVE_XID", "ADDX", "REMOVE", "ADDX", "REMOVE_TENTATIVE", "ADDX", "REMOVE", "ADDX", "REMOVE_TENTATIVE",
    ]  # fmt: skip
    one, two = [piece for piece in named(pieces, "ADDX") if "control" not in piece]
    assert (one["id"], one["xid"], one["data"], one["added"]) == ("1", 1, "one", 1_700_000_000_000)
    assert (two["id"], two["xid"], two["data_base64"]) == ("2", 2, "/yB0d28=")
    [headers] = [piece for piece in pieces if piece.get("control") == "headers"]
    assert (headers["id"], headers["headers"]) == ("1", {"kind": "a"})
    [put], [claim], [ack] = (named(pieces, name) for name in ("put", "claim", "ack"))
    assert (put["first"], put["priority"], put["places"]) == (1, [0, 0], [one["offset"], two["offset"]])
    assert (claim["seqs"], claim["consumer"]) == ([1], "me")
    assert ack["seqs"] == [1]
    assert [piece["xid"] for piece in named(pieces, "CONFIRM_REMOVE")] == [1]


def test_the_entries_of_a_journal_are_all_of_its_bytes(journal: Path) -> None:
    end = 0
    for piece in lines(journal):
        if piece["entry"] == "group" or piece.get("offset") is None:
            continue
        assert piece["offset"] == end
        end += piece["size"]
    assert end == journal.stat().st_size


def test_a_journal_is_shown_for_people(journal: Path) -> None:
    shown = dump(journal).stdout.splitlines()
    assert shown[0].split() == ["0", "group", "number=1", "at=2023-11-14T22:13:20.000Z", "size=316"]
    assert any("data=one" in line and "id=1 xid=1" in line for line in shown)
    assert any("(5 bytes, not text)" in line for line in shown)
    assert any(line.split()[0] == "claim" and "consumer=me" in line for line in shown)


def test_a_packed_journal_is_shown_with_its_pages(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        jobs = store.create("jobs", keep_done=None)
        jobs.put_many([b"x" * 100] * 50)
        jobs.ack(*jobs.claim(20))
        jobs.remove(*jobs.put_many([b"x" * 1000] * 50))
        store.backend.pack("jobs")  # type: ignore[attr-defined]
    [packed] = [path for path in (tmp_path / "store").iterdir() if path.name.startswith("jobs.")]
    pieces = lines(packed)
    [page], [rest] = named(pieces, "page"), named(pieces, "rest")
    assert page["ids"] == [str(number) for number in range(1, 51)]
    assert page["states"] == ["done"] * 20 + ["available"] * 30
    assert rest["next_id"] == 101
    messages = {piece["id"]: piece["offset"] for piece in pieces if "id" in piece and "data" in piece}
    assert [messages[id_] for id_ in page["ids"]] == page["places"]


def test_a_store_can_be_dumped_while_it_is_open_and_is_not_changed(journal: Path) -> None:
    with penstock.open(journal.parent) as store:
        before = {path: path.read_bytes() for path in journal.parent.rglob("*") if path.is_file()}
        store.queue("jobs").put("three")
        written = journal.read_bytes()
        pieces = lines(journal)
        assert journal.read_bytes() == written
        assert {path for path in journal.parent.rglob("*") if path.is_file()} == before.keys()
    assert [piece["data"] for piece in named(pieces, "ADDX") if piece.get("id") == "3"] == ["three"]
    [filling] = [piece for piece in named(pieces, "REMOVE") if piece.get("count", 0) > 1]
    assert filling["size"] + filling["offset"] == len(written)


def test_a_journal_of_another_program_is_shown_by_the_document(tmp_path: Path) -> None:
    added: list[Entry] = [Add(5, b"old"), AddX(7, 0, b"new")]
    entries = [*added, Remove(), RemoveTentative(), SaveXid(3), ConfirmRemove(1)]
    (file := tmp_path / "cars").write_bytes(b"".join(map(encode, entries)))
    pieces = lines(file)
    assert [piece["entry"] for piece in pieces] == [
        "ADD", "ADDX", "REMOVE", "REMOVE_TENTATIVE", "SAVE_XID", "CONFIRM_REMOVE",
    ]  # fmt: skip
    assert [(piece["expiry"], piece["data"]) for piece in pieces[:2]] == [(5000, "old"), (0, "new")]
    assert (pieces[4]["xid"], pieces[5]["xid"]) == (3, 1)


def test_a_large_journal_of_another_program_is_read_to_its_end(tmp_path: Path) -> None:
    entries = [AddX(number, 0, b"x" * (number % 300)) for number in range(30_000)]
    entries[77] = AddX(77, 0, b"large" * 1_000_000)
    (file := tmp_path / "cars").write_bytes(b"".join(map(encode, entries)) + b"\x01" * 30_000)
    *added, removed = dumping.dump(str(file))
    assert [piece.fields["added"] for piece in added] == list(range(30_000))
    assert added[77].fields["data"] == b"large" * 1_000_000
    assert removed.fields["count"] == 30_000


def test_opcode_8_is_read_in_the_dialect_that_is_given(tmp_path: Path) -> None:
    (file := tmp_path / "cars").write_bytes(encode(Continue(7, 1, 0, b"next")))
    [piece] = lines(file, "--dialect", "2.x")
    assert (piece["entry"], piece["xid"], piece["data"]) == ("CONTINUE", 7, "next")
    assert lines(file, code=1)[0]["entry"] == "STATE_DUMP"


def test_a_damaged_group_is_shown_with_its_place_and_the_dump_goes_on(journal: Path) -> None:
    [first, second, third] = named(lines(journal), "group")
    data = bytearray(journal.read_bytes())
    data[second["offset"] + 70] ^= 1
    journal.write_bytes(data)
    pieces = lines(journal, code=1)
    [damage] = named(pieces, "damaged")
    assert damage == {
        "entry": "damaged", "offset": second["offset"], "depth": 0, "reason": "the checksum of group 2 is wrong",
        "size": second["size"],
    }  # fmt: skip
    assert named(pieces, "group") == [first, third]
    assert "damaged" in dump(journal, code=1).stdout


def test_a_torn_end_is_shown_as_damage(journal: Path) -> None:
    data = journal.read_bytes()
    last = named(lines(journal), "group")[-1]
    journal.write_bytes(data[:-3])
    [damage] = named(lines(journal, code=1), "damaged")
    assert (damage["offset"], damage["size"]) == (last["offset"], last["size"] - 3)
    assert "cut off" in damage["reason"]


def test_every_flipped_bit_of_a_journal_is_shown_as_damage(journal: Path) -> None:
    data = journal.read_bytes()
    for offset in range(len(data)):
        journal.write_bytes(data[:offset] + bytes([data[offset] ^ 1 << offset % 8]) + data[offset + 1 :])
        pieces = list(dumping.dump(str(journal)))
        assert any(piece.name == "damaged" for piece in pieces), offset
        assert [piece.fields["number"] for piece in pieces if piece.name == "group"] in ([1, 2], [1, 3], [2, 3])


@given(st.lists(st.binary(max_size=40) | st.sampled_from([bytes([number]) for number in range(12)])))
def test_any_bytes_can_be_dumped_as_a_journal(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    file = tmp_path_factory.mktemp("any") / "cars"
    file.write_bytes(b"".join(parts))
    pieces = list(dumping.dump(str(file)))
    assert sum(piece.fields["size"] for piece in pieces) == file.stat().st_size
    assert [piece.offset for piece in pieces] == sorted({piece.offset or 0 for piece in pieces})


# Text files


def test_a_text_file_is_shown_entry_by_entry_with_states(tmp_path: Path) -> None:
    file = tmp_path / "jobs.tq"
    file.write_text("# mine\n-resize cat.jpg\n\n=two\n lines\n!three\n-\x1b[2J\n\\key = value  \n")
    with penstock.open(file) as store:
        store.queue("jobs").claim(lease=600)
    pieces = lines(file)
    assert [(piece["offset"], piece["state"], piece["text"]) for piece in pieces] == [
        (0, "comment", " mine"), (7, "in_flight", "resize cat.jpg"), (24, "done", "two\nlines"),
        (36, "failed", "three"), (43, "available", "\x1b[2J"),
    ]  # fmt: skip
    assert pieces[-1]["variables"] == ["key = value"]
    assert "\x1b" not in dump(file).stdout


def test_a_line_of_a_text_file_that_means_nothing_is_shown_as_damage(tmp_path: Path) -> None:
    (file := tmp_path / "jobs.tq").write_bytes(b"-one\n?two\n-\xff\n")
    one, odd, three = lines(file, code=1)
    assert (odd["entry"], odd["offset"], odd["size"]) == ("damaged", 5, 5)
    assert odd["reason"] == "nothing is known that begins with '?'"
    assert (one["text"], three["text_base64"]) == ("one", "/w==")
    assert file.read_bytes() == b"-one\n?two\n-\xff\n"
    assert list(tmp_path.iterdir()) == [file]


def test_the_torn_end_of_a_mutex_file_is_said(tmp_path: Path) -> None:
    (file := tmp_path / "jobs.tq").write_text("-one\n")
    with penstock.open(file) as store:
        store.queue("jobs").claim()
    mutex = tmp_path / "jobs.tq.mutex"
    mutex.write_bytes(mutex.read_bytes() + b". 00000000 {")
    [_, damage] = lines(file, code=1)
    assert "jobs.tq.mutex" in damage["reason"]


# Slate stores


@contextmanager
def slate(folder: Path) -> Iterator[penstock.Queue]:
    with penstock.open(f"slate:{folder}") as store:
        yield store.create("jobs", filter="kind = 'a'")


def test_a_slate_store_is_shown_record_by_record_also_while_it_is_open(tmp_path: Path) -> None:
    with slate(tmp_path / "data") as jobs:
        put = jobs.put("hello", headers={"kind": "b"})
        pieces = lines(f"slate:{tmp_path / 'data'}")
    [payload] = named(pieces, "payload")
    assert (payload["number"], payload["record"], payload["key"][:5]) == (int(put), "hello", "01 01")
    [active] = [piece for piece in named(pieces, "active") if piece["queue"] == "jobs"]
    assert active["record"][0][0]["id"] == int(put)
    [logged] = named(pieces, "log entry")
    assert logged["record"]["headers"]["kind"] == "b"
    assert "hello" in dump(f"slate:{tmp_path / 'data'}").stdout


def test_a_record_that_cannot_be_decoded_is_shown_as_damage(tmp_path: Path) -> None:
    writer = Writer()
    writer.message(1, b"hello")
    writer.rows[b"\x01\x02jobs\x00"] = b"\x07"
    writer.write(tmp_path / "data")
    pieces = lines(f"slate:{tmp_path / 'data'}", code=1)
    [damage] = named(pieces, "damaged")
    assert "'jobs'" in damage["reason"]
    assert named(pieces, "payload")


# What is no file


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("none", 1, "there is no file"),
        ("slate:none", 1, "there is no slate store"),
        (".", 2, "is a folder: give one of its files, as ./cars"),
        ("slate", 2, "is a folder: give one of its files, or slate:slate if it is a slate store"),
        ("http://localhost:1", 1, "has no entries to dump"),
        ("folder:.", 1, "has no entries to dump"),
    ],
)
def test_what_is_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cars").touch()
    (tmp_path / "slate").mkdir()
    assert said in dump(what, code=code).stderr


def test_an_empty_file_is_exit_code_3(tmp_path: Path) -> None:
    (file := tmp_path / "cars").touch()
    empty = dump(file, code=3)
    assert (empty.stdout, empty.stderr) == ("", f"{file} is empty\n")
