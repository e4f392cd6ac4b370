"""Spark jobs: each is a function here and a command of the command line.

A job takes a session, or a function that starts one, which it calls when its arguments are checked. It returns a
Summary. With `dry_run=True` it changes nothing. A run has a name, `id`: given, or a hash of the job's arguments
and input. A run takes effect once, however often it is started.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.jobs.archive_table import archived
    from penstock.spark.jobs.archiving import archive
    from penstock.spark.jobs.converting import convert
    from penstock.spark.jobs.loading import load
    from penstock.spark.jobs.packing import expire, pack
    from penstock.spark.jobs.reporting.job import report
    from penstock.spark.jobs.routing import route
    from penstock.spark.jobs.runs import Summary

__all__ = ["Summary", "archive", "archived", "convert", "expire", "load", "pack", "report", "route"]

_MODULES = {
    "Summary": "runs",
    "archive": "archiving",
    "archived": "archive_table",
    "convert": "converting",
    "expire": "packing",
    "load": "loading",
    "pack": "packing",
    "report": "reporting.job",
    "route": "routing",
}


def __getattr__(name: str) -> Any:
    """Import a job's module on first use: a command that refuses its arguments imports no PySpark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
