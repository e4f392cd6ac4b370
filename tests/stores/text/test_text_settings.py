"""Changes of settings: only the comment at the top of a text queue's file changes."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import NotSupported, Settings, SimulatedClock, StoreUnavailable

MESSAGE = b"-wash the car\n\\mutex=          \n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"# Penstock queue\n\\max_size=7\n"),
        (MESSAGE, b"# Penstock queue\n\\max_size=7\n" + MESSAGE),
        (
            b" of nothing\n# a note\n" + MESSAGE,
            b" of nothing\n# Penstock queue\n\\max_size=7\n# a note\n" + MESSAGE,
        ),
        (
            b"# a note\n\n# Penstock queue\n\\max_size=1\n\\colour=red\n\\keep_done=60\n" + MESSAGE,
            b"# a note\n\n# Penstock queue\n\\max_size=7\n\\keep_done=60\n\\colour=red\n" + MESSAGE,
        ),
        (b"# a note\r\n-wash\r\n", b"# Penstock queue\r\n\\max_size=7\r\n# a note\r\n-wash\r\n"),
        (b" of nothing", b" of nothing\n# Penstock queue\n\\max_size=7\n"),
    ],
)
def test_only_the_comment_changes(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(before)
    with penstock.open(path) as store:
        store.queue().update(max_size=7)
        assert path.read_bytes() == after
        store.queue().update(**{**Settings(), "keep_done": store.queue().settings.keep_done})
        assert b"max_size" not in path.read_bytes()


def test_a_queue_that_its_file_is_not_named_after_keeps_its_name(tmp_path: Path) -> None:
    with penstock.open(f"text:{tmp_path}") as store:
        store.create("x" * 250).update(max_size=7)
    with penstock.open(f"text:{tmp_path}") as store:
        assert store.queue("x" * 250).settings == Settings(max_size=7)


def test_other_processes_see_them_and_messages_stay_with_their_holders(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(MESSAGE + MESSAGE)
    with penstock.open(path) as store, penstock.open(path) as other:
        other.queue().put(b"x")
        held = other.queue().claim(2)
        store.queue().update(max_size=3, description="a long text that moves all messages\nfurther down")
        assert other.queue().settings.max_size == 3
        with pytest.raises(penstock.QueueFull):
            other.queue().put(b"y")
        other.queue().ack(held[0])
        store.queue().ack(held[1].receipt or "")
        assert store.queue().counts() == other.queue().counts()
        assert [message.payload for message in other.queue().messages()] == [b"x"]


def test_what_was_done_and_not_kept_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with penstock.open(path, clock=SimulatedClock()) as store:
        queue = store.queue()
        queue.put_many([b"one", b"two"])
        queue.pop()
        queue.update(keep_done=None)
        queue.pop()
        assert [message.payload for message in queue.messages("done")] == [b"two"]
    (tmp_path / "jobs.tq.mutex").unlink()
    with penstock.open(path) as store:
        assert [message.payload for message in store.queue().messages("done")] == [b"two"]


def test_a_file_of_several_names_is_left_to_people(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with penstock.open(path) as store:
        store.queue().put(b"x")
        (tmp_path / "other").hardlink_to(path)
        with pytest.raises(NotSupported, match="several names, which another file would part"):
            store.queue().update(max_size=7)
        assert store.queue().update(max_size=0) == Settings()


def test_a_file_that_a_program_appends_to_stays_its_own(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with penstock.open(path) as store:
        store.queue().put(b"x")
        code = f"file = open({str(path)!r}, 'a'); print(flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with pytest.raises(StoreUnavailable, match=r"another program has .* open to append"):
                store.queue().update(max_size=7)
            child.communicate(b"\n")
        assert store.queue().update(max_size=7).max_size == 7
