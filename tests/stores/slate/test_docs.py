"""The example of docs/slate.md: what it prints is what is printed there."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_the_database_in_the_documentation_is_a_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "slate.md").read_text().partition("## A database, row by row")[2]
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    assert output.getvalue() == printed
