"""`penstock work` and `penstock serve` on text and folder stores that other processes have open."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.harness.children import ServerChild


@pytest.fixture(params=["text", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"{request.param}:{tmp_path / 'store'}"
    with penstock.open(url) as store:
        store.create("jobs", max_attempts=1, keep_done=None)
    return url


def test_a_command_works_off_a_queue_beside_others_that_have_it_open(url: str, tmp_path: Path) -> None:
    with penstock.open(url) as store:
        jobs = store.queue("jobs")
        jobs.put_many([b"one", b"two", b"three"])
        command = [sys.executable, "-m", "penstock", "--store", url, "work", "jobs", "--until-empty", "--"]
        script = f'payload=$(cat); echo "$payload" >> {tmp_path}/seen; test "$payload" != two'
        subprocess.run([*command, "sh", "-c", script], check=True, capture_output=True)
        assert sorted((tmp_path / "seen").read_text().split()) == ["one", "three", "two"]
        assert sorted((message.payload, message.state) for message in jobs.messages()) == [
            (b"one", "done"), (b"three", "done"), (b"two", "failed"),
        ]  # fmt: skip


def test_a_server_and_others_share_it(url: str) -> None:
    server = ServerChild(Path(url), *(["--peers", "2"] if url.startswith("folder:") else []))
    with server, penstock.open(url) as store, penstock.open(server.url) as remote:
        remote.queue("jobs").put(b"over http", headers={"a": "b"})
        (message,) = store.queue("jobs").claim(wait=30)
        assert (message.payload, message.headers) == (b"over http", {"a": "b"})
        remote.queue("jobs").ack(message.receipt or "")
        store.queue("jobs").put(b"from beside")
        (message,) = remote.queue("jobs").claim(wait=30)
        assert message.payload == b"from beside"
        server.kill()
        store.queue("jobs").ack(message.receipt or "")
        assert store.queue("jobs").counts()["done"] == 2
