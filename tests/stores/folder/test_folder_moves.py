"""Messages of a folder store that move to another queue: among processes, when one is killed, and as files."""

import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock
from penstock import Draft, NotSupported, QueueFull, SimulatedClock, Store
from penstock.cli import cli
from penstock.contract.settings import Settings
from penstock.contract.tables import Target
from penstock.errors import StoreCorrupt
from penstock.stores.folder import doctor, layout, stamps
from penstock.stores.folder.backend import open_folder
from penstock.stores.folder.daemons import mover
from penstock.stores.unowned import FrameLoader
from tests.harness.children import Log, is_killed_before, noted
from tests.http.serving import ask, serving
from tests.simulated_disk import SimulatedDisk
from tests.stores.folder.test_folder_store import bare

SPAWN = multiprocessing.get_context("spawn")
TIMES = ("received_at", "expires_at", "claimed_at", "settled_at")
LONG = "x" * 700  # too long for an attribute


def letters(store: Store, **settings: Any) -> tuple[penstock.Queue, penstock.Queue]:
    """A queue and the one that takes its dead letters."""
    dead = store.create("dead")
    return store.create("work", max_attempts=1, dead_letter="dead", **settings), dead


def everything(store: Store) -> Counter[str]:
    return Counter(
        message.payload.decode() for info in store.queues() for message in store.queue(info.name).messages()
    )


def leftovers(folder: Path) -> list[str]:
    """What only an interrupted operation leaves."""
    private = [path.name for path in (folder / layout.HELD).glob("*/*")]
    return private + os.listdir(folder / layout.NEW)


# As files


def test_a_dead_letter_is_a_plain_file_in_the_folder_of_its_queue(folder: Path) -> None:
    clock = SimulatedClock()
    store = penstock.open(f"folder:{folder}", clock=clock)
    work, _ = letters(store)
    work.put(b"for a script", headers={"type": LONG})
    [message] = work.claim()
    message.fail(reason=LONG)
    [file] = (folder / "queues" / "dead").iterdir()
    assert (file.read_bytes(), file.name == message.id) == (b"for a script", False)
    headers = {"type": LONG, "penstock.origin": "work", "penstock.reason": LONG}
    assert next(store.queue("dead").messages()).headers == headers
    long = folder / ".penstock" / "long"
    assert len(os.listdir(long)) == 2  # those headers, and the history that a repeated fail asks for
    clock.advance(400)
    store.backend.tend()  # type: ignore[attr-defined]
    assert (len(os.listdir(long)), os.listdir(folder / "remove")) == (1, [])
    assert leftovers(folder) == os.listdir(folder / "failed") == []
    assert doctor.examine(str(folder), clock.now()).sound
    store.close()


def test_attributes_have_room_for_a_move_beside_all_others() -> None:
    disk = SimulatedDisk(Random(0))  # which gives a file 4,000 bytes of them, as ext4 does
    store = Store("/data", open_folder("/data", disk=disk, clock=SimulatedClock()))
    just_fits = "y" * (stamps.LONGEST - 10)
    dead = store.create("D" * 180)
    work = store.create("W" * 180, max_attempts=2, dead_letter=dead.name)
    for headers in ({"a": "z" * 100, "b": '"' * 20}, {"a": just_fits}):
        work.put(b"a", headers=headers, group="g" * 255, priority=-5, created_at=5, retention=1e6)
        for _ in range(2):
            work.claim(consumer="c" * 200)[0].fail(reason=just_fits)
        assert dead.redrive() == 1
        for _ in range(2):
            work.claim(consumer="c" * 200)[0].fail(reason=just_fits)
        [letter] = dead.claim()
        assert letter.headers == {**headers, "penstock.origin": work.name, "penstock.reason": just_fits}
        letter.fail(reason=just_fits)
        assert dead.pop() is not None
    store.close()


def test_a_dead_letter_for_which_a_full_disk_has_no_space_goes_once_it_has() -> None:
    disk = SimulatedDisk(Random(0))
    store = Store("/data", open_folder("/data", disk=disk, clock=SimulatedClock(), ballast=1_000))
    work, dead = letters(store)
    work.put_many([b"needs no space", Draft(b"needs some", headers={"type": LONG})])
    first, second = work.claim(2)
    disk.capacity = 1_000_000
    disk.capacity -= disk.room() or 0
    first.fail()
    second.fail()
    assert [message.payload for message in dead.messages()] == [b"needs no space"]
    assert work.counts()["failed"] == 1
    disk.capacity = None
    assert [message.payload for message in dead.messages()] == [b"needs no space", b"needs some"]
    store.close()


def test_a_file_that_a_person_dropped_moves_as_it_is(folder: Path, store: Store) -> None:
    (folder / "queues" / "jobs" / "photo.jpg").write_bytes(b"picture")
    [message] = store.queue("jobs").messages()
    other = store.create("other")
    assert store.queue("jobs").move("other", message.id) == 1
    [moved] = other.claim()
    assert (moved.payload, moved.headers, moved.created_at) == (
        b"picture",
        {"file": "photo.jpg"},
        message.created_at,
    )
    assert doctor.examine(str(folder)).sound


def test_damaged_messages_stay_where_they_are(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        work = store.create("work", max_attempts=1)
        work.put_many([b"sound", b"damaged"])
        work.fail(*work.claim(2))
        for path in (folder / "failed").iterdir():
            if path.read_bytes() == b"damaged":
                path.write_bytes(b"changed")
        store.create("dead")
        work.update(dead_letter="dead")
        assert [message.payload for message in store.queue("dead").messages()] == [b"sound"]
        assert work.move("default") == 0
        with pytest.raises(StoreCorrupt):
            list(work.messages())
    assert leftovers(folder) == []


def test_without_attributes_nothing_moves() -> None:
    store = bare()
    store.create("other")
    with pytest.raises(NotSupported, match="dead_letter: the file system of"):
        store.create("jobs", dead_letter="other")
    with pytest.raises(NotSupported, match="dead_letter"):
        store.queue().update(dead_letter="other")
    with pytest.raises(NotSupported, match="move: the file system of"):
        store.queue().move("other", store.queue().put(b"a"))


def test_dead_letters_of_clients_of_mq_core_and_of_the_command_line(folder: Path) -> None:
    clock = SimulatedClock()
    with penstock.open(f"folder:{folder}", clock=clock) as store, serving(store) as server:
        assert ask(server.url, "/dead", "PUT")[0] == 201
        assert ask(server.url, "/work?max_attempts=1&dead_letter=dead", "PUT")[0] == 201
        assert ask(server.url, "/dead?dead_letter=work", "PUT")[0] == 409
        for payload in (b"a", b"b"):
            assert ask(server.url, "/work/messages", "POST", payload)[0] == 201
            assert ask(server.url, "/work/messages?lease=5")[2] == payload
        clock.advance(5)
        assert ask(server.url, "/work/messages")[0] == 204
        _, headers, payload = ask(server.url, "/dead/messages")
        told = {"penstock.origin": "work", "penstock.reason": "lease expired"}
        assert (payload, json.loads(headers["X-Message-Headers"])) == (b"a", told)
        assert ask(server.url, f"/dead/messages/{headers['X-Message-Id']}", "DELETE")[0] == 204
        assert ask(server.url, "/work", "DELETE")[0] == 204

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(cli, ["--store", f"folder:{folder}", *arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    run("create", "work", "--dead-letter", "dead", "--max-attempts", "1")
    assert run("redrive", "dead") == {"redriven": 1}
    assert run("show", "work")["counts"]["available"] == 1
    assert run("move", "work", "default", *os.listdir(folder / "queues" / "work")) == {"moved": 1}
    assert [each["counts"]["available"] for each in run("list")] == [0, 1, 0]


def test_a_load_makes_queues_with_their_dead_letter_queue_and_what_had_failed_goes_there(folder: Path) -> None:
    url = f"folder:{folder}"
    queues = {"work": Settings(dead_letter="dead"), "dead": Settings()}
    rows = {
        "payload": pa.array(["failed", "waits"]),
        "queue": pa.array(["work", "work"]),
        "state": pa.array(["failed", "available"]),
        "attempts": pa.array([5, 1], pa.int32()),
        "reason": pa.array(["no disk", None]),
        "consumer": pa.nulls(2, pa.string()),
        "history": pa.nulls(2, pa.list_(pa.struct([]))),
    }
    rows |= {name: pa.nulls(2, pa.timestamp("us", "UTC")) for name in TIMES}
    loader = FrameLoader(Target(url, None, "monday", queues, True), os.getpid())
    loader.commit([loader.stage([pa.RecordBatch.from_pydict(rows)], 0, 0)])
    with penstock.open(url) as store:
        [letter] = store.queue("dead").messages()
        assert (letter.payload, letter.headers["penstock.reason"]) == (b"failed", "no disk")
        assert [message.payload for message in store.queue("work").messages()] == [b"waits"]


# Among processes


def test_any_process_sends_on_what_another_let_fail(folder: Path, store: Store) -> None:
    work, _ = letters(store)
    work.put_many([b"a", b"b"])
    store.queue("jobs").update(max_attempts=1)
    store.queue("jobs").put(b"c")
    with penstock.open(f"folder:{folder}") as other:
        other.queue("work").fail(*other.queue("work").claim(2))
        other.queue("jobs").claim()[0].fail()
        store.queue("jobs").update(dead_letter="dead")
        assert [each.payload for each in other.queue("dead").claim(5)] == [b"a", b"b", b"c"]


def test_a_consumer_of_dead_letters_is_woken_when_a_lease_of_another_process_ends(
    folder: Path, store: Store
) -> None:
    work, _ = letters(store)
    work.put(b"a")
    work.claim(lease=0.3)
    with penstock.open(f"folder:{folder}") as other:
        [letter] = other.queue("dead").claim(wait=60)
    assert letter.headers["penstock.reason"] == "lease expired"


def test_the_mover_sends_dead_letters_where_no_other_process_does(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        work, _ = letters(store)
        work.put(b"a")
        work.claim(lease=0.001)
    assert mover(str(folder / "delay"), str(folder / "queues"), 0)() == 1
    assert len(os.listdir(folder / "queues" / "dead")) == 1


def test_a_dead_letter_queue_never_takes_more_than_its_limit_of_several_queues(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        store.create("dead", max_size=10)
        for name in ("a", "b"):
            store.create(name, max_attempts=1, dead_letter="dead").put_many([b"x"] * 20)

    def fail_all(name: str) -> None:
        with penstock.open(f"folder:{folder}") as store:
            queue = store.queue(name)
            while messages := queue.claim(3):
                queue.fail(*messages)

    threads = [threading.Thread(target=fail_all, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with penstock.open(f"folder:{folder}") as store:
        assert len(store.queue("dead")) == 10
        assert sum(store.queue(name).counts()["failed"] for name in ("a", "b")) == 30
        with pytest.raises(QueueFull, match="queue 'dead' holds 10 of at most 10"):
            store.queue("a").move("dead")
        store.queue("dead").purge()
        assert len(store.queue("dead")) == 10


def contend(folder: str, name: str, rounds: int, ends: float, ready: Any) -> None:
    """Claim, settle, move there and back, remove, let leases end; note what is to be gone, and what is."""
    random, log = Random(name), Log(f"{folder}.{name}.jsonl")

    def end(message: penstock.Message, how: Callable[[], object]) -> None:
        payload = message.payload.decode()
        log.note(tried=payload)
        if how() != 0:
            log.note(gone=payload)

    with penstock.open(f"folder:{folder}", sync="never") as store:
        ready.set()
        for _ in range(rounds):
            here, there = random.sample(["a", "b", "dead"], 2)
            queue = store.queue(here)
            match random.choice(["claim", "claim", "move", "move", "redrive", "remove", "tend"]):
                case "claim":
                    for message in queue.claim(random.randint(1, 5), lease=random.choice([0.001, 60])):
                        with suppress(penstock.LeaseExpired):
                            if random.random() < ends:
                                end(message, message.ack)
                            else:
                                random.choice([message.fail, message.release])()
                case "move":
                    queue.move(there, *[message.id for message in queue.messages() if random.random() < 0.5])
                case "redrive":
                    store.queue("dead").redrive()
                case "remove" if random.random() < ends:
                    for message in queue.peek(1):
                        end(message, partial(queue.remove, message.id))
                case "tend":
                    store.backend.tend()  # type: ignore[attr-defined]


@dataclass
class Contender:
    """A process that does so; about that share of what it claims or looks at is gone then."""

    process: Any
    ready: Any


def start(folder: Path, name: str, rounds: int, ends: float) -> Contender:
    ready = SPAWN.Event()
    process = SPAWN.Process(target=contend, args=(str(folder), name, rounds, ends, ready))
    process.start()
    return Contender(process, ready)


def contended(folder: Path) -> list[str]:
    """A store with messages of two queues and their dead letters; the payloads."""
    everyone = [str(number) for number in range(80)]
    with penstock.open(f"folder:{folder}", sync="never") as store:
        store.create("dead")
        for name in ("a", "b"):
            store.create(name, max_attempts=2, dead_letter="dead")
        store.queue("a").put_many([Draft(each, group=f"g{int(each) % 7}") for each in everyone[:40]])
        store.queue("b").put_many(everyone[40:])
    return everyone


def check_contended(folder: Path, everyone: list[str]) -> None:
    notes = noted(*folder.parent.glob("*.jsonl"))
    tried = {note["tried"] for note in notes if "tried" in note}
    gone = Counter(note["gone"] for note in notes if "gone" in note)
    with penstock.open(f"folder:{folder}") as store:
        found = everything(store)
        for name in ("a", "b"):
            assert store.queue(name).counts()["failed"] == 0
    assert max((gone + found).values()) == 1, "a message was there twice"
    assert set(everyone) - found.keys() <= tried, "a message was lost"
    assert 0 < len(found) < len(everyone)
    assert leftovers(folder) == []
    assert doctor.examine(str(folder)).sound


@pytest.mark.parametrize(
    ("processes", "rounds", "ends"), [(3, 20, 0.2), pytest.param(5, 300, 0.01, marks=pytest.mark.long)]
)
def test_processes_that_move_messages_in_all_directions_lose_and_double_none(
    folder: Path, processes: int, rounds: int, ends: float
) -> None:
    everyone = contended(folder)
    running = [start(folder, str(number), rounds, ends) for number in range(processes)]
    for each in running:
        each.process.join()
    assert [each.process.exitcode for each in running] == [0] * processes
    check_contended(folder, everyone)


@pytest.mark.long
def test_processes_that_are_killed_while_they_move_messages_lose_and_double_none(folder: Path) -> None:
    everyone, random, running = contended(folder), Random(0), []
    for number in range(40):
        running.append(start(folder, str(number), 1_000, 0.05))
        if len(running) > 3:
            victim = running.pop(0)
            victim.ready.wait()
            time.sleep(random.uniform(0, 0.5))
            victim.process.kill()
            victim.process.join()
    for each in running:
        each.process.kill()
        each.process.join()
    check_contended(folder, everyone)


# When a process is killed


def bury(folder: Path, clock: SimulatedClock, receipts: list[str]) -> None:
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        store.queue("work").fail(*receipts, reason=LONG)


def send(folder: Path, clock: SimulatedClock, receipts: list[str]) -> None:
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        work = store.queue("work")
        work.move("other", *[message.id for message in work.messages()])


def send_back(folder: Path, clock: SimulatedClock, receipts: list[str]) -> None:
    with penstock.open(f"folder:{folder}", clock=clock) as store:
        store.queue("dead").redrive()


LETTER = ("dead", "available", 0, {"penstock.origin": "work", "penstock.reason": LONG})
PLACES: dict[Any, list[tuple[str, str, int, dict[str, str]]]] = {
    bury: [("work", "in_flight", 1, {}), LETTER],
    send: [("work", "available", 0, {}), ("other", "available", 0, {})],
    send_back: [LETTER, ("work", "available", 0, {})],
}


def told(store: Store) -> dict[str, Any]:
    """What a consumer is told of each message, which is all of one queue or all of another."""
    found = {}
    for info in store.queues():
        for each in store.queue(info.name).messages():
            assert each.payload.decode() not in found, "a message is in two queues"
            headers = {name: value for name, value in each.headers.items() if name != "type"}
            found[each.payload.decode()] = (
                info.name,
                each.state,
                each.attempts,
                headers,
                each.group,
                each.priority,
            )
    return found


def opened_together(folder: Path, clock: SimulatedClock) -> list[Store]:
    together, stores = threading.Barrier(3), []

    def open_store() -> None:
        together.wait()
        stores.append(penstock.open(f"folder:{folder}", clock=clock))

    threads = [threading.Thread(target=open_store) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == len(threads)
    return stores


@pytest.mark.parametrize("step", [pytest.param(17, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize("work", [bury, send, send_back], ids=lambda work: work.__name__)
def test_a_move_that_was_killed_is_finished_or_undone_by_all_that_open_the_store_at_once(
    work: Callable[[Path, SimulatedClock, list[str]], None], step: int, tmp_path: Path
) -> None:
    seen = set()
    for last in range(1 + Random(work.__name__).randrange(step), 1_000, step):
        folder, clock = tmp_path / str(last), SimulatedClock()
        with penstock.open(f"folder:{folder}", clock=clock, sync="never") as store:
            store.create("other")
            queue, _ = letters(store)
            queue.put_many([Draft(b"a", headers={"type": LONG}, group="g"), Draft(b"b", priority=5)])
            queue.put(b"delayed", delay=9)
            claimed = [] if work is send else [message.receipt or "" for message in queue.claim(2)]
            if work is send_back:
                bury(folder, clock, claimed)
        killed = is_killed_before(last, partial(work, folder, clock, claimed))
        stores = opened_together(folder, clock)
        found = [told(store) for store in stores]
        assert found[0] == found[1] == found[2], f"killed before change {last}"
        for store in stores:
            store.close()
        for name, group, priority in (("a", "g", 0), ("b", None, 5)):
            *where, its_group, its_priority = found[0][name]
            assert tuple(where) in PLACES[work], f"killed before change {last}"
            assert (its_group, its_priority) == (group, priority)
        assert found[0]["delayed"][:2] in (("work", "delayed"), ("other", "delayed"))
        assert leftovers(folder) == []
        assert doctor.examine(str(folder), clock.now()).sound
        seen.add(found[0]["a"][0])
        if not killed:
            break
    assert len(seen) == 2, "no kill came before the move, or none after it"


def test_a_message_whose_move_cannot_be_finished_is_set_aside(folder: Path) -> None:
    with penstock.open(f"folder:{folder}") as store:
        letters(store)
        uid = store.queue("work").put(b"a")
        gone = folder / layout.HELD / "elsewhere.0.1.1"
        gone.mkdir()
        (gone / layout.ABANDONED).touch()
        (folder / "queues" / "work" / uid).rename(gone / layout.held_name(layout.MOVE, 0, 1, "work", uid))
        said = [each.text for each in doctor.examine(str(folder)).findings]
        assert f"1 message left in the hands of process {gone.name}, which is gone" in said
        store.backend.tend()  # type: ignore[attr-defined]
    [damaged] = (folder / layout.DAMAGED).iterdir()
    assert (damaged.name, damaged.read_bytes()) == (f"work:{uid}", b"a")
    assert leftovers(folder) == []
