"""The command line: what it prints for people and for programs, its errors, and its exit codes.

A session in sessions/ has a command a line, without `penstock`. `<receipt-1>` is the first receipt that was
printed, `<<< TEXT` gives a command its input, `advance SECONDS` lets time pass, and a line with # is a title.
"""

import re
import shlex
from pathlib import Path

import pytest

import penstock
from tests.golden.expectations import compare
from tests.golden.normaliser import Normaliser
from tests.golden.processes import Shell, Time

SESSIONS = Path(__file__).parent / "sessions"


@pytest.mark.parametrize("name", sorted(path.stem for path in SESSIONS.glob("*.txt")))
def test_a_session_goes_as_it_always_went(name: str, tmp_path: Path) -> None:
    time, normaliser = Time(tmp_path / "time"), Normaliser(folder=str(tmp_path))
    shell = Shell(time, tmp_path)
    lines: list[str] = []
    for line in (SESSIONS / f"{name}.txt").read_text().splitlines():
        if line.startswith("#"):
            lines += ["", line]
        elif line.startswith("advance "):
            time.advance(float(line.split()[1]))
            lines += ["", f"# {line.split()[1]} seconds pass"]
        else:
            command, _, given = normaliser.undone(line).partition(" <<< ")
            stdin = "".join(shlex.split(given)).encode().decode("unicode_escape")
            store = {} if name == "help" else {"PENSTOCK_STORE": "store" if name == "journal" else f"{name}:store"}
            ran = shell.run(*shlex.split(command), stdin=stdin, **store)
            lines += ["", f"$ penstock {line}", *_shown(ran.out, "")]
            lines += [*_shown(ran.err, "! "), f"({ran.code})"]
            normaliser(ran.out)  # so that receipts are known
    shell.end()
    compare(f"cli/{name}.txt", _without_durations(normaliser("\n".join(lines).lstrip("\n") + "\n")))


def _shown(text: str, mark: str) -> list[str]:
    if not text:
        return []
    missing = [] if text.endswith("\n") else [f"{mark}(no newline)"]
    return [f"{mark}{line}" for line in text.removesuffix("\n").split("\n")] + missing


def _without_durations(text: str) -> str:
    text = text.replace(f"penstock, version {penstock.__version__}", "penstock, version <version>")
    text = re.sub(r'("seconds": )[\d.]+', r"\1<seconds>", text)
    return re.sub(r"(?<= in )[\d.]+ s\b", "<seconds> s", text)
