"""README and tutorial are true: every block runs as written, in order, in an empty folder.

Only the port is another: 8390 may be taken.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    text: str


def blocks(document: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Reader:
    """A person who types every block, in a folder of their own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        programs = Path(sys.executable).parent
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PENSTOCK_SERVE_PORT": str(port),
        }
        self.environment.pop("PENSTOCK_STORE", None)

    def run(self, block: Block) -> str:
        """What a block prints; it must end with exit code 0."""
        named = re.match(r"# (\w+\.py)\n", block.text)
        if block.language == "python":
            program = self.folder / (named[1] if named else "block.py")
            program.write_text(block.text)
            if named:  # a shell block runs it
                return ""
            command = [sys.executable, str(program)]
        else:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, block: Block) -> Iterator[None]:
        """The server of a block runs, once it has said where."""
        command = ["bash", "-c", f"exec {block.text}"]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                assert "serves" in server.stdout.readline()
                yield
            finally:
                server.terminate()


def is_server(block: Block) -> bool:
    return block.language == "sh" and " serve" in block.text


def is_install(block: Block) -> bool:
    return "pip install" in block.text


def read_aloud(document: str, folder: Path) -> dict[str, str]:
    """Every block but the installation is run; what each printed. A server runs until the next one starts."""
    port = free_port()
    reader, printed, server = Reader(folder, port), {}, None
    for block in blocks(document.replace("8390", str(port))):
        if is_install(block):
            continue
        if is_server(block):
            if server is not None:
                server.__exit__(None, None, None)
            server = reader.serving(block)
            server.__enter__()
        else:
            printed[block.text] = reader.run(block)
    if server is not None:
        server.__exit__(None, None, None)
    return printed


def printed_by(part: str, printed: dict[str, str]) -> str:
    return next(text for block, text in printed.items() if part in block)


def test_every_block_of_the_readme_runs_as_written(tmp_path: Path) -> None:
    printed = read_aloud(README, tmp_path)
    assert "resize cat.jpg" in printed_by("first message", printed)
    assert all(each in printed_by("def handler", printed) for each in ["b'urgent'", "b'resize dog.jpg'"])
    assert "Dear Ada" in printed_by("curl", printed)
    assert "jobs" in printed_by("https://localhost", printed)
    assert "|" in printed_by("penstock.spark", printed)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) > 0
    with penstock.open(tmp_path / "data") as store:
        assert sum(store.queue("mail").counts().values()) == 0  # curl's DELETE took the message out
        assert store.queue("jobs").count() == 0  # Spark's drain took all


@pytest.mark.long
def test_every_block_of_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    printed = read_aloud(TUTORIAL, tmp_path)
    assert "mail for order 8" in printed_by("python worker.py", printed)
    assert "no address: nobody" in printed_by("penstock_messages", printed)
    assert "batch 0 1001" in printed_by("python nightly.py", printed)


def test_the_readme_is_short() -> None:
    assert len(README) < 8_000


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)[^)]*\)", README))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_blocks_of_a_document_are_found_with_their_language() -> None:
    assert blocks("a\n```sh\nls\n```\nb\n```python\n1\n\n2\n```\n") == [
        Block("sh", "ls\n"),
        Block("python", "1\n\n2\n"),
    ]
