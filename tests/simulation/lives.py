"""A store that all use at once, for several lives: each ends in a crash, or at rest, and then the power goes."""

from collections.abc import Sequence
from random import Random

from tests.simulated_disk import Keep, SimulatedCrash
from tests.simulation.actors import live, rest
from tests.simulation.world import CrashState, World


def run_lives(
    seed: object, world: World, lives: int, keeps: Sequence[Keep], operations: int, kind: type[World] | None = None
) -> tuple[list[tuple[str, str, str]], int]:
    """What was done in them, and how many outcomes of crashes were checked, each by a world of that kind.

    A life that ends in a crash has so many file operations at most.
    """
    random = Random(f"lives {seed}")
    trace: list[tuple[str, str, str]] = []
    checked = 0
    for life in range(lives):
        if random.random() < 0.8:
            world.disk.crash_at = world.disk.operations + int(random.triangular(1, operations))
        try:
            world.run(live)
            world.run(rest)
        except SimulatedCrash:
            pass
        except BaseException as error:
            error.add_note(f"in life {life} of {seed!r}")
            raise
        trace += world.scheduler.trace
        promises = world.freeze()
        for number, keep in enumerate(keeps):
            name = f"{seed} / {life} {keep} {number}"
            disk = world.disk.after_crash(Random(name), keep)
            CrashState(name, promises, disk, kind=kind or type(world)).check(used=random.random() < 0.3)
            checked += 1
        name = f"{seed} / {life}"
        world = type(world).thaw(promises, name, world.disk.after_crash(Random(name), random.choice(keeps)))
    return trace, checked
