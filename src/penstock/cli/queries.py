"""The command that asks questions: sql."""

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.app import cli, json_option, store_url
from penstock.cli.payloads import check_stdin
from penstock.cli.pipeline import master_option, watched_session
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import DataType

_SHOWN = 1_000  # rows of a table for people


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
