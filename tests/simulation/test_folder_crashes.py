"""The folder store: the power goes before every single file operation, and no promise is broken.

The disk is the strict one, on which a rename is durable only once both folders are synced; for what many do at once it
has the atomic renames of file systems with a journal.
"""

from random import Random

import pytest

from tests.simulated_disk import Keep
from tests.simulation import scripts
from tests.simulation.folder_world import FolderWorld
from tests.simulation.world import Script, crash_states

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some", "some")
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_before_any_file_operation_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(FolderWorld(f"{name} 0"), SCRIPTS[name], KEEPS):
        state.check(used=choice.random() < 0.3)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_crash_while_the_store_starts_after_a_crash_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(FolderWorld(f"{name} 0"), SCRIPTS[name], ["some"]):
        if choice.random() < 0.05:
            world = FolderWorld.thaw(state.promises, state.name, state.disk)
            for second in crash_states(world, lambda world: world.check_after_start(used=True), ["some"], 0.3):
                second.check()
