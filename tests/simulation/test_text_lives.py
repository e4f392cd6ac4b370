"""A text store that all use at once, through crashes, from one process and from two."""

from random import Random

import pytest

from tests.simulated_disk import Keep, SimulatedCrash
from tests.simulation.actors import live, rest
from tests.simulation.text_world import SharedTextWorld, TextWorld
from tests.simulation.world import CrashState

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
LIVES = 4


def run_lives(seed: object, kind: type[TextWorld]) -> int:
    """Several lives of a store; how many outcomes of crashes were checked."""
    random = Random(f"lives {seed}")
    world = kind(seed)
    checked = 0
    for life in range(LIVES):
        if random.random() < 0.8:
            world.disk.crash_at = world.disk.operations + int(random.triangular(1, 1_500))
        try:
            world.run(live)
            world.run(rest)
        except SimulatedCrash:
            pass
        except BaseException as error:
            error.add_note(f"in run_lives({seed!r}, {kind.__name__}), life {life}")
            raise
        promises = world.freeze()
        for number, keep in enumerate(KEEPS):
            name = f"{seed} / {life} {keep} {number}"
            disk = world.disk.after_crash(Random(name), keep)
            CrashState(name, promises, disk, kind=TextWorld).check(used=random.random() < 0.3)
            checked += 1
        name = f"{seed} / {life}"
        world = kind.thaw(promises, name, world.disk.after_crash(Random(name), random.choice(KEEPS)))  # type: ignore[assignment]
    return checked


@pytest.mark.parametrize("kind", [TextWorld, SharedTextWorld])
@pytest.mark.parametrize("seed", range(4))
def test_a_text_store_that_all_use_at_once_keeps_its_promises_through_crashes(
    seed: int, kind: type[TextWorld]
) -> None:
    assert run_lives(seed, kind) == LIVES * len(KEEPS)


@pytest.mark.long
@pytest.mark.parametrize("kind", [TextWorld, SharedTextWorld])
@pytest.mark.parametrize("part", range(5))
def test_hundreds_of_lives_keep_their_promises(part: int, kind: type[TextWorld]) -> None:
    for seed in range(60):
        run_lives(f"{part}.{seed}", kind)
