"""Any file operation fails once: the store goes on, refuses or stops, and gives no wrong answer afterwards."""

import errno
from random import Random

import pytest

from tests.simulated_disk import Keep
from tests.simulation.scripts import SCRIPTS, world_for
from tests.simulation.world import CrashState, World

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some")


def fail(name: str, number: int, error: int) -> None:
    """Run a script in which one operation fails; then the program starts again, or the whole machine."""
    world = world_for(name, 0)
    world.tolerant = True
    world.disk.fail_at(number, error)
    world.run(SCRIPTS[name])
    promises = world.freeze()
    lucky: Keep = KEEPS[number % 3]
    _, failed, _ = world.disk.trace[number - 1]
    # Names that a failed sync lost are there until the machine stops, and no later start can know.
    doubtful = failed == "sync_folder"
    started_again = any(operation == "lock" for _, operation, _ in world.disk.trace[number:])
    if not (doubtful and started_again):
        crashed = CrashState(f"{name} {number}", promises, world.disk.if_it_crashed(Random(number), lucky))
        crashed.check(used=True)
    again = World.thaw(promises, f"{name} {number} again", world.disk)
    again.run(lambda again: again.check_after_start(used=True))
    if not doubtful:
        # What the program was told after its start must hold even though the machine stops later.
        disk = again.disk.after_crash(Random(number), lucky)
        CrashState(f"{name} {number} again, and crashed", again.freeze(), disk).check()


def operations(name: str) -> list[int]:
    """The numbers of a script's operations. Not those that close a file: what counts was synced before."""
    world = world_for(name, 0)
    before = world.disk.operations
    world.run(SCRIPTS[name])
    return [number for number, operation, _ in world.disk.trace if number > before and operation != "close"]


def run(name: str, number: int, error: str) -> None:
    try:
        fail(name, number, ERRORS[error])
    except BaseException as failure:
        failure.add_note(f"in fail({name!r}, {number}, errno.{error})")
        raise


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_every_third_file_operation_leads_to_no_wrong_answer(name: str) -> None:
    for number in operations(name)[len(name) % 3 :: 3]:
        run(name, number, list(ERRORS)[number % 2])


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str, error: str) -> None:
    for number in operations(name):
        run(name, number, error)
