"""Folders that Kestrel left behind, or went on writing to: opened as they are, by the document, losing nothing."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import SimulatedClock
from penstock.contract.kinds import kind_of
from penstock.contract.tables import Target
from penstock.http.server import serve_in_thread
from penstock.stores.journal import replay
from penstock.stores.journal.catalog import Catalog
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.format import (
    DIALECTS,
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Dialect,
    Entry,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    Unremove,
    encode,
)
from penstock.stores.journal.groups import MAGIC
from penstock.stores.journal.snapshot import StoreSnapshot
from penstock.system.files import ReadingDisk
from tests.stores.journal.journals import (
    NOW,
    STRAYS,
    VECTORS,
    by_document,
    content_of,
    item,
    journal,
    payloads,
    stray,
    written,
)


def make(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def append(folder: Path, name: str, *entries: Entry) -> None:
    with (folder / name).open("ab") as file:
        file.write(written(*entries))


CASES = [
    pytest.param(vector, dialect, id=f"{vector['name']}-{dialect}")
    for vector in VECTORS["vectors"]
    for dialect in (DIALECTS if vector["dialect"] == "any" else [vector["dialect"]])
]


@pytest.mark.parametrize(("vector", "dialect"), CASES)
def test_a_published_folder_opens_as_it_is(
    vector: dict[str, Any], dialect: Dialect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, {name: bytes.fromhex(content) for name, content in vector["files"].items()})
    expected = vector.get("after_restart")
    expected = [b"keep"] if expected is None else [bytes.fromhex(payload) for payload in expected]
    broken = replay(tmp_path, "q", dialect).broken
    with journal(tmp_path, SimulatedClock(vector["now_ms"]), dialect=dialect) as store:
        if not vector["files"]:
            assert [info.name for info in store.queues()] == ["default"]
            return
        queue = store.queue("q")
        messages = list(queue.messages())
        if "expired" in vector["name"]:
            expected = expected[1:]
        assert [message.payload for message in messages] == expected
        assert {message.state for message in messages} <= {"available"}
        assert [message.payload for message in queue.peek(100)] == expected
        assert queue.settings == penstock.Settings()
        queue.put(b"ours", priority=-1, headers={"a": "b"})
        [ours] = queue.claim()
        assert (ours.payload, ours.headers) == (b"ours", {"a": "b"})
        queue.ack(*queue.claim(1))
    quarantine = tmp_path / ".penstock" / "quarantine"
    if broken is None:
        assert not quarantine.exists()
        assert not caplog.records
    else:
        [kept] = quarantine.iterdir()
        name, offset = broken
        assert kept.name.startswith(f"{name}.{offset}.")
        assert kept.read_bytes() == bytes.fromhex(vector["files"][name])[offset:]
        [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert str(kept) in warning.getMessage()
    left = expected[1:] + [b"ours"]
    for _ in range(2):
        with journal(tmp_path, SimulatedClock(vector["now_ms"]), dialect=dialect) as store:
            assert payloads(store.queue("q")) == left
    assert by_document(tmp_path, "q", dialect) == sorted(left)


@pytest.mark.parametrize("url", ["journal:{}?dialect=2.x", "{}?dialect=2.x"])
def test_the_dialect_may_be_in_the_url(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "spool"
    make(folder, {"q": written(item(b"a"), RemoveTentativeXid(7), Continue(7, NOW, 0, b"went on"))})
    for share in (True, False):
        with penstock.open(url.format(folder), share=share) as store:
            assert payloads(store.queue("q")) == [b"went on"]
    with penstock.open(url.format(folder), dialect="2.x") as store:
        store.queue("q").put(b"ours")
    assert by_document(folder, "q", "2.x") == [b"ours", b"went on"]
    assert encode(RemoveTentativeXid(2)) in (folder / "q").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]


def test_who_opens_an_owned_store_by_a_url_with_its_dialect_is_a_guest(tmp_path: Path) -> None:
    with (
        penstock.open(f"journal:{tmp_path}?dialect=2.x") as owner,
        penstock.open(f"journal:{tmp_path}?dialect=2.x") as guest,
    ):
        guest.queue().put(b"a")
        assert payloads(owner.queue()) == [b"a"]
    assert encode(RemoveTentativeXid(1)) in (tmp_path / "default").read_bytes()


def test_a_server_keeps_the_dialect_of_its_stores_url(tmp_path: Path) -> None:
    with penstock.open(f"journal:{tmp_path}?dialect=2.x") as store:
        server = serve_in_thread(store)
        with penstock.open(server.url) as remote:
            remote.queue().put(b"a")
        server.stop()
    assert encode(RemoveTentativeXid(1)) in (tmp_path / "default").read_bytes()


def test_loads_are_refused_before_they_begin_for_a_store_that_kestrel_is_to_read(tmp_path: Path) -> None:
    url = f"journal:{tmp_path}?dialect=2.x"
    penstock.open(url).close()
    before = content_of(tmp_path)
    tables = kind_of(url).tables(url)
    with pytest.raises(penstock.NotSupported, match=r'loads are staged for dialect="doc".*\?dialect='):
        tables.loader(Target(url, "default"), os.getpid(), penstock.open)
    assert content_of(tmp_path) == before


def test_no_file_but_the_broken_one_loses_anything_and_its_rest_is_in_quarantine_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, {"q.5": written(item(b"a")) + b"\xff rest", "q.7": written(item(b"b"))})
    make(tmp_path, {"q": written(item(b"c")) + b"\xfe", "other": written(item(b"d"))})
    for opening in range(2):
        caplog.clear()
        with journal(tmp_path) as store:
            assert payloads(store.queue("q")) == [b"a", b"b", b"c"]
            assert payloads(store.queue("other")) == [b"d"]
        assert len([each for each in caplog.messages if "the rest was moved to" in each]) == (0 if opening else 2)
        assert not any(b"\xff rest" in file.read_bytes() for file in tmp_path.glob("q*"))
    kept = {file.read_bytes() for file in (tmp_path / ".penstock" / "quarantine").iterdir()}
    assert kept == {b"\xff rest", b"\xfe"}


def test_a_journal_whose_first_entry_was_cut_off_is_an_empty_queue(tmp_path: Path) -> None:
    make(tmp_path, {"q": written(item(b"x"))[:-1]})
    with journal(tmp_path) as store:
        assert payloads(store.queue("q")) == []
        store.queue("q").put(b"new")
    assert by_document(tmp_path, "q") == [b"new"]
    with journal(tmp_path) as store:
        assert payloads(store.queue("q")) == [b"new"]


NO_JOURNALS = {
    "Makefile": b"all:\n\techo\n",
    "LICENSE": b"Permission is hereby granted",
    "table": b"\tfirst\tsecond\n1\t2\t3\n",
    "rule": b"\t@ls\n",
    "zeros": bytes(600_000),
    "noise": b"\xff" * 10,
    "README.md": b"# Words",
}


@pytest.mark.parametrize("name", NO_JOURNALS)
def test_a_folder_with_files_of_others_does_not_become_a_store(tmp_path: Path, name: str) -> None:
    make(tmp_path, {name: NO_JOURNALS[name]})
    for _ in range(2):
        with pytest.raises(penstock.StoreUnavailable, match=f"'{name}' in it is no journal"):
            penstock.open(tmp_path)
    assert content_of(tmp_path) == {name: NO_JOURNALS[name]}
    assert os.listdir(tmp_path) == [name]


def test_a_view_of_a_folder_with_files_of_others_gives_no_advice_to_open_it(tmp_path: Path) -> None:
    make(tmp_path, NO_JOURNALS)
    with pytest.raises(penstock.StoreUnavailable, match="is no store") as refused:
        StoreSnapshot(str(tmp_path), ReadingDisk(), NOW)
    assert "penstock.open" not in str(refused.value)
    assert content_of(tmp_path) == NO_JOURNALS


def test_a_view_of_a_store_does_not_see_files_of_others(tmp_path: Path) -> None:
    with journal(tmp_path) as store:
        store.create("jobs").put(b"a")
    make(tmp_path, NO_JOURNALS)
    assert sorted(StoreSnapshot(str(tmp_path), ReadingDisk(), NOW).settings()) == ["default", "jobs"]


@pytest.mark.parametrize("kind", STRAYS)
def test_a_folder_with_what_is_no_file_does_not_become_a_store(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    stray(folder / "x", kind, tmp_path / "secret")
    with pytest.raises(penstock.StoreUnavailable, match="'x' in it is no journal"):
        journal(folder)
    assert os.listdir(folder) == ["x"]


@pytest.mark.parametrize("name", ["lost+found", ".gitkeep"])
def test_a_folder_that_people_call_empty_becomes_a_store(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with journal(tmp_path) as store:
        store.queue().put(b"a")


def test_files_of_others_that_appear_in_a_store_are_left_alone_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with journal(tmp_path) as store:
        store.create("jobs").put(b"a")
    others = {**NO_JOURNALS, "jobs.5": b"notes", "jobs~~notes": b"notes", "q.bak": b"1", "q.7.packed": b"2"}
    make(tmp_path, others)
    for number in range(2):
        caplog.clear()
        with journal(tmp_path) as store:
            assert [info.name for info in store.queues()] == ["default", "jobs"]
            store.queue("jobs").put(bytes([number]))
            for name in ("Makefile", "LICENSE", "table", "rule", "zeros", "noise", "jobs.5"):
                [warning] = [each for each in caplog.messages if f"{tmp_path / name} is no journal" in each]
                assert "left alone" in warning
    found = {each.file for each in examine(tmp_path).findings}
    assert {str(tmp_path / name) for name in others if name != "jobs.5"} <= found
    with journal(tmp_path) as store:
        store.create("Makefile").put(b"ours")
        store.backend.pack("jobs")  # type: ignore[attr-defined]
        store.delete("jobs")
    assert {name: (tmp_path / name).read_bytes() for name in others} == others
    assert not (tmp_path / ".penstock" / "quarantine").exists()
    with journal(tmp_path) as store:
        assert payloads(store.queue("Makefile")) == [b"ours"]


@pytest.mark.parametrize("kind", STRAYS)
@pytest.mark.parametrize("name", ["x", "x.5", "jobs.5", "default"])
def test_what_is_no_file_in_a_store_is_left_alone_and_told_of(
    tmp_path: Path, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    with journal(folder) as store:
        store.create("jobs").put(b"a")
    stray(folder / name, kind, tmp_path / "secret")
    for _ in range(2):
        caplog.clear()
        with journal(folder) as store:
            assert [info.name for info in store.queues()] == ["default", "jobs"]
            assert payloads(store.queue("jobs"))[0] == b"a"
            store.queue().put(b"b")
            store.queue("jobs").put(b"c")
        assert f"{folder / name} is no journal" in caplog.text
    assert str(folder / name) in {each.file for each in examine(folder).findings}
    assert os.listdir(tmp_path).count("secret") == (kind == "link")


@pytest.mark.parametrize("kind", STRAYS)
def test_what_is_no_file_in_the_place_of_a_journal_is_an_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "store"
    with journal(folder) as store:
        store.create("jobs").put(b"a")
    (folder / "jobs").rename(tmp_path / "jobs")
    stray(folder / "jobs", kind, tmp_path / "secret")
    with pytest.raises(penstock.StoreUnavailable, match="is no file"):
        journal(folder)
    (folder / "jobs").rename(tmp_path / "stray")
    (tmp_path / "jobs").rename(folder / "jobs")
    with journal(folder) as store:
        assert payloads(store.queue("jobs")) == [b"a"]


def test_a_file_of_others_in_the_place_of_a_journal_is_an_error(tmp_path: Path) -> None:
    with journal(tmp_path) as store:
        store.create("jobs")
    (tmp_path / "jobs").write_bytes(b"notes")
    (tmp_path / ".penstock" / "clean").unlink()
    with pytest.raises(penstock.StoreCorrupt, match="is no journal"):
        journal(tmp_path)
    assert (tmp_path / "jobs").read_bytes() == b"notes"
    assert not (tmp_path / ".penstock" / "quarantine").exists()


def test_a_store_can_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to("real")
    for number in range(2):
        with penstock.open(tmp_path / "data") as store:
            store.queue().put(b"a")
            assert len(store.queue()) == number + 1


@pytest.mark.parametrize("name", ["q.100", "q~~100", "q.100.pack", "sub", "sub.5"])
def test_a_subfolder_is_ignored_whatever_its_name(tmp_path: Path, name: str) -> None:
    make(tmp_path, {"q": written(item(b"a"))})
    (tmp_path / name).mkdir()
    for _ in range(2):
        with journal(tmp_path) as store:
            assert [info.name for info in store.queues()] == ["default", "q"]
            assert payloads(store.queue("q")) == [b"a"]
    assert (tmp_path / name).is_dir()


def test_a_queue_can_have_the_name_of_a_subfolder(tmp_path: Path) -> None:
    journal(tmp_path).close()
    for name in ("jobs", "default"):
        (tmp_path / name).mkdir()
    with journal(tmp_path) as store:
        store.create("jobs").put(b"a")
        store.queue().put(b"b")
    with journal(tmp_path) as store:
        assert (payloads(store.queue("jobs")), payloads(store.queue())) == ([b"a"], [b"b"])


def test_items_that_have_expired_are_gone_and_others_expire_in_time(tmp_path: Path) -> None:
    make(tmp_path, {"q": written(item(b"past", NOW - 1), item(b"soon", NOW + 5_000), item(b"never"))})
    clock = SimulatedClock(NOW)
    with journal(tmp_path, clock) as store:
        assert payloads(store.queue("q")) == [b"soon", b"never"]
        clock.advance(5)
        assert payloads(store.queue("q")) == [b"never"]
    assert by_document(tmp_path, "q") == [b"never"]


def test_items_of_starling_are_read_too(tmp_path: Path) -> None:
    entries = [
        Add(0, b"never"),
        Add(NOW // 1000 - 1, b"past"),
        Add(-1, b"long past"),
        Add(NOW // 1000 + 60, b"soon"),
    ]
    make(tmp_path, {"q": written(*entries)})
    with journal(tmp_path) as store:
        messages = list(store.queue("q").messages())
    assert [(message.payload, message.expires_at) for message in messages] == [
        (b"never", None),
        (b"soon", NOW + 60_000),
    ]


def test_an_item_has_the_time_at_which_it_was_added(tmp_path: Path) -> None:
    make(tmp_path, {"q": written(AddX(NOW - 5, 0, b"a"), AddX(0, 0, b"unknown"))})
    with journal(tmp_path) as store:
        times = [(message.created_at, message.received_at) for message in store.queue("q").messages()]
    assert times == [(NOW - 5, NOW - 5), (NOW, NOW)]


@pytest.mark.parametrize(
    "name", ["work+fan", "a b", "größe", "CamelCase", "a%2Fb", "a%zz", "a:b", "-", "_", "@#$", "x" * 200]
)
def test_a_queue_of_kestrel_is_there_under_its_own_or_an_escaped_name(tmp_path: Path, name: str) -> None:
    make(tmp_path, {name: written(item(b"a")), f"{name}.5": written(item(b"0"))})
    for expected in ([b"0", b"a"], [b"0", b"a", b"new"]):
        with journal(tmp_path) as store:
            [found] = [info.name for info in store.queues() if info.name != "default"]
            assert payloads(store.queue(found)) == expected
            if b"new" not in expected:
                store.queue(found).put(b"new")
        assert by_document(tmp_path, found) == [b"0", b"a", b"new"]


@pytest.mark.parametrize(
    "names",
    [["work", "work+a", "work+b", "work+a+b"], ["a+b", "a%2Bb"], ["é" * 100], ["+" * 100], [" " * 120]],
    ids=["fanout", "one name for both", "accents", "plus signs", "spaces"],
)
def test_each_file_is_a_queue_of_its_own_that_can_be_opened(tmp_path: Path, names: list[str]) -> None:
    make(tmp_path, {name: written(item(name.encode())) for name in names})
    for _ in range(2):
        with journal(tmp_path) as store:
            found = [payload for info in store.queues() for payload in payloads(store.queue(info.name))]
        assert sorted(found) == sorted(name.encode() for name in names)


def test_a_file_of_kestrel_does_not_hide_a_queue_of_ours(tmp_path: Path) -> None:
    with journal(tmp_path) as store:
        store.create("a+b").put(b"ours")
    make(tmp_path, {"a+b": written(item(b"theirs"))})
    with journal(tmp_path) as store:
        found = [payload for info in store.queues() for payload in payloads(store.queue(info.name))]
    assert sorted(found) == [b"ours", b"theirs"]


def test_an_empty_file_of_kestrel_is_an_empty_queue(tmp_path: Path) -> None:
    make(tmp_path, {"q": b"", "r.5": b""})
    for number in range(3):
        with journal(tmp_path) as store:
            assert [info.name for info in store.queues()] == ["default", "q", "r"]
            assert len(store.queue("q")) == len(store.queue("r")) == number
            store.queue("q").put(b"a")
            store.queue("r").put(b"a")


def test_a_payload_may_be_a_journal_of_ours(tmp_path: Path) -> None:
    with journal(tmp_path / "inner") as store:
        store.queue().put(b"hello")
    inner = (tmp_path / "inner" / "default").read_bytes()
    for number, payload in enumerate([inner, MAGIC, MAGIC + b"h", inner[:-1]]):
        folder = tmp_path / str(number)
        make(folder, {"q": written(item(b"a"), item(payload), item(b"c"))})
        with journal(folder) as store:
            assert payloads(store.queue("q")) == [b"a", payload, b"c"]


def test_only_the_last_pack_counts_however_often_the_store_is_opened(tmp_path: Path) -> None:
    names = {"q.90": b"0", "q.100.pack": b"1", "q.150": b"2", "q.200.pack": b"3", "q.300": b"4", "q": b"5"}
    make(tmp_path, {name: written(item(payload)) for name, payload in names.items()})
    for _ in range(3):
        with journal(tmp_path) as store:
            assert payloads(store.queue("q")) == [b"3", b"4", b"5"]
    assert by_document(tmp_path, "q") == [b"3", b"4", b"5"]


# What a real Kestrel appends after our last group


def ours(folder: Path, clock: SimulatedClock, dialect: Dialect = "doc") -> list[penstock.Message]:
    """A store with five messages, of which Kestrel sees the transactions 1 to 5."""
    with journal(folder, clock, dialect=dialect) as store:
        queue = store.create("jobs", max_attempts=1)
        queue.put(b"1", priority=5, headers={"a": "b"})
        queue.put(b"2", priority=-5, created_at=7)
        queue.put(b"3", delay=100)
        queue.put_many([b"4", b"5"])
        queue.claim(1, lease=1000)
        queue.claim(1)[0].fail(reason="bad")
        return list(queue.messages())


def look(folder: Path, clock: SimulatedClock, dialect: Dialect = "doc") -> list[penstock.Message]:
    with journal(folder, clock, dialect=dialect) as store:
        first = list(store.queue("jobs").messages())
    with journal(folder, clock, dialect=dialect) as store:
        assert list(store.queue("jobs").messages()) == first
    seen = sorted(message.payload for message in first if message.state != "done")
    assert by_document(folder, "jobs", dialect) == seen
    return first


def backed_out(*xids: int) -> list[Entry]:
    """What a restart of Kestrel appends: the open transactions are put back, the lowest ends first."""
    return [Unremove(xid) for xid in sorted(xids, reverse=True)]


# What Kestrel does after its restart, how many of ours are gone by then, and what is new.
TRAFFIC: dict[str, tuple[list[Entry], int, list[bytes]]] = {
    "nothing": ([], 0, []),
    "removes": ([Remove()], 1, []),
    "removes and adds": (
        [Remove(), item(b"new"), RemoveTentativeXid(6), ConfirmRemove(6), RemoveTentativeXid(7), item(b"newer")],
        2,
        [b"new", b"newer"],
    ),
    "continues": ([RemoveTentativeXid(6), Continue(6, NOW, 0, b"next")], 1, [b"next"]),
}


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("rotated", [None, 0, 6], ids=["one file", "rotated first", "rotated later"])
@pytest.mark.parametrize(
    ("traffic", "dialect"),
    [(each, dialect) for each in TRAFFIC for dialect in DIALECTS if (each, dialect) != ("continues", "doc")],
)
def test_what_kestrel_removed_is_gone_what_it_added_is_there_and_the_rest_is_as_it_was(
    tmp_path: Path, traffic: str, dialect: Dialect, rotated: int | None, packed: bool
) -> None:
    clock = SimulatedClock(NOW)
    before = ours(tmp_path, clock, dialect)
    if packed:
        with journal(tmp_path, clock, dialect=dialect) as store:
            store.backend.pack("jobs")  # type: ignore[attr-defined]
    entries, gone, new = TRAFFIC[traffic]
    entries = [*backed_out(1, 2, 3, 4, 5), *entries]
    if rotated is not None:
        append(tmp_path, "jobs", *entries[:rotated])
        (tmp_path / "jobs").rename(tmp_path / f"jobs.{NOW + 1}")
    append(tmp_path, "jobs", *entries[rotated or 0 :])
    after = look(tmp_path, clock, dialect)
    assert after[: 5 - gone] == before[gone:]
    assert [(each.payload, each.state, each.headers, each.priority) for each in after[5 - gone :]] == [
        (payload, "available", {}, 0) for payload in new
    ]
    assert not {message.id for message in after[5 - gone :]} & {message.id for message in before}


@pytest.mark.parametrize("sync", ["never", "always"], ids=["right behind", "behind the filling"])
def test_kestrel_may_go_on_after_a_crash_of_ours(tmp_path: Path, sync: str) -> None:
    clock = SimulatedClock(NOW)
    with journal(tmp_path / "a", clock, sync) as store:
        store.create("jobs").put_many([b"1", b"2"])
        shutil.copytree(tmp_path / "a", tmp_path / "b")
    filled = (tmp_path / "b" / "jobs").stat().st_size > (tmp_path / "a" / "jobs").stat().st_size
    assert filled == (sync == "always")
    append(tmp_path / "b", "jobs", *backed_out(1, 2), Remove(), item(b"3"))
    assert [(message.id, message.payload) for message in look(tmp_path / "b", clock)] == [("2", b"2"), ("3", b"3")]


def test_what_expired_and_was_swept_by_kestrel_is_gone(tmp_path: Path) -> None:
    clock = SimulatedClock(NOW)
    with journal(tmp_path, clock) as store:
        store.create("jobs").put(b"short", retention=10)
        store.queue("jobs").put(b"long")
    append(tmp_path, "jobs", *backed_out(1, 2), Remove())
    clock.advance(20)
    assert [message.payload for message in look(tmp_path, clock)] == [b"long"]


def rewritten_by_kestrel(folder: Path, clock: SimulatedClock) -> list[str]:
    before = ours(folder, clock)
    (folder / "jobs").write_bytes(b"")
    return [message.id for message in before]


def shrunk_to_nothing(folder: Path, clock: SimulatedClock) -> list[str]:
    with journal(folder, clock) as store:
        before = store.create("jobs").put_many([b"1", b"2", b"3"])
        store.queue("jobs").purge()
        clock.advance(1000)
        store.backend.pack("jobs")  # type: ignore[attr-defined]
    return before


def deleted(folder: Path, clock: SimulatedClock) -> list[str]:
    with journal(folder, clock) as store:
        before = store.create("jobs").put_many([b"1", b"2", b"3"])
        store.delete("jobs")
    return before


@pytest.mark.parametrize("leave", [rewritten_by_kestrel, shrunk_to_nothing, deleted])
def test_ids_are_not_given_twice_when_kestrel_goes_on(
    tmp_path: Path, leave: Callable[[Path, SimulatedClock], list[str]]
) -> None:
    clock = SimulatedClock(NOW)
    before = leave(tmp_path, clock)
    append(tmp_path, "jobs", item(b"5"), item(b"new"))
    after = look(tmp_path, clock)
    assert [message.payload for message in after] == [b"5", b"new"]
    assert not {message.id for message in after} & set(before)


def test_a_crash_right_after_a_rewritten_journal_was_adopted_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock(NOW)
    ours(tmp_path, clock)
    (tmp_path / "jobs").write_bytes(written(item(b"5"), item(b"new")))

    remove = Catalog.remove

    def power_failure(catalog: Catalog, name: str) -> None:
        if name == "clean":
            raise KeyboardInterrupt
        remove(catalog, name)

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "remove", power_failure)
        with pytest.raises(KeyboardInterrupt):
            journal(tmp_path, clock)
    assert [message.payload for message in look(tmp_path, clock)] == [b"5", b"new"]


def test_entries_of_an_old_kestrel_are_taken_over_by_the_document(tmp_path: Path) -> None:
    five: list[Entry] = [AddXid(5, NOW, 0, b"open 5"), RemoveTentative()]
    three: list[Entry] = [AddXid(3, NOW, 0, b"open 3"), RemoveTentative()]
    make(tmp_path, {"q": written(*five, *three, item(b"waiting"))})
    with journal(tmp_path) as store:
        assert payloads(store.queue("q")) == [b"open 3", b"open 5", b"waiting"]
