"""A text store that all use at once, through crashes, from one process and from two."""

import pytest

from tests.simulated_disk import Keep
from tests.simulation.lives import run_lives
from tests.simulation.text_world import SharedTextWorld, TextWorld

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
LIVES = 4


def check_lives(seed: object, kind: type[TextWorld]) -> int:
    """How many outcomes of crashes were checked, by one process whoever there was before."""
    return run_lives(seed, kind(seed), LIVES, KEEPS, 1_500, TextWorld)[1]


@pytest.mark.parametrize("kind", [TextWorld, SharedTextWorld])
@pytest.mark.parametrize("seed", range(4))
def test_a_text_store_that_all_use_at_once_keeps_its_promises_through_crashes(
    seed: int, kind: type[TextWorld]
) -> None:
    assert check_lives(seed, kind) == LIVES * len(KEEPS)


@pytest.mark.long
@pytest.mark.parametrize("kind", [TextWorld, SharedTextWorld])
@pytest.mark.parametrize("part", range(5))
def test_hundreds_of_lives_keep_their_promises(part: int, kind: type[TextWorld]) -> None:
    for seed in range(60):
        check_lives(f"{part}.{seed}", kind)
