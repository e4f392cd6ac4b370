"""The commands for streams: list, release, settle, delete."""

from typing import Any

import click

import penstock
from penstock.cli import output
from penstock.cli.app import App, cli, json_option, open_store, say
from penstock.contract.stream_operations import Streams
from penstock.contract.streams import StreamInfo
from penstock.errors import InvalidArgument, StreamNotFound
from penstock.system.clock import SystemClock

_COLUMNS = ("queue", "stream", "mode", "batch", "settled", "messages", "age", "lag")
_RIGHT = ("batch", "settled", "messages", "age", "lag")
_queue_option = click.option("--queue", metavar="QUEUE", help="Whose stream, if several queues have one so named.")


@cli.group(
    cls=App,
    invoke_without_command=True,
    epilog="""\b
Examples:
  penstock streams
  penstock streams --json
  penstock streams settle /data/checkpoints/nightly
  penstock streams release nightly
  penstock streams delete nightly --queue jobs""",
)
@json_option
@click.pass_context
def streams(ctx: click.Context, as_json: bool) -> None:
    """Streams that read queues with Spark: which there are, and how they are.

    \b
    batch     the number of its latest batch; of one that follows, the id up to which it has read
    settled   the last batch that is settled
    messages  what it holds, until that is settled
    age       seconds for which it has held them
    lag       messages that wait to be read

    A batch is settled by the query that goes on, or by `settle`, once Spark has committed it; nothing else takes
    it from the stream but `release`. Every command has --json.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = [_as_json(each) for each in Streams(open_store(ctx).run).all()]
    if as_json:
        output.print_json(found)
    else:
        rows = [["" if each[name] is None else str(each[name]) for name in _COLUMNS] for each in found]
        output.print_table(list(_COLUMNS), rows, right=_RIGHT)


@streams.command(
    epilog="""\b
Examples:
  penstock streams release nightly
  penstock streams release nightly --queue jobs --json"""
)
@click.argument("name")
@_queue_option
@json_option
@click.pass_context
def release(ctx: click.Context, name: str, queue: str | None, as_json: bool) -> None:
    """Give back what a stream holds, so that others can have it.

    For a query that will not go on. Its process must be gone. What it has done with these messages it may have
    done, and others will do it again. If it goes on after all, that batch has no messages any more.
    """
    store = open_store(ctx)
    info = _find(store, name, queue)
    released = Streams(store.run).release(info.queue, name)
    say(
        as_json,
        {"queue": info.queue, "stream": name, "released": released},
        f"gave back {released:,} messages of batch {info.batch}",
    )


@streams.command(
    epilog="""\b
Examples:
  penstock streams settle /data/checkpoints/nightly
  penstock streams settle checkpoint --json"""
)
@click.argument("checkpoint")
@json_option
def settle(checkpoint: str, as_json: bool) -> None:
    """Settle what the query of a CHECKPOINT has committed.

    The folder that the query was given as checkpointLocation. It says of which store and stream it is. A query
    that goes on does the same by itself.
    """
    from penstock.spark.streaming.settling import settle as settle_committed

    settled = settle_committed(checkpoint)
    said = f"settled {settled} batch{'' if settled == 1 else 'es'}"
    say(as_json, {"checkpoint": checkpoint, "settled": settled}, said)


@streams.command(
    epilog="""\b
Examples:
  penstock streams delete nightly
  penstock streams delete nightly --queue jobs --json"""
)
@click.argument("name")
@_queue_option
@json_option
@click.pass_context
def delete(ctx: click.Context, name: str, queue: str | None, as_json: bool) -> None:
    """Forget a stream that holds nothing, and whose process is gone.

    A query that begins with a new checkpoint may take the name again.
    """
    store = open_store(ctx)
    info = _find(store, name, queue)
    Streams(store.run).delete(info.queue, name)
    deleted = {"queue": info.queue, "stream": name, "deleted": True}
    say(as_json, deleted, f"forgot stream {name} of queue {info.queue}")


def _as_json(info: StreamInfo) -> dict[str, Any]:
    age = None if info.since is None else max(0, SystemClock().now() - info.since) // 1000
    return {**info._asdict(), "age": age}


def _find(store: penstock.Store, name: str, queue: str | None) -> StreamInfo:
    """The stream of that name."""
    named = [each for each in Streams(store.run).all() if each.stream == name]
    found = [each for each in named if queue in (None, each.queue)]
    if not found:
        raise StreamNotFound(f"there is no stream {name!r}: `penstock streams` lists those there are")
    if len(found) > 1:
        queues = ", ".join(each.queue for each in found)
        raise InvalidArgument(f"several queues have a stream {name!r} ({queues}): say which with --queue")
    return found[0]
