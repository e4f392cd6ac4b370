"""kill -9: a process that uses a slate store is killed at any moment, again and again on the same folder."""

from collections import Counter
from pathlib import Path

import pytest

from tests.kill_child import EXPIRING, QUEUE
from tests.stores.journal.test_kill import Series, kill_often
from tests.stores.slate import document


class SlateSeries(Series):
    kind = "slate"

    def read_by_the_document(self, listed: Counter[bytes]) -> None:
        """Whoever knows the document and nothing else sees exactly what was not acknowledged away."""
        found = document.payloads(self.options.folder)[QUEUE]
        payloads = Counter([*found["active"], *found["failed"]])
        missing = [payload for payload in listed - payloads if not payload.startswith(EXPIRING)]
        left_over = [payload for payload in payloads - listed if not payload.startswith(EXPIRING)]
        assert (missing, left_over) == ([], [])


def test_a_killed_process_leaves_a_slate_store_that_keeps_its_promises(tmp_path: Path) -> None:
    kill_often(tmp_path, [7, 8], 6, SlateSeries)


@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
def test_hundreds_of_killed_processes_leave_slate_stores_that_keep_their_promises(
    tmp_path: Path, part: int
) -> None:
    kill_often(tmp_path, range(300 + 4 * part, 304 + 4 * part), 20, SlateSeries)
