"""The power goes before every file operation of a text store; whatever is left then, no promise is broken."""

from random import Random

import pytest

from penstock.stores.text import storage
from tests.simulated_disk import Keep
from tests.simulation.text_world import TEXT_SCRIPTS, TextWorld, text_world
from tests.simulation.world import crash_states

KEEPS: tuple[Keep, ...] = ("nothing", "everything", "some")
MANY = KEEPS + KEEPS[-1:] * 30
ENOUGH = 3_000


@pytest.fixture(autouse=True)
def short_mutex_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "compacting" in request.node.name:
        monkeypatch.setattr(storage, "_COMPACT", 500)


@pytest.mark.parametrize("name", TEXT_SCRIPTS)
def test_a_crash_before_any_file_operation_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(text_world(name, 0), TEXT_SCRIPTS[name], KEEPS):
        state.check(used=choice.random() < 0.3)


@pytest.mark.parametrize("name", TEXT_SCRIPTS)
def test_a_crash_while_the_store_starts_after_a_crash_breaks_no_promise(name: str) -> None:
    choice = Random(name)
    for state in crash_states(text_world(name, 0), TEXT_SCRIPTS[name], ["some"]):
        if choice.random() < 0.03:
            world = TextWorld.thaw(state.promises, state.name, state.disk)
            for second in crash_states(world, lambda world: world.check_after_start(used=True), ["some"], 0.3):
                second.check()


@pytest.mark.long
@pytest.mark.parametrize("name", TEXT_SCRIPTS)
def test_thousands_of_crash_states_break_no_promise(name: str) -> None:
    count = seed = 0
    choice = Random(name)
    while count < ENOUGH:
        seed += 1
        for state in crash_states(text_world(name, seed), TEXT_SCRIPTS[name], MANY):
            state.check(used=choice.random() < 0.1)
            count += 1
