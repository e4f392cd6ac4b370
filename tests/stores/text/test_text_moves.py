"""Moves and dead letters in text files: what the files have, several processes, and what people write."""

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock import Draft, NotSupported, Queue, SimulatedClock, Store
from penstock.contract.examination import Finding
from penstock.stores.text import moves
from penstock.stores.text.doctor import examine
from penstock.stores.text.files import MutexLock

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def store(folder: Path, clock: SimulatedClock) -> Iterator[Store]:
    with penstock.open(f"text:{folder}", clock=clock) as store:
        yield store


@pytest.fixture
def dead(store: Store) -> Queue:
    return store.create("dead")


@pytest.fixture
def jobs(store: Store, dead: Queue) -> Queue:
    return store.create("jobs", max_attempts=1, dead_letter="dead")


def payloads(queue: Queue, state: penstock.State | None = None) -> list[bytes]:
    return [message.payload for message in queue.messages(state)]


# What the files have


def test_a_message_that_moved_is_a_comment_which_packing_drops_and_a_new_message_in_the_other_file(
    store: Store, folder: Path, jobs: Queue, dead: Queue
) -> None:
    jobs.put("two\nlines", headers={"a": "b"})
    jobs.claim()[0].fail(reason="no")
    text = (folder / "jobs.tq").read_text()
    assert "\n#two\n lines\n" in text
    assert "\n\\lease=removed" in text
    letter = (folder / "dead.tq").read_text()
    assert letter.startswith("-two\n lines\n\\id=")
    assert "\n\\header a=b\n\\header penstock.origin=jobs\n\\header penstock.reason=no\n" in letter
    store.backend.pack("jobs")  # type: ignore[attr-defined]
    assert "two" not in (folder / "jobs.tq").read_text()
    assert payloads(dead) == [b"two\nlines"]


def test_messages_of_people_move_too_and_one_that_a_program_has_marked_stays(
    store: Store, folder: Path, dead: Queue
) -> None:
    (folder / "default.tq").write_text("-pay\n-pay\n-rent\n\\mutex=another program\n")
    queue = store.queue()
    assert queue.move("dead", *[message.id for message in queue.messages()]) == 2
    assert (folder / "default.tq").read_text() == "#pay\n#pay\n-rent\n\\mutex=another program\n"
    assert payloads(dead) == [b"pay", b"pay"]


def test_the_files_of_a_move_have_the_line_ends_that_they_had(store: Store, folder: Path, dead: Queue) -> None:
    (folder / "dead.tq").write_bytes(b"-first\r\n")
    store.queue().put("a\nb")
    store.queue().move("dead", *[message.id for message in store.queue().messages()])
    assert payloads(dead) == [b"first", b"a\nb"]
    data = (folder / "dead.tq").read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n")


def test_more_messages_than_one_step_takes_move_in_their_order(
    jobs: Queue, dead: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "_AT_ONCE", 7)
    monkeypatch.setattr(moves, "_BYTES", 1_000)
    drafts = [Draft(str(number), group="abc"[number % 3]) for number in range(30)]
    drafts[3] = Draft("3" * 2_000)
    jobs.put_many(drafts)
    while claimed := jobs.claim(30):
        jobs.fail(*claimed)
    assert Counter(payloads(dead)) == Counter(draft.payload.encode() for draft in drafts)  # type: ignore[union-attr]
    for name in "abc":
        numbers = [int(message.payload) for message in dead.messages() if message.group == name]
        assert numbers == sorted(numbers)
    assert dead.redrive() == 30
    assert Counter(payloads(jobs)) == Counter(draft.payload.encode() for draft in drafts)  # type: ignore[union-attr]


def test_a_table_for_spark_has_dead_letters_where_they_belong(
    jobs: Queue, dead: Queue, clock: SimulatedClock
) -> None:
    jobs.put_many([b"a", b"b"])
    jobs.claim(lease=5)
    clock.advance(5)
    assert dead.to_arrow().column("payload").to_pylist() == [b"a"]
    assert jobs.to_arrow().column("payload").to_pylist() == [b"b"]


# Settings that people write


def test_a_dead_letter_that_a_person_writes_is_obeyed(
    store: Store, folder: Path, dead: Queue, clock: SimulatedClock
) -> None:
    (folder / "jobs.tq").write_text("# Penstock queue\n\\max_attempts=1\n\\dead_letter=dead\n-a\n!b\n")
    store.queue("jobs").claim(lease=5)
    assert payloads(dead) == [b"b"]
    clock.advance(5)
    assert payloads(dead) == [b"b", b"a"]


def test_a_circle_that_people_write_moves_each_dead_letter_once(store: Store, folder: Path) -> None:
    for name, other in (("a", "b"), ("b", "a"), ("c", "c")):
        (folder / f"{name}.tq").write_text(f"# Penstock queue\n\\dead_letter={other}\n!{name}\n")
    a, b, c = map(store.queue, "abc")
    assert (payloads(a), payloads(b), payloads(c)) == ([b"b"], [b"a"], [b"c"])
    assert (a.counts()["available"], b.counts()["available"], c.counts()["failed"]) == (1, 1, 1)


def test_a_dead_letter_queue_that_is_another_name_of_the_file_is_none(store: Store, folder: Path) -> None:
    queue = store.create("jobs", max_attempts=1)
    (folder / "alias.tq").symlink_to("jobs.tq")
    queue.put(b"a")
    queue.claim()[0].fail()
    with pytest.raises(penstock.InvalidArgument, match="are one file"):
        queue.move("alias")
    queue.update(dead_letter="alias")
    assert payloads(queue, "failed") == [b"a"]


def test_a_store_of_one_file_has_nowhere_to_move_messages(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "jobs.tq") as store:
        queue = store.queue()
        with pytest.raises(NotSupported, match=r"is a single queue, 'jobs', and cannot move messages to another"):
            queue.move("other")
        with pytest.raises(NotSupported, match=rf"and takes no dead_letter: open text:{tmp_path} for several"):
            queue.update(dead_letter="other")
        assert queue.update(dead_letter=None, max_attempts=1).max_attempts == 1


def test_a_file_opened_alone_keeps_its_failed_messages_until_its_folder_is_open(
    folder: Path, clock: SimulatedClock, jobs: Queue, dead: Queue
) -> None:
    jobs.put(b"a")
    with penstock.open(folder / "jobs.tq", clock=clock) as alone:
        alone.queue().claim()[0].fail()
        assert alone.queue().counts()["failed"] == 1
    assert payloads(dead) == [b"a"]


# Moves that were interrupted


class Stopped(BaseException):
    """The process was killed."""


@pytest.fixture(params=["take_over", "give_up", "forget_taken"])
def interrupted(
    request: pytest.FixtureRequest,
    folder: Path,
    clock: SimulatedClock,
    jobs: Queue,
    dead: Queue,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The step before which a process was killed that moved a message from `jobs` to `dead`."""
    jobs.put(b"a")

    def stop(*arguments: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched, penstock.open(f"text:{folder}", clock=clock) as store:
        patched.setattr("penstock.stores.text.queue.TextFileQueue." + request.param, stop)
        with pytest.raises(Stopped):
            store.queue("jobs").move("dead", *[message.id for message in jobs.messages()])
    return str(request.param)


def test_doctor_tells_of_it_and_an_operation_on_either_queue_finishes_it(
    folder: Path, clock: SimulatedClock, jobs: Queue, dead: Queue, interrupted: str
) -> None:
    def said() -> list[Finding]:
        findings = examine(f"text:{folder}", now=clock.now()).all_findings()
        return [each for _, each in findings if "a move of" in each.text]

    found = said()
    assert found
    assert {each.severity for each in found} == {"note"}
    assert {each.next for each in found} == {"nothing: the next operation on either queue finishes it"}
    (jobs if interrupted == "take_over" else dead).counts()
    assert not said()
    moved = interrupted != "take_over"
    assert (payloads(jobs), payloads(dead)) == (([], [b"a"]) if moved else ([b"a"], []))


@pytest.mark.parametrize("name", ["jobs", "dead"])
def test_a_store_of_one_of_the_two_files_finishes_it(
    folder: Path, clock: SimulatedClock, jobs: Queue, dead: Queue, interrupted: str, name: str
) -> None:
    there = [b"a"] if (name == "dead") == (interrupted != "take_over") else []
    with penstock.open(folder / f"{name}.tq", clock=clock) as alone:
        assert payloads(alone.queue()) == there
    assert len(payloads(jobs)) + len(payloads(dead)) == 1


@pytest.mark.parametrize("name", ["jobs", "dead"])
def test_a_person_who_takes_one_of_the_two_files_away_keeps_the_other_in_use(
    store: Store, folder: Path, jobs: Queue, dead: Queue, interrupted: str, name: str
) -> None:
    other = dead if name == "jobs" else jobs
    (folder / f"{name}.tq").unlink()
    has_it = {"take_over": jobs, "give_up": other, "forget_taken": dead}[interrupted]
    assert payloads(other) == ([b"a"] if other is has_it else [])
    other.put(b"b")


def test_a_file_that_a_person_puts_elsewhere_and_links_to_is_still_the_other_queue(
    folder: Path, clock: SimulatedClock, jobs: Queue, interrupted: str
) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    for name in ("dead.tq", "dead.tq.mutex"):
        (folder / name).rename(elsewhere / name)
    (folder / "dead.tq").symlink_to(elsewhere / "dead.tq")
    with penstock.open(f"text:{folder}", clock=clock) as store:
        found = [payload for name in ("jobs", "dead") for payload in payloads(store.queue(name))]
        assert found == [b"a"]
        store.queue("dead").put(b"b")


def test_a_message_that_a_person_takes_out_of_the_new_file_is_still_in_the_old_one(
    folder: Path, jobs: Queue, dead: Queue, interrupted: str
) -> None:
    (folder / "dead.tq").write_text("")
    assert payloads(dead) == []
    assert payloads(jobs) == ([] if interrupted == "forget_taken" else [b"a"])


def test_the_table_for_spark_has_each_message_once(jobs: Queue, dead: Queue, interrupted: str) -> None:
    found = [*jobs.to_arrow().column("payload").to_pylist(), *dead.to_arrow().column("payload").to_pylist()]
    assert found == [b"a"]


# Several processes


def test_processes_that_move_in_opposite_directions_lose_and_double_nothing(folder: Path) -> None:
    with penstock.open(f"text:{folder}", sync="never") as store:
        queues = [store.create(name) for name in "ab"]
        for queue in queues:
            queue.put_many([f"{queue.name} {number}" for number in range(20)])
        put = Counter(payload for queue in queues for payload in payloads(queue))
        movers = [SPAWN.Process(target=move_often, args=(str(folder), *names)) for names in ("ab", "ba") * 2]
        for mover in movers:
            mover.start()
        for mover in movers:
            mover.join()
        assert [mover.exitcode for mover in movers] == [0] * 4
        assert Counter(payload for queue in queues for payload in payloads(queue)) == put


def test_of_two_queues_every_operation_locks_the_same_first(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = [store.create(name, max_attempts=1, filter="x = '1'") for name in ("a.", "a-b")]
    held: list[str] = []
    seen: set[tuple[str, ...]] = set()
    acquire, release = MutexLock.acquire, MutexLock.release

    def acquired(lock: MutexLock) -> None:
        acquire(lock)
        held.append(Path(lock.path).name)
        seen.add(tuple(held))

    def released(lock: MutexLock) -> None:
        held.remove(Path(lock.path).name)
        release(lock)

    monkeypatch.setattr(MutexLock, "acquire", acquired)
    monkeypatch.setattr(MutexLock, "release", released)
    for source, target in ((one, two), (two, one)):
        source.move(target.name, source.put(b"a"))
        source.update(dead_letter=target.name)
        source.claim()
        source.put(b"b")
        source.fail(*source.claim())
        target.redrive()
        source.update(dead_letter=None)
    store.publish(b"p", headers={"x": "1"})
    assert {each for each in seen if len(each) > 1} == {("a%2E.tq.mutex", "a-b.tq.mutex")}


def move_often(folder: str, source: str, target: str) -> None:
    with penstock.open(f"text:{folder}", sync="never") as store:
        queue = store.queue(source)
        for _ in range(30):
            queue.move(target, *[message.id for message in queue.messages()][:5])


def test_a_consumer_waits_for_dead_letters_of_another_process(folder: Path) -> None:
    with penstock.open(f"text:{folder}") as store, ThreadPoolExecutor() as threads:
        dead = store.create("dead")
        waiting = threads.submit(dead.claim, wait=1000)
        failing = SPAWN.Process(target=fail_one, args=(str(folder),))
        failing.start()
        failing.join()
        assert [message.payload for message in waiting.result()] == [b"a"]


def fail_one(folder: str) -> None:
    with penstock.open(f"text:{folder}") as store:
        jobs = store.create("jobs", max_attempts=1, dead_letter="dead")
        jobs.put(b"a")
        jobs.claim()[0].fail()


def test_a_consumer_waits_for_a_lease_of_another_queue_to_end(
    store: Store, jobs: Queue, dead: Queue, clock: SimulatedClock
) -> None:
    jobs.put(b"a")
    jobs.claim(lease=5)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(dead.claim, wait=1000)
        while not store.backend.find("dead").in_line:  # type: ignore[attr-defined]
            pass
        clock.advance(5)
        assert [message.payload for message in waiting.result()] == [b"a"]
