"""Any file operation of a folder store fails once: it goes on, refuses or stops, and never lies later."""

from functools import partial

import pytest

from tests.simulation.failing import ERRORS, fail_any, fail_one_in, fail_syncs_of_folders
from tests.simulation.folder_world import FolderWorld
from tests.simulation.test_folder_crashes import SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_error_of_one_in_fifteen_file_operations_leads_to_no_wrong_answer(name: str) -> None:
    fail_one_in(15, partial(FolderWorld, f"{name} 0"), SCRIPTS[name], first=len(name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_folder_that_cannot_be_synced_leads_to_no_wrong_answer(name: str) -> None:
    fail_syncs_of_folders(partial(FolderWorld, f"{name} 0"), SCRIPTS[name], step=7)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(name: str, error: str) -> None:
    fail_any(partial(FolderWorld, f"{name} 0"), SCRIPTS[name], error)
