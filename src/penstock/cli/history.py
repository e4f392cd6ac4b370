"""Commands about what was: archive, report."""

import click

import penstock
from penstock.cli import output
from penstock.cli.app import cli, confirm, store_url, yes_option
from penstock.cli.pipeline import job_options, print_summary, watched_session


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
