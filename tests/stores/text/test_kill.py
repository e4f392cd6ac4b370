"""kill -9: a process that uses a text store is killed at any moment, again and again on the same folder."""

from collections import Counter
from pathlib import Path

import pytest

from penstock.stores.text.format import parse
from penstock.stores.text.variables import body
from tests.kill_child import EXPIRING, QUEUE
from tests.stores.journal.test_kill import Series, kill_often


class TextSeries(Series):
    kind = "text"

    def read_by_the_document(self, listed: Counter[bytes]) -> None:
        """Whoever knows the format and nothing else sees exactly what was not acknowledged away."""
        document = parse((Path(self.options.folder) / f"{QUEUE}.tq").read_bytes())
        assert not document.problems
        payloads = Counter(body(entry, 0)[0] for entry in document.entries if entry.control in "-!")
        missing = [payload for payload in listed - payloads if not payload.startswith(EXPIRING)]
        left_over = [payload for payload in payloads - listed if not payload.startswith(EXPIRING)]
        assert (missing, left_over) == ([], [])


def test_a_killed_process_leaves_a_text_store_that_keeps_its_promises(tmp_path: Path) -> None:
    kill_often(tmp_path, [7, 8], 8, TextSeries)


@pytest.mark.long
@pytest.mark.parametrize("part", range(6))
def test_hundreds_of_killed_processes_leave_text_stores_that_keep_their_promises(
    tmp_path: Path, part: int
) -> None:
    kill_often(tmp_path, range(200 + 4 * part, 204 + 4 * part), 20, TextSeries)
