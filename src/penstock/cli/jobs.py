"""Commands that run on Spark: archive, report, load, convert, route, sql."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock.cli import output
from penstock.cli.app import cli, confirm, json_option, pairs_option, store_url, yes_option
from penstock.cli.messages import check_stdin
from penstock.cli.spark import job_options, master_option, print_summary, run_job, watched_session
from penstock.contract.kinds import check_exists
from penstock.errors import InvalidArgument
from penstock.workers.options import stop_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType

_SHOWN = 1_000  # rows of a table


def _number_or_column(given: str) -> str | int:
    try:
        return int(given)
    except ValueError:
        return given


@cli.command(
    epilog="""\b
Examples:
  penstock archive /var/archive
  penstock archive /var/archive --remove --yes --id archive-2026-03-01
  penstock archive /var/archive --remove --dry-run --json

In Spark an archive is a DataFrame:
  penstock.spark.jobs.archived(spark, "/var/archive").groupBy("queue", "day").count().show()"""
)
@click.argument("dest", type=click.Path(file_okay=False))
@click.option("--remove", is_flag=True, help="Remove archived messages from the store.")
@yes_option
@job_options
@click.pass_context
def archive(ctx: click.Context, /, dest: str, remove: bool, yes: bool, **job: Any) -> None:
    """Copy done and failed messages into the archive DEST, a Parquet table partitioned by queue and day.

    Each message is in the archive once, however often this runs, and wherever a run was interrupted. A failed
    message that was redriven and settled again replaces its earlier row. Several stores can share an archive.
    A queue must keep its done messages (keep_done) until they are archived.

    With --remove each message is read back from the archive, compared, and then removed from the store; another
    process can have the store open. Asks first at a terminal; elsewhere it needs --yes.
    """
    url = store_url(ctx)
    if remove and not job["dry_run"] and not yes:
        with penstock.open(url) as store:
            settled = sum(info.counts["done"] + info.counts["failed"] for info in store.queues())
        confirm(yes, f"Take {output.plural(settled, 'message')} out of {url} once archived?")
    run_job("archive", "archiving", url, dest, remove, **job)


@cli.command(
    epilog="""\b
Examples:
  penstock report --out report
  penstock report --out report --archive /var/archive --window '1 day'
  penstock report --out report --json | jq '.rows[] | {queue, wait_p99}'"""
)
@click.option(
    "--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="The folder to write to."
)
@click.option("--archive", metavar="DEST", type=click.Path(), help="Include the messages of this archive.")
@click.option("--window", metavar="LENGTH", help="Length of a time window, as in '15 min', '1 hour', '7 days'.")
@job_options
@click.pass_context
def report(ctx: click.Context, /, out: str, archive: str | None, window: str | None, **job: Any) -> None:
    """Report throughput, waiting and processing times, attempts and failures, by queue and over time.

    Prints a table of the queues. Writes DIR/report.html, a page with charts in a single file that can be mailed,
    and DIR/report.json with all numbers. A message in both store and archive counts once. A queue that does not
    keep done messages (keep_done=0) is reported without them.
    """
    run_job("report", "reporting", store_url(ctx), out, archive, window, **job)


@cli.command(
    epilog="""\b
Examples:
  penstock load events.parquet jobs --payload-json
  penstock load 'logs/*.json' jobs --payload-column body --priority urgency --header kind=type
  penstock load orders.csv --queue-column region --payload-json --dry-run"""
)
@click.argument("source")
@click.argument("queue", required=False)
@click.option("--format", metavar="NAME", help="parquet, json, csv, text or orc: by default the file's ending.")
@click.option("--payload-column", metavar="COLUMN", help="The column that is the payload.")
@click.option("--payload-json", is_flag=True, help="The whole row is the payload, as JSON.")
@click.option("--priority", metavar="COLUMN|NUMBER", type=_number_or_column,
              help="A column with the priority of each message, or one priority for all.")  # fmt: skip
@pairs_option("--header", "headers", metavar="NAME=COLUMN", help="A header, with its value from a column")
@click.option("--queue-column", metavar="COLUMN", help="A column with the queue of each message.")
@click.option("--group", metavar="COLUMN", help="A column with the group of each message.")
@pairs_option(
    "--option", "options", metavar="NAME=VALUE", help="An option of Spark's reader, as in multiLine=true"
)
@job_options
@click.pass_context
def load(ctx: click.Context, /, source: str, queue: str | None, **job: Any) -> None:
    """Put the rows of a file into QUEUE: Parquet, JSON lines, CSV, text, or another format that Spark reads.

    SOURCE is a file, a folder or a pattern. Without --payload-column or --payload-json the payload is the column
    `payload`, a line of text, or the only column. All rows become messages at once, or none: an error names the
    rows that a queue refuses. Loading the same files with the same options again does nothing.
    """
    run_job("load", "loading", source, store_url(ctx), queue, **job)


@cli.command(
    epilog="""\b
Examples:
  penstock convert data journal:copy
  penstock convert http://localhost:8390 copy --dry-run"""
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@job_options
def convert(source: str, target: str, **job: Any) -> None:
    """Copy everything from the store FROM into the store TO, of the same or another kind.

    Copies all queues with their settings, and all messages. Messages get new ids; those in flight arrive as
    available. An error names what TO cannot hold, before anything is written. All is copied, or nothing.
    """
    check_exists(source)
    run_job("convert", "converting", source, target, **job)


@cli.command(
    epilog="""\b
Examples:
  penstock --store 'slate:data?router=off' route --once
  penstock --store 'slate:s3://bucket/queues?router=off' route --master spark://host:7077"""
)
@click.option("--once", "--available-now", "once", is_flag=True, help="Route what is published by now, and end.")
@click.option("--checkpoint", metavar="DIR", help="Folder of Spark's checkpoint; by default beside the store.")
@master_option
@json_option
@click.pass_context
def route(ctx: click.Context, once: bool, checkpoint: str | None, master: str | None, as_json: bool) -> None:
    """Deliver messages published to a slate store to the queues whose filters match, in bulk, by a Spark stream.

    For a store whose own router is off (?router=off), or that no process has open. Each message enters each queue
    once, in the order of the log, also if another router ran in between. A full queue does not hold up the others.
    Without --once routing continues until Ctrl-C or SIGTERM, and then prints the number of routed messages.
    """
    signals: list[int] = []
    url = store_url(ctx)
    with watched_session("routing", master) as start, stop_signals(signals.append):
        from penstock.spark import jobs

        summary = jobs.route(start, url, available_now=once, checkpoint=checkpoint, stopped=lambda: bool(signals))
    print_summary(summary, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock sql "SELECT queue, state, count(*) FROM penstock_messages GROUP BY ALL"
  penstock sql "SELECT reason, count(*) AS n FROM penstock_messages WHERE state = 'failed' GROUP BY reason"
  penstock sql "SELECT id, consumer, outcome FROM penstock_attempts WHERE queue = 'jobs'" --json
  penstock sql "DESCRIBE penstock_queues"
  penstock sql - < report.sql"""
)
@click.argument("query", metavar="QUERY|-")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N",
    help=f"Rows at most.  [default: {_SHOWN:,}, with --json all]",
)  # fmt: skip
@master_option
@json_option
@click.pass_context
def sql(ctx: click.Context, query: str, limit: int | None, master: str | None, as_json: bool) -> None:
    """Run a QUERY in SQL over the store, with Spark.

    The tables are the views penstock_messages, penstock_queues and penstock_attempts (of a slate store also
    penstock_log); DESCRIBE lists their columns. A store on disk is read from its files, also while another process
    has it open. Nothing is changed.
    """
    if query == "-":
        check_stdin()
    text = sys.stdin.read() if query == "-" else query
    url = store_url(ctx)
    # JSON is printed while the rows arrive: a progress bar on the same terminal would garble it.
    with watched_session("asking", master, progress=not (as_json and sys.stdout.isatty())) as start:
        from penstock.spark import views
        from penstock.spark.jobs.runs import check_store

        check_store(url)
        if not text.strip().rstrip(";"):
            raise InvalidArgument("there is no query: give one, as in 'SELECT * FROM penstock_queues'")
        spark = start()
        views(spark, url)
        frame = spark.sql(text)
        if as_json:
            _print_json(frame, limit)
            return
        columns, kinds = frame.columns, [field.dataType for field in frame.schema]
        rows = frame.take((limit or _SHOWN) + 1)
    if columns:  # a statement without a result has none
        _print_table(columns, kinds, rows, limit)


def _print_json(frame: "DataFrame", limit: int | None) -> None:
    from penstock.spark.values import as_json

    columns, kinds = frame.columns, [field.dataType for field in frame.schema]
    for name in columns:
        if columns.count(name) > 1:
            raise InvalidArgument(f"two columns are called {name!r}: give each a name of its own with AS")
    rows = frame.toLocalIterator(prefetchPartitions=True)  # by partition: all rows may not fit in memory
    output.print_json_list(as_json(columns, kinds, row) for row in islice(rows, limit))


def _print_table(columns: list[str], kinds: "list[DataType]", rows: "list[Row]", limit: int | None) -> None:
    from penstock.spark.values import is_number

    most = limit or _SHOWN
    cells = [[_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows[:most]]
    output.print_table(
        columns, cells, right=[name for name, kind in zip(columns, kinds, strict=True) if is_number(kind)]
    )
    if len(rows) > most and limit is None:
        click.echo(f"these are the first {most:,} rows: --limit N prints more, --json all", err=True)


def _cell(value: Any, kind: "DataType") -> str:
    from penstock.spark.values import as_text

    return output.preview(bytes(value)) if isinstance(value, bytes | bytearray) else as_text(value, kind)
