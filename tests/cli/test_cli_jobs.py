"""Commands that run Spark jobs, without Spark: each passes arguments that its job takes, which no type checks."""

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import cli, spark
from penstock.spark import jobs

COMMANDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "archive": (["dest", "--remove", "--yes"], {"dest": "dest", "remove": True}),
    "report": (["--out", "page", "--window", "1 day"], {"out": "page", "archive": None, "window": "1 day"}),
    "load": (
        [
            "in.csv", "jobs", "--format", "csv", "--priority", "7", "--header", "type=kind", "--option", "sep=;",
            "--group", "customer",
        ],
        {
            "source": "in.csv", "queue": "jobs", "format": "csv", "priority": 7, "headers": {"type": "kind"},
            "options": {"sep": ";"}, "payload_column": None, "payload_json": False, "queue_column": None,
            "group": "customer",
        },
    ),
    "convert": (["store", "copy"], {"source": "store", "target": "copy"}),
    "pack": (["jobs", "--spark"], {"queues": ("jobs",)}),
    "expire": ([], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_its_job_what_it_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    penstock.open("store").close()
    signature = inspect.signature(getattr(jobs, name))
    given: dict[str, Any] = {}

    @contextmanager
    def no_session(what: str, master: str | None) -> Iterator[str]:
        yield f"session on {master}"

    def job(*arguments: object, **more: object) -> jobs.Summary:
        given.update(signature.bind(*arguments, **more).arguments)
        return jobs.Summary(name, "run", [], [])

    monkeypatch.setattr(spark, "watched_session", no_session)
    monkeypatch.setattr(jobs, name, job)
    arguments, expected = COMMANDS[name]
    options = ["--id", "nightly", "--dry-run", "--master", "local[3]", "--json"]
    result = CliRunner().invoke(cli, ["--store", "store", name, *arguments, *options], catch_exceptions=False)
    assert (result.exit_code, json.loads(result.stdout)["job"]) == (0, name)
    store = {} if name == "convert" else {"store": "store"}
    own = {"spark": "session on local[3]", "id": "nightly", "dry_run": True}
    assert given == {**store, **own, **expected}
