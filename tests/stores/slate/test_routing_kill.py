"""kill -9 while messages are published: each enters every queue that wants it once, in the order of the log."""

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import penstock
from tests.stores.journal.test_kill import ROOT
from tests.stores.slate.publishing_child import QUEUES


def publish_and_kill(folder: Path, log: Path, name: str, random: Random) -> None:
    command = [sys.executable, "-m", "tests.stores.slate.publishing_child", str(folder), str(log), name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        if child.stdout.readline() == b"ready\n":
            time.sleep(random.uniform(0.05, 0.8))
        child.kill()
        errors = child.stderr.read()
    assert not errors, errors.decode()


def lag(store: penstock.Store, queue: str) -> int:
    """How much of what was published has not reached a queue, which may take its time."""
    return sum(info.lag or 0 for info in store.queues() if info.name == queue)


def check(folder: Path, log: Path) -> None:
    published: dict[str, str] = {}
    seen: list[str] = []
    acked: set[str] = set()
    for line in log.read_text().splitlines():
        what, *words = line.split()
        if what == "published":
            published[words[1]] = words[0]
        elif what == "seen":
            assert words[0] not in acked
            seen.append(words[0])
        else:
            acked.add(words[0])
    with penstock.open(f"slate:{folder}") as store:
        while lag(store, "all") or lag(store, "again"):
            time.sleep(0.01)
        everywhere = [message.id for message in store.queue("all").messages()]
        assert everywhere == sorted(set(everywhere), key=int)
        assert [message.id for message in store.queue("again").messages()] == everywhere
        wanted = {each for each, kind in published.items() if kind in "ab"}
        assert wanted <= set(everywhere)
        assert not {each for each, kind in published.items() if kind == "c"} & set(everywhere)
        of_a = [message.id for message in store.queue("all").messages() if message.headers["kind"] == "a"]
        narrow = store.queue("narrow")
        while lag(store, "narrow") or any(narrow.counts().values()):
            messages = narrow.claim(100, wait=1)
            assert not {message.id for message in messages} & acked
            seen += [message.id for message in messages]
            if messages:
                narrow.ack(*messages)
            acked |= {message.id for message in messages}
        assert sorted({*seen} & {*of_a}, key=int) == of_a


@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.long)])
def test_published_messages_enter_queues_once_whenever_the_process_is_killed(tmp_path: Path, kills: int) -> None:
    folder, random = tmp_path / "store", Random(kills)
    with penstock.open(f"slate:{folder}") as store:
        for name, settings in QUEUES.items():
            store.create(name, **settings)  # type: ignore[arg-type]
    for number in range(kills):
        publish_and_kill(folder, tmp_path / "log", str(number), random)
    check(folder, tmp_path / "log")
