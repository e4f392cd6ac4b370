"""The power goes before every single file operation; whatever then is on the disk, no promise is broken."""

from random import Random

import pytest

from tests.simulated_disk import Keep
from tests.simulation.scripts import SCRIPTS, world_for
from tests.simulation.world import World, crash_states

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some", "some")
MANY = KEEPS + KEEPS[-1:] * 30
PARTS, ENOUGH = 2, 5_000  # for each script: a hundred thousand for all


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_before_any_file_operation_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(world_for(name, 0), SCRIPTS[name], KEEPS):
        state.check(used=choice.random() < 0.3)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_while_the_store_starts_after_a_crash_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(world_for(name, 0), SCRIPTS[name], ["some"]):
        if choice.random() < 0.1:
            world = World.thaw(state.promises, state.name, state.disk)
            for second in crash_states(world, lambda world: world.check_after_start(used=True), ["some"], 0.3):
                second.check()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_goes_the_same_way_with_the_same_seed(name: str) -> None:
    def run(seed: int) -> list[tuple[str, str, str]]:
        world = world_for(name, seed)
        world.run(SCRIPTS[name])
        return world.scheduler.trace

    assert run(0) == run(0)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_thousands_of_crash_states_break_no_promise(name: str, part: int) -> None:
    count = seed = 0
    choice = Random(f"{name} {part}")
    while count < ENOUGH:
        seed += 1
        for state in crash_states(world_for(name, f"{part}.{seed}"), SCRIPTS[name], MANY):
            state.check(used=choice.random() < 0.1)
            count += 1
    assert count >= ENOUGH
    assert ENOUGH * PARTS * len(SCRIPTS) >= 100_000
