"""The tables of a journal store, as processes of Spark read them but without Spark: plans, pins, columns."""

import errno
import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections import Counter
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import Draft
from penstock.contract.message import Entry
from penstock.contract.operations import Put
from penstock.engine import arrow_columns
from penstock.errors import PenstockError, StoreCorrupt
from penstock.sharing.backend import engine_of
from penstock.stores.journal import loads, pins, snapshot, tables
from penstock.stores.journal.format import AddX, encode
from penstock.stores.journal.reading import read_groups
from penstock.stores.journal.scan import joined_crcs
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.files import Disk, SystemDisk
from penstock.system.processes import name_of
from tests.spark.reads import arrow, batches, expired, listed, open_small, plan, rows, varied
from tests.stores.journal.journals import flip, staged

ODD_NAMES = ["..", "/", "a/b", "A", "a", "%41", "~", "a~~1", "a.1", "a.1.pack", ":", "-", "x" * 255, "X" * 255]


def packed(store: penstock.Store, queue: str) -> None:
    backend = engine_of(store)
    assert isinstance(backend, JournalBackend)
    backend.pack(queue)


def pinned(folder: Path) -> list[Path]:
    """Every file that is pinned, without the rows of plans."""
    return [path for path in folder.glob(".penstock/pins/*/*/*") if path.name != tables.ROWS]


@pytest.mark.parametrize("dialect", ["doc", "2.x"])
@pytest.mark.parametrize("pack", [False, True])
def test_every_field_of_every_state_is_as_the_store_shows_it(tmp_path: Path, dialect: Any, pack: bool) -> None:
    with open_small(tmp_path, dialect=dialect) as store:
        expired(varied(store))
        if pack:
            packed(store, "varied")
        store.queue("varied").put(b"the last one", headers={"a": "b"})
        expected = listed(store)
        assert rows(tmp_path) == expected  # while the store is open
    assert rows(tmp_path) == expected
    assert {row["state"] for row in expected} == {"delayed", "available", "in_flight", "done", "failed"}
    for name in expected[0]:  # each column alone
        assert [row[name] for row in rows(tmp_path, [name])] == [row[name] for row in expected]


def test_a_snapshot_of_the_index_is_believed_only_as_far_as_it_goes(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = varied(store)
    with penstock.open(tmp_path) as store:
        queue = store.queue("varied")
        queue.put(b"after the snapshot", headers={"a": "b"})
        queue.claim(1)
        expected = listed(store)
        assert rows(tmp_path) == expected
        index = tmp_path / ".penstock" / "index" / "varied"
        flip(index, index.stat().st_size // 2)
        assert rows(tmp_path) == expected


def test_a_store_without_messages_has_no_rows(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        assert rows(tmp_path) == []
        queue = store.create("emptied")
        queue.put(b"x" * 1000)
        queue.pop()
        packed(store, "emptied")
        assert rows(tmp_path) == []
        queue.put(b"y")
        assert [row["payload"] for row in rows(tmp_path)] == [b"y"]
    assert [row["payload"] for row in rows(tmp_path)] == [b"y"]


def test_journals_that_kestrel_wrote_have_the_same_rows_before_and_after_a_store_adopts_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "spool").write_bytes(b"".join(encode(AddX(1_700_000_000_000, 0, data)) for data in (b"a", b"bc")))
    expected = rows(tmp_path)
    assert [row["payload"] for row in expected] == [b"a", b"bc"]
    with penstock.open(tmp_path) as store:
        assert listed(store) == expected
        assert rows(tmp_path) == expected


def test_payloads_up_to_the_largest_come_in_batches_of_some_megabytes(tmp_path: Path) -> None:
    dice = random.Random(7)
    payloads = [dice.randbytes(size) for size in (16 << 20, 0, 1, (16 << 20) - 1, *[1 << 20] * 30, 5)]
    with penstock.open(tmp_path, sync="never") as store:
        for payload in payloads:
            store.queue().put(payload)
    found = batches(tmp_path, ["payload"])
    assert [payload for batch in found for payload in batch["payload"].to_pylist()] == payloads
    assert max(batch.nbytes for batch in found) < 17 << 20
    assert len(found) < len(payloads) // 2


def test_many_small_queues_share_parts_and_batches(tmp_path: Path) -> None:
    with penstock.open(tmp_path, sync="never") as store:
        for number in range(40):
            store.create(f"q{number}").put_many([Draft(b"x", headers={"n": str(number)}), b"y"])
        (batch,) = batches(tmp_path)
    assert len(batch) == 80
    headers = [dict(each) for each in batch["headers"].to_pylist()]
    assert headers == [each for name in sorted(f"q{n}" for n in range(40)) for each in ({"n": name[1:]}, {})]


def test_large_reads_are_cut_into_parts_of_about_the_same_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "_PART", 100_000)
    monkeypatch.setattr(arrow_columns, "_BATCH_BYTES", 10_000)
    payloads = [bytes([number % 256]) * (number % 2000) for number in range(1_000)]
    with open_small(tmp_path, segment_size=70_000) as store:
        for start in range(0, 1_000, 100):
            store.queue().put_many(payloads[start : start + 100])
    schema = arrow(columns=["payload"])
    parts = plan(tmp_path, schema)
    sizes = [sum(batch.nbytes for batch in part.read(schema)) for part in parts]
    assert len(parts) == 6
    assert max(sizes) < 1.2 * min(sizes)
    assert [
        payload for batch in batches(tmp_path, ["payload"]) for payload in batch["payload"].to_pylist()
    ] == payloads


# Damage


def test_a_damaged_body_is_an_error_that_names_the_message(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        queue.put_many([b"first", b"second" * 100, b"third"])
    journal = tmp_path / "jobs"
    flip(journal, journal.read_bytes().index(b"second") + 7)
    assert [row["id"] for row in rows(tmp_path, ["id"])] == ["1", "2", "3"]  # no body is needed for that
    for column in ("payload", "headers", "created_at", "received_at"):
        with pytest.raises(StoreCorrupt, match=r"message 2 of queue 'jobs' is damaged, at offset \d+ of 'jobs'"):
            rows(tmp_path, [column])


def test_a_damaged_group_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        queue = store.create("jobs")
        for number in range(3):
            queue.put(b"payload %d" % number)
    (tmp_path / ".penstock" / "index" / "jobs").unlink()
    flip(tmp_path / "jobs", (tmp_path / "jobs").read_bytes().index(b"payload 1"))
    with pytest.raises(StoreCorrupt, match="the journal of queue 'jobs' is damaged: jobs is damaged at offset"):
        rows(tmp_path, queue="jobs")
    assert not pinned(tmp_path)


def test_a_torn_end_is_not_there_yet(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put_many([b"one", b"two"])
        store.queue().put(b"three")
    (tmp_path / ".penstock" / "clean").unlink()
    (tmp_path / ".penstock" / "index" / "default").unlink()
    whole = (tmp_path / "default").read_bytes()
    with SystemDisk().open(str(tmp_path / "default")) as file:
        (_, first), (_, second) = read_groups(file, len(whole), 0)
    assert first.length + second.length == len(whole)
    for size in range(first.length, len(whole) + 1):
        for filling in (b"", b"\x01" * 300):
            torn = whole[:size] + filling
            (tmp_path / "default").write_bytes(torn)
            expected = [b"one", b"two", b"three"] if torn.startswith(whole) else [b"one", b"two"]
            assert [row["payload"] for row in rows(tmp_path)] == expected


def test_a_load_that_has_only_arrived_in_part_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_journal(tmp_path)
    backend.run(Put("default", [Entry(b"before")]))
    moved: list[str] = []

    def move(disk: Disk, source: str, target: str) -> None:
        if moved:
            raise OSError(errno.EIO, "the disk is broken")
        moved.append(target)
        disk.rename(source, target)

    monkeypatch.setattr(loads, "_move", move)
    parts = {name: {"default": [Entry(b"x" * (5 << 20)), Entry(b"y")]} for name in "ab"}
    with pytest.raises(PenstockError):
        backend.load(staged(backend, parts))
    with suppress(PenstockError):
        backend.close()
    monkeypatch.setattr(snapshot, "_LONG_PAUSE", 0.01)
    with pytest.raises(PenstockError, match="just being loaded into queue 'default', or were when that was inter"):
        rows(tmp_path, ["id"])
    assert not pinned(tmp_path)
    monkeypatch.undo()
    penstock.open(tmp_path).close()  # which makes it whole
    assert [len(row["payload"]) for row in rows(tmp_path)] == [6, 5 << 20, 1, 5 << 20, 1]


@pytest.mark.parametrize("sizes", [[777], [0, 1, 2, 30, 1_000, 70_000], [1 << 18, (1 << 18) + 1, 3]])
def test_the_checksum_of_the_whole_follows_from_those_of_its_pieces(sizes: list[int]) -> None:
    dice = random.Random(str(sizes))
    counts = [1, 2, 3, 1, 100, 1023] if max(sizes) < 1_000 else [1, 5, 1, 200]
    runs = [[dice.randbytes(dice.choice(sizes)) for _ in range(count)] for count in counts]
    crcs = np.array([zlib.crc32(piece) for run in runs for piece in run], np.uint32)
    ends = np.array(list(accumulate(len(piece) for run in runs for piece in run)))
    starts = np.array([0, *accumulate(map(len, runs[:-1]))])
    expected = [zlib.crc32(b"".join(run)) for run in runs]
    assert joined_crcs(crcs, ends, starts).tolist() == expected
    crcs[-1] ^= 1 << dice.randrange(32)
    assert joined_crcs(crcs, ends, starts).tolist()[:-1] == expected[:-1]
    assert joined_crcs(crcs, ends, starts)[-1] != expected[-1]


# Pins


def test_what_was_planned_stays_readable_when_the_store_packs_it_away(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        queue = store.create("jobs")
        for number in range(50):
            queue.put(b"%d" % number * 100)
        schema = arrow(columns=["id", "payload"])
        parts = plan(tmp_path, schema)
        queue.ack(*queue.claim(50))
        packed(store, "jobs")
        store.delete("jobs")
        read = [row for part in parts for batch in part.read(schema) for row in batch.to_pylist()]
        assert [row["payload"] for row in read] == [b"%d" % number * 100 for number in range(50)]
        assert rows(tmp_path) == []


def test_only_files_whose_bodies_are_wanted_are_pinned(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        for name in "ab":
            store.create(name).put(name)
        rows(tmp_path, ["state", "consumer"])
        assert not pinned(tmp_path)
        assert rows(tmp_path, state="failed") == []
        assert not pinned(tmp_path)
        rows(tmp_path, queue="a")
        assert [path.read_bytes()[:1] for path in pinned(tmp_path)] == [b"\x04"]


@pytest.mark.parametrize("by", ["a reader", "opening"])
def test_pins_of_a_process_that_is_gone_are_dropped(tmp_path: Path, by: str) -> None:
    penstock.open(tmp_path).close()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with penstock.open(tmp_path) as store:
        store.queue().put(b"x")
        gone, here = pins.Pins(str(tmp_path), child.pid), pins.Pins(str(tmp_path), os.getpid())
        for each in (gone, here):
            each.pin(str(tmp_path / "default"))
        pins.sweep(str(tmp_path), SystemDisk())
        assert len(pinned(tmp_path)) == 2
    child.communicate()
    if by == "a reader":
        rows(tmp_path, ["state"])
    else:
        penstock.open(tmp_path).close()
    assert [path.parent for path in pinned(tmp_path)] == [Path(here.folder)]
    assert name_of(os.getpid()) == Path(here.owner).name
    here.drop()
    assert not Path(here.folder).exists()


def test_plans_that_no_one_reads_any_more_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(tmp_path) as store:
        store.queue().put(b"x")
        schema = arrow(columns=["payload"])
        old, kept = (plan(tmp_path, schema) for _ in range(2))
        yesterday = time.time() - 25 * 3600
        for part in (old[0], kept[0]):
            os.utime(os.path.dirname(part[0]), (yesterday, yesterday))
        assert list(kept[0].read(schema))  # in use again
        rows(tmp_path)
        assert list(kept[0].read(schema))
        with pytest.raises(PenstockError, match=r"not used for long: load\(\) it again"):
            list(old[0].read(schema))
        monkeypatch.setattr(tables, "_MOST", 1)
        monkeypatch.setattr(tables, "_IN_USE", -1)
        rows(tmp_path)
        assert len(list(tmp_path.glob(".penstock/pins/*/*"))) == 2  # the one before it, and the new one


def test_reading_changes_no_file_of_the_store(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as store:
        varied(store)

    def state() -> dict[str, Any]:
        files = [path for path in tmp_path.rglob("*") if path.is_file() and "pins" not in path.parts]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    assert rows(tmp_path)
    assert state() == before


def test_a_folder_that_is_no_store_is_not_made_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PenstockError, match="there is no store"):
            rows(folder)
    assert list(tmp_path.iterdir()) == []


# While another process writes

_WRITER = """
import json, os, random, sys, threading, time
from penstock.system.files import SystemDisk
from penstock.stores.journal.loads import Load, make_folder
from penstock.stores.journal.staging import Part, folder_of, new_name
from penstock.stores.journal.store import open_journal
from penstock.contract.message import Entry
from penstock.contract.settings import Settings
from penstock.contract.store import Store

folder, log, seed = sys.argv[1:]
backend = open_journal(folder, segment_size=20_000, sync="never")
store, lock = Store(folder, backend), threading.Lock()
queues = [store.create(f"q{number}", max_attempts=0) for number in range(3)]
out = open(log, "a", buffering=1)

def say(*words):
    with lock:
        out.write(json.dumps(words) + "\\n")

def produce(dice, first):
    number = first
    while True:
        queue = dice.choice(queues)
        names = [f"{number + at}" for at in range(dice.choice((1, 1, 1, 30)))]
        number += len(names)
        say("putting", queue.name, names)
        queue.put_many([name + "." * dice.choice((0, 50, 3000)) for name in names])
        say("put", queue.name, names)
        time.sleep(dice.random() / 500)

def consume(dice, first):
    while True:
        queue = dice.choice(queues)
        if queue.count() > 100:
            messages = queue.claim(dice.choice((1, 40)))
            if dice.random() < 0.1:
                queue.release(*messages)
                continue
            names = [message.payload.decode().rstrip(".") for message in messages]
            say("acking", queue.name, names)
            queue.ack(*messages)
            say("acked", queue.name, names)
        time.sleep(dice.random() / 500)

def load(dice, first):
    queue, number = store.create("loaded"), first
    while True:
        count = dice.choice((1, 3, 9))
        names = [f"{number}-{count * 4}-{at}" for at in range(count * 4)]
        number += 1
        load = new_name(os.getpid())
        make_folder(SystemDisk(), folder, load)
        pieces = []
        for file in range(count):
            part = Part(SystemDisk(), folder_of(folder, load), load, str(file))
            entries = [Entry((name + "." * 9000).encode()) for name in names[file * 4 : file * 4 + 4]]
            part.add_entries(queue.name, entries, Settings(), int(time.time() * 1000))
            part.close()
            pieces += part.pieces
        say("putting", queue.name, names)
        backend.load(Load(load, pieces))
        say("put", queue.name, names)
        if dice.random() < 0.1:
            say("acking", queue.name, [message.payload.decode().rstrip(".") for message in queue.messages()])
            queue.purge()
        time.sleep(dice.random() / 20)

def churn(dice, first):
    number = first
    while True:
        kept = dice.choice((0, None))
        queue = store.create(f"short-lived-{dice.randrange(2)}", keep_done=kept)
        names = [f"{number + at}" for at in range(30)]
        number += len(names)
        say("putting", queue.name, names)
        queue.put_many([name + "." * dice.choice((0, 900)) for name in names])
        say("put", queue.name, names)
        time.sleep(dice.random() / 20)
        say("acking", queue.name, names)
        if kept is None:
            queue.ack(*queue.claim(10))
            time.sleep(dice.random() / 50)
        store.delete(queue.name)
        say("acked", queue.name, names)

def pack(dice, first):
    while True:
        backend.pack(dice.choice([*(queue.name for queue in queues), "default"]))
        time.sleep(dice.random() / 20)

for number, work in enumerate((produce, produce, consume, consume, pack, load, churn)):
    threading.Thread(target=work, args=(random.Random(f"{seed} {number}"), number * 10**9), daemon=True).start()
sys.stdin.read()
import os
os._exit(0)
"""


class Writer:
    """Another process that puts, claims, acknowledges, rotates, packs, loads, creates and deletes all the time."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.log = folder / "log.jsonl"
        self.store = folder / "store"
        program = [sys.executable, "-c", _WRITER, str(self.store), str(self.log), str(seed)]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE)
        while not self.log.exists() or self.log.stat().st_size < 20_000:
            assert self.process.poll() is None
            time.sleep(0.05)
        self.lines = self.log.open("rb")
        self.said: dict[str, set[tuple[str, str]]] = {
            word: set() for word in ("putting", "put", "acking", "acked")
        }

    def so_far(self) -> dict[str, set[tuple[str, str]]]:
        for line in self.lines:
            if not line.endswith(b"\n"):  # it is being written
                self.lines.seek(-len(line), os.SEEK_CUR)
                break
            word, queue, names = json.loads(line)
            self.said[word].update((queue, name) for name in names)
        return {word: set(said) for word, said in self.said.items()}

    def check(self, before: dict[str, set[tuple[str, str]]], read: list[tuple[str, str]]) -> None:
        """What was put for certain is there once, unless it may have been acknowledged; nothing else is."""
        after = self.so_far()
        assert len(set(read)) == len(read)
        assert before["put"] - after["acking"] <= set(read)
        assert set(read) <= after["putting"] - before["acked"]
        loads = Counter(name.rpartition("-")[0] for queue, name in read if queue == "loaded")
        assert {name: count for name, count in loads.items() if count != int(name.split("-")[1])} == {}

    def stop(self) -> None:
        self.lines.close()
        self.process.communicate()


@pytest.mark.parametrize("turns", [8, pytest.param(50, marks=pytest.mark.long)])
def test_a_read_beside_a_process_that_writes_and_packs_sees_one_moment(tmp_path: Path, turns: int) -> None:
    writer = Writer(tmp_path, seed=1)
    try:
        for turn in range(turns):
            before = writer.so_far()
            schema = arrow(columns=["queue", "payload"])
            parts = plan(writer.store, schema)
            time.sleep(0.1 if turn % 5 == 0 else 0)  # in which what was planned is packed away
            table = pa.Table.from_batches([batch for part in parts for batch in part.read(schema)], schema)
            read = [(row["queue"], row["payload"].decode().rstrip(".")) for row in table.to_pylist()]
            writer.check(before, read)
            counted = rows(writer.store, table="queues")
            assert {row["name"] for row in counted} >= {"default", "q0", "q1", "q2", "loaded"}
    finally:
        writer.stop()
