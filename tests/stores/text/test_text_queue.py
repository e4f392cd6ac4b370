"""TextQueue, the file format alone."""

import logging
from pathlib import Path

import pytest

from penstock.errors import InvalidArgument
from penstock.stores.text import TextQueue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.tq"


def texts(queue: TextQueue, **kinds: bool) -> list[str]:
    return [entry.text for entry in queue.entries(**kinds)]


def test_queued_messages_are_given_and_others_on_request(path: Path) -> None:
    path.write_text("-a\n=b\n!c\n# d\n-e\n f\n")
    queue = TextQueue(path)
    assert [entry.text for entry in queue] == ["a", "e\nf"]
    assert texts(queue, processed=True, queued=False) == ["b"]
    assert texts(queue, failed=True, queued=False) == ["c"]
    assert texts(queue, comments=True, processed=True, failed=True) == ["a", "b", "c", " d", "e\nf"]


def test_appending_touches_only_the_end(path: Path) -> None:
    path.write_text("-a\n\n-no newline")
    queue = TextQueue(path)
    entry = queue.append("two\nlines", variables=["mutex=    ", "count=0"])
    assert path.read_text() == "-a\n\n-no newline\n-two\n lines\n\\mutex=    \n\\count=0\n"
    assert list(queue)[-1] == entry


def test_a_state_changes_in_one_byte(path: Path) -> None:
    path.write_text("# head\n-a\n-b\n-c\n")
    queue = TextQueue(path)
    a, b, c = queue
    queue.mark_processed(a)
    queue.mark_failed(b)
    queue.comment_out(c)
    assert path.read_text() == "# head\n=a\n!b\n#c\n"
    queue.mark_queued(a)
    assert path.read_text() == "# head\n-a\n!b\n#c\n"


def test_a_variable_changes_in_its_own_bytes(path: Path) -> None:
    path.write_text("-Hello World\n\\mutex=      \n\\MUTEX\n-next\n")
    queue = TextQueue(path)
    entry = queue.set_variable(next(iter(queue)), "mutex", "me")
    entry = queue.set_variable(entry, 1, "TAKEN")
    assert path.read_text() == "-Hello World\n\\mutex=me    \n\\TAKEN\n-next\n"
    with pytest.raises(InvalidArgument, match="room for 6"):
        queue.set_variable(entry, "mutex", "someone")
    with pytest.raises(InvalidArgument, match="no variable 'owner', but mutex, TAKEN"):
        queue.set_variable(entry, "owner", "me")
    with pytest.raises(InvalidArgument, match="no variable 2"):
        queue.set_variable(entry, 2, "me")
    assert entry.variables[0].value == "me"
    assert next(iter(queue)) == entry


def test_an_entry_that_is_another_by_now_is_refused(path: Path) -> None:
    path.write_text("-a\n-b\n")
    queue = TextQueue(path)
    entry = next(iter(queue))
    path.write_text("-b\n")
    with pytest.raises(InvalidArgument, match="Read the queue again"):
        queue.mark_processed(entry)
    assert path.read_text() == "-b\n"


def test_packing_drops_what_was_processed_and_keeps_every_other_byte(path: Path) -> None:
    path.write_text(" orphan\n# head\n=a\n\\v\n\n-b\n?odd\n=c\n d\n!e")
    assert TextQueue(path).pack() == 12
    assert path.read_text() == " orphan\n# head\n\n-b\n?odd\n!e"


def test_odd_lines_are_warned_about_once_by_their_number(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text("-a\n?b\n")
    queue = TextQueue(path)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert texts(queue) == texts(queue) == ["a"]
    [record] = caplog.records
    assert "line 2 is skipped: nothing is known that begins with '?'" in record.getMessage()


def test_a_queue_without_a_file_is_empty_until_something_is_appended(path: Path) -> None:
    queue = TextQueue(path)
    assert texts(queue) == []
    queue.append("a")
    assert path.read_text() == "-a\n"
