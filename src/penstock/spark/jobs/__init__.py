"""Spark jobs: each is a function here and a command of the command line.

A job takes a session and returns a Summary. With `dry_run=True` it changes nothing. A run has a name, `id`: given,
or a hash of the job's arguments and input. A run takes effect once, however often it is started.
"""

from penstock.spark.jobs.archive_table import archived
from penstock.spark.jobs.archiving import archive
from penstock.spark.jobs.converting import convert
from penstock.spark.jobs.loading import load
from penstock.spark.jobs.packing import expire, pack
from penstock.spark.jobs.reporting.job import report
from penstock.spark.jobs.routing import route
from penstock.spark.jobs.runs import Summary

__all__ = ["Summary", "archive", "archived", "convert", "expire", "load", "pack", "report", "route"]
