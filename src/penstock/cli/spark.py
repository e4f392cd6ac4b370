"""What the commands that run on Spark share: their options, their session, progress and summaries."""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli import output
from penstock.cli.app import json_option
from penstock.errors import NotSupported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs import Summary

Command = TypeVar("Command", bound=Callable[..., Any])
_LOOK = 0.2  # seconds between two looks at Spark's stages


def master_option(command: Command) -> Command:
    """Where Spark runs."""
    return click.option(
        "--master", metavar="URL", help="Where Spark runs; by default in this process, on all processors."
    )(command)


def job_options(command: Command) -> Command:
    """The options that every job has."""
    for option in (
        json_option,
        master_option,
        click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing."),
        click.option(
            "--id",
            "run",
            metavar="NAME",
            help="Name this run, which takes effect once; by default a hash of its input.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def watched_session(what: str, master: str | None, progress: bool = True) -> Iterator["SparkSession"]:
    """A session for one command, with its progress on stderr for people who watch. Print results after it.

    What goes wrong in Spark is an error of ours, of one line: what Spark's own processes raised, or what it says.
    """
    from penstock.spark.errors import as_ours, is_of_spark

    try:
        with _session(master) as spark, _progress(spark, what, progress):
            yield spark
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(("pyspark", "pyarrow", "numpy")):
            raise
        raise NotSupported("this command runs on Spark: pip install 'penstock[spark]'") from error
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise as_ours(error) from error


@contextmanager
def _session(master: str | None) -> Iterator["SparkSession"]:
    import penstock.spark
    from penstock.spark.sessions import is_running

    if is_running():  # a program has it, and goes on with it
        yield penstock.spark.session(master)
        return
    with _without_its_stderr():
        spark = penstock.spark.session(master)
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()


@contextmanager
def _without_its_stderr() -> Iterator[None]:
    """What Java and its Python write to stderr, now and later, nobody sees: what matters is raised.

    It is calls of Java that led to an error, and calls of Python that wrote to a query that had enough rows.
    """
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with tempfile.TemporaryFile() as hidden:
            os.dup2(hidden.fileno(), 2)
            try:
                yield
            except Exception as error:
                os.dup2(own, 2)
                if "JAVA_GATEWAY_EXITED" in str(error):  # only Java itself says why it did not start
                    hidden.seek(0)
                    click.echo(hidden.read().decode(errors="replace"), err=True, nl=False)
                raise
    finally:
        os.dup2(own, 2)
        os.close(own)


@contextmanager
def _progress(spark: "SparkSession", what: str, wanted: bool) -> Iterator[None]:
    """The tasks of the stages that run, counted on the screen."""
    if not wanted or not sys.stderr.isatty():
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    done = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        bar = progress.add_task(what, total=None)

        def look() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(_LOOK):
                stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each))]
                if stages:
                    total = sum(each.numTasks for each in stages)
                    progress.update(bar, total=total, completed=sum(each.numCompletedTasks for each in stages))

        watcher = threading.Thread(target=look, name="penstock-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def print_summary(summary: "Summary", as_json: bool) -> None:
    """What a job did."""
    if as_json:
        output.print_json(summary.as_json())
        return
    if summary.rows:
        numbers = {
            name
            for name, *column in zip(summary.columns, *summary.rows, strict=True)
            if all(cell is None or isinstance(cell, int | float) for cell in column)
        }
        output.print_table(summary.columns, [[_shown(cell) for cell in row] for row in summary.rows], numbers)
    for note in summary.notes:
        click.echo(output.printable(note))
    did = "would have done this: it was a dry run" if summary.dry_run else "is done"
    if summary.repeated:
        did = "was done before: nothing was changed (give another --id to do it again)"
    click.echo(f"run {summary.id} {did}")


def _shown(cell: str | int | float | None) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
