"""Any file operation of a folder store fails once: it goes on, refuses or stops, and never lies later."""

import errno
from random import Random

import pytest

from tests.simulated_disk import Keep
from tests.simulation.folder_world import FolderWorld
from tests.simulation.test_folder_crashes import SCRIPTS
from tests.simulation.world import CrashState

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some")


def fail(name: str, number: int, error: int) -> None:
    """Run a script in which one operation fails; then the program starts again, or the whole machine."""
    world = FolderWorld(f"{name} 0")
    world.tolerant = True
    world.disk.fail_at(number, error)
    world.run(SCRIPTS[name])
    promises = world.freeze()
    lucky: Keep = KEEPS[number % 3]
    _, failed, _ = world.disk.trace[number - 1]
    # Names that a failed sync lost are there until the machine stops, and no later start can know.
    doubtful = failed == "sync_folder"
    if not doubtful:
        crashed = world.disk.if_it_crashed(Random(number), lucky)
        CrashState(f"{name} {number}", promises, crashed, kind=FolderWorld).check(used=True)
    again = FolderWorld.thaw(promises, f"{name} {number} again", world.disk)
    again.run(lambda again: again.check_after_start(used=True))
    if not doubtful:
        # What the program was told after its start must hold even though the machine stops later.
        disk = again.disk.after_crash(Random(number), lucky)
        CrashState(f"{name} {number} again, and crashed", again.freeze(), disk, kind=FolderWorld).check()


def fail_some(name: str, step: int) -> None:
    """Let every so many operations fail. Not those that close a file: what counts was synced before."""
    world = FolderWorld(f"{name} 0")
    world.run(SCRIPTS[name])
    numbers = [number for number, operation, _ in world.disk.trace if operation != "close"]
    for number in numbers[len(name) % step :: step]:
        error = list(ERRORS)[number // step % 2]
        try:
            fail(name, number, ERRORS[error])
        except BaseException as failure:
            failure.add_note(f"in fail({name!r}, {number}, errno.{error}), at {world.disk.trace[number - 1]}")
            raise


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_one_in_fifteen_file_operations_leads_to_no_wrong_answer(name: str) -> None:
    fail_some(name, 15)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str) -> None:
    fail_some(name, 1)
