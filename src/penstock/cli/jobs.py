"""Commands that run on Spark: archive, report, load, convert, route, sql."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock.cli import output
from penstock.cli.app import cli, confirm, json_option, store_url, yes_option
from penstock.cli.messages import check_stdin
from penstock.cli.spark import job_options, master_option, print_summary, watched_session
from penstock.contract.kinds import check_exists
from penstock.errors import InvalidArgument
from penstock.workers.options import stop_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType

_SHOWN = 1_000  # rows of a table for people


@cli.command(
    epilog="""\b
Examples:
  penstock archive /var/archive
  penstock archive /var/archive --remove --yes --id archive-2026-03-01
  penstock archive /var/archive --remove --dry-run --json

In Spark the archive is a table as any other:
  penstock.spark.jobs.archived(spark, "/var/archive").groupBy("queue", "day").count().show()"""
)
@click.argument("dest", type=click.Path(file_okay=False))
@click.option("--remove", is_flag=True, help="Then take out of the store what is in the archive.")
@yes_option
@job_options
@click.pass_context
def archive(
    ctx: click.Context,
    dest: str,
    remove: bool,
    yes: bool,
    run: str | None,
    dry_run: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Copy done and failed messages into the archive DEST, a Parquet table by queue and day.

    Each message is in the archive once, however often this runs, and wherever it was interrupted. A failed
    message that was redriven and settled again replaces its earlier row. Several stores may share an archive.
    Done messages are there to be copied for as long as their queue keeps them (keep_done).

    With --remove each message that was read back from the archive and found to be the same is taken out of the
    store, also while another process has it open. It asks first at a terminal; elsewhere it needs --yes.
    """
    url = store_url(ctx)
    if remove and not dry_run and not yes:
        with penstock.open(url) as store:
            settled = sum(info.counts["done"] + info.counts["failed"] for info in store.queues())
        confirm(yes, f"Take {output.plural(settled, 'message')} out of {url} once archived?")
    with watched_session("archiving", master) as spark:
        from penstock.spark import jobs

        summary = jobs.archive(spark, url, dest, remove, run, dry_run)
    print_summary(summary, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock report --out report
  penstock report --out report --archive /var/archive --window '1 day'
  penstock report --out report --json | jq '.rows[] | {queue, wait_p99}'"""
)
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Where the page goes.")
@click.option("--archive", metavar="DEST", type=click.Path(), help="Count the messages of this archive, too.")
@click.option("--window", metavar="LENGTH", help="Slices of time, as in '15 min', '1 hour', '7 days'.")
@job_options
@click.pass_context
def report(
    ctx: click.Context,
    out: str,
    archive: str | None,
    window: str | None,
    run: str | None,
    dry_run: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Say what happened: throughput, waiting and processing times, attempts and failures, by queue and over time.

    Prints a table of the queues, and writes DIR/report.html, a page with charts that needs nothing else and can be
    mailed as it is, and DIR/report.json with all numbers. Each message counts once, whether it is in the store or
    in the archive. Queues that do not keep done messages (keep_done=0) show only what is still there.
    """
    url = store_url(ctx)
    with watched_session("reporting", master) as spark:
        from penstock.spark import jobs

        summary = jobs.report(spark, url, out, archive, window, run, dry_run)
    print_summary(summary, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock load events.parquet jobs --payload-json
  penstock load 'logs/*.json' jobs --payload-column body --priority urgency --header kind=type
  penstock load orders.csv --queue-column region --payload-json --dry-run"""
)
@click.argument("source")
@click.argument("queue", required=False)
@click.option(
    "--format", "kind", metavar="NAME", help="parquet, json, csv, text, orc: by default the file's ending."
)
@click.option("--payload-column", metavar="COLUMN", help="The column that is the payload.")
@click.option("--payload-json", is_flag=True, help="The whole row is the payload, as JSON.")
@click.option("--priority", metavar="COLUMN|NUMBER", help="The priority of each message, or of all.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=COLUMN", help="A header from a column; repeatable."
)
@click.option("--queue-column", metavar="COLUMN", help="The column that says into which queue.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of Spark's reader; repeatable."
)
@job_options
@click.pass_context
def load(
    ctx: click.Context,
    source: str,
    queue: str | None,
    kind: str | None,
    payload_column: str | None,
    payload_json: bool,
    priority: str | None,
    headers: tuple[str, ...],
    queue_column: str | None,
    options: tuple[str, ...],
    run: str | None,
    dry_run: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Put the rows of a file into QUEUE: Parquet, JSON lines, CSV, text, or whatever Spark reads.

    SOURCE is a file, a folder or a pattern. Without --payload-column or --payload-json the payload is the column
    `payload`, a line of text, or the only column there is. All rows become messages at once, or none; rows that a
    queue would refuse are named. The same load again (the same files and options) does nothing.
    """
    url = store_url(ctx)
    with watched_session("loading", master) as spark:
        from penstock.spark import jobs

        summary = jobs.load(
            spark,
            source,
            url,
            queue,
            format=kind,
            payload_column=payload_column,
            payload_json=payload_json,
            priority=_number_or_column(priority),
            headers=_pairs(headers, "--header"),
            queue_column=queue_column,
            options=_pairs(options, "--option"),
            id=run,
            dry_run=dry_run,
        )
    print_summary(summary, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock convert data journal:copy
  penstock convert http://localhost:8390 copy --dry-run"""
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@job_options
def convert(source: str, target: str, run: str | None, dry_run: bool, master: str | None, as_json: bool) -> None:
    """Copy everything from the store FROM into the store TO, whatever keeps them.

    All queues with their settings, all messages with everything but their ids, which are new; what is in flight
    arrives as available. What TO cannot hold is named before anything is written. It takes effect as a whole, or
    not at all.
    """
    check_exists(source)
    with watched_session("converting", master) as spark:
        from penstock.spark import jobs

        summary = jobs.convert(spark, source, target, id=run, dry_run=dry_run)
    print_summary(summary, as_json)


@cli.command(
    epilog="""\b
Examples:
  penstock --store 'slate:data?router=off' route --once
  penstock --store 'slate:s3://bucket/queues?router=off' route --master spark://host:7077"""
)
@click.option("--once", "--available-now", "once", is_flag=True, help="Route what is there now, and end.")
@click.option("--checkpoint", metavar="DIR", help="Where Spark keeps its notes; by default beside the store.")
@master_option
@json_option
@click.pass_context
def route(ctx: click.Context, once: bool, checkpoint: str | None, master: str | None, as_json: bool) -> None:
    """Deliver what was published to a slate store, in bulk, by a stream of Spark.

    For a store that is open with ?router=off, or by nobody. Each message enters each queue that wants it once, in
    the order of the log, however often this is started, and whoever routes in between; a queue that is full waits
    by itself. Without --once it goes on until Ctrl-C or SIGTERM, and then says what it has routed.
    """
    told: list[int] = []
    url = store_url(ctx)
    with watched_session("routing", master) as spark, stop_signals(told.append):
        from penstock.spark import jobs

        summary = jobs.route(spark, url, available_now=once, checkpoint=checkpoint, stopped=lambda: bool(told))
    print_summary(summary, as_json)


def _number_or_column(given: str | None) -> str | int | None:
    if given is None:
        return None
    try:
        return int(given)
    except ValueError:
        return given


def _pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not of the form NAME=...", param_hint=option)
        pairs[name] = value
    return pairs


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
    """Ask the store a QUERY in SQL, which Spark answers.

    The views penstock_messages, penstock_queues and penstock_attempts have what there is; their columns are those
    of a message, a queue and an attempt. It reads a folder straight from its files, also while another process has
    it open, and changes nothing.
    """
    if query == "-":
        check_stdin()
    text = sys.stdin.read() if query == "-" else query
    url = store_url(ctx)
    # JSON is printed while it comes: beside a bar on the same terminal neither could be read.
    with watched_session("asking", master, progress=not (as_json and sys.stdout.isatty())) as spark:
        from penstock.spark import views

        views(spark, url)
        frame = spark.sql(text)
        if as_json:
            _print_json(frame, limit)
            return
        columns, kinds = frame.columns, [field.dataType for field in frame.schema]
        rows = frame.take((limit or _SHOWN) + 1)
    if columns:  # else it was a statement that has no answer
        _print_table(columns, kinds, rows, limit)


def _print_json(frame: "DataFrame", limit: int | None) -> None:
    from penstock.spark.values import as_json

    columns, kinds = frame.columns, [field.dataType for field in frame.schema]
    for name in columns:
        if columns.count(name) > 1:
            raise InvalidArgument(f"two columns are called {name!r}: give each a name of its own with AS")
    rows = frame.toLocalIterator(prefetchPartitions=True)  # not all of them at once
    output.print_json_list(as_json(columns, kinds, row) for row in islice(rows, limit))


def _print_table(columns: list[str], kinds: "list[DataType]", rows: "list[Row]", limit: int | None) -> None:
    from penstock.spark.values import is_number

    most = limit or _SHOWN
    cells = [[_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in rows[:most]]
    output.print_table(
        columns, cells, right=[name for name, kind in zip(columns, kinds, strict=True) if is_number(kind)]
    )
    if len(rows) > most and limit is None:
        click.echo(f"these are the first {most:,} rows: --limit asks for more, --json for all", err=True)


def _cell(value: Any, kind: "DataType") -> str:
    from penstock.spark.values import as_text

    return output.preview(bytes(value)) if isinstance(value, bytes | bytearray) else as_text(value, kind)
