"""A process that moves messages of a text store is killed; others have the store open, people edit its files."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

import pytest

from penstock import SimulatedClock
from penstock.contract.message import Entry
from penstock.contract.operations import Ack, Claim, Counts, Create, Fail, Messages, Move, Put, Redrive
from penstock.contract.settings import Settings
from penstock.stores.text import storage
from penstock.stores.text.backend import TextBackend, open_text
from penstock.stores.text.format import parse
from tests.simulated_disk import Keep, SimulatedDisk

QUEUES = ("a", "b", "dead")
PEOPLE = b"-pay\n-pay\n-rent\n to the landlord\n"
ALL = Counter([b"pay", b"pay", b"rent\nto the landlord", b"1", b"2", b"3", b"x", b"y"])
KEEPS: tuple[Keep, ...] = ("nothing", "some", "everything")


class Killed(BaseException):
    """kill -9: what was written stays, locks are free, and nothing else happens."""


class Machine:
    """A disk, and processes that have a text store on it open."""

    def __init__(self, disk: SimulatedDisk | None = None, clock: SimulatedClock | None = None) -> None:
        self.disk = disk or SimulatedDisk(Random(0))
        self.clock = clock or SimulatedClock()

    def open(self) -> TextBackend:
        return open_text("text:/data", clock=self.clock, disk=self.disk)

    def after_a_power_cut(self, keep: Keep, seed: str) -> "Machine":
        return Machine(self.disk.if_it_crashed(Random(seed), keep), SimulatedClock(self.clock.now()))


def prepared() -> Machine:
    machine = Machine()
    store = machine.open()
    store.run(Create("dead", Settings()))
    store.run(Create("a", Settings(max_attempts=1, dead_letter="dead")))
    store.run(Create("b", Settings(max_attempts=2)))
    with machine.disk.open("/data/a.tq") as file:
        file.append(PEOPLE, sync=True)
    store.run(Put("a", [Entry(b"1"), Entry(b"2", group="g"), Entry(b"3", group="g")]))
    store.run(Put("b", [Entry(b"x", headers={"h": "1"}), Entry(b"y", priority=-1)]))
    store.close()
    return machine


def moving(store: TextBackend) -> None:
    """Messages of people and others move there and back, and through the dead-letter queue."""
    ids = [message.id for message in store.run(Messages("a"))]
    store.run(Move("a", "b", [ids[0], ids[2], ids[3]]))
    there = [message.id for message in store.run(Messages("b"))]
    store.run(Move("b", "a", there[:3]))
    held = store.run(Claim("a", 2, consumer="c"))
    store.run(Fail("a", [message.receipt or "" for message in held], reason="no"))
    store.run(Redrive("dead"))
    store.close()


def found_in(store: TextBackend, queues: tuple[str, ...] = QUEUES) -> Counter[bytes]:
    return Counter(message.payload for queue in queues for message in store.run(Messages(queue)))


def operations(share: float, seed: object) -> list[int]:
    """The numbers of some operations of a process that moves messages."""
    machine = prepared()
    store, before = machine.open(), machine.disk.operations
    moving(store)
    numbers = range(1, machine.disk.operations - before + 1)
    return sorted(Random(f"{seed}").sample(numbers, round(share * len(numbers))))


def killed(share: float, seed: object) -> Iterator[tuple[str, Machine, TextBackend]]:
    """Machines on which a process was killed before some of its operations; another has the store open."""
    for number in operations(share, seed):
        machine = prepared()
        store, other = machine.open(), machine.open()
        assert found_in(other) == ALL
        left = number

        def kill(name: str, path: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                machine.disk.before_operation = None  # noqa: B023 - called in this turn
                raise Killed

        machine.disk.before_operation = kill
        with suppress(Killed):
            moving(store)
        machine.disk.before_operation = None
        store.close()  # as the system does with its files
        yield f"killed before operation {number}", machine, other


@pytest.mark.parametrize("share", [0.2, pytest.param(1, marks=pytest.mark.long)])
def test_another_process_finds_each_message_of_a_killed_one_in_one_queue(share: float) -> None:
    for at, (where, machine, other) in enumerate(killed(share, 1)):
        for queues in (QUEUES, QUEUES[::-1], QUEUES[1:] + QUEUES[:1])[at % 3 :][:1]:
            assert found_in(other, queues) == ALL, where
        for keep in KEEPS:
            later = machine.after_a_power_cut(keep, where)
            assert found_in(later.open()) == ALL, f"{where}, then the power went, {keep}"


@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_done_with_messages_of_a_killed_process_is_done_for_good(share: float) -> None:
    for at, (where, machine, other) in enumerate(killed(share, 2)):
        done: Counter[bytes] = Counter()
        for queue in (QUEUES, QUEUES[::-1])[at % 2]:
            while messages := other.run(Claim(queue, 99, consumer="c")):
                done.update(message.payload for message in messages)
                other.run(Ack(queue, [message.receipt or "" for message in messages]))
            other.pack(queue)
        left = found_in(other)  # held by the process that was killed
        assert done + left == ALL, where
        for keep in KEEPS:
            assert found_in(machine.after_a_power_cut(keep, where).open()) == left, f"{where} {keep}"


def with_lines_above(data: bytes) -> bytes:
    return b"# todo\n\n-buy milk\n" + data


def backwards(data: bytes) -> bytes:
    """The messages of Penstock in the opposite order."""
    entries = parse(data).entries
    raw = [data[each.offset : each.offset + each.length] for each in entries]
    own = [at for at, each in enumerate(entries) if each.variable("id")]
    for at, other in zip(own, [raw[each] for each in reversed(own)], strict=True):
        raw[at] = other
    return b"".join(raw)


def edit(machine: Machine, path: str, change: Callable[[bytes], bytes], replaces: bool) -> None:
    with machine.disk.open(path) as file:
        data = change(file.read(0, file.size()))
        if not replaces:
            file.truncate(0)
            file.write(0, data)
            return
    with machine.disk.open(path + "~", create=True) as file:
        file.write(0, data)
    machine.disk.rename(path + "~", path)


@pytest.mark.parametrize("change", [with_lines_above, backwards], ids=lambda change: change.__name__)
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("share", [0.05, pytest.param(1, marks=pytest.mark.long)])
def test_edits_after_a_kill_lose_and_double_no_message(
    change: Callable[[bytes], bytes], replaces: bool, share: float
) -> None:
    choice = Random(f"{change.__name__} {replaces}")
    for where, machine, other in killed(share, f"{change.__name__} {replaces}"):
        for name in choice.sample(QUEUES, choice.randint(1, 3)):
            edit(machine, f"/data/{name}.tq", change, replaces)
        found = found_in(other)
        del found[b"buy milk"]
        assert found == ALL, where


@pytest.mark.parametrize("share", [0.2, pytest.param(1, marks=pytest.mark.long)])
def test_an_editor_that_saves_while_messages_move_loses_and_doubles_none(share: float) -> None:
    """It reads a file and replaces it at once, between any two operations of the move."""
    choice = Random(3)
    for number in operations(share, 3):
        machine = prepared()
        store = machine.open()
        left = number

        def save(name: str, path: str, machine: Machine = machine) -> None:
            nonlocal left
            left -= 1
            if not left:
                machine.disk.before_operation = None
                for queue in choice.sample(QUEUES, choice.randint(1, 3)):
                    edit(machine, f"/data/{queue}.tq", with_lines_above, True)

        machine.disk.before_operation = save
        moving(store)
        machine.disk.before_operation = None
        found = found_in(machine.open())
        del found[b"buy milk"]
        assert found == ALL, f"saved before operation {number}"


def test_on_a_full_disk_dead_letters_stay_failed_and_all_else_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SPARE", 2_000)
    machine = Machine()
    store = machine.open()
    store.run(Create("dead", Settings()))
    store.run(Create("a", Settings(max_attempts=1, dead_letter="dead")))
    payloads = [b"%d" % number * 50 for number in range(10, 40)]
    store.run(Put("a", [Entry(payload) for payload in payloads]))
    machine.disk.capacity = 10**9
    machine.disk.capacity -= machine.disk.room() or 0  # not a byte is left
    for _ in range(10):
        first, second, third = store.run(Claim("a", 3, consumer="c"))
        store.run(Fail("a", [first.receipt or ""]))
        store.run(Ack("a", [second.receipt or "", third.receipt or ""]))
    written = machine.disk.files()
    for _ in range(3):
        assert store.run(Counts("a"))["failed"] == 10
    assert machine.disk.files() == written, "each try to move them writes something"
    assert not store.run(Counts("dead"))["available"]
    machine.disk.capacity = None
    assert [message.payload for message in store.run(Messages("dead"))] == payloads[::3]
    assert store.run(Counts("a"))["failed"] == 0
