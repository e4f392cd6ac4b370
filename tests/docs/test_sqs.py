"""The page on SQS is true: its first program runs as written; that for Spark runs in tests/spark/test_sqs.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.http.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "sqs.md"


def programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_first_program_of_the_page_runs(tmp_path: Path) -> None:
    program, *_ = programs()
    with penstock.open(tmp_path / "data") as store, serving(store) as server:
        ran = subprocess.run(
            [sys.executable, "-c", program.replace("http://localhost:8390", server.url)],
            capture_output=True,
            text=True,
        )
        assert (ran.returncode, ran.stdout) == (0, '{"item": "cat.jpg"}\n'), ran.stderr
        assert not any(store.queue("orders").counts().values())


@pytest.mark.parametrize("program", programs())
def test_every_program_of_the_page_is_python(program: str) -> None:
    compile(program, str(PAGE), "exec")
