"""The Python that Spark's workers are, on this machine: the one that runs this program."""

import shlex
import site
import sys
import sysconfig
from pathlib import Path

from penstock.spark.launchers import installed

# Spark lets every worker find its own copy of PySpark first, which lies in a zip without anything compiled: each
# process compiles it for half a second. This finds what is installed instead, the very same.
_SCRIPT = """\
#!/bin/sh
# Written by Penstock: Python for Spark's workers, without the copies of PySpark that lie in zips.
set -f
IFS=:
found=
for place in $PYTHONPATH; do
    case $place in
        {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
        *) found=$found${{found:+:}}$place ;;
    esac
done
export PYTHONPATH="$found"
exec {python} "$@"
"""


def worker_python(temporary: Path) -> str:
    """What Spark is to start as Python; a script for it goes where others do, see launchers.py."""
    import pyspark

    home = Path(pyspark.__file__).parent
    if str(home.parent) not in site_packages():  # only this program knows where it is: Spark's copy must do
        return sys.executable
    script = _SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(sys.executable))
    return str(installed(script, "python", "python", temporary) / "python")


def site_packages() -> set[str]:
    """The folders where every process of this Python finds packages."""
    return {sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()}
