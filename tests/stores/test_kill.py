"""kill -9: processes that use a store are killed at any moment, and before any change, again and again.

Afterwards the store must show exactly what its history allows, and a reader that knows the format's document and
nothing else must see exactly the messages that were not acknowledged away.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.kills import Series, is_killed_at_step


def kill_often(kind: str, folder: Path, seeds: Iterable[int], kills: int) -> None:
    def run(seed: int) -> None:
        (folder / str(seed)).mkdir()
        Series(kind, folder / str(seed), seed).run(kills)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, seeds))


@pytest.mark.parametrize(
    ("kind", "seeds", "kills"),
    [("journal", [4, 5, 6], 10), ("text", [7, 8], 8), ("slate", [7, 8], 6), ("folder", [1], 5)],
)
def test_a_killed_process_leaves_a_store_that_keeps_its_promises(
    tmp_path: Path, kind: str, seeds: list[int], kills: int
) -> None:
    kill_often(kind, tmp_path, seeds, kills)


PARTS = {"journal": range(100, 152, 4), "text": range(200, 224, 4), "slate": range(300, 324, 4)} | {
    "folder": range(100, 112, 4)
}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "first"), [(kind, first) for kind, firsts in PARTS.items() for first in firsts])
def test_thousands_of_killed_processes_leave_stores_that_keep_their_promises(
    tmp_path: Path, kind: str, first: int
) -> None:
    kill_often(kind, tmp_path, range(first, first + 4), 20)


def check_steps(kind: str, folder: Path, numbers: Iterable[int]) -> None:
    for number in numbers:
        try:
            if not is_killed_at_step(kind, folder / str(number), number):
                return
        except BaseException as error:
            error.add_note(f"killed before change {number}")
            raise
    pytest.fail("the script has more changes than were tried")


@pytest.mark.parametrize(("kind", "step"), [("text", 7), ("folder", 11)])
def test_a_process_killed_before_some_changes_leaves_a_store_that_keeps_its_promises(
    tmp_path: Path, kind: str, step: int
) -> None:
    check_steps(kind, tmp_path, range(3, 3_000, step))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_process_killed_before_any_change_leaves_a_store_that_keeps_its_promises(
    tmp_path: Path, kind: str
) -> None:
    check_steps(kind, tmp_path, range(1, 3_000))
