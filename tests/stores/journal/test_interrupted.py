"""Ctrl-C, and whatever else may end an operation at any line: what was answered stays, and nothing hangs."""

import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Queue, Store
from penstock.engine import commits
from penstock.engine.commits import Commits
from penstock.stores.journal import replay
from penstock.stores.journal.files import JournalFiles
from penstock.stores.journal.store import open_journal
from penstock.system.threads import Lock, Task
from tests.simulated_disk import SimulatedDisk
from tests.simulation.scheduler import Scheduler

SOURCE = str(Path(penstock.__file__).parent)


@contextmanager
def ctrl_c(line: int, source: str = SOURCE) -> Iterator[list[str]]:
    """Interrupt this thread before it runs the line of that number, of those in these modules; where it was."""
    passed = 0
    where: list[str] = []
    inside: set[tuple[FrameType, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        place = frame.f_code.co_filename, frame.f_lineno
        if not place[0].startswith(source):
            return None
        if event == "line" and not where:
            if linecache.getline(*place).lstrip().startswith("with "):
                # It comes here again for the __exit__, before which Python lets no Ctrl-C in.
                inside.symmetric_difference_update({(frame, frame.f_lineno)})
                if (frame, frame.f_lineno) not in inside:
                    return trace
            passed += 1
            if passed == line:
                where.append(f"{place[0]}:{place[1]}")
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            yield where
    finally:
        sys.settrace(None)


class LonelyLock:
    """The lock of a program with one thread: whoever has to wait for it would wait for ever."""

    def __init__(self, reentrant: bool) -> None:
        self._reentrant = reentrant
        self._depth = 0

    def acquire(self) -> bool:
        assert self._reentrant or not self._depth, "this would wait for ever"
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class Done:
    def join(self) -> None:
        pass


class LonelyThreads:
    """The threads of a program that has one."""

    def lock(self) -> Lock:
        return LonelyLock(reentrant=False)

    def rlock(self) -> Lock:
        return LonelyLock(reentrant=True)

    def start(self, name: str, run: Callable[[], None]) -> Task:
        run()
        return Done()


def opened(disk: SimulatedDisk) -> Store:
    return Store("/data", open_journal("/data", disk=disk, threads=LonelyThreads()))


OPERATIONS: dict[str, Callable[[Queue, list[penstock.Message]], object]] = {
    "put": lambda queue, held: queue.put(b"new", priority=-1, headers={"a": "b"}),
    "put_many": lambda queue, held: queue.put_many([b"new", b"newer"]),
    "claim": lambda queue, held: queue.claim(2),
    "pop": lambda queue, held: queue.pop(),
    "ack": lambda queue, held: queue.ack(held[0]),
    "fail": lambda queue, held: queue.fail(*held),
}


def interrupt(name: str, lines: Iterable[int]) -> int:
    """Interrupt an operation before each of these lines, one after the other; how many it has."""
    for line in lines:
        disk = SimulatedDisk(Random(0))
        with opened(disk) as store:
            queue = store.queue()
            queue.put_many([b"one", b"two", b"three", b"four"])
            held = queue.claim(2)
            with ctrl_c(line) as where:
                OPERATIONS[name](queue, held)
        found = []
        for hints in (True, False):
            copy = disk.if_it_crashed(Random(0), "everything")
            if not hints:
                with suppress(FileNotFoundError):
                    copy.unlink("/data/.penstock/index/default")
            with opened(copy) as store:
                found.append(list(store.queue().messages()))
            seen = replay("/data", disk=copy).open.values()
            assert sorted(each.payload for each in found[-1]) == sorted(seen), where
        assert found[0] == found[1], where
        gone = {b"one", b"two", b"three", b"four"} - {each.payload for each in found[0]}
        assert gone <= {b"three"} if name == "pop" else gone <= {b"one"} if name == "ack" else not gone, where
        new = [each.payload for each in found[0] if each.payload.startswith(b"new")]
        assert new in ([], [b"new"] if name == "put" else [b"new", b"newer"]), where
        if not where:
            return line
    return 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_ctrl_c_at_every_third_line_is_no_more_than_an_answer_that_nobody_got(name: str) -> None:
    assert interrupt(name, count(1 + len(name) % 3, 3)) > 100


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_ctrl_c_at_any_line_is_no_more_than_an_answer_that_nobody_got(name: str) -> None:
    assert interrupt(name, count(1)) > 100


COMMITTERS = 4


def commit_interrupted(seed: int, line: int) -> list[str]:
    """Several threads commit, one of them is interrupted: the others come to their end, and nobody is lied to."""
    scheduler, disk = Scheduler(Random(seed)), SimulatedDisk(Random(seed))
    scheduler.join_disk(disk)
    written = durable = 0
    failures: list[BaseException] = []

    def flush() -> int:
        nonlocal durable
        reached = written
        disk.exists("/")  # others go on meanwhile
        durable = reached
        return reached

    journal = Commits(scheduler, flush, failures.append)
    where: list[str] = []

    def commit() -> None:
        nonlocal written
        for _ in range(3):
            written += 1
            mine = written
            disk.exists("/")
            try:
                journal.commit(mine)
            except penstock.StoreClosed:
                assert failures
            else:
                assert mine <= durable

    def be_interrupted() -> None:
        with ctrl_c(line, commits.__file__) as interrupted:
            commit()
        where.extend(interrupted)

    for number in range(COMMITTERS):
        scheduler.start(f"committer {number}", commit)
    scheduler.start("interrupted", be_interrupted)
    scheduler.run()
    scheduler.run(lambda: journal.lead(lambda: None))
    return where


def test_a_ctrl_c_at_any_line_of_a_commit_leaves_no_other_thread_waiting() -> None:
    lines = [next(line for line in count(1) if not commit_interrupted(seed, line)) for seed in range(8)]
    assert sum(lines) > 500


def test_a_store_whose_packing_was_interrupted_stops_and_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_journal(tmp_path, sync="never")
    queue = Store("", backend).queue()
    queue.put_many([b"a", b"b", b"c"])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JournalFiles, "finish_pack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.pack("default")
    for call in (lambda: queue.put(b"after"), lambda: backend.pack("default")):
        with pytest.raises(penstock.StoreClosed, match=r"interrupted \(KeyboardInterrupt\)"):
            call()
    backend.close()
    with penstock.open(tmp_path) as store:
        assert [message.payload for message in store.queue().messages()] == [b"a", b"b", b"c"]


def test_a_ctrl_c_while_a_claim_is_stored_gives_the_messages_back() -> None:
    store = opened(SimulatedDisk(Random(0)))
    queue = store.queue()
    queue.put_many([b"a", b"b"])
    live = store.backend._queues["default"]  # type: ignore[attr-defined]
    commit = live.commit

    def interrupted(_: int) -> None:
        live.commit = commit
        raise KeyboardInterrupt

    live.commit = interrupted
    with pytest.raises(KeyboardInterrupt):
        queue.claim(2, lease=3600)
    assert queue.counts()["available"] == 2
    store.close()


def test_a_ctrl_c_while_closing_waits_for_packing_lets_go_of_the_folder(tmp_path: Path) -> None:
    backend = open_journal(tmp_path)
    store = Store("", backend)
    store.queue().put(b"a")

    class Packing:
        joined = 0

        def join(self) -> None:
            self.joined += 1
            if self.joined == 1:
                raise KeyboardInterrupt

    backend._upkeep["default"]._task = packing = Packing()
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert packing.joined == 2  # nobody else gets the folder while this one still packs
    with penstock.open(tmp_path) as again:
        assert len(again.queue()) == 1


def test_after_a_ctrl_c_while_writing_nobody_is_sent_to_look_at_the_disk() -> None:
    told = str(commits.stopped(KeyboardInterrupt()))
    assert "writing was interrupted (KeyboardInterrupt)" in told
    assert "disk" not in told
    assert "find out what is wrong with the disk" in str(
        commits.stopped(OSError(5, "Input/output error", "/data/jobs"))
    )
