"""Build wheel and source distribution into dist/, and use both as a new user would.

    python -m tests.packaging [PYTHON...]

Each is installed into an empty environment, from a package index. There the README's first program, the command
line and a server run; then each extra does what it promises. With other interpreters (python3.13) wheel and extras
are tested on these, too.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.packaging.distributions import ROOT, build, environment, install, keep_promise, use

# Extras that share an environment: the second comes on top of the first.
EXTRAS = (("server",), ("slate",), ("spark", "report"))


def main(pythons: list[str]) -> None:
    """Build, then test; a failure is an AssertionError with what the command said."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    begun = time.monotonic()

    def say(what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - begun:6.1f} s  {what}\n")
        sys.stdout.flush()

    wheel, sdist = build(dist)
    say(f"built {wheel.name} and {sdist.name}")
    with tempfile.TemporaryDirectory() as folder:
        for number, interpreter in enumerate([sys.executable, *pythons]):
            for archive in (wheel,) if number else (wheel, sdist):
                test(Path(folder) / f"{number}-{archive.suffix}", archive, interpreter)
                say(f"{archive.name}: quick start, command line, server ({interpreter})")
            for extras in EXTRAS:
                test_extras(Path(folder) / f"{number}-{extras[0]}", wheel, extras, interpreter)
                say(f"{wheel.name}: {', '.join(extras)} ({interpreter})")


def test(folder: Path, archive: Path, interpreter: str) -> None:
    """Install an archive, and use it."""
    folder.mkdir()
    python = environment(folder / "venv", interpreter)
    install(python, str(archive))
    use(python, folder / "work")
    shutil.rmtree(folder)


def test_extras(folder: Path, wheel: Path, extras: tuple[str, ...], interpreter: str) -> None:
    """Install the wheel with an extra, and let it keep its promise."""
    folder.mkdir()
    python = environment(folder / "venv", interpreter)
    for extra in extras:
        install(python, f"{wheel}[{extra}]")
        keep_promise(python, extra, folder / extra)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
