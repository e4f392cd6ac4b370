"""The stores that are simulated: their worlds, their scripts, and how much of that `make test` tries.

`make test-all` tries all of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.simulated_disk import Keep
from tests.simulation import scripts
from tests.simulation.folder_world import CrowdedWorld, FolderWorld
from tests.simulation.scripts import SCRIPTS, world_for
from tests.simulation.text_world import TEXT_SCRIPTS, SharedTextWorld, TextWorld, text_world
from tests.simulation.world import Script, World

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some", "some")
MANY = KEEPS + KEEPS[-1:] * 30


@dataclass(frozen=True, eq=False)
class Kind:
    """A store that is simulated."""

    name: str
    begin: Callable[[str, object], World]  # for the script of that name, by a seed
    scripts: Mapping[str, Script]
    crowds: tuple[type[World], ...]  # worlds that all use at once
    crashes: float  # the share of file operations before which the power goes
    starts: float  # of the states after those, the share from which a start is crashed again
    errors: int  # one operation in so many fails
    syncs: int = 1  # one sync of a folder in so many fails
    lives: Sequence[object] = range(4)  # seeds
    many_lives: int = 30  # in a part of `make test-all`
    operations: int = 1_500  # in a life at most
    atomic_renames: bool = False
    parts: int = 1  # of the crash states of `make test-all`
    enough: int = 3_000  # of them in a part
    shared: tuple[str, ...] = ()  # scripts in which several have the store open

    def __str__(self) -> str:
        return self.name

    @property
    def failing(self) -> list[str]:
        """The scripts in which an operation may fail."""
        return [name for name in self.scripts if name not in self.shared]


FOLDER_SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        scripts.puts_and_acks,
        scripts.what_expires,
        scripts.batches,
        scripts.attempts_and_leases,
        scripts.groups_in_order,
        scripts.queues_that_come_and_go,
        scripts.closing_and_opening,
        scripts.emptying,
        scripts.settings_that_change,
    )
}
JOURNAL = Kind(
    "journal", world_for, SCRIPTS, (World,), crashes=0.15, starts=0.02, errors=20, syncs=6, lives=range(6),
    many_lives=100, operations=400, parts=2, enough=5_000,
)  # fmt: skip
TEXT = Kind(
    "text", text_world, TEXT_SCRIPTS, (TextWorld, SharedTextWorld), crashes=0.08, starts=0.003, errors=90,
    syncs=20, shared=("two_processes",),
)  # fmt: skip
# The disk is the strict one, on which a rename is durable only once both folders are synced. For what many do at
# once it has the atomic renames of file systems with a journal: no order of syncs could make up for them.
# In the life 0.14 a claim loses to a removal the only message, which it has hidden from another claim meanwhile.
FOLDER = Kind(
    "folder", lambda name, seed: FolderWorld(f"{name} {seed}"), FOLDER_SCRIPTS, (CrowdedWorld,), crashes=0.03,
    starts=0.002, errors=90, syncs=40, lives=(0, 1, 2, "0.14"),
    many_lives=50, atomic_renames=True, parts=3, enough=1_000,
)  # fmt: skip
KINDS = (JOURNAL, TEXT, FOLDER)


each_script = pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, id=f"{kind.name}-{name}") for kind in KINDS for name in kind.scripts],
)
each_failing_script = pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, id=f"{kind.name}-{name}") for kind in KINDS for name in kind.failing],
)
