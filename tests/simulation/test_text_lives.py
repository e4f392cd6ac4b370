"""A text store that all use at once, through crashes and errors of the disk, from one process and from two."""

import errno
from random import Random

import pytest

from tests.simulated_disk import Keep, SimulatedCrash
from tests.simulation.actors import live, rest
from tests.simulation.text_world import TEXT_SCRIPTS, SharedTextWorld, TextWorld, text_world
from tests.simulation.world import CrashState

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
LIVES = 4
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


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


def fail(name: str, number: int, error: int) -> None:
    """Run a script in which one operation fails; then the program starts again, or the whole machine."""
    world = text_world(name, 0)
    world.tolerant = True
    world.disk.fail_at(number, error)
    world.run(TEXT_SCRIPTS[name])
    promises = world.freeze()
    _, failed, _ = world.disk.trace[number - 1]
    if failed in ("sync", "sync_folder"):  # what it lost is there until the machine stops, and others cannot know
        return
    crashed = world.disk.if_it_crashed(Random(number), KEEPS[number % 3])
    CrashState(f"{name} {number}", promises, crashed, kind=TextWorld).check(used=True)
    again = TextWorld.thaw(promises, f"{name} {number} again", world.disk)
    again.run(lambda again: again.check_after_start(used=True))


@pytest.mark.parametrize("name", [name for name in TEXT_SCRIPTS if name != "two_processes"])
def test_an_error_of_a_file_operation_leads_to_no_wrong_answer(name: str) -> None:
    fail_some(name, 10)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TEXT_SCRIPTS if name != "two_processes"])
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str) -> None:
    fail_some(name, 1)


def fail_some(name: str, step: int) -> None:
    """Let every so many operations fail that read or change something."""
    world = text_world(name, 0)
    world.run(TEXT_SCRIPTS[name])
    changing = ("write", "append", "sync", "truncate", "rename", "unlink", "open", "sync_folder", "read")
    numbers = [number for number, operation, _ in world.disk.trace if operation in changing]
    for number in numbers[len(name) % step :: step]:
        error = list(ERRORS)[number % 2]
        try:
            fail(name, number, ERRORS[error])
        except BaseException as failure:
            failure.add_note(f"in fail({name!r}, {number}, errno.{error})")
            raise
