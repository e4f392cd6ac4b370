"""The versions of PySpark that Penstock works with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import NotSupported
from penstock.spark.versions import checked_version

OLDEST = "4.0.5"
PROGRAM = Path(__file__).parent / "oldest.py"


@pytest.mark.parametrize(("text", "numbers"), [("4.0.0", (4, 0)), ("4.1.4", (4, 1)), ("4.3.0.dev1", (4, 3))])
def test_versions_from_4_0_to_4_3_work(text: str, numbers: tuple[int, int]) -> None:
    assert checked_version(text) == numbers


@pytest.mark.parametrize("text", ["3.5.9", "2.4.8", "4.4.0", "5.0.0", "unknown"])
def test_others_are_refused_with_those_that_work(text: str) -> None:
    with pytest.raises(NotSupported, match=f"PySpark {text} does not work with Penstock, which needs 4.0 to 4.3"):
        checked_version(text)


@pytest.mark.long
@pytest.mark.parametrize("version", [OLDEST, "4.1.4", "4.2.1"])
def test_older_versions_do_all_that_the_documentation_says(tmp_path: Path, version: str) -> None:
    """In an environment of its own, which has the other packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    constraints = str(Path(__file__).parents[2] / "constraints.txt")
    others = ["numpy", "pyarrow", "zlib-ng", "httptools", "click", "rich", "matplotlib", "slatedb", "obstore"]
    subprocess.run([*install, "-c", constraints, *others], check=True)
    subprocess.run([*install, f"pyspark=={version}"], check=True)
    source = Path(penstock.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYSPARK_PYTHON": python}
    ran = subprocess.run(
        [python, PROGRAM, version], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines()[-1:] == [f"all of it with PySpark {version}"], ran.stdout + ran.stderr
