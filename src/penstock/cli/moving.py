"""Commands that move messages in bulk, on Spark: load, convert, route."""

import click

from penstock.cli.app import cli, json_option, store_url
from penstock.cli.pipeline import job_options, master_option, print_summary, watched_session
from penstock.contract.kinds import check_exists
from penstock.workers.signals import stop_signals


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
