"""Commands on a store of each kind, which the test has open as well."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import penstock
from penstock.cli import cli
from penstock.contract.settings import Settings
from penstock.stores.text.variables import write_head
from tests.http.serving import serving

SETTINGS: Any = {"max_attempts": 2, "keep_done": None}
KINDS = ["memory", "journal", "text", "tq", "folder", "slate", "http"]


class Place:
    """A store, its queue `jobs`, and the command line on it."""

    def __init__(self, url: str, store: penstock.Store, jobs: penstock.Queue) -> None:
        self.url = url
        self.store = store
        self.jobs = jobs

    def run(self, *arguments: str, code: int = 0, stdin: bytes | str = b"") -> Result:
        result = CliRunner().invoke(cli, ["--store", self.url, *arguments], input=stdin)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def lines(self, *arguments: str, code: int = 0) -> list[Any]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).stdout.splitlines()]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind, folder = request.param, tmp_path / "store"
    urls = {"memory": "memory:command-line", "tq": str(tmp_path / "jobs.tq"), "http": "memory:"}
    if kind == "tq":
        Path(urls[kind]).write_bytes(write_head(Settings(**SETTINGS), None))
    with ExitStack() as stack:
        url = urls.get(kind) or f"{kind}:{folder}"
        store = stack.enter_context(penstock.open(url))
        if kind == "http":
            url = stack.enter_context(serving(store)).url
        jobs = store.queue("jobs") if kind == "tq" else store.create("jobs", **SETTINGS)
        yield Place(url, store, jobs)
