"""The owner's commits of guests' puts: in its event loop if commits are short, else in a thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.contract.message import Entry
from penstock.contract.operations import Put
from penstock.engine.queue import LiveQueue
from penstock.errors import StoreClosed
from penstock.sharing import owner_server
from penstock.sharing.backend import engine_of
from penstock.sharing.owner_server import OwnersBackend
from penstock.stores.journal.store import JournalBackend


@pytest.fixture
def store(tmp_path: Path) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path, share=False) as store:
        store.create("other")
        yield store


def put(store: penstock.Store, *queues: str) -> list[list[str] | BaseException]:
    """Put into each queue in one turn of a loop, after a first put in another."""

    owned = engine_of(store)
    assert isinstance(owned, JournalBackend)
    backend = OwnersBackend(owned)

    async def run() -> list[list[str] | BaseException]:
        await backend.run(Put("default", [Entry(b"first")]))
        puts = [backend.run(Put(queue, [Entry(b"x")])) for queue in queues]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        await backend.detach()
        return answers

    return asyncio.run(run())


@pytest.fixture
def committed_by(store: penstock.Store, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that commit, in turn."""
    threads: list[threading.Thread] = []

    def watch(commit: Callable[[int], None]) -> Callable[[int], None]:
        def committed(written: int) -> None:
            threads.append(threading.current_thread())
            commit(written)

        return committed

    for name in ("default", "other"):
        live = _live(store, name)
        monkeypatch.setattr(live, "commit", watch(live.commit))
    return threads


def _live(store: penstock.Store, queue: str) -> LiveQueue:
    backend = engine_of(store)
    assert backend is not None
    return backend.find(queue)


def test_after_a_short_commit_the_next_is_made_in_the_loop_for_all_who_came(
    store: penstock.Store, committed_by: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_server, "_SHORT", 3_600.0)
    assert put(store, "default", "default", "default") == [["2"], ["3"], ["4"]]
    first, second = committed_by
    assert first is not threading.current_thread()  # as no commit was measured before
    assert second is threading.current_thread()


def test_after_a_long_commit_the_loop_goes_on_during_the_next(
    store: penstock.Store, committed_by: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_server, "_SHORT", 0.0)
    assert put(store, "default") == [["2"]]
    assert threading.current_thread() not in committed_by


def test_commits_of_several_queues_are_made_side_by_side(
    store: penstock.Store, committed_by: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_server, "_SHORT", 3_600.0)
    assert put(store, "default", "other") == [["2"], ["1"]]
    assert len(committed_by) == 3
    assert threading.current_thread() not in committed_by


def test_a_commit_that_fails_in_the_loop_is_told_to_all_who_came(
    store: penstock.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(written: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise StoreClosed("the disk is gone")
        original(written)

    live = _live(store, "default")
    original = live.commit
    monkeypatch.setattr(live, "commit", commit)
    monkeypatch.setattr(owner_server, "_SHORT", 3_600.0)
    answers = put(store, "default", "default")
    assert [str(answer) for answer in answers] == ["the disk is gone"] * 2
