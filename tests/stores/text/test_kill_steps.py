"""kill -9 in the middle of every step of a text store: before each single change of a file."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.system.files import SystemDisk, SystemFile
from tests.history import History
from tests.kill_child import QUEUE
from tests.stores.folder.test_folder_kill import SETTINGS, every_step

CHANGING: tuple[tuple[type, Sequence[str]], ...] = (
    (SystemFile, ("write", "write_through", "append", "truncate", "sync", "set_changed")),
    (SystemDisk, ("open", "rename", "unlink", "sync_folder")),
)


def kill_before(last: int) -> None:
    """Let this process, a child, be killed before its change of that number."""
    left = [last]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)

        return change

    for kind, names in CHANGING:
        for name in names:
            setattr(kind, name, counted(getattr(kind, name)))


def use_until_killed(url: str, log: Path, last: int) -> bool:
    """Whether it was killed before it came to its end."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            kill_before(last)
            with penstock.open(url) as store:
                write = lambda line: os.write(descriptor, line.encode())  # noqa: E731
                history = History(penstock.SystemClock().now, SETTINGS, name="child", write=write)
                history.look(store.queue(QUEUE), reopened=True)
                every_step(store.queue(QUEUE), history)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    assert ended == 0 or os.WTERMSIG(ended) == signal.SIGKILL, f"the child failed at change {last}"
    return ended != 0


def check_killed_at(folder: Path, last: int) -> bool:
    url, log = f"text:{folder}", folder.with_suffix(".log")
    with penstock.open(url) as store:
        store.create(QUEUE, **SETTINGS)
    killed = use_until_killed(url, log, last)
    history = History(penstock.SystemClock().now, SETTINGS, name="parent")
    with log.open(newline="\n") as lines:
        history.feed(lines)
    with penstock.open(url) as store:
        queue = store.queue(QUEUE)
        history.reopened(queue)
        for receipt in list(history.receipts)[-3:]:
            history.ack(queue, receipt)
        history.put_many(queue, [b"after 1", b"after 2"])
        history.ack(queue, *history.claim(queue, 3))
        history.check(queue)
    return killed


def check_steps(tmp_path: Path, numbers: Sequence[int]) -> None:
    for number in numbers:
        try:
            if not check_killed_at(tmp_path / str(number), number):
                return
        except BaseException as error:
            error.add_note(f"killed before change {number}")
            raise
    pytest.fail("the script has more changes than were tried")


def test_a_process_killed_before_one_in_seven_changes_leaves_a_store_that_keeps_its_promises(
    tmp_path: Path,
) -> None:
    check_steps(tmp_path, range(3, 2_000, 7))


@pytest.mark.long
def test_a_process_killed_before_any_change_leaves_a_store_that_keeps_its_promises(tmp_path: Path) -> None:
    check_steps(tmp_path, range(1, 2_000))
