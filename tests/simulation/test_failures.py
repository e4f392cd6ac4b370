"""Any file operation fails once: the store goes on, refuses or stops, and gives no wrong answer afterwards."""

from functools import partial

import pytest

from tests.simulation.failing import ERRORS, fail_any, fail_one_in, fail_syncs_of_folders
from tests.simulation.scripts import SCRIPTS, world_for


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_every_third_file_operation_leads_to_no_wrong_answer(name: str) -> None:
    fail_one_in(3, partial(world_for, name, 0), SCRIPTS[name], first=len(name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_folder_that_cannot_be_synced_leads_to_no_wrong_answer(name: str) -> None:
    fail_syncs_of_folders(partial(world_for, name, 0), SCRIPTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str, error: str) -> None:
    fail_any(partial(world_for, name, 0), SCRIPTS[name], error)
