"""Every example runs as its docstring says, in a process of its own, and does what it says."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import penstock
from penstock.stores.journal.format import AddX, RemoveTentativeXid, encode
from tests.http.serving import serving

EXAMPLES = Path(__file__).parent.parent / "examples"
LARGE = {"pipeline.py", "stream.py"}  # whole pipelines: `make run`, and the README's kills
TO_COPY = sorted(each.name for each in EXAMPLES.glob("*.py") if each.name not in LARGE)


def run(folder: Path, name: str, *arguments: str) -> str:
    """Run an example in a folder; what it prints."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=surroundings(), timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def surroundings(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}, **more}


@pytest.mark.parametrize("name", TO_COPY)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) < 60
    assert f"python examples/{name}" in text.split('"""')[1]


def test_every_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    assert [name for name in TO_COPY if here.count(f'"{name}"') < 1] == []


def test_a_worker_does_what_a_producer_put_and_repeats_what_failed(tmp_path: Path) -> None:
    assert run(tmp_path, "producer_and_worker.py", "produce", "9") == "put 9 messages, 9 wait\n"
    told = run(tmp_path, "producer_and_worker.py", "drain")
    assert sorted(re.findall(r"user(\d)", told)) == list("012345678")
    assert "user7@shop.example, attempt 2" in told
    with penstock.open(tmp_path / "penstock-data") as store:
        assert store.queue("mails").counts()["done"] == 9


def test_a_worker_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    run(tmp_path, "producer_and_worker.py", "produce", "1")
    command = [sys.executable, str(EXAMPLES / "producer_and_worker.py"), "work"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=surroundings()) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("sent to user0")
        worker.terminate()
        assert worker.wait(30) == 0


def test_a_request_is_answered_when_its_job_is_stored_and_a_worker_does_it(tmp_path: Path, port: int) -> None:
    command = [sys.executable, str(EXAMPLES / "fastapi_service.py")]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=surroundings(PORT=str(port))
    ) as service:
        try:
            with closing(httpx.Client(base_url=f"http://127.0.0.1:{port}")) as client:
                wait_for(client)
                ask = {"params": {"image": "cat.jpg"}, "headers": {"Idempotency-Key": "one"}}
                first, again = (client.post("/thumbnails", **ask) for _ in range(2))  # type: ignore[arg-type]
            assert (first.status_code, first.json()) == (202, again.json())
            assert service.stdout is not None
            assert "resized cat.jpg\n" in iter(service.stdout.readline, "")  # among the lines of uvicorn
            service.terminate()
            assert service.wait(30) in (0, -signal.SIGTERM)  # uvicorn ends by the signal that it was told
        finally:
            service.kill()
    with penstock.open(tmp_path / "penstock-data") as store:
        counts = store.queue("thumbnails").counts()
        assert (counts["done"], sum(counts.values())) == (1, 1)


def wait_for(client: httpx.Client) -> None:
    """Until the service answers."""
    for _ in range(300):
        try:
            client.get("/openapi.json")
        except httpx.ConnectError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the service does not answer")


def test_one_job_becomes_many(tmp_path: Path) -> None:
    told = run(tmp_path, "fan_out.py", "3", "20")
    assert told.startswith("fetched 60 pages of 3 sites; Worked(acked=60, failed=0")


def test_answers_come_back_by_a_queue_of_their_own(tmp_path: Path) -> None:
    told = run(tmp_path, "scatter_gather.py", "10")
    assert told == "10 answers, 55 letters; queues left: default, questions\n"


def test_the_job_of_the_day_is_put_once(tmp_path: Path) -> None:
    assert run(tmp_path, "cron.py", "put") == run(tmp_path, "cron.py", "put")
    assert "worked off 1 jobs, 0 failed" in run(tmp_path, "cron.py", "work")
    assert "worked off 0 jobs" in run(tmp_path, "cron.py", "work")


def test_a_nightly_job_counts_failures_and_mends_some_once(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        orders = store.create("orders", max_attempts=1)
        orders.put_many([b"7", b"8", b"9"])
        claimed = orders.claim(3)
        orders.fail(*claimed[:2], reason="no currency")
        orders.fail(claimed[2], reason="timeout")
    for _ in range(2):  # started again, it writes the same and loads nothing
        told = run(tmp_path, "nightly.py", "store", "out")
        assert "'available': 2, 'in_flight': 0, 'done': 0, 'failed': 3" in told
    with penstock.open(tmp_path / "store") as store:
        assert sorted(each.payload for each in store.queue("orders").messages("available")) == [b"7 EUR", b"8 EUR"]
    assert len(list(tmp_path.glob("out/date=*/*.parquet"))) == 1


def test_each_event_is_one_row_of_parquet(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        events = store.create("events", max_attempts=1)
        events.put_many([f'{{"user": {number}, "page": "/"}}' for number in range(50)] + ["garbage"])
    told = run(tmp_path, "stream_to_parquet.py", "store", "pages")
    assert "1 batches, 50 rows of 50 messages" in told
    with penstock.open(tmp_path / "store") as store:
        assert store.queue("events").counts() == {
            "delayed": 0, "available": 0, "in_flight": 0, "done": 0, "failed": 1,
        }  # fmt: skip


def test_celery_works_off_tasks_that_the_server_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(tmp_path / "store") as store, serving(store) as server:
        monkeypatch.setenv("BROKER", f"sqs://any:any@{server.url.removeprefix('http://')}")
        assert run(tmp_path, "celery_sqs.py", "ask", "9") == "asked for 9 thumbnails\n"
        assert store.queue("thumbnails").count() == 9
        command = [sys.executable, str(EXAMPLES / "celery_sqs.py"), "worker"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            told: list[str] = []  # lines of two processes, which may be one after the other's beginning
            while len(told) < 9:
                told += re.findall(r"image(\d.jpg, attempt \d)", worker.stdout.readline())
            worker.terminate()
            assert worker.wait(30) == 0
    assert sorted(told) == [f"{number}.jpg, attempt {2 if number == 7 else 1}" for number in range(9)]


def test_what_kestrel_left_is_a_store(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    journal = b"".join(encode(AddX(1_700_000_000_000, 0, payload)) for payload in (b"one", b"two", b"three"))
    journal += encode(RemoveTentativeXid(1))  # "one" was handed out, and nobody confirmed it
    (spool / "mails").write_bytes(journal)
    told = run(tmp_path, "from_kestrel.py", "spool", "store")
    assert "mails: 3 messages wait\n  1700000000000 b'one'" in told
    assert (spool / "mails").read_bytes() == journal
    with penstock.open(tmp_path / "store") as store:
        assert [each.payload for each in store.queue("mails").claim(3)] == [b"one", b"two", b"three"]


def test_files_become_messages_in_the_order_of_their_time(tmp_path: Path) -> None:
    (inbox := tmp_path / "inbox").mkdir()
    for age, name in enumerate(["b.json", "a.json", "c.json.part"]):
        (inbox / name).write_text(name)
        os.utime(inbox / name, (1_700_000_000 + age,) * 2)
    told = run(tmp_path, "from_files.py", "inbox", "store", "jobs")
    assert told == "took 2 files; 2 messages wait in jobs\n"
    assert sorted(each.name for each in inbox.iterdir()) == ["c.json.part", "taken"]
    assert run(tmp_path, "from_files.py", "inbox", "store", "jobs").startswith("took 0 files; 2")
    with penstock.open(tmp_path / "store") as store:
        waiting = [(each.headers, each.payload, each.created_at) for each in store.queue("jobs").messages()]
    assert waiting == [
        ({"file": "b.json"}, b"b.json", 1_700_000_000_000),
        ({"file": "a.json"}, b"a.json", 1_700_000_001_000),
    ]
