"""All at once, for many lives: whoever dies when, and whatever the disk keeps of it, no promise is broken."""

import pytest

from tests.simulated_disk import Keep
from tests.simulation.lives import run_lives
from tests.simulation.world import World

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
LIVES = 5


def lives_of(seed: object) -> tuple[list[tuple[str, str, str]], int]:
    return run_lives(seed, World(seed), LIVES, KEEPS, 400)


@pytest.mark.parametrize("seed", range(30))
def test_a_store_that_all_use_at_once_keeps_its_promises_through_crashes(seed: int) -> None:
    assert lives_of(seed)[1] == LIVES * len(KEEPS)


def test_the_same_seed_has_the_same_lives() -> None:
    assert lives_of("same") == lives_of("same")


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_lives_keep_their_promises(part: int) -> None:
    for seed in range(100):
        lives_of(f"{part}.{seed}")
