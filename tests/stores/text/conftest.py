"""A queue that a person edits while it is open, and the ways in which editors write."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Queue, SimulatedClock, Store

Edit = Callable[[Path, str], None]
Look = Callable[[], Queue]


def in_place(path: Path, text: str) -> None:
    """As editors that truncate and write."""
    path.write_text(text)


def by_renaming(path: Path, text: str) -> None:
    """As editors that write another file and put it in the place of the first."""
    other = path.with_suffix(".swp")
    other.write_text(text)
    os.replace(other, path)


def with_a_backup(path: Path, text: str) -> None:
    """As editors that move the first out of the way."""
    os.replace(path, path.with_suffix(".tq~"))
    path.write_text(text)


@pytest.fixture(params=[in_place, by_renaming, with_a_backup])
def edit(request: pytest.FixtureRequest) -> Edit:
    chosen: Edit = request.param
    return chosen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.tq"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def store(path: Path, clock: SimulatedClock) -> Iterator[Store]:
    path.write_text("")
    with penstock.open(path, clock=clock) as store:
        yield store


@pytest.fixture
def queue(store: Store) -> Queue:
    return store.queue()


@pytest.fixture(params=["same process", "another process"])
def look_again(request: pytest.FixtureRequest, path: Path, store: Store, clock: SimulatedClock) -> Iterator[Look]:
    """The queue as the process sees it that has it open, or one that opens it after the edit."""
    opened: list[Store] = []

    def look() -> Queue:
        if request.param == "same process":
            return store.queue()
        opened.append(penstock.open(path, clock=clock))
        return opened[-1].queue()

    yield look
    for each in opened:
        each.close()
