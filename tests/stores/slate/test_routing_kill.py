"""kill -9 while messages are published: each enters every queue that wants it once, in the order of the log."""

import time
from pathlib import Path
from random import Random

import pytest

import penstock
from tests.harness.children import noted, scenario
from tests.harness.scenarios import ROUTED


def lag(store: penstock.Store, queue: str) -> int:
    """How much of what was published has not reached a queue, which may take its time."""
    return sum(info.lag or 0 for info in store.queues() if info.name == queue)


def check(url: str, log: Path) -> None:
    published: dict[str, str] = {}
    seen: list[str] = []
    acked: set[str] = set()
    for told in noted(log):
        if "published" in told:
            published[told["published"]] = told["kind"]
        elif "seen" in told:
            assert told["seen"] not in acked
            seen.append(told["seen"])
        else:
            acked.add(told["acked"])
    with penstock.open(url) as store:
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
    url, log, random = f"slate:{tmp_path / 'store'}", tmp_path / "log", Random(kills)
    with penstock.open(url) as store:
        for name, settings in ROUTED.items():
            store.create(name, **settings)
    for number in range(kills):
        with scenario("publish", log, str(number), url) as child:
            child.wait_until_ready()
            time.sleep(random.uniform(0.05, 0.8))
            child.kill()
    assert not log.with_suffix(".errors").read_text()
    check(url, log)
