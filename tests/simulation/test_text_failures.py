"""Any file operation of a text store fails once: it goes on, refuses or stops, and never lies later."""

from functools import partial

import pytest

from tests.simulation.failing import ERRORS, fail_any, fail_one_in, fail_syncs_of_folders
from tests.simulation.text_world import TEXT_SCRIPTS, text_world

NAMES = [name for name in TEXT_SCRIPTS if name != "two_processes"]


@pytest.mark.parametrize("name", NAMES)
def test_an_error_of_one_in_fifteen_file_operations_leads_to_no_wrong_answer(name: str) -> None:
    fail_one_in(15, partial(text_world, name, 0), TEXT_SCRIPTS[name], first=len(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_cannot_be_synced_leads_to_no_wrong_answer(name: str) -> None:
    fail_syncs_of_folders(partial(text_world, name, 0), TEXT_SCRIPTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str, error: str) -> None:
    fail_any(partial(text_world, name, 0), TEXT_SCRIPTS[name], error)
