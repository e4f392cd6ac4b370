"""Tables of a folder that Kestrel left: read where it is, unopened, and nothing in it is made or changed."""

import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import NotSupported, PenstockError
from penstock.contract.kinds import kind_of
from penstock.contract.message import STATES
from penstock.stores.journal.backup import backup
from penstock.stores.journal.format import (
    DIALECTS,
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Dialect,
    RemoveTentative,
    RemoveTentativeXid,
)
from tests.spark.reads import arrow, listed, plan, read, rows
from tests.stores.journal.journals import VECTORS, item, journal, written

AT = 1_700_000_000_000
FOREVER = 4_000_000_000_000  # a time to come
UNDATED = {"created_at", "received_at", "visible_at"}  # of items without a time: not before the folder is opened

WRITTEN = [vector for vector in VECTORS["vectors"] if any(vector["files"].values())]


def make(folder: Path, **files: bytes) -> Path:
    """A folder as Kestrel leaves it, written a while ago."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
        os.utime(folder / name.replace("_", "."), (1_800_000_000, 1_800_000_000))
    return folder


def everything_in(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """The names, bytes, times and inodes of all there is in a folder."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.stat()
        content = b"" if path.is_dir() else path.read_bytes()
        found[str(path)] = (content, status.st_mtime_ns, status.st_ctime_ns)
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("vector", WRITTEN, ids=lambda vector: str(vector["name"]))
def test_a_published_folder_has_the_rows_that_opening_a_copy_shows(
    vector: dict[str, Any], dialect: Dialect, tmp_path: Path
) -> None:
    folder = make(tmp_path / "spool")
    for name, content in vector["files"].items():
        (folder / name).write_bytes(bytes.fromhex(content))
    shutil.copytree(folder, tmp_path / "copy")
    before = everything_in(folder)
    found = rows(f"journal:{folder}?dialect={dialect}")
    queues = rows(f"journal:{folder}?dialect={dialect}", table="queues")
    assert rows(f"journal:{folder}?dialect={dialect}", table="attempts") == []
    assert everything_in(folder) == before
    with penstock.open(tmp_path / "copy", dialect=dialect) as store:
        expected = listed(store)
        infos = store.queues()
    for row, opened in zip(found, expected, strict=True):
        assert {name: row[name] for name in row.keys() - UNDATED} == {
            name: opened[name] for name in opened.keys() - UNDATED
        }
    assert [(row["name"], {state: row[state] for state in STATES}) for row in queues] == [
        (info.name, info.counts) for info in infos
    ]


def test_messages_keep_kestrels_times_and_those_without_one_have_their_files(tmp_path: Path) -> None:
    folder = make(
        tmp_path / "spool",
        q_100=written(AddX(AT, FOREVER, b"rotated"), Add(0, b"starling")),
        q=written(AddX(AT + 5, 0, b"open"), RemoveTentative(), RemoveTentative(), AddX(AT, AT + 1, b"expired")),
    )
    found = rows(folder)
    assert [(row["id"], row["payload"]) for row in found] == [
        ("1", b"rotated"),
        ("2", b"starling"),
        ("3", b"open"),
    ]
    assert [row["created_at"] for row in found] == [AT, 1_800_000_000_000, AT + 5]
    assert [row["received_at"] for row in found] == [row["created_at"] for row in found]
    assert [row["expires_at"] for row in found] == [FOREVER, None, None]
    assert {(row["state"], row["attempts"], row["priority"]) for row in found} == {("available", 0, 0)}
    assert [row["headers"] for row in found] == [{}] * 3


def test_a_read_of_some_columns_queues_or_states_has_no_others(tmp_path: Path) -> None:
    folder = make(tmp_path / "spool", one=written(item(b"a"), item(b"b")), two=written(item(b"c")), none=b"")
    expected: dict[str, list[Any]] = {
        "id": ["1", "2"],
        "queue": ["one", "one"],
        "payload": [b"a", b"b"],
        "state": ["available"] * 2,
        "headers": [{}, {}],
        "reason": [None, None],
    }
    for name, values in expected.items():
        assert rows(folder, [name], queue="one") == [{name: value} for value in values]
    assert rows(folder, queue="none") == []
    assert rows(folder, state="failed,done") == []
    assert [row["payload"] for row in rows(folder, ["payload"], state="available")] == [b"a", b"b", b"c"]


def test_the_dialect_in_the_url_says_how_opcode_eight_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = written(item(b"a"), RemoveTentativeXid(7), Continue(7, AT, 0, b"went on"), item(b"b"))
    folder = make(tmp_path / "spool", q=content)
    before = everything_in(folder)
    assert [row["payload"] for row in rows(f"journal:{folder}?dialect=2.x")] == [b"went on", b"b"]
    assert not caplog.records
    assert [row["payload"] for row in rows(f"journal:{folder}?dialect=doc")] == [b"a"]
    [warning] = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert f"{folder / 'q'} cannot be read from offset" in warning
    assert "?dialect=2.x" in warning
    assert everything_in(folder) == before


def test_parts_travel_to_other_processes_with_their_rows(tmp_path: Path) -> None:
    payloads = [bytes([number % 256]) * (number % 50) for number in range(5_000)]
    large = [b"x" * (5 << 20)] * 3
    folder = make(tmp_path / "spool", q_1=written(*map(item, payloads)), q=written(*map(item, large)))
    parts = plan(folder, arrow())
    assert len(parts) > 1
    found = read(pickle.loads(pickle.dumps(parts)), arrow())
    assert [row["payload"] for row in found] == payloads + large


@pytest.mark.parametrize("change", ["opened", "rewritten", "truncated"])
def test_a_folder_that_changes_between_plan_and_read_is_an_error_and_never_other_messages(
    tmp_path: Path, change: str
) -> None:
    folder = make(tmp_path / "spool", q=written(item(b"first"), item(b"second")))
    parts = plan(folder, arrow())
    if change == "opened":
        journal(folder).close()
    elif change == "rewritten":
        (folder / "q~~1").write_bytes(written(item(b"other")) * 2)
        (folder / "q~~1").rename(folder / "q")
    else:
        os.truncate(folder / "q", 30)
    with pytest.raises(PenstockError, match=r"has changed since this DataFrame was planned.*load\(\) it again"):
        read(parts, arrow())


def test_what_kestrel_adds_after_the_plan_does_no_harm(tmp_path: Path) -> None:
    folder = make(tmp_path / "spool", q=written(item(b"a")))
    parts = plan(folder, arrow())
    with (folder / "q").open("ab") as file:
        file.write(written(ConfirmRemove(3), item(b"later")))
    assert [row["payload"] for row in read(parts, arrow())] == [b"a"]


def test_a_journal_of_kestrels_beside_those_of_a_store_is_read_too(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        store.create("ours").put(b"ours")
    (tmp_path / "store" / "theirs").write_bytes(written(item(b"theirs"), AddXid(5, AT, 0, b"more")))
    found = rows(tmp_path / "store")
    assert sorted((row["queue"], row["payload"]) for row in found) == [
        ("ours", b"ours"),
        ("theirs", b"more"),
        ("theirs", b"theirs"),
    ]


def test_what_kestrel_wrote_after_us_is_read_once_the_store_was_opened_again(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.create("jobs").put(b"ours")
    with (tmp_path / "jobs").open("ab") as file:
        file.write(written(item(b"theirs")))
    with pytest.raises(NotSupported, match=r"entries of another program.*penstock\.open"):
        rows(tmp_path)
    with penstock.open(tmp_path) as store:
        expected = listed(store)
    assert sorted(row["payload"] for row in expected) == [b"ours", b"theirs"]
    assert rows(tmp_path) == expected


def test_a_follower_of_such_a_folder_is_told_to_open_it_first(tmp_path: Path) -> None:
    folder = make(tmp_path / "spool", q=written(item(b"a")))
    before = everything_in(folder)
    tables = kind_of(str(folder)).tables(str(folder))
    with pytest.raises(NotSupported, match=r"entries of another program.*penstock\.open"):
        tables.follower(str(folder), "q", arrow(), os.getpid())
    assert everything_in(folder) == before
    penstock.open(folder).close()
    follower = tables.follower(str(folder), "q", arrow(), os.getpid())
    assert follower is not None
    assert follower.ahead(*follower.start("earliest"), 10, 1_000).until == 1
    follower.close()


def test_a_backup_of_such_a_folder_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    folder = make(tmp_path / "spool", q=written(item(b"a")))
    before = everything_in(tmp_path)
    with pytest.raises(NotSupported, match=r"entries of another program.*penstock\.open"):
        backup(folder, tmp_path / "copy")
    assert everything_in(tmp_path) == before


def test_settings_and_streams_of_such_a_folder_are_those_of_new_queues(tmp_path: Path) -> None:
    folder = make(tmp_path / "spool", q=written(item(b"a")))
    before = everything_in(folder)
    tables = kind_of(str(folder)).tables(str(folder))
    assert tables.settings(str(folder), penstock.open) == {
        "default": penstock.Settings(),
        "q": penstock.Settings(),
    }
    assert tables.streams(str(folder), penstock.open) == []
    assert tables.brought(str(folder), "a run", penstock.open) is None
    tables.check(str(folder))
    assert everything_in(folder) == before
