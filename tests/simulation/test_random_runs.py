"""All at once, for many lives: whoever dies when, and whatever the disk keeps of it, no promise is broken."""

from random import Random

import pytest

from tests.simulated_disk import Keep, SimulatedCrash
from tests.simulation.actors import live, rest
from tests.simulation.world import CrashState, World

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
LIVES = 5


def run_lives(seed: object) -> tuple[list[tuple[str, str, str]], int]:
    """Several lives of a store: what was done in them, and how many outcomes of crashes were checked."""
    random = Random(f"lives {seed}")
    world = World(seed)
    trace: list[tuple[str, str, str]] = []
    checked = 0
    for life in range(LIVES):
        if random.random() < 0.8:
            world.disk.crash_at = world.disk.operations + int(random.triangular(1, 400))
        try:
            world.run(live)
            world.run(rest)
        except SimulatedCrash:
            pass
        except BaseException as error:
            error.add_note(f"in run_lives({seed!r}), life {life}")
            raise
        trace += world.scheduler.trace
        promises = world.freeze()
        for number, keep in enumerate(KEEPS):
            name = f"{seed} / {life} {keep} {number}"
            disk = world.disk.after_crash(Random(name), keep)
            CrashState(name, promises, disk).check(used=random.random() < 0.3)
            checked += 1
        name = f"{seed} / {life}"
        world = World.thaw(promises, name, world.disk.after_crash(Random(name), random.choice(KEEPS)))
    return trace, checked


@pytest.mark.parametrize("seed", range(30))
def test_a_store_that_all_use_at_once_keeps_its_promises_through_crashes(seed: int) -> None:
    assert run_lives(seed)[1] == LIVES * len(KEEPS)


def test_the_same_seed_has_the_same_lives() -> None:
    assert run_lives("same") == run_lives("same")


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_lives_keep_their_promises(part: int) -> None:
    for seed in range(100):
        run_lives(f"{part}.{seed}")
