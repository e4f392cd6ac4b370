"""Commands that keep a store in order: doctor, pack, expire."""

import os
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.app import cli, json_option, open_store, store_url
from penstock.cli.spark import job_options, run_job
from penstock.cli.times import relative
from penstock.contract.kinds import kind_of
from penstock.errors import NotSupported

if TYPE_CHECKING:
    from penstock.contract.examination import Examination

_HELD = 40  # messages in a table
_SPARE = ("comments", "skipped", "groups", "files", "lines", "done")


@cli.command(
    epilog="""\b
Examples:
  penstock doctor
  penstock --store data doctor --json"""
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check a store for damage and oddities, and explain what to do.

    Reads every byte and changes none; another process can have the store open. Prints a table of the queues:
    files, messages by state, and the bytes that packing would free; of a slate store, payload bytes and the lag
    behind the log; of a text store, lines. Of text and folder stores also prints who holds which message. Then
    prints findings, a line each: ok; note, if it is harmless or opening the store repairs it; problem, if you have
    to act. An arrow (->) says how. Exits with 1 if there is a problem.
    """
    url = store_url(ctx)
    examination = kind_of(url).examine(url)
    if as_json:
        output.print_json(examination.as_json())
    else:
        _print_queues(examination)
        _print_held(examination)
        for queue, finding in examination.all_findings():
            about = "store" if queue is None else f"queue {queue}"
            click.echo(output.printable(f"{finding.severity:<8} {about}: {finding.text}"))
            if finding.next:
                click.echo(output.printable(f"{'':8} -> {finding.next}"))
    if not examination.sound:
        ctx.exit(1)


def _print_queues(examination: "Examination[Any]") -> None:
    """Queues as a table; a narrow terminal goes without columns of zeros, then without those of least use."""
    cells = [queue.cells() for queue in examination.queues]
    if cells:
        rows = [
            [queue.name, *("" if each is None else f"{each:,}" for each in row.values())]
            for queue, row in zip(examination.queues, cells, strict=True)
        ]
        columns = ["queue", *cells[0]]
        output.print_table(columns, rows, right=tuple(cells[0]), spare=[*output.idle(columns, rows), *_SPARE])


def _print_held(examination: "Examination[Any]") -> None:
    """The messages that consumers hold, of kinds that tell; not more than fit onto a screen."""
    held = [(queue.name, each) for queue in examination.queues for each in getattr(queue, "held", ())]
    columns = ["queue", "held", "consumer", "lease", "attempts"]
    rows = []
    for queue, each in held[:_HELD]:
        until = "" if each.lease_until is None else relative(each.lease_until, examination.at)
        at = [] if each.line is None else [f"{os.path.basename(each.file)}:{each.line}"]
        rows.append([queue, each.id, each.consumer or "", until, f"{each.attempts:,}", *at])
    if rows:
        columns += ["at"] * (len(rows[0]) - len(columns))
        output.print_table(columns, rows, right=("attempts",), spare=("attempts",))
    if held[_HELD:]:
        click.echo(f"{len(held) - _HELD:,} more messages are held: --json has them all")


@cli.command(
    epilog="""\b
Examples:
  penstock pack
  penstock pack jobs orders --json
  penstock pack --spark --dry-run
  penstock pack --spark --master spark://host:7077"""
)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--spark", "on_spark", is_flag=True, help="Pack in Spark tasks: for thousands of queues.")
@job_options
@click.pass_context
def pack(ctx: click.Context, /, queues: tuple[str, ...], on_spark: bool, **job: Any) -> None:
    """Pack the files of queues: rewrite the messages that are left, and free the rest.

    Without a QUEUE, packs all. Journals pack themselves when it is worth it; pack before a backup to make it
    small. Text files are packed by this command only; let nobody edit them meanwhile. Of a folder store this
    unlinks what is removed, expired or done and no longer needed. Packing needs disk space for the messages that
    are left. An interrupted pack loses nothing.

    With --spark, tasks build the packed files, of many queues each; they must see the store's folder under the
    same path. A queue that cannot be packed does not stop the others. If another process has the store open, that
    process packs, without tasks. --dry-run, --id and --master need --spark. A dry run estimates the bytes to be
    freed, also while another process has the store open.
    """
    if on_spark:
        url = store_url(ctx)
        run_job("pack", "packing queues", url, queues, **job)
        return
    if job["run"] is not None or job["dry_run"] or job["master"] is not None:
        raise click.UsageError("--dry-run, --id and --master go with --spark")
    store = open_store(ctx)
    backend: Any = store.backend
    if not hasattr(backend, "pack"):
        raise NotSupported(
            f"store {store.url!r} has nothing to pack: this is for files, on the machine that has them"
        )
    names = list(dict.fromkeys(store.queue(name).name for name in queues))
    names = names or [info.name for info in store.queues()]
    results = [_packed(backend, name) for [name] in output.counted(([name] for name in names), "packing queues")]
    if job["as_json"]:
        output.print_json(results)
    else:
        columns = ("before", "after", "freed")
        rows = [[each["queue"], *(f"{each[column]:,}" for column in columns)] for each in results]
        output.print_table(["queue", *columns], rows, right=columns)


def _packed(backend: Any, queue: str) -> dict[str, Any]:
    """Pack a queue; its bytes before and after."""
    before = backend.stored(queue)
    backend.pack(queue)
    after = backend.stored(queue)
    return {"queue": queue, "before": before, "after": after, "freed": max(0, before - after)}


@cli.command(
    epilog="""\b
Examples:
  penstock expire --dry-run
  penstock expire
  penstock --store data expire --json"""
)
@job_options
@click.pass_context
def expire(ctx: click.Context, /, **job: Any) -> None:
    """Free the disk space of expired messages, with Spark.

    A message disappears from its queue when its expires_at passes, or a done one when keep_done is over. Its bytes
    stay in the journal until the queue is packed. This packs each queue that has such messages, as pack --spark
    does, and prints their number, their bytes, and the bytes freed. A second run finds nothing. A dry run also
    works while another process has the store open.
    """
    run_job("expire", "expiring", store_url(ctx), **job)
