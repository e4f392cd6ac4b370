"""Loads: messages staged beside a journal that take effect all at once."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from penstock.contract.message import Attempt, Entry
from penstock.contract.operations import Ack, Attempts, Claim, Lookup, Messages, Put, Release, Remove
from penstock.contract.settings import Settings
from penstock.errors import InvalidPriority, PayloadTooLarge, QueueFull, QueueNotFound
from penstock.rules import records as rules
from penstock.rules.recent import pack
from penstock.rules.rows import AVAILABLE, DONE, FAILED
from penstock.stores.journal import bodies, groups, replay, staging
from penstock.stores.journal.doctor import examine
from penstock.stores.journal.fields import Bodies
from penstock.stores.journal.loads import Load
from penstock.stores.journal.records import encode_put, encode_record
from penstock.stores.journal.store import JournalBackend, open_journal
from penstock.system.threads import SystemThreads, Task
from tests.simulated_disk import Keep, SimulatedCrash, SimulatedDisk
from tests.stores.journal.journals import new_part, staged

NOW = 1_700_000_000_000
LARGE = b"x" * (5 << 20)


def entries(*payloads: bytes) -> list[Entry]:
    return [Entry(payload) for payload in payloads]


def payloads(backend: JournalBackend, queue: str) -> list[bytes]:
    return [message.payload for message in backend.run(Messages(queue))]


def opened(folder: Path) -> JournalBackend:
    return open_journal(folder)


@pytest.mark.parametrize("size", [b"", LARGE], ids=["few bytes", "a file of their own"])
def test_what_was_put_before_and_after_a_load_keeps_its_order(tmp_path: Path, size: bytes) -> None:
    backend = opened(tmp_path)
    backend.run(Put("default", entries(b"before")))
    assert backend.load(staged(backend, {"a": {"default": entries(b"1" + size, b"2", b"3")}}))
    backend.run(Put("default", entries(b"after")))
    expected = [b"before", b"1" + size, b"2", b"3", b"after"]
    assert payloads(backend, "default") == expected
    backend.close()
    backend = opened(tmp_path)
    assert payloads(backend, "default") == expected
    claimed = backend.run(Claim("default", 5, 30, 0, "me"))
    assert [message.payload for message in claimed] == expected
    backend.run(Ack("default", [message.receipt or "" for message in claimed]))
    backend.close()
    assert os.listdir(tmp_path / ".penstock" / "staged") == []


@pytest.mark.parametrize("size", [b"", LARGE], ids=["few bytes", "a file of their own"])
def test_a_load_brings_groups(tmp_path: Path, size: bytes) -> None:
    backend = opened(tmp_path)
    backend.run(Put("default", [Entry(b"before", group="a")]))
    drafts = [Entry(b"1" + size, group="a"), Entry(b"2"), Entry(b"3"), Entry(b"4"), Entry(b"5", group="b")]
    assert backend.load(staged(backend, {"a": {"default": drafts}}))
    for is_packed in (False, True, True):
        found = [message.group for message in backend.run(Messages("default"))]
        assert found == ["a", "a", None, None, None, "b"]
        claimed = backend.run(Claim("default", 9, 30, 0, "me"))
        assert [message.payload for message in claimed] == [b"before", b"2", b"3", b"4", b"5"]
        backend.run(Release("default", [message.receipt or "" for message in claimed]))
        if is_packed:
            backend.pack("default")
        backend.close()
        backend = opened(tmp_path)
    backend.close()


def test_a_load_goes_to_many_queues_from_files_that_they_share(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    for queue in "ab":
        backend.create(queue, Settings())
    parts = {
        "first": {"a": entries(b"1" + LARGE, b"2"), "b": entries(b"3"), "default": entries(b"4")},
        "second": {"a": entries(b"5"), "b": entries(b"6")},
        "third": {"a": entries(b"7")},
    }
    backend.load(staged(backend, parts))
    for _ in range(2):
        assert payloads(backend, "a") == [b"1" + LARGE, b"2", b"5", b"7"]
        assert payloads(backend, "b") == [b"3", b"6"]
        assert payloads(backend, "default") == [b"4"]
        backend.close()
        backend = opened(tmp_path)
    backend.close()


def test_a_consumer_in_line_is_served_by_a_load(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.run, Claim("default", 1, 30, 30, "me"))
        backend.load(staged(backend, {"a": {"default": entries(b"1" + LARGE)}}))
        assert waiting.result()[0].payload == b"1" + LARGE
    backend.close()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings(max_size=2), QueueFull),
        (Settings(max_payload=2), PayloadTooLarge),
        (Settings(priorities=(1, 5)), InvalidPriority),
    ],
)
def test_a_load_that_one_queue_refuses_changes_nothing(
    tmp_path: Path, settings: Settings, error: type[Exception]
) -> None:
    backend = opened(tmp_path)
    backend.create("strict", settings)
    load = staged(backend, {"a": {"default": entries(b"1"), "strict": entries(b"123", b"2", b"3")}})
    with pytest.raises(error):
        backend.load(load)
    assert payloads(backend, "default") == payloads(backend, "strict") == []
    backend.load(staged(backend, {"a": {"default": entries(b"1")}}))
    assert payloads(backend, "default") == [b"1"]
    backend.close()


def test_what_is_expected_counts_until_it_has_arrived_and_no_longer(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    backend.create("small", Settings(max_size=3))
    backend.load(staged(backend, {"a": {"small": entries(b"1", b"2")}}))
    backend.run(Put("small", entries(b"3")))
    with pytest.raises(QueueFull):
        backend.run(Put("small", entries(b"4")))
    backend.close()


def test_a_load_for_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    with pytest.raises(QueueNotFound):
        backend.load(staged(backend, {"a": {"nowhere": entries(b"1")}}))
    backend.close()


def test_a_run_takes_effect_once(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    for expected in (True, False):
        load = staged(backend, {"a": {"default": entries(b"1")}})
        load.run = "tuesday/../x"
        assert backend.load(load) is expected
        backend.close()
        backend = opened(tmp_path)
    assert payloads(backend, "default") == [b"1"]
    backend.close()


def test_a_load_makes_the_queues_that_it_brings(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    load = staged(backend, {"a": {"new": entries(b"1")}})
    load.queues = {"new": Settings(max_attempts=2, priorities=(0, 9))}
    backend.load(load)
    assert payloads(backend, "new") == [b"1"]
    assert backend.run(Lookup("new")) == Settings(max_attempts=2, priorities=(0, 9))
    backend.close()


def test_what_nobody_will_finish_is_removed_when_the_store_is_opened(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    load = staged(backend, {"a": {"default": entries(b"1")}})
    backend.close()
    folder = Path(staging.folder_of(str(tmp_path), load.name))
    gone = folder.with_name("999999999-1-" + load.name.partition(".")[0].rpartition("-")[2] + ".0123456789abcdef")
    folder.rename(gone)
    backend = opened(tmp_path)
    assert not gone.exists()
    backend.close()


def restored(backend: JournalBackend, folder: Path, large: bytes) -> Load:
    """A load with a message of every state that a message can arrive in."""
    name, part_of = new_part(backend)
    part = part_of("part")
    history = pack(Attempt(1, "then", NOW - 90, NOW - 80, "failed", "no luck"))
    for done in (False, True):
        count = 1 if done else 2
        content, sizes, crcs = bodies.encode(
            entries(*[b"%d" % at + large for at in range(count)]), 1, NOW, [0] * count, "doc"
        )
        body = b"".join(content)
        if done:
            body = body[:-1] + b"\x01"
            crcs = [bodies.checksum(body)]
        offsets = [groups.HEAD_SIZE, groups.HEAD_SIZE + sizes[0]][:count]
        put = rules.Put(0, 0, [0] * count, [NOW] * count, [0] * count, {})
        states = bytes([DONE] if done else [FAILED, AVAILABLE])
        restore = rules.Restore(
            0, 0, states, [2] * count, [NOW - 50] * count, [NOW - 40] * count, ["me"] * count,
            [None] if done else ["broken", "slow"], {0: history},
        )  # fmt: skip
        records = encode_put(put, Bodies(offsets, sizes, crcs)) + encode_record(restore)
        part.add("kept", [body], records, count, done=done)
    part.close()
    return Load(name, part.pieces)


@pytest.mark.parametrize("large", [b"", LARGE], ids=["few bytes", "a file of their own"])
def test_messages_arrive_in_the_state_that_they_had_elsewhere(tmp_path: Path, large: bytes) -> None:
    backend = opened(tmp_path)
    backend.create("kept", Settings(keep_done=None))
    backend.run(Put("kept", entries(b"before")))
    backend.load(restored(backend, tmp_path, large))
    backend.run(Put("kept", entries(b"after")))
    for _ in range(3):
        found = [(each.state, each.attempts, each.reason) for each in backend.run(Messages("kept"))]
        assert found == [
            ("available", 0, None), ("failed", 2, "broken"), ("available", 2, "slow"), ("done", 2, None),
            ("available", 0, None),
        ]  # fmt: skip
        [failed] = backend.run(Messages("kept", state="failed"))
        assert (failed.settled_at, failed.claimed_at, failed.consumer) == (NOW - 40, NOW - 50, "me")
        assert [each.reason for each in backend.run(Attempts("kept", failed.id))] == ["no luck"]
        backend.close()
        backend = opened(tmp_path)
    backend.pack("kept")
    assert [each.state for each in backend.run(Messages("kept"))][1:4] == [
        "failed",
        "available",
        "done",
    ]
    claimed = backend.run(Claim("kept", 9, 30, 0, "me"))
    assert [each.payload[:1] for each in claimed] == [b"b", b"1", b"a"]
    backend.close()


def test_a_reader_of_the_document_sees_what_was_loaded_and_is_not_done(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    backend.create("kept", Settings(keep_done=None))
    for large in (b"", LARGE):
        backend.load(restored(backend, tmp_path, large))
        backend.run(Put("kept", entries(b"after")))
    backend.close()
    seen = replay(tmp_path, "kept").open
    assert [payload[:1] for payload in seen.values()] == [b"0", b"1", b"a"] * 2
    assert list(seen) == [1, 2, 4, 5, 6, 8]


# The power goes


class NoTasks(SystemThreads):
    """Nothing runs beside the test."""

    def start(self, name: str, run: Callable[[], object]) -> Task:
        raise RuntimeError("no threads here")


def on(disk: SimulatedDisk) -> JournalBackend:
    return open_journal("/data", disk=disk, threads=NoTasks(), segment_size=4096)


def load_on(backend: JournalBackend, run: str | None = None) -> bool:
    counts = {"a": {"large": 3}, "b": {"large": 3, "small": 1}, "c": {"small": 1}}
    parts = {
        file: {
            queue: entries(*[f"{file}{at}".encode() + b"x" * 900 for at in range(count)])
            for queue, count in queues.items()
        }
        for file, queues in counts.items()
    }
    return backend.load(staged(backend, parts, 3, queues={"small": Settings(max_attempts=7)}, run=run))


LOADED = {"large": [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"], "small": [b"b0", b"c0"]}


def loaded(backend: JournalBackend) -> dict[str, list[bytes]]:
    queues = [info.name for info in backend.queues() if info.name != "default"]
    found = {queue: [payload[:2] for payload in payloads(backend, queue)] for queue in queues}
    return {queue: [each for each in beginnings if each != b"af"] for queue, beginnings in found.items()}


@pytest.mark.parametrize("keep", ["nothing", "some", "everything"])
def test_whenever_the_power_goes_all_of_a_load_is_there_or_nothing(keep: Keep) -> None:
    disk = SimulatedDisk(Random(0))
    backend = on(disk)
    backend.create("large", Settings())
    backend.run(Put("large", entries(b"before")))
    nothing, everything = {"large": [b"be"]}, {**LOADED, "large": [b"be", *LOADED["large"]]}
    outcomes = []
    acknowledged = False
    busy = False

    def crash(operation: str, path: str) -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        for luck in range(3 if keep == "some" else 1):
            found = disk.if_it_crashed(Random(f"{disk.operations} {luck}"), keep)
            for _ in range(2):
                again = on(found)
                outcome = loaded(again)
                assert outcome in (nothing, everything), (disk.trace[-1], operation, path)
                again.run(Put("large", entries(b"after")))
                listed = again.run(Messages("large"))
                again.run(Remove("large", [each.id for each in listed if each.payload == b"after"]))
                again.close()
            outcomes.append(outcome == everything)
            assert outcome == everything or not acknowledged
        busy = False

    disk.before_operation = crash
    assert load_on(backend)
    acknowledged = True
    backend.run(Put("large", entries(b"after")))
    disk.before_operation = None
    assert False in outcomes
    assert True in outcomes
    assert outcomes == sorted(outcomes) or keep == "some"
    backend.close()


def test_a_run_that_the_power_interrupted_still_takes_effect_once() -> None:
    for at in range(1, 200):
        disk = SimulatedDisk(Random(at))
        backend = on(disk)
        backend.create("large", Settings())
        disk.crash_at = disk.operations + at
        try:
            load_on(backend, "monday")
        except SimulatedCrash:
            pass
        else:
            assert at > 50
            return
        found = disk.after_crash(Random(at))
        again = on(found)
        load_on(again, "monday")
        assert loaded(again) == LOADED
        again.close()
    raise AssertionError("a load takes fewer operations than that")


def test_the_doctor_knows_a_load_that_was_interrupted() -> None:
    disk = SimulatedDisk(Random(0))
    backend = on(disk)
    backend.create("large", Settings())
    texts: set[str] = set()

    def look(operation: str, path: str) -> None:
        disk.before_operation = None
        found = disk.if_it_crashed(Random(0), "everything")
        texts.update(finding.text for finding in examine("/data", found).findings)
        disk.before_operation = look

    disk.before_operation = look
    load_on(backend)
    disk.before_operation = None
    backend.close()
    assert any("took effect, and was interrupted before its messages had arrived" in text for text in texts)
