"""A store that all use at once, for several lives: each ends in a crash, or at rest, and then the power goes.

Whatever the disk keeps of it, no promise is broken.
"""

from random import Random

import pytest

from tests.simulated_disk import SimulatedCrash
from tests.simulation.actors import live, rest
from tests.simulation.kinds import JOURNAL, KEEPS, KINDS, Kind
from tests.simulation.text_world import SharedTextWorld, TextWorld
from tests.simulation.world import CrashState, World

LIVES = 4
CROWDS = [pytest.param(kind, crowd, id=crowd.__name__) for kind in KINDS for crowd in kind.crowds]


def check_lives(kind: Kind, crowd: type[World], seed: object) -> list[tuple[str, str, str]]:
    """What was done in them."""
    random, world = Random(f"lives {seed}"), crowd(seed)
    world.disk.atomic_renames = kind.atomic_renames
    checked_by = TextWorld if crowd is SharedTextWorld else crowd  # one process, however many there were before
    trace: list[tuple[str, str, str]] = []
    for life in range(LIVES):
        if random.random() < 0.8:
            world.disk.crash_at = world.disk.operations + int(random.triangular(1, kind.operations))
        try:
            world.run(live)
            world.run(rest)
        except SimulatedCrash:
            pass
        except BaseException as error:
            error.add_note(f"in life {life} of {seed!r}")
            raise
        trace += world.scheduler.trace
        promises = world.freeze()
        for number, keep in enumerate(KEEPS):
            name = f"{seed} / {life} {keep} {number}"
            disk = world.disk.after_crash(Random(name), keep)
            CrashState(name, promises, disk, kind=checked_by).check(used=random.random() < 0.3)
        name = f"{seed} / {life}"
        world = crowd.thaw(promises, name, world.disk.after_crash(Random(name), random.choice(KEEPS)))
    return trace


@pytest.mark.parametrize(
    ("kind", "crowd", "seed"),
    [
        pytest.param(kind, crowd, seed, id=f"{crowd.__name__}-{seed}")
        for kind in KINDS
        for crowd in kind.crowds
        for seed in kind.lives
    ],
)
def test_a_store_that_all_use_at_once_keeps_its_promises_through_crashes(
    kind: Kind, crowd: type[World], seed: object
) -> None:
    assert check_lives(kind, crowd, seed)


def test_the_same_seed_has_the_same_lives() -> None:
    assert check_lives(JOURNAL, World, "same") == check_lives(JOURNAL, World, "same")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "crowd"), CROWDS)
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_lives_keep_their_promises(kind: Kind, crowd: type[World], part: int) -> None:
    for seed in range(kind.many_lives):
        check_lives(kind, crowd, f"{part}.{seed}")
