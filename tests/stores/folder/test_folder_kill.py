"""kill -9 of processes that use a folder store: other processes complete or undo their operations."""

from pathlib import Path

import pytest

import penstock
from tests.harness.children import is_killed_before

QUEUE = "jobs"


def test_what_a_killed_process_was_putting_is_finished_or_dropped_by_one_that_has_the_store_open(
    tmp_path: Path,
) -> None:
    seen = set()
    for last in range(1, 200):
        folder = tmp_path / str(last)
        url = f"folder:{folder}"

        def put(url: str = url) -> None:
            penstock.open(url).queue().put_many([b"%d" % number for number in range(5)])

        with penstock.open(url) as store:
            killed = is_killed_before(last, put)
            store.backend.move_due()  # type: ignore[attr-defined]
            seen.add(len(store.queue()))
            assert not list((folder / "new").iterdir()), f"killed before operation {last}"
            assert not list((folder / ".penstock" / "batches").iterdir()), f"killed before operation {last}"
        if not killed:
            break
    else:
        pytest.fail("a put has more changes than were tried")
    assert seen == {0, 5}


def test_a_redrive_that_was_killed_goes_on_at_the_time_it_began_however_the_clock_is_set_since(
    tmp_path: Path,
) -> None:
    for last in range(1, 1_000):
        clock, url = penstock.SimulatedClock(), f"folder:{tmp_path / str(last)}"
        with penstock.open(url, clock=clock) as store:
            queue = store.create(QUEUE, max_attempts=1)
            queue.put_many([b"a", b"b"])
            queue.fail(*queue.claim(2))
            clock.advance(600)

        def redrive(url: str = url, clock: penstock.SimulatedClock = clock) -> None:
            penstock.open(url, clock=clock).queue(QUEUE).redrive()

        killed = is_killed_before(last, redrive)
        clock.jump(-600)
        with penstock.open(url, clock=clock) as store:
            redriven = list(store.queue(QUEUE).messages("available"))
            assert [each.visible_at for each in redriven] == [clock.now() + 600_000] * len(redriven)
        if not killed:
            assert len(redriven) == 2
            return
