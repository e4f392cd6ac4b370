"""The power goes before every file operation: batches of streams, and what followers have read, are the same."""

from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from penstock import SimulatedClock
from penstock.contract.message import Entry
from penstock.contract.operations import Counts, Messages, Put
from penstock.stores.journal.follow import Follower
from penstock.stores.journal.store import JournalBackend, open_journal
from tests.simulated_disk import Keep, SimulatedDisk

FOLDER, QUEUE, STREAM, READER = "/data", "default", "s", "2147483647-1-1@x@here"
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
HARMLESS = {"open", "size", "read", "listdir", "exists", "is_folder", "status", "lock", "unlock", "close"}
MANY = 1 << 40


@dataclass
class Told:
    """What the reader of a stream was told, and has certainly read."""

    put: list[str] = field(default_factory=list)
    batches: dict[int, list[str]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)  # messages that it lets fail
    failed: set[str] = field(default_factory=set)  # those of them of which it was told so
    read: int = 0  # the batch that it has read, and maybe said so
    settled: int = 0  # the last that it knows to be settled


def open_on(disk: SimulatedDisk, sync: str = "always") -> JournalBackend:
    return open_journal(FOLDER, clock=SimulatedClock(), disk=disk, sync=sync)


def crash_states(script: Callable[[SimulatedDisk, Told], None]) -> Iterator[tuple[SimulatedDisk, Told, str]]:
    """What a power cut leaves before each operation, in several ways, with what was told by then."""
    disk, told, states = SimulatedDisk(Random(0)), Told(), list[tuple[SimulatedDisk, Told, str]]()

    def look(name: str, path: str) -> None:
        if name not in HARMLESS:
            for keep in KEEPS:
                left = disk.if_it_crashed(Random(f"{len(states)}"), keep)
                states.append((left, deepcopy(told), f"{len(disk.trace)} {name} {path} {keep}"))

    disk.before_operation = look
    script(disk, told)
    disk.before_operation = None
    yield from states


def ids_of(streams: Any, batch: int) -> list[str]:
    return [message.id for message in streams.messages(QUEUE, STREAM, batch, "", "", 1_000)]


def consume(disk: SimulatedDisk, told: Told) -> None:
    """Messages come and are read batch by batch, packed, and the store is opened again in between."""
    backend = open_on(disk)
    backend.streams().begin(QUEUE, STREAM, READER)
    for turn in range(4):
        ids = backend.run(Put(QUEUE, [Entry(b"%d" % number, number % 2) for number in range(3)]))
        told.put += ids
        batch = backend.streams().next(QUEUE, STREAM, READER, told.read, 2, MANY)
        assert batch is not None
        told.settled = told.read
        told.batches[batch] = ids_of(backend.streams(), batch)
        if turn in (0, 2):
            told.failing.add(told.batches[batch][0])
            backend.streams().fail(QUEUE, STREAM, batch, told.batches[batch][:1], "no")
            told.failed |= told.failing
        told.read = batch  # it is processed, and that is committed elsewhere
        if turn == 1:
            backend.pack(QUEUE)
        if turn == 2:
            backend.close()
            backend = open_on(disk)
    backend.streams().settle(QUEUE, STREAM, told.read)
    told.settled = told.read
    backend.close()


def test_a_batch_that_was_told_is_the_same_after_any_power_cut_and_no_message_is_lost_or_comes_twice() -> None:
    looked = 0
    for disk, told, where in crash_states(consume):
        backend = open_on(disk)
        streams = backend.streams()
        streams.begin(QUEUE, STREAM, READER)
        for number in {told.read, told.settled} - {0}:
            if number >= max(0, *[info.settled for info in streams.all()]):
                assert ids_of(streams, number) == told.batches[number], where
        found, start = dict(told.batches), told.read
        while (batch := streams.next(QUEUE, STREAM, READER, start, 2, MANY)) is not None:
            ids = ids_of(streams, batch)
            assert found.setdefault(batch, ids) == ids, where
            start = batch
        seen = Counter(each for ids in found.values() for each in ids)
        assert set(told.put) <= set(seen), where
        assert all(seen[each] == 2 for each in told.failed), where
        assert {each for each, count in seen.items() if count != 1} <= told.failing, where
        assert not any(backend.run(Counts(QUEUE)).values()), where
        backend.close()
        looked += 1
    assert looked > 100


@pytest.mark.parametrize("sync", ["always", "never"])
def test_what_a_follower_was_given_is_there_after_a_power_cut_under_the_same_number(sync: str) -> None:
    """Whatever the store has promised: a number that was read must never be another message's."""
    disk = SimulatedDisk(Random(0))
    backend = open_on(disk, sync)
    follower = Follower(FOLDER, QUEUE, 1, disk)
    follower.follow(0)
    given: dict[int, int] = {}
    for turn in range(12):
        backend.run(Put(QUEUE, [Entry(b"%d %d" % (turn, number)) for number in range(1 + turn % 3)]))
        if turn == 6:
            backend.pack(QUEUE)
        if turn % 2:
            continue  # not seen yet: that may go
        follower.fill(1_000)
        given |= dict(zip(follower.entries.seq, follower.entries.crc, strict=True))
        payloads = {int(message.id): message.payload for message in backend.run(Messages(QUEUE))}
        for keep in KEEPS:
            left = disk.if_it_crashed(Random(f"{turn} {keep}"), keep)
            again = open_on(left)
            found = {int(message.id): message.payload for message in again.run(Messages(QUEUE))}
            assert {seq: found.get(seq) for seq in given} == {seq: payloads[seq] for seq in given}, (turn, keep)
            again.close()
    assert len(given) > 10
    follower.close()
    backend.close()
