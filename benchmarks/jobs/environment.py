"""The environment that the peers' programs run in: made by pip at the first measurement, beside its results."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "out" / "jobs"  # benchmarks/out/jobs
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def program(name: str) -> Path:
    """A program of the environment."""
    return FOLDER / "bin" / name


def set_up(requirements: Path = REQUIREMENTS) -> dict[str, str]:
    """Install what is not there yet; the packages that pip cannot get, with its last words."""
    note = FOLDER / "installed.txt"  # the lines of the requirements that are
    installed = note.read_text().splitlines() if note.exists() else []
    failed = {}
    for line in _lines(requirements):
        if line in installed:
            continue
        if not program("python").exists():
            subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        if error := _install(line):
            failed[_package(line)] = error
        else:
            installed.append(line)
            note.write_text("\n".join(installed) + "\n")
    return failed


def _lines(requirements: Path) -> list[str]:
    return [line for line in requirements.read_text().splitlines() if line and not line.startswith("#")]


def _package(line: str) -> str:
    return re.split(r"[\[=<>~]", line)[0]


def _install(line: str) -> str | None:
    command = (program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", line)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["no word"])[-1] if done.returncode else None
