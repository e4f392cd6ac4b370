"""The journal store on real folders: what it writes, and that nothing but the journals themselves is needed."""

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Draft, Message, Queue, SimulatedClock, Store
from penstock.contract.message import Entry, Plain
from penstock.contract.operations import Counts, Put
from penstock.stores.journal import replay
from penstock.stores.journal.files import JournalFiles, Segment, replay_order
from penstock.stores.journal.format import DIALECTS, Dialect
from penstock.stores.journal.groups import PERIOD, xid_of
from penstock.stores.journal.storage import JournalStorage
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.files import StrPath, SystemDisk, SystemFile
from penstock.system.threads import SystemThreads, Task
from tests.stores.journal.journals import by_document

SMALL = 4_000  # bytes after which a file is rotated
NONE = {"delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 0}


class Journal:
    """A journal store that a test closes, reopens, packs and looks into."""

    def __init__(self, folder: Path, clock: SimulatedClock, **options: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.options: dict[str, Any] = {"segment_size": SMALL, "sync": "never"} | options
        self.open()

    def open(self) -> None:
        self.backend: JournalBackend = open_journal(self.folder, clock=self.clock, **self.options)
        self.store = Store(str(self.folder), self.backend)

    def reopen(self, between: Callable[[], object] = lambda: None) -> None:
        self.store.close()
        between()
        self.open()

    def crash(self) -> "Journal":
        """The folder as a process that dies now would leave it, opened."""
        copy = self.folder.with_name(self.folder.name + "+")
        shutil.copytree(self.folder, copy)
        return Journal(copy, self.clock, **self.options)

    def queue(self, name: str = "jobs") -> Queue:
        return self.store.queue(name)

    def files(self, name: str = "jobs") -> list[str]:
        return replay_order(os.listdir(self.folder), name)

    def bytes(self, name: str = "jobs") -> int:
        return sum((self.folder / each).stat().st_size for each in self.files(name))

    def index(self) -> Path:
        return self.folder / ".penstock" / "index"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def journal(tmp_path: Path, clock: SimulatedClock) -> Iterator[Journal]:
    opened = Journal(tmp_path / "data", clock)
    yield opened
    opened.store.close()


def everything(queue: Queue) -> list[Message]:
    return list(queue.messages())


def of_others(queue: Queue) -> list[bytes]:
    """What a reader of the document must see: everything that was not acknowledged away."""
    return sorted(message.payload for message in queue.messages() if message.state != "done")


def by_kestrel(folder: Path, name: str = "jobs") -> list[bytes]:
    """What a real Kestrel 2.x has in its queue after it started on the folder: open transactions are put back."""
    state = replay(folder, name, "2.x")
    return [*[state.open[xid] for xid in sorted(state.open)], *state.queue]


# What others read


STEPS = 4 * ["put"] + 3 * ["claim"] + 2 * ["ack", "wait"]
STEPS += ["fail", "release", "extend", "pop", "remove", "redrive", "purge", "pack", "reopen"]


class Walk:
    """Random operations on a queue."""

    def __init__(self, journal: Journal, seed: int, **settings: Any) -> None:
        self.journal = journal
        self.random = random.Random(seed)
        self.held: list[Message] = []
        self.number = 0
        journal.store.create("jobs", **settings)

    def draft(self) -> Draft:
        self.number += 1
        pick = self.random
        return Draft(
            b"%d " % self.number + pick.randbytes(pick.choice([0, 3, 40, 400])),
            priority=pick.choice([0, 0, 0, -7, 7, 2**63 - 1, -(2**63)]),
            headers={"n": str(self.number)} if pick.random() < 0.3 else None,
            delay=pick.choice([0, 0, 0, 5]),
            retention=pick.choice([None, None, 20, 3]),
            key=pick.choice([None, None, f"k{pick.randint(0, 5)}"]),
            created_at=pick.choice([None, 12345]),
        )

    def step(self) -> None:
        queue, pick = self.journal.queue(), self.random
        some = pick.sample(self.held, min(len(self.held), pick.randint(0, 4)))
        ids = [message.id for message in queue.messages()]
        match pick.choice(STEPS):
            case "put":
                queue.put_many([self.draft() for _ in range(pick.choice([1, 1, 2, 9]))])
            case "claim":
                self.held += queue.claim(pick.randint(1, 5), lease=pick.choice([2, 30]))
            case "ack" | "fail" | "release" | "extend" as settle:
                options = {"delay": pick.choice([0, 4]), "reason": "why"} if settle == "fail" else {}
                with suppress(penstock.LeaseExpired):
                    getattr(queue, settle)(*[message.receipt for message in some], **options)
            case "pop":
                queue.pop()
            case "remove":
                queue.remove(*pick.sample(ids, min(len(ids), 2)))
            case "redrive":
                queue.redrive()
            case "purge":
                if pick.random() < 0.2:
                    queue.purge()
            case "wait":
                self.journal.clock.advance(pick.choice([0.5, 2, 10]))
            case "pack":
                self.journal.backend.pack("jobs")
            case "reopen":
                between = pick.choice([lambda: None, lambda: shutil.rmtree(self.journal.index())])
                before = everything(queue)
                self.journal.reopen(between)
                assert everything(self.journal.queue()) == before


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**32),
    st.sampled_from(DIALECTS),
    st.sampled_from([0, 8, None]),
    st.sampled_from([1, 3, 0]),
    st.sampled_from([1, 300, 5_000, 10**6]),
)
def test_every_reader_sees_what_was_not_acknowledged_away_after_any_operations(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    dialect: Dialect,
    keep_done: int | None,
    max_attempts: int,
    segment_size: int,
) -> None:
    folder = tmp_path_factory.mktemp("walk") / "data"
    journal = Journal(folder, SimulatedClock(), dialect=dialect, segment_size=segment_size)
    walk = Walk(journal, seed, keep_done=keep_done, max_attempts=max_attempts)
    for _ in range(4):
        for _ in range(15):
            walk.step()
        before, seen = everything(journal.queue()), of_others(journal.queue())
        journal.store.close()
        assert by_document(folder, dialect=dialect) == seen
        if dialect == "2.x":
            assert sorted(by_kestrel(folder)) == seen
        shutil.rmtree(journal.index())
        journal.open()
        assert everything(journal.queue()) == before
    journal.store.close()
    shutil.rmtree(folder)


def test_a_real_kestrel_gets_the_messages_in_the_order_in_which_they_were_put(tmp_path: Path) -> None:
    with penstock.open(tmp_path, dialect="2.x") as store:
        queue = store.create("jobs")
        queue.put_many([b"%d" % number for number in range(10)])
        queue.claim(5)
        queue.pop()
    assert by_kestrel(tmp_path) == [b"0", b"1", b"2", b"3", b"4", b"6", b"7", b"8", b"9"]


def test_nothing_but_journals_is_in_the_folder(journal: Journal) -> None:
    for number in range(200):
        journal.queue("default").put(bytes(100))
        if number % 3:
            journal.queue("default").pop()
    journal.backend.pack("default")
    journal.queue("default").put(b"x")
    names = set(os.listdir(journal.folder))
    assert names == {".penstock", *journal.files("default")}
    journal.store.close()
    assert {name.partition(".")[0] for name in os.listdir(journal.folder)} == {"", "default"}


def test_what_expires_in_the_moment_of_a_refusal_is_gone_for_every_reader(
    journal: Journal, clock: SimulatedClock
) -> None:
    queue = journal.store.create("jobs", max_payload=10)
    queue.put(b"short", retention=10)
    clock.advance(20)
    with pytest.raises(penstock.PayloadTooLarge):
        queue.put(bytes(11))
    journal.reopen()
    journal.queue().put(b"new")
    assert by_document(journal.folder) == [b"new"]


# Numbers


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("near", [2**31, 2**32, PERIOD, 2 * PERIOD])
def test_transactions_wrap_around_and_leave_out_what_is_still_open(
    tmp_path: Path, clock: SimulatedClock, dialect: Dialect, near: int
) -> None:
    journal = Journal(tmp_path / "data", clock, dialect=dialect)
    queue = journal.store.create("jobs")
    old = queue.put_many([b"old_1", b"old_2", b"old_3", b"old_4"])
    queue.remove(old[1])
    journal.backend._queues["jobs"]._ledger.state.skip_to(near - 3)
    new = [*queue.put_many([b"a", b"b", b"c"]), queue.put(b"d"), *queue.put_many([b"e", b"f", b"g", b"h"])]
    assert [int(each) for each in new] == sorted(map(int, new))
    for _ in range(2):
        messages = everything(journal.queue())
        assert [message.payload for message in messages] == b"old_1 old_3 old_4 a b c d e f g h".split()
        assert replay(journal.folder, "jobs", dialect).open == {
            xid_of(int(message.id)): message.payload for message in messages
        }
        journal.reopen(lambda: shutil.rmtree(journal.index()))
    journal.backend.pack("jobs")
    journal.queue().put(b"after packing")
    assert by_document(journal.folder, dialect=dialect) == of_others(journal.queue())
    journal.store.close()


def test_ids_above_32_bits_are_claimed_acknowledged_and_remembered(journal: Journal) -> None:
    queue = journal.store.create("jobs", keep_done=None)
    journal.backend._queues["jobs"]._ledger.state.skip_to(2**40 + 1022)
    ids = queue.put_many([b"a", b"b", b"c", b"d"])
    assert ids[0] == str(2**40 + 1022)
    [a, b] = queue.claim(2)
    a.ack()
    journal.reopen(lambda: shutil.rmtree(journal.index()))
    journal.backend.pack("jobs")
    journal.reopen()
    queue = journal.queue()
    queue.ack(a.receipt or "", b.receipt or "")
    assert [(message.id, message.state) for message in queue.messages()] == [
        (ids[0], "done"), (ids[1], "done"), (ids[2], "available"), (ids[3], "available"),
    ]  # fmt: skip
    assert by_document(journal.folder) == [b"c", b"d"]


# Names

NAMES = [
    "jobs", "Jobs", "JOBS", "a/b", "a%2Fb", "a%2fb", "..", ".", "/", "../../up", "%", "%25", "%_2", "~", "q~~1",
    "a+b", "a.1", "a.1.pack", "a", "a.", "x" * 255, "x" * 254, "X" * 255, "%" * 255, "." * 255, "~" * 200, "-",
    ".penstock", "x" * 150 + "%_2", "x" * 200, "x" * 201, "CON", "default.1",
]  # fmt: skip


def test_every_name_is_a_queue_of_its_own_in_the_folder_also_after_it_was_deleted_and_made_again(
    journal: Journal,
) -> None:
    before = set(os.listdir(journal.folder.parent))
    payloads = {name: name.encode() for name in NAMES}
    for name in NAMES:
        journal.store.create(name, description=name).put(name)
    for again in (NAMES[::2], []):
        files = [file for file in os.listdir(journal.folder) if file != ".penstock"]
        assert len({file.casefold() for file in files}) == len(NAMES)
        assert max(map(len, files)) <= 200
        assert set(os.listdir(journal.folder.parent)) == before
        journal.reopen()
        assert [info.name for info in journal.store.queues()] == sorted([*NAMES, "default"])
        for name in NAMES:
            assert [message.payload for message in journal.queue(name).messages()] == [payloads[name]]
            assert journal.queue(name).settings.description == name
            assert by_document(journal.folder, name) == [payloads[name]]
        for name in again:
            journal.store.delete(name)
        journal.reopen()
        for name in again:
            payloads[name] = b"new " + name.encode()
            journal.store.create(name, description=name).put(payloads[name])


def test_a_new_folder_has_the_queue_default_and_no_journal(tmp_path: Path) -> None:
    for _ in range(2):
        with penstock.open(tmp_path / "a" / "b" / "c") as store:
            assert [info.name for info in store.queues()] == ["default"]
    assert os.listdir(tmp_path / "a" / "b" / "c") == [".penstock"]


def test_a_deletion_that_a_crash_interrupted_is_finished(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.store.create("jobs").put(b"a")
    journal.store.create("other").put(b"b")

    def power_failure(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(journal.backend, "_remove", power_failure)
    with pytest.raises(KeyboardInterrupt):
        journal.store.delete("jobs")
    after = journal.crash()
    assert [info.name for info in after.store.queues()] == ["default", "other"]
    assert after.files("jobs") == []
    after.store.close()


def test_a_put_that_is_stored_after_its_queue_was_deleted_does_not_bring_it_back(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = journal.store.create("jobs")
    queue.put(b"first")
    admitted, deleted = threading.Event(), threading.Event()

    def late(written: int) -> None:
        admitted.set()
        deleted.wait()
        commit(written)

    live = journal.backend._queues["jobs"]
    commit = live.commit
    monkeypatch.setattr(live, "commit", late)
    late_put = threading.Thread(target=queue.put, args=(b"late",))
    late_put.start()
    admitted.wait()
    journal.store.delete("jobs")
    deleted.set()
    late_put.join()
    assert journal.files("jobs") == []
    journal.reopen()
    assert [info.name for info in journal.store.queues()] == ["default"]


# One at a time

HOLD = """
import sys, penstock
store = penstock.open(sys.argv[1], share=False)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_opener_is_told_who_has_the_store(tmp_path: Path) -> None:
    locked = pytest.raises(penstock.StoreLocked, match=f"is open in pid {os.getpid()}:")
    with penstock.open(tmp_path, share=False), locked:
        penstock.open(tmp_path, share=False)
    penstock.open(tmp_path).close()


def test_another_process_is_told_who_has_the_store_until_that_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(penstock.StoreLocked, match=f"is open in pid {holder.pid}, which does not share"):
            penstock.open(tmp_path, timeout=0.1)
        holder.kill()
    penstock.open(tmp_path).close()


# When a change is stored


def test_few_and_many_messages_may_share_a_group(journal: Journal) -> None:
    journal.store.create("jobs")
    live = journal.backend._queues["jobs"]
    expected = []
    for count, size in ((1, 10), (3, 500), (50, 100), (2, 10), (1, 0), (40, 300)):
        payloads = [b"%d" % number + bytes(size) for number in range(count)]
        _, written = live.decide(Put("jobs", Plain(payloads)))
        expected += payloads
    assert [message.payload for message in journal.queue().messages()] == expected
    live.commit(written)
    assert [message.payload for message in journal.queue().messages()] == expected
    journal.reopen(lambda: shutil.rmtree(journal.index()))
    assert [message.payload for message in journal.queue().messages()] == expected
    assert by_document(journal.folder) == sorted(expected)


def test_a_wrong_dialect_or_sync_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"dialect='1\.x' is none of doc, 2\.x"):
        penstock.open(tmp_path / "a", dialect="1.x")  # type: ignore[arg-type]
    with pytest.raises(penstock.InvalidArgument, match="sync='often' is none of"):
        penstock.open(tmp_path / "a", sync="often")  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


def test_the_dialect_may_change_from_one_opening_to_the_next(tmp_path: Path, clock: SimulatedClock) -> None:
    for number in range(6):
        dialect = DIALECTS[number % 2]
        journal = Journal(tmp_path, clock, dialect=dialect)
        queue = journal.store.create("jobs") if not number else journal.queue()
        queue.put(bytes([number]))
        if number == 3:
            journal.backend.pack("jobs")
        assert len(queue) == number + 1
        journal.store.close()
        assert by_document(tmp_path, dialect=dialect) == [bytes([each]) for each in range(number + 1)]


class CountingDisk(SystemDisk):
    """Counts the syncs of each file, and all writes that are synced by themselves."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()
        self.synced_writes = 0

    def open(self, path: StrPath, **how: Any) -> SystemFile:
        file = super().open(path, **how)
        disk = self

        class Counting(SystemFile):
            def sync(self) -> None:
                super().sync()
                disk.syncs[os.path.basename(self.path)] += 1

            def write_through(self, offset: int, data: Any) -> None:
                super().write_through(offset, data)
                disk.synced_writes += 1

        file.__class__ = Counting
        return file


def test_with_interval_what_was_written_is_synced_also_after_the_clock_was_set_back(
    tmp_path: Path, clock: SimulatedClock
) -> None:
    disk = CountingDisk()
    journal = Journal(tmp_path / "data", clock, sync="interval", disk=disk)
    queue = journal.store.create("jobs")
    for _ in range(3):
        before = disk.syncs["jobs"]
        queue.put(b"a")
        clock.jump(-3600)
        clock.advance(2)
        while disk.syncs["jobs"] == before:
            time.sleep(0.001)
    journal.reopen()
    assert len(journal.queue()) == 3
    journal.store.close()


def test_a_claim_and_its_acks_are_one_commit(tmp_path: Path, clock: SimulatedClock) -> None:
    disk = CountingDisk()
    journal = Journal(tmp_path / "data", clock, sync="always", disk=disk)
    queue = journal.store.create("jobs")
    queue.put_many([b"a", b"b"])
    held, before = queue.claim(), disk.synced_writes
    queue.claim(ack=held)
    assert disk.synced_writes == before + 1
    journal.reopen()
    assert journal.queue().counts()["in_flight"] == 1
    journal.store.close()


# Snapshots are only a hint


def lively(journal: Journal) -> None:
    queue = journal.store.create("jobs", max_attempts=2, keep_done=1000)
    queue.put_many([Draft(b"%d" % number, priority=number % 3, key=f"k{number}") for number in range(50)])
    queue.ack(*queue.claim(5, consumer="a"))
    for message in queue.claim(5, consumer="b"):
        message.fail(reason="first", delay=5)
    journal.clock.advance(5)
    for message in queue.claim(3, consumer="c"):
        message.fail(reason="last")
    queue.claim(4, lease=50)
    queue.put(b"later", delay=100)
    queue.put(b"short", retention=60)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "none": lambda data: data,
    "cut": lambda data: data[:-5],
    "emptied": lambda data: b"",
    "flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
    ),
    "garbage": lambda data: b"\xff" * 1000,
    "gone": lambda data: None,
}


def damage(file: Path, how: str) -> None:
    data = DAMAGES[how](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_snapshot_that_is_gone_or_damaged_makes_no_difference(
    journal: Journal, clock: SimulatedClock, how: str, packed: bool
) -> None:
    lively(journal)
    if packed:
        journal.backend.pack("jobs")
        journal.queue().put(b"after packing")
    before = everything(journal.queue())
    attempts = [journal.queue().attempts(message.id) for message in before]
    journal.reopen(lambda: damage(journal.index() / "jobs", how))
    assert everything(journal.queue()) == before
    assert [journal.queue().attempts(message.id) for message in before] == attempts
    assert journal.queue().put(b"again", key="k7") == "8"
    clock.advance(60)
    expected = {"delayed": 1, "available": 40 + packed, "in_flight": 0, "done": 5, "failed": 5}
    assert journal.queue().counts() == expected


def test_an_older_snapshot_makes_no_difference(journal: Journal, clock: SimulatedClock) -> None:
    lively(journal)
    copies: list[bytes] = []
    index = journal.index() / "jobs"
    for step in range(6):
        journal.reopen(lambda: copies.append(index.read_bytes()))
        queue = journal.queue()
        queue.put(b"%d" % step + bytes(600))
        queue.ack(*queue.claim(2))
        if step == 3:
            journal.backend.pack("jobs")
        clock.advance(1)
    before = everything(journal.queue())
    for copy in copies:
        journal.reopen(lambda copy=copy: index.write_bytes(copy))  # type: ignore[misc]
        assert everything(journal.queue()) == before


def empty_out(journal: Journal, payload: bytes) -> None:
    """Use a queue until its journal has shrunk to nothing."""
    journal.queue().put(payload)
    journal.queue().claim()[0].ack()
    journal.clock.advance(1000)
    journal.queue().counts()
    journal.backend.pack("jobs")


def test_a_snapshot_of_an_empty_journal_does_not_stand_for_a_later_one(journal: Journal) -> None:
    journal.store.create("jobs")
    empty_out(journal, b"first")
    journal.reopen()
    empty_out(journal, b"second")
    journal.queue().put(b"third")
    after = journal.crash()
    assert [message.payload for message in after.queue().messages()] == [b"third"]
    after.store.close()


def test_a_snapshot_makes_no_difference_when_the_clock_was_set_back(
    journal: Journal, clock: SimulatedClock
) -> None:
    queue = journal.store.create("jobs")
    queue.put(b"a")
    queue.claim(lease=10)
    clock.advance(20)
    assert queue.counts() == NONE | {"available": 1}
    journal.reopen(lambda: clock.jump(-15))
    journal.queue().claim()
    before = everything(journal.queue())
    journal.reopen(lambda: shutil.rmtree(journal.index()))
    assert everything(journal.queue()) == before


def test_a_message_that_had_expired_does_not_come_back_when_the_clock_was_set_back(
    journal: Journal, clock: SimulatedClock
) -> None:
    journal.store.create("jobs").put(b"a", retention=10)
    clock.advance(20)
    assert journal.queue().counts() == NONE

    def set_back() -> None:
        shutil.rmtree(journal.index())
        clock.jump(-15)

    journal.reopen(set_back)
    assert of_others(journal.queue()) == by_document(journal.folder) == []


@pytest.mark.parametrize("hint", ["index/jobs", "clean"])
def test_a_hint_that_cannot_be_read_makes_no_difference(journal: Journal, hint: str) -> None:
    lively(journal)
    before = everything(journal.queue())

    class BadDisk(SystemDisk):
        def open(self, path: StrPath, **how: Any) -> SystemFile:
            if str(path).endswith(hint):
                raise OSError(errno.EIO, "Input/output error", path)
            return super().open(path, **how)

    journal.options["disk"] = BadDisk()
    journal.reopen()
    assert everything(journal.queue()) == before


def test_damage_behind_a_snapshot_is_told_also_if_a_crash_left_something_to_tidy_up(journal: Journal) -> None:
    queue = journal.store.create("jobs")
    queue.put(b"first")
    journal.reopen()
    for number in range(3):
        journal.queue().put(b"%d" % number)
    crashed = journal.folder.with_name("crashed")
    shutil.copytree(journal.folder, crashed)
    data = bytearray((crashed / "jobs").read_bytes())
    data[-200] ^= 1  # in the last group but one
    (crashed / "jobs").write_bytes(data)
    (crashed / "jobs~~5").write_bytes(b"of a packing that was interrupted")
    for _ in range(2):
        with pytest.raises(penstock.StoreCorrupt, match="jobs' is damaged at offset"):
            penstock.open(crashed)


# Packing


def test_one_old_message_never_holds_the_log(journal: Journal) -> None:
    queue = journal.store.create("jobs")
    queue.put(b"old", priority=9, headers={"a": "b"})
    for number in range(300):
        queue.put(bytes([number % 256]) * 500)
        queue.ack(*queue.claim(1))
    journal.backend.pack("jobs")
    journal.clock.advance(1000)
    queue.put(b"x")
    journal.backend.pack("jobs")
    assert journal.bytes() < 1000
    journal.reopen()
    assert [(message.payload, message.headers) for message in journal.queue().messages()] == [
        (b"old", {"a": "b"}),
        (b"x", {}),
    ]


def test_a_journal_is_packed_without_being_asked(tmp_path: Path, clock: SimulatedClock) -> None:
    journal = Journal(tmp_path / "data", clock)
    queue = journal.store.create("jobs")
    kept = queue.put(b"old", priority=9)
    for _ in range(600):
        queue.put(bytes(200))
        queue.pop()
    while journal.bytes() >= 600 * 200 // 2:  # closing would give up what is being packed
        queue.put(bytes(200))
        queue.pop()
    journal.reopen()
    assert journal.bytes() < 600 * 200 // 2
    assert [message.id for message in journal.queue().messages()] == [kept]
    journal.store.close()


def test_the_journal_of_an_emptied_queue_shrinks_to_nothing(journal: Journal) -> None:
    queue = journal.store.create("jobs")
    ids = queue.put_many([bytes(100)] * 100)
    queue.ack(*queue.claim(100))
    journal.clock.advance(1000)
    journal.backend.pack("jobs")
    assert journal.bytes() == 0
    journal.reopen(lambda: shutil.rmtree(journal.index()))
    assert journal.queue().counts() == NONE
    assert journal.queue().put(b"new") not in ids
    assert by_document(journal.folder) == [b"new"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("with_index", [True, False])
def test_everything_survives_packing_and_reopening(
    tmp_path: Path, clock: SimulatedClock, dialect: Dialect, with_index: bool
) -> None:
    journal = Journal(tmp_path / "data", clock, dialect=dialect)
    lively(journal)
    queue = journal.queue()
    held = list(queue.messages("in_flight"))
    [claimed] = queue.claim(1, lease=40, consumer="d")
    settled = queue.claim(2)
    queue.ack(settled[0])
    queue.release(settled[1])
    before = everything(queue)
    attempts = [queue.attempts(message.id) for message in before]
    assert {len(each) for each in attempts} == {0, 1, 2}
    for _ in range(2):
        journal.backend.pack("jobs")
        assert everything(journal.queue()) == before
        journal.reopen(lambda: None if with_index else shutil.rmtree(journal.index()))
        queue = journal.queue()
        assert everything(queue) == before
        assert [queue.attempts(message.id) for message in before] == attempts
        assert by_document(journal.folder, dialect=dialect) == of_others(queue)
        if dialect == "2.x":
            assert sorted(by_kestrel(journal.folder)) == of_others(queue)
        queue.ack(settled[0].receipt or "")
        queue.release(settled[1].receipt or "")
        assert queue.put(b"again", key="k7") == "8"
        assert everything(queue) == before
    clock.advance(39)
    queue.extend(claimed.receipt or "", lease=60)
    clock.advance(20)
    assert {message.id for message in queue.messages("in_flight")} == {claimed.id}
    assert not {message.id for message in held} & {message.id for message in queue.messages("in_flight")}
    queue.ack(claimed.receipt or "")
    journal.store.close()


def test_thousands_of_messages_with_gaps_survive_packing(journal: Journal) -> None:
    queue = journal.store.create("jobs", keep_done=None)
    queue.put_many([b"%d" % number for number in range(3_000)])
    queue.remove(*[str(number) for number in range(1, 3_001) if number % 7 and number % 1024])
    queue.ack(*queue.claim(100)[::3])
    before = everything(queue)
    journal.backend.pack("jobs")
    journal.reopen(lambda: shutil.rmtree(journal.index()))
    assert everything(journal.queue()) == before
    journal.backend.pack("jobs")
    journal.reopen()
    assert everything(journal.queue()) == before
    assert by_document(journal.folder) == of_others(journal.queue())


def test_a_file_may_be_rotated_in_the_moment_in_which_packing_adds_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("", backend := open_journal(tmp_path, segment_size=10**6, sync="never"))
    queue = store.create("jobs")
    queue.put_many([bytes(100)] * 10)
    packer = threading.Thread(target=backend.pack, args=("jobs",))
    packed, rotating, added = threading.Event(), threading.Event(), threading.Event()
    next_packed, replace, stamp = JournalStorage.next_packed, JournalStorage.replace, JournalFiles.stamp

    def before_it_is_added(storage: JournalStorage) -> int:
        packed.set()
        rotating.wait()
        return next_packed(storage)

    def once_it_is_added(storage: JournalStorage, old: Sequence[Segment], new: Segment | None) -> None:
        added.set()
        replace(storage, old, new)

    def while_files_are_looked_at(files: JournalFiles, name: str) -> int:
        if threading.current_thread() is not packer and not rotating.is_set():
            rotating.set()
            added.wait()
        return stamp(files, name)

    monkeypatch.setattr(JournalStorage, "next_packed", before_it_is_added)
    monkeypatch.setattr(JournalStorage, "replace", once_it_is_added)
    monkeypatch.setattr(JournalFiles, "stamp", while_files_are_looked_at)
    packer.start()
    packed.wait()
    queue.put_many([bytes(100_000)] * 10)  # fills the file
    queue.put(b"the first in the next")
    packer.join()
    before = everything(queue)
    store.close()
    with penstock.open(tmp_path) as again:
        assert everything(again.queue("jobs")) == before


def test_an_emptied_journal_opens_after_any_number_of_packings_that_failed(
    tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "data", clock)
    queue = journal.store.create("jobs")

    def use() -> None:
        queue.put_many([b"a", b"b"])
        queue.ack(*queue.claim(2))
        clock.advance(1000)
        queue.counts()

    sync, rename = SystemFile.sync, SystemDisk.rename

    def no_space(file: SystemFile) -> None:
        if "~~" in file.path:
            raise OSError(errno.ENOSPC, "No space left on device", file.path)
        sync(file)

    def power_failure(disk: SystemDisk, source: StrPath, target: StrPath) -> None:
        if str(target).endswith(".pack"):  # before it counts
            raise KeyboardInterrupt
        rename(disk, source, target)

    use()
    with monkeypatch.context() as patch:
        patch.setattr(SystemFile, "sync", no_space)
        with pytest.raises(penstock.DiskFull):
            journal.backend.pack("jobs")
    for _ in range(3):
        use()
        with monkeypatch.context() as patch:
            patch.setattr(SystemDisk, "rename", power_failure)
            with pytest.raises(KeyboardInterrupt):
                journal.backend.pack("jobs")
        crashed, journal = journal, journal.crash()
        crashed.store.close()
        assert journal.queue().counts() == NONE
        journal.reopen()  # from here on with a snapshot
        queue = journal.queue()
    journal.store.close()


def test_a_store_that_gets_no_thread_packs_when_there_is_one(tmp_path: Path, clock: SimulatedClock) -> None:
    class ScarceThreads(SystemThreads):
        free = False

        def start(self, name: str, run: Callable[[], None]) -> Task:
            if not self.free:
                raise RuntimeError("can't start new thread")
            return super().start(name, run)

    threads = ScarceThreads()
    journal = Journal(tmp_path / "data", clock, threads=threads)
    queue = journal.store.create("jobs")

    def use() -> None:
        for _ in range(200):
            queue.put(bytes(200))
            queue.pop()

    use()
    before = journal.bytes()
    assert before > 200 * 200
    threads.free = True
    use()
    journal.store.close()
    assert journal.bytes() < before


def test_a_queue_may_be_deleted_while_others_use_and_pack_it(tmp_path: Path) -> None:
    store = Store("", backend := open_journal(tmp_path, segment_size=2_000, sync="never"))
    errors: list[BaseException] = []
    done = threading.Event()

    def work(use: Callable[[], object]) -> None:
        while not done.is_set():
            try:
                use()
            except (penstock.QueueNotFound, penstock.QueueExists):
                pass
            except BaseException as error:
                errors.append(error)
                return

    def use() -> None:
        queue = store.queue("jobs")
        queue.put(bytes(50))
        queue.pop()

    threads = [threading.Thread(target=work, args=(each,)) for each in (use, use, lambda: backend.pack("jobs"))]
    for thread in threads:
        thread.start()
    for _ in range(10):
        store.create("jobs").put(b"a")
        store.delete("jobs")
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    store.queue().put(b"still works")
    store.close()
    with penstock.open(tmp_path) as again:
        assert [info.name for info in again.queues()] == ["default"]


# Damage


def test_a_write_that_a_crash_tore_is_cut_off_whatever_its_payload(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = journal.store.create("jobs")
    queue.put(b"first")
    journal.reopen()
    inner = (journal.folder / "jobs").read_bytes()
    journal.queue().put(inner * 3)
    whole = (journal.folder / "jobs").read_bytes()
    for size in range(len(inner), len(whole), 29):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "jobs").write_bytes(whole[:size])
        with penstock.open(folder) as store:
            assert [message.payload for message in store.queue("jobs").messages()] == [b"first"], size
    assert "a crash interrupted the write" in caplog.text


# A disk that is full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, where one can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.getuid() != 0 or mount is None:
        pytest.skip("only root can mount a small disk")
    options = ["-t", "tmpfs", "-o", "size=2m", "penstock-test", str(folder)]
    if subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_puts_and_nothing_else(small_disk: Path) -> None:
    ids = []
    with penstock.open(small_disk / "data") as store:
        queue = store.create("jobs")
        with suppress(penstock.DiskFull):
            while True:
                ids.append(queue.put(bytes(5_000)))
        with pytest.raises(penstock.DiskFull, match="no space left for queue 'jobs'"):
            queue.put(bytes(5_000))
        assert [message.id for message in queue.messages()] == ids
    with penstock.open(small_disk / "data") as store:
        queue = store.queue("jobs")
        assert [message.id for message in queue.messages()] == ids
        for _ in range(len(ids) // 2):
            queue.ack(*queue.claim(1))
        queue.claim(1)[0].fail(reason="no")
    with penstock.open(small_disk / "data") as store:
        queue = store.queue("jobs")
        assert [message.id for message in queue.messages()] == ids[len(ids) // 2 :]
        while message := queue.pop():
            ids.remove(message.id)
        queue.put(bytes(1_000))
        assert len(queue) == 1


def test_messages_that_expired_between_single_puts_are_gone_when_a_crashed_store_opens(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(tmp_path / "alive", clock=clock, share=False) as store:
        queue = store.queue()
        queue.put(b"first")
        queue.put(b"short-lived", retention=5)
        clock.advance(7)
        queue.put(b"late")
        assert [message.payload for message in queue.claim(9)] == [b"first", b"late"]
        shutil.copytree(tmp_path / "alive", tmp_path / "crashed")
    with penstock.open(tmp_path / "crashed", clock=clock) as store:
        assert [message.payload for message in store.queue().messages("in_flight")] == [b"first", b"late"]


def test_a_closed_store_can_be_opened_although_a_forked_child_is_still_there(tmp_path: Path) -> None:
    store = penstock.open(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        store.close()
        penstock.open(tmp_path).close()
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


@pytest.mark.parametrize("sync", ["always", "never"])
def test_a_store_that_is_closed_again_leaves_the_next_owner_alone(tmp_path: Path, sync: str) -> None:
    first = open_journal(tmp_path / "data", sync=sync)
    first.run(Put("default", [Entry(b"a")]))
    first.close()
    second = open_journal(tmp_path / "data", sync=sync)
    second.run(Put("default", [Entry(b"b")]))
    before = sorted(path.name for path in (tmp_path / "data" / ".penstock").iterdir())
    first.close()
    assert sorted(path.name for path in (tmp_path / "data" / ".penstock").iterdir()) == before
    assert second.run(Counts("default"))["available"] == 2
    second.close()
