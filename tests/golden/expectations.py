"""The files in expected/: tests compare their output with them, or record it there."""

import difflib
import os
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"
WRITE = "PENSTOCK_GOLDEN_WRITE"
_SHOWN = 80  # lines of a difference


def compare(name: str, text: str) -> None:
    """Fail unless the file of that name has this text; with $PENSTOCK_GOLDEN_WRITE, write it."""
    path = EXPECTED / name
    if os.environ.get(WRITE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return
    if not path.exists():
        pytest.fail(f"{path} is not there: record it with `python -m tests.golden --write`")
    expected = path.read_bytes().decode()
    if text != expected:
        names = f"expected/{name}", "now"
        lines = difflib.unified_diff(expected.split("\n"), text.split("\n"), *names, lineterm="", n=8)
        difference = list(lines)
        pytest.fail("\n".join(difference[:_SHOWN]), pytrace=False)


def compare_variant(name: str, variant: str, text: str) -> None:
    """Compare the text of a variant, which has a file of its own only if it differs from the common one."""
    stem, dot, ending = name.rpartition(".")
    own = f"{stem}.{variant}{dot}{ending}"
    common = EXPECTED / name
    if os.environ.get(WRITE) and common.exists() and common.read_bytes() == text.encode():
        (EXPECTED / own).unlink(missing_ok=True)
        return
    compare(own if os.environ.get(WRITE) or (EXPECTED / own).exists() else name, text)


def snapshot() -> dict[str, bytes]:
    """The content of every file in expected/."""
    found = (path for path in EXPECTED.rglob("*") if path.is_file())
    return {str(path.relative_to(EXPECTED)): path.read_bytes() for path in found}
