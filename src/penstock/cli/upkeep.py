"""Commands that keep a store in order: doctor, pack, expire."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import penstock
from penstock.cli import output
from penstock.cli.app import cli, json_option, open_store, store_url
from penstock.cli.spark import job_options, print_summary, watched_session
from penstock.contract.kinds import kind_of
from penstock.errors import NotSupported

if TYPE_CHECKING:
    from penstock.contract.examination import Examination


@cli.command(
    epilog="""\b
Examples:
  penstock doctor
  penstock --store data doctor --json"""
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Examine a journal, a slate or a folder store and explain what is found.

    Reads every byte and changes none, whether or not another process has the store open. For each queue: its
    files, its messages by state as of now, and about how many bytes packing would free; of a slate store, the
    bytes of its payloads, and its lag behind the log; of a folder store, its files by folder. Then what was found,
    a line each: ok; note, for what opening deals with or what does no harm; problem, for what needs you. An arrow
    says what to do. Exits with 1 if there is a problem.
    """
    url = store_url(ctx)
    examination = kind_of(url).examine(url)
    if as_json:
        output.print_json(examination.as_json())
    else:
        _print_queues(examination)
        for queue, finding in examination.all_findings():
            about = "store" if queue is None else f"queue {queue}"
            click.echo(output.printable(f"{finding.severity:<8} {about}: {finding.text}"))
            if finding.next:
                click.echo(output.printable(f"{'':8} -> {finding.next}"))
    if not examination.sound:
        ctx.exit(1)


def _print_queues(examination: "Examination[Any]") -> None:
    cells = [queue.cells() for queue in examination.queues]
    if cells:
        rows = [
            [queue.name, *("" if each is None else f"{each:,}" for each in row.values())]
            for queue, row in zip(examination.queues, cells, strict=True)
        ]
        output.print_table(["queue", *cells[0]], rows, right=tuple(cells[0]))


@cli.command(
    epilog="""\b
Examples:
  penstock pack
  penstock pack jobs orders --json
  penstock pack --spark --dry-run
  penstock pack --spark --master spark://host:7077"""
)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--spark", "on_spark", is_flag=True, help="Let tasks of Spark do it: for very many queues.")
@job_options
@click.pass_context
def pack(
    ctx: click.Context,
    queues: tuple[str, ...],
    on_spark: bool,
    run: str | None,
    dry_run: bool,
    master: str | None,
    as_json: bool,
) -> None:
    """Pack the files of queues: write what is still there anew and free the rest.

    Without a QUEUE, all of them. Journals are packed by themselves when it is worth it; do it before a backup.
    Text files are packed by this only, while nobody edits them. It needs space for what is still there. Nothing is
    lost if it is interrupted.

    With --spark the packed files are built by tasks, many queues in each, that must see the store's folder under
    the same path; a queue that cannot be packed does not keep the others from it. If another process has the store
    open, that one packs, and there are no tasks. --dry-run, --id and --master go with it. A dry run says about
    what would be freed, also of a store that is open elsewhere.
    """
    if on_spark:
        url = store_url(ctx)
        kind_of(url).packer(url)  # refuses before Spark starts, which takes a while
        with watched_session("packing queues", master) as session:
            from penstock.spark import jobs

            print_summary(jobs.pack(session, url, queues, id=run, dry_run=dry_run), as_json)
        return
    if run is not None or dry_run or master is not None:
        raise click.UsageError("--dry-run, --id and --master go with --spark")
    store = open_store(ctx)
    packer = _Packer(store)
    names = list(dict.fromkeys(store.queue(name).name for name in queues))
    names = names or [info.name for info in store.queues()]
    results = [packer.pack(name) for [name] in output.counted(([name] for name in names), "packing queues")]
    if as_json:
        output.print_json(results)
    else:
        columns = ("before", "after", "freed")
        rows = [[each["queue"], *(f"{each[column]:,}" for column in columns)] for each in results]
        output.print_table(["queue", *columns], rows, right=columns)


@cli.command(
    epilog="""\b
Examples:
  penstock expire --dry-run
  penstock expire
  penstock --store data expire --json"""
)
@job_options
@click.pass_context
def expire(ctx: click.Context, run: str | None, dry_run: bool, master: str | None, as_json: bool) -> None:
    """Take what time has let go out of the files, with Spark.

    Messages whose expires_at has passed, and done ones that a queue no longer lists (keep_done), are gone for
    everyone at that moment; their bytes stay in the journals until those are packed. This packs each queue that
    has some, as pack --spark does, and says how many there were, the bytes that they took, and what was freed in
    all. A second run finds nothing. With --dry-run nothing is changed, and the store may be open elsewhere.
    """
    url = store_url(ctx)
    kind_of(url).packer(url)  # refuses before Spark starts
    with watched_session("letting go", master) as session:
        from penstock.spark import jobs

        print_summary(jobs.expire(session, url, id=run, dry_run=dry_run), as_json)


class _Packer:
    """The part of a store that can pack."""

    def __init__(self, store: penstock.Store) -> None:
        self._backend: Any = store.backend
        pack: Callable[[str], int] | None = getattr(self._backend, "pack", None)
        if pack is None:
            raise NotSupported(f"store {store.url!r} has nothing to pack: only journals and text files grow")
        self._pack = pack

    def pack(self, queue: str) -> dict[str, Any]:
        """Pack a queue; its bytes before and after."""
        before = self._backend.stored(queue)
        self._pack(queue)
        after = self._backend.stored(queue)
        return {"queue": queue, "before": before, "after": after, "freed": max(0, before - after)}
