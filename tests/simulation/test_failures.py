"""Any file operation fails once: the store goes on, refuses or stops, and gives no wrong answer afterwards."""

from functools import partial

import pytest

from tests.simulation.failing import ERRORS, fail_any, fail_one_in, fail_syncs_of_folders
from tests.simulation.kinds import Kind, each_failing_script


@each_failing_script
def test_an_error_of_some_file_operations_leads_to_no_wrong_answer(kind: Kind, name: str) -> None:
    fail_one_in(kind.errors, partial(kind.begin, name, 0), kind.scripts[name], first=len(name))


@each_failing_script
def test_a_folder_that_cannot_be_synced_leads_to_no_wrong_answer(kind: Kind, name: str) -> None:
    fail_syncs_of_folders(partial(kind.begin, name, 0), kind.scripts[name], kind.syncs)


@pytest.mark.long
@each_failing_script
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_of_any_file_operation_leads_to_no_wrong_answer(kind: Kind, name: str, error: str) -> None:
    fail_any(partial(kind.begin, name, 0), kind.scripts[name], error)
