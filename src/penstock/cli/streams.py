"""Commands on Spark streams: streams, streams release, streams settle, streams delete."""

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
_queue_option = click.option(
    "--queue", metavar="QUEUE", help="The stream's queue, if several queues have a stream of that name."
)


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
    """List the Spark streams that read queues, or manage one of them.

    \b
    batch     number of the latest batch; in mode follow, id of the last message read
    settled   number of the last settled batch
    messages  messages that the stream holds until their batch is settled
    age       seconds since the stream holds them
    lag       messages that wait to be read

    Once Spark has committed a batch, the running query or `settle` settles it: its messages are done. Only
    `release` takes a batch from its stream otherwise. Every command has --json.
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
    """Give the messages that a stream holds back to their queue, for other consumers.

    For a query that will not be started again. Its process must have ended. The query may have processed these
    messages already; their next consumer processes them again. If the query is started after all, it replays this
    batch without messages.
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
    """Settle the batches that the query of a CHECKPOINT has committed.

    CHECKPOINT is the query's checkpointLocation, a folder that names the store and the stream. A query settles by
    itself while it runs, and when it is started again; use this for the last batch of a query that has ended.
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
    """Forget a stream that holds no messages and whose process has ended.

    A query with a new checkpoint can use the name again.
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
    streams = Streams(store.run).all()
    found = [each for each in streams if each.stream == name and queue in (None, each.queue)]
    if not found:
        raise StreamNotFound(f"there is no stream {name!r}: `penstock streams` lists those there are")
    if len(found) > 1:
        queues = ", ".join(each.queue for each in found)
        raise InvalidArgument(f"several queues have a stream {name!r} ({queues}): say which with --queue")
    return found[0]
