"""The folder store: the power goes before every single file operation, and no promise is broken.

The disk is the strict one, on which a rename is durable only once both folders are synced. For what many do at
once it has the atomic renames of file systems with a journal: no order of syncs could make up for them.
"""

from random import Random

import pytest

from tests.simulated_disk import Keep
from tests.simulation import scripts
from tests.simulation.folder_world import CrowdedWorld, FolderWorld
from tests.simulation.lives import run_lives
from tests.simulation.world import Script, crash_states

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some", "some")
MANY = KEEPS + KEEPS[-1:] * 20
ENOUGH = 0.2  # of all crash states, unless there is time
LIVES = 4
SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        scripts.puts_and_acks,
        scripts.what_expires,
        scripts.batches,
        scripts.attempts_and_leases,
        scripts.queues_that_come_and_go,
        scripts.closing_and_opening,
        scripts.emptying,
    )
}


def check_crashes(name: str, keeps: tuple[Keep, ...], chance: float = 1, seed: int = 0) -> int:
    choice, count = Random(name), 0
    for state in crash_states(FolderWorld(f"{name} {seed}"), SCRIPTS[name], keeps, chance):
        state.check(used=choice.random() < 0.3)
        count += 1
    return count


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_before_one_in_five_file_operations_breaks_no_promise(name: str) -> None:
    assert check_crashes(name, KEEPS, ENOUGH) > 50


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_before_any_file_operation_breaks_no_promise(name: str, seed: int) -> None:
    assert check_crashes(name, MANY, seed=seed) > 300


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_while_the_store_starts_after_a_crash_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(FolderWorld(f"{name} 0"), SCRIPTS[name], ["some"], ENOUGH):
        if choice.random() < 0.05:
            world = FolderWorld.thaw(state.promises, state.name, state.disk)
            for second in crash_states(world, lambda world: world.check_after_start(used=True), ["some"], 0.1):
                second.check()


def check_lives(seed: object) -> int:
    """How many outcomes of crashes were checked."""
    world = CrowdedWorld(seed)
    world.disk.atomic_renames = True
    return run_lives(seed, world, LIVES, KEEPS, 1_500)[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_store_that_all_use_at_once_keeps_its_promises_through_crashes(seed: int) -> None:
    assert check_lives(seed) == LIVES * len(KEEPS)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_hundreds_of_lives_keep_their_promises(part: int) -> None:
    for seed in range(50):
        check_lives(f"{part}.{seed}")
