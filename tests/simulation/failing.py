"""One file operation of a script fails: the store goes on, refuses or stops, and never lies later.

A disk that cannot sync a folder does either of two things. It forgets what it could not sync, while the program
still reads it: then no start before the machine stops can know, and what was told before it counts. Or it still
has that to sync, as file systems do that go on after such an error: then whoever starts makes it durable before
telling anyone.
"""

import errno
from collections.abc import Callable
from random import Random

from tests.simulated_disk import Keep
from tests.simulation.world import CrashState, Script, World

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}
KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some")
Begin = Callable[[], World]


def fail_one_in(step: int, begin: Begin, script: Script, first: int = 0) -> None:
    """Run the script again and again, and let another operation fail each time: one in so many, in either way."""
    for place, number in enumerate(_operations(begin, script)[first % step :: step]):
        fail(begin, script, number, list(ERRORS)[place % len(ERRORS)])


def fail_any(begin: Begin, script: Script, error: str) -> None:
    """The same with every operation."""
    for number in _operations(begin, script):
        fail(begin, script, number, error)


def fail_syncs_of_folders(begin: Begin, script: Script, step: int = 1) -> None:
    """The same with syncs of folders alone."""
    numbers = _operations(begin, script, "sync_folder")
    assert numbers
    for place, number in enumerate(numbers[::step]):
        fail(begin, script, number, list(ERRORS)[place % len(ERRORS)])


def _operations(begin: Begin, script: Script, only: str | None = None) -> list[int]:
    """The numbers of a script's operations. Not those that close a file: what counts was synced before."""
    world = begin()
    before = world.disk.operations
    world.run(script)
    found = [(number, operation) for number, operation, _ in world.disk.trace if number > before]
    return [number for number, operation in found if operation == only or (only is None and operation != "close")]


def fail(begin: Begin, script: Script, number: int, error: str) -> None:
    """Run the script, let the operation of that number fail, and see what is told afterwards."""
    failed = _fail(begin, script, number, error, forgets=True)
    if failed == "sync_folder":
        _fail(begin, script, number, error, forgets=False)


def _fail(begin: Begin, script: Script, number: int, error: str, forgets: bool) -> str:
    """Which operation failed."""
    world = begin()
    world.tolerant = True
    world.disk.fail_at(number, ERRORS[error])
    world.disk.forgets_names = forgets
    name = f"{world.seed}, {error} of operation {number}{', forgetting names' if forgets else ''}"
    try:
        world.run(script)
        _, failed, _ = world.disk.trace[number - 1]
        _check(world, name, number, names_are_lost=forgets and failed == "sync_folder")
    except BaseException as failure:
        failure.add_note(f"{name}: {world.disk.trace[number - 1 : number]}")
        raise
    return failed


def _check(world: World, name: str, number: int, names_are_lost: bool) -> None:
    """The program starts again, or the whole machine, or the one and then the other."""
    kind, promises, lucky = type(world), world.freeze(), KEEPS[number % 3]
    started_since = any(start >= number for start in world.starts)
    if not (names_are_lost and started_since):
        crashed = world.disk.if_it_crashed(Random(number), lucky)
        CrashState(name, promises, crashed, kind=kind).check(used=True)
    again = kind.thaw(promises, f"{name} again", world.disk)
    again.run(lambda again: again.check_after_start(used=True))
    if not names_are_lost:
        # What the program was told after its start must hold even though the machine stops later.
        disk = again.disk.after_crash(Random(number), lucky)
        CrashState(f"{name} again, and crashed", again.freeze(), disk, kind=kind).check()
