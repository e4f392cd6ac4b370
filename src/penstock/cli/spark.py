"""Commands that run on Spark: their common options, session, progress bar and summary."""

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

from penstock.cli import output
from penstock.cli.app import Command, json_option
from penstock.errors import NotSupported, PenstockError
from penstock.system import processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.jobs import Summary

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+:[0-9]+|k8s://.+|yarn")
_LOOK = 0.2  # seconds between two looks at Spark's stages
_SPARE = ("process_p99", "wait_p99", "delayed", "in_flight")  # columns of a report, which has many
_id_option = click.option(
    "--id", "run", metavar="NAME",
    help="Name this run: a name takes effect once, however often it is run. By default a hash of the run's input.",
)  # fmt: skip
_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what the run would do, and change nothing.")


def _master(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    if given is not None and not _MASTER.fullmatch(given):
        raise click.BadParameter(f"{given!r} is no cluster: give spark://HOST:7077, k8s://URL, yarn or local[N]")
    return given


def master_option(command: Command) -> Command:
    """The --master option: Spark's cluster."""
    return click.option(
        "--master", metavar="URL", callback=_master,
        help="Spark's cluster, as in spark://HOST:7077; by default this machine, on all its cores.",
    )(command)  # fmt: skip


def job_options(command: Command) -> Command:
    """The options of every job: --id, --dry-run, --master and --json, the keywords of run_job()."""
    return _id_option(_dry_run_option(master_option(json_option(command))))


def run_job(
    name: str,
    doing: str,
    *arguments: object,
    run: str | None,
    dry_run: bool,
    master: str | None,
    as_json: bool,
    **more: object,
) -> None:
    """Run the function `name` of penstock.spark.jobs in a session of this command, and print its summary."""
    with watched_session(doing, master) as start:
        from penstock.spark import jobs

        summary = getattr(jobs, name)(start, *arguments, id=run, dry_run=dry_run, **more)
    print_summary(summary, as_json)


@contextmanager
def watched_session(
    what: str, master: str | None, progress: bool = True
) -> Iterator[Callable[[], "SparkSession"]]:
    """A function that starts the session of one command, once, with a progress bar on stderr. Print results after.

    A job checks its arguments before it calls the function, because Spark takes seconds to start.
    An error of Spark becomes a PenstockError of one line: the one that a Spark process raised, else Spark's
    message.
    """
    from penstock.spark.errors import as_ours, is_of_spark

    held = ExitStack()
    spark: list[SparkSession] = []

    def start() -> "SparkSession":
        if not spark:
            spark.append(held.enter_context(_session(master)))
            held.enter_context(_progress(spark[0], what, progress))
        return spark[0]

    try:
        with held:
            yield start
    except KeyboardInterrupt:
        raise PenstockError(f"{what} was interrupted: to go on, run the same command again") from None
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

    if is_running():  # the session of the program that called this command: it stays open
        yield penstock.spark.session(master)
        return
    # Rows of a task that runs are reported with its heartbeats, which are rare by default. A busy machine may miss
    # as many minutes of them as by default before Java gives up.
    beats = {"spark.executor.heartbeatInterval": "1s", "spark.executor.heartbeat.maxFailures": "600"}
    often = beats if (master or "local").startswith("local") else {}
    handler = signal.getsignal(signal.SIGINT)
    begun: dict[int, str] = {}
    try:
        with _announced("starting Spark"), _hidden_stderr():
            spark = penstock.spark.session(master, **often)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # PySpark has its own: it raises before Spark has cleaned up
        try:
            spark.sparkContext.setLogLevel("OFF")
            with _cancelling(spark):
                yield spark
        except KeyboardInterrupt:
            begun = _processes()  # after stop() some are no longer below this process
            raise
        finally:
            spark.stop()
    except KeyboardInterrupt:
        _end(begun | _processes())
        raise


@contextmanager
def _cancelling(spark: "SparkSession") -> Iterator[None]:
    """Let Ctrl-C cancel Spark's jobs, so that Spark discards what they have staged. The second raises at once."""
    usual, cancelled = signal.default_int_handler, False

    def cancel() -> None:
        nonlocal cancelled
        if not spark.sparkContext.statusTracker().getActiveJobsIds():
            signal.raise_signal(signal.SIGINT)
            return
        cancelled = True
        spark.sparkContext.cancelAllJobs()

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, usual)
        threading.Thread(target=cancel, daemon=True).start()  # this thread's connection to Java may be in use

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield  # another handler, as that of `route`, ends the command
        return
    signal.signal(signal.SIGINT, interrupt)
    logging.root.addFilter(_is_no_interrupt)
    try:
        yield
    except Exception:
        if cancelled:
            raise KeyboardInterrupt from None
        raise
    finally:
        logging.root.removeFilter(_is_no_interrupt)
        signal.signal(signal.SIGINT, usual)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs an interrupt with a traceback before it raises it."""
    return record.exc_info is None or not isinstance(record.exc_info[1], KeyboardInterrupt)


def _processes() -> dict[int, str]:
    """The processes that this command has started, and those that they have: Java, and Python's workers."""
    found = {}
    for pid in processes.descendants_of(os.getpid()):
        with suppress(ProcessLookupError):
            found[pid] = processes.name_of(pid)
    return found


def _end(names: dict[int, str]) -> None:
    """End processes of an interrupted command, which would outlive it for seconds."""
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 1.0)):  # Python's follow Java by themselves
        left = [pid for pid, name in names.items() if not processes.is_gone(name)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and not all(map(processes.is_gone, names.values())):
            time.sleep(_LOOK)


@contextmanager
def _announced(text: str) -> Iterator[None]:
    """A line on a terminal for as long as something goes on that cannot show its progress."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    click.echo(text, err=True, nl=False)
    try:
        yield
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


@contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Hide the stderr of the Java process that starts meanwhile, for as long as it runs.

    It would show Java's stack traces of errors that are raised anyway, and Python's of workers whose query ended
    early because it had enough rows.
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
                if "JAVA_GATEWAY_EXITED" in str(error):  # only Java's own stderr explains why it did not start
                    hidden.seek(0)
                    click.echo(hidden.read().decode(errors="replace"), err=True, nl=False)
                raise
    finally:
        os.dup2(own, 2)
        os.close(own)


@contextmanager
def _progress(spark: "SparkSession", what: str, wanted: bool) -> Iterator[None]:
    """A progress bar with the tasks and the rows of Spark's running stages."""
    done = threading.Event()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with output.progress(what, *columns, wanted=wanted) as bar:
        if bar is None:
            yield
            return

        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        def look() -> None:
            context = spark.sparkContext
            java: Any = context._jsc.sc()
            tracker, store = context.statusTracker(), java.statusStore()
            queries: Any = spark._jsparkSession.sharedState().statusStore()
            while not done.wait(_LOOK):
                with suppress(Py4JError):  # a stage may end while it is asked about
                    stages = [store.lastStageAttempt(each) for each in tracker.getActiveStageIds()]
                    read = sum(max(each.inputRecords(), each.shuffleReadRecords()) for each in stages)
                    rows = max(read, _rows(queries))  # stages count tasks that have ended
                    if stages:
                        bar.update(
                            description=f"{what}, {rows:,} rows" if rows else what,
                            total=sum(each.numTasks() for each in stages),
                            completed=sum(each.numCompleteTasks() for each in stages),
                        )

        watcher = threading.Thread(target=look, name="penstock-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _rows(queries: Any) -> int:
    """How many rows came out of a step of a running query so far, at most; 0 if Spark does not say it."""
    rows = 0
    latest = queries.executionsList(max(0, queries.executionsCount() - 2), 2)
    for query in map(latest.apply, range(latest.size())):
        if query.completionTime().isDefined():
            continue
        values, steps = queries.executionMetrics(query.executionId()), query.metrics()
        for step in map(steps.apply, range(steps.size())):
            if step.name() == "number of output rows" and (value := values.get(step.accumulatorId())).isDefined():
                rows = max(rows, int(value.get().replace(",", "")))
    return rows


def print_summary(summary: "Summary", as_json: bool) -> None:
    """The summary of a job's run: its table, its notes and its name."""
    if as_json:
        output.print_json(summary.as_json())
        return
    if summary.rows:
        numbers = {
            name
            for name, *column in zip(summary.columns, *summary.rows, strict=True)
            if all(cell is None or isinstance(cell, int | float) for cell in column)
        }
        rows = [[_shown(cell) for cell in row] for row in summary.rows]
        output.print_table(summary.columns, rows, numbers, [*output.idle(summary.columns, rows), *_SPARE])
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
