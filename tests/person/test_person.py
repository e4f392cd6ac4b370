"""A person who edits, renames, links, forbids, kills, fills the disk and sets the clock, while programs work.

A failure names its seed: `pytest "tests/person/test_person.py" -m '' -k "text and 17"` plays it again.
"""

import os
from pathlib import Path

import pytest

from tests.person.people import TO
from tests.person.world import World


def live_with(folder: Path, kind: str, seed: int, steps: int) -> None:
    world = World(folder, kind, seed)
    try:
        for number in range(steps):
            if world.random.random() < 0.35:
                world.random.choice(TO[kind])(world)
            else:
                world.step()
            if number % 40 == 39:
                world.check()
        world.check()
        world.close()
    except BaseException as error:
        error.add_note(f"seed {seed} of {kind}; last:\n{world.story()}")
        raise


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that other users may enter."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_store_keeps_its_promises_whatever_a_person_does(shared: Path, kind: str, seed: int) -> None:
    live_with(shared, kind, seed, 50)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
@pytest.mark.parametrize("kind", ["text", "folder"])
def test_a_store_keeps_its_promises_whatever_a_person_does_for_long(shared: Path, kind: str, seed: int) -> None:
    live_with(shared, kind, seed, 300)
