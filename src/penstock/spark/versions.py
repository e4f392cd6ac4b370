"""The versions of PySpark that Penstock works with, and stand-ins for what the older ones lack.

4.0, 4.1    no streams as sources: a query could not say how much of a batch is committed
4.2, 4.3    everything
"""

import re
from importlib.metadata import PackageNotFoundError, version

from penstock.errors import NotSupported

_OLDEST, _NEWEST = (4, 0), (4, 3)
_STREAMS = (4, 2)
_ADVICE = "pip install 'penstock[spark]' brings 4.3"


def pyspark_version() -> tuple[int, int]:
    """The first two numbers of PySpark's version; NotSupported if it is missing, too old or too new."""
    try:
        text = version("pyspark")
    except PackageNotFoundError:
        raise NotSupported("Spark is not installed: run pip install 'penstock[spark]'") from None
    return checked_version(text)


def checked_version(text: str) -> tuple[int, int]:
    """The first two numbers of a version; NotSupported if Penstock does not work with it."""
    found = re.match(r"(\d+)\.(\d+)", text)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not _OLDEST <= numbers <= _NEWEST:
        raise NotSupported(f"PySpark {text} does not work with Penstock, which needs 4.0 to 4.3: {_ADVICE}")
    return numbers


def check_has_streams() -> None:
    """NotSupported if this PySpark does not tell a source what it has committed."""
    if (found := pyspark_version()) < _STREAMS:
        raise NotSupported(
            f"readStream needs PySpark 4.2 or 4.3, as {found[0]}.{found[1]} does not tell a source what a query "
            f"has committed ({_ADVICE}); batch reads, writes and writeStream work here"
        )
