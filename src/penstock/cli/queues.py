"""Commands on queues: list, show, create, set, delete, purge, revoke, redrive, move, remove; shell completion."""

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from penstock.cli import output
from penstock.cli.app import (
    Command,
    cli,
    complete_queue,
    confirm,
    json_option,
    nothing_there,
    open_store,
    pairs_option,
    queue_argument,
    say,
    seconds,
    yes_option,
)
from penstock.cli.times import Duration
from penstock.contract.names import DEFAULT
from penstock.contract.settings import Settings
from penstock.contract.store import Store
from penstock.errors import NotSupported

_DEFAULTS = Settings()
_SETTINGS: dict[str, dict[str, Any]] = {
    "max_size": {"type": int, "help": "Most unsettled messages: a put beyond is refused; 0 = no limit."},
    "max_attempts": {"type": int, "help": "Claims of a message until it is failed for good; 0 = no limit."},
    "keep_done": {"type": Duration(forever=None), "help": "How long done messages stay listed."},
    "filter": {"metavar": "SQL", "help": "Which published messages enter, e.g. \"type = 'order'\"."},
    "start": {"help": "Of a slate store: where in the log a filtered queue starts."},
    "max_payload": {"type": int, "metavar": "BYTES", "help": "Largest payload."},
    "priorities": {
        "type": int,
        "nargs": 2,
        "metavar": "LOWEST HIGHEST",
        "help": "Priorities that a put may have.",
    },
    "max_lease": {"type": seconds, "help": "Longest lease that a consumer gets."},
    "retention": {"type": seconds, "help": "Drop messages after this time; 0 = never."},
    "description": {"help": "A text for people."},
    "lease": {"type": seconds, "help": "How long a claim lasts that does not say."},
    "delay": {"type": seconds, "help": "Time until a message is available whose put does not say."},
    "backoff": {
        "type": seconds,
        "nargs": 3,
        "metavar": "FIRST FACTOR MOST",
        "help": "Time until a failed message is tried again: FIRST, times FACTOR with each attempt, MOST at most.",
    },
    "dead_letter": {"metavar": "QUEUE", "help": "The queue that takes the messages that fail for good."},
}
_HIDDEN_DEFAULTS = {  # shown as this text
    "filter": "", "priorities": "  [default: all]", "description": "", "backoff": "", "dead_letter": "",
}  # fmt: skip


def _setting_options(new: bool) -> Callable[[Command], Command]:
    """An option for each setting, with its default for a new queue and without one for an existing queue."""

    def add(command: Command) -> Command:
        command = pairs_option("--label", "labels", metavar="NAME=VALUE", help="A label, for people and tools")(
            command
        )
        for name, option in reversed(_SETTINGS.items()):
            if new:
                shown = {"default": _DEFAULTS[name], "show_default": name not in _HIDDEN_DEFAULTS}
                option = {**option, **shown, "help": option["help"] + _HIDDEN_DEFAULTS.get(name, "")}
            command = click.option(f"--{name.replace('_', '-')}", name, **option)(command)
        return command

    return add


_STYLES: dict[str, dict[str, Any]] = {
    "available": {"fg": "green"},
    "delayed": {"fg": "blue"},
    "in_flight": {"fg": "yellow"},
    "done": {"dim": True},
    "expired": {"dim": True},
    "failed": {"fg": "red"},
    "comment": {"fg": "cyan", "dim": True},
    "skipped": {"fg": "magenta"},
    "blank": {},
}


@cli.command(
    "list",
    epilog="""\b
Example:
  penstock list --json""",
)
@json_option
@click.pass_context
def list_queues(ctx: click.Context, as_json: bool) -> None:
    """List all queues with their counts by state."""
    infos = open_store(ctx).queues()
    if as_json:
        output.print_json([output.queue_as_json(info) for info in infos])
    else:
        output.print_queues(infos)


@cli.command(
    epilog="""\b
Examples:
  penstock show jobs
  penstock show jobs --json"""
)
@queue_argument(required=False)
@click.option("--entries", is_flag=True, hidden=True)  # as it was before `penstock dump NAME.tq`
@json_option
@click.pass_context
def show(ctx: click.Context, queue: str, entries: bool, as_json: bool) -> None:
    """Show QUEUE: its counts by state, its settings, and in a slate store its lag behind the log."""
    store = open_store(ctx)
    name = store.queue(queue).name
    if entries:
        pieces = _entries(store, name)
        if as_json:
            output.print_json([piece.as_json() for piece in pieces if piece.state != "blank"])
        else:
            _print_entries(pieces)
        return
    [info] = [info for info in store.queues() if info.name == name]
    if as_json:
        output.print_json(output.queue_as_json(info))
    else:
        output.print_queue(info)


@cli.command(
    epilog="""\b
Examples:
  penstock create jobs --max-attempts 3 --keep-done 86400
  penstock create orders --filter "type = 'order' AND priority < 3"
  penstock create jobs --backoff 1 2 300 --dead-letter dead --label team=web
  penstock create jobs --exist-ok"""
)
@queue_argument()
@_setting_options(new=True)
@click.option(
    "--exist-ok", is_flag=True, help="Leave a queue that exists as it is; an error if given settings differ."
)
@json_option
@click.pass_context
def create(ctx: click.Context, /, queue: str, exist_ok: bool, as_json: bool, **settings: Any) -> None:
    """Create QUEUE, and the store if it does not exist."""
    store = open_store(ctx, make=True)
    existing = {info.name for info in store.queues()} if exist_ok else ()
    name = store.create(queue, exist_ok=exist_ok, **_given(ctx, settings)).name
    _say_queue(as_json, store, "found" if name in existing else "created", name)


def _say_queue(as_json: bool, store: Store, what: str, name: str) -> None:
    [info] = [info for info in store.queues() if info.name == name]
    say(as_json, output.queue_as_json(info), f"{what} {name}")


@cli.command(
    "set",
    epilog="""\b
Examples:
  penstock set jobs --max-attempts 10 --keep-done forever
  penstock set orders --no-filter""",
)
@queue_argument()
@_setting_options(new=False)
@click.option("--no-filter", is_flag=True, help="Remove the filter: published messages no longer enter.")
@click.option("--all-priorities", is_flag=True, help="Allow every priority.")
@click.option("--no-backoff", is_flag=True, help="Try failed messages again at once, unless the fail says more.")
@click.option("--no-dead-letter", is_flag=True, help="Keep messages that fail for good, as failed.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@json_option
@click.pass_context
def set_settings(
    ctx: click.Context,
    /,
    queue: str,
    no_filter: bool,
    all_priorities: bool,
    no_backoff: bool,
    no_dead_letter: bool,
    no_labels: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Change settings of QUEUE; the others stay as they are.

    Changes take effect at once, also for waiting consumers. A lower --max-size removes no messages: puts are
    refused until there is room. --max-attempts applies from the next fail on. A shorter --keep-done drops done
    messages that are older. --filter, --max-payload, --priorities, --retention and --delay apply to new messages,
    --lease and --max-lease to new claims, --backoff to the next fails. --dead-letter also takes messages that have
    failed before. --label replaces all labels. --start cannot be changed.
    """
    given = _given(ctx, settings)
    for name, nothing in (
        ("filter", no_filter),
        ("priorities", all_priorities),
        ("backoff", no_backoff),
        ("dead_letter", no_dead_letter),
        ("labels", no_labels),
    ):
        if nothing and name in given:
            raise click.UsageError(f"give either another {name} or none")
        if nothing:
            given[name] = None
    if not given:
        raise click.UsageError("there is nothing to change: give at least one setting")
    store = open_store(ctx)
    handle = store.queue(queue)
    handle.update(**given)
    _say_queue(as_json, store, "changed", handle.name)


def _given(ctx: click.Context, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the command names."""
    return {
        name: value
        for name, value in settings.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
    }


@cli.command(
    epilog="""\b
Example:
  penstock delete jobs --yes"""
)
@queue_argument()
@yes_option
@json_option
@click.pass_context
def delete(ctx: click.Context, queue: str, yes: bool, as_json: bool) -> None:
    """Delete QUEUE and all its messages, for good. Asks first at a terminal; elsewhere it needs --yes."""
    store = open_store(ctx)
    handle = store.queue(queue)
    if handle.name != DEFAULT:  # the store refuses to delete that one
        confirm(yes, f"Delete queue {handle.name} with {output.plural(sum(handle.counts().values()), 'message')}?")
    store.delete(queue)
    say(as_json, {"deleted": handle.name}, f"deleted {handle.name}")


@cli.command(
    epilog="""\b
Example:
  penstock purge jobs --yes"""
)
@queue_argument(required=False)
@yes_option
@json_option
@click.pass_context
def purge(ctx: click.Context, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all messages of QUEUE that no consumer holds. Asks first at a terminal; elsewhere it needs --yes."""
    handle = open_store(ctx).queue(queue)
    counts = handle.counts()
    waiting = sum(counts.values()) - counts["in_flight"]
    confirm(yes, f"Remove {output.plural(waiting, 'message')} from queue {handle.name}?")
    count = handle.purge()
    say(as_json, {"purged": count}, f"removed {output.plural(count, 'message')} from {handle.name}")


@cli.command(
    epilog="""\b
Examples:
  penstock peek jobs --state in_flight
  penstock revoke jobs 17 18"""
)
@queue_argument()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@click.pass_context
def revoke(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Take messages of QUEUE from the consumers that hold them, without their receipts.

    For a worker that died with a long lease, whose messages would come back only when that ends. They are
    available at once, attempts stay counted, and the worker's receipts are refused. If it still works, the work is
    done twice: look at it first. What a stream holds, `penstock streams release` gives back. Exits with 3 if no
    consumer holds any of the messages.
    """
    handle = open_store(ctx).queue(queue)
    count = handle.revoke(*ids)
    if count or as_json:
        say(as_json, {"revoked": count}, f"{output.plural(count, 'message')} available again")
    if not count:
        nothing_there(ctx, f"queue {handle.name!r} has no messages of these ids that a consumer holds")


@cli.command(
    epilog="""\b
Examples:
  penstock redrive jobs
  penstock redrive jobs 17 18"""
)
@queue_argument()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_option
@click.pass_context
def redrive(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Start failed messages of QUEUE over: available again, with attempts at 0.

    Without an ID, all failed messages. If QUEUE takes dead letters, they go back to the queues that they come
    from. Exits with 3 if there was none.
    """
    handle = open_store(ctx).queue(queue)
    count = handle.redrive(*ids)
    if count or as_json:
        say(as_json, {"redriven": count}, f"{output.plural(count, 'message')} available again")
    if not count:
        nothing_there(ctx, f"queue {handle.name!r} has no failed messages{' of these ids' if ids else ''}")


@cli.command(
    epilog="""\b
Examples:
  penstock move jobs later
  penstock move jobs urgent 17 18"""
)
@queue_argument()
@click.argument("target", shell_complete=complete_queue)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_option
@click.pass_context
def move(ctx: click.Context, queue: str, target: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Move messages of QUEUE that wait or have failed to the queue TARGET.

    Without an ID, all failed messages. They start there under new ids, with attempts at 0. Exits with 3 if there
    was none.
    """
    handle = open_store(ctx).queue(queue)
    count = handle.move(target, *ids)
    if count or as_json:
        say(as_json, {"moved": count}, f"moved {output.plural(count, 'message')} to {target}")
    if not count:
        what = "messages of these ids that wait or have failed" if ids else "failed messages"
        nothing_there(ctx, f"queue {handle.name!r} has no {what}")


@cli.command(
    epilog="""\b
Example:
  penstock remove jobs 17 18"""
)
@queue_argument()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@json_option
@click.pass_context
def remove(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Remove messages from QUEUE, in any state.

    Exits with 3 if QUEUE has none of them.
    """
    handle = open_store(ctx).queue(queue)
    count = handle.remove(*ids)
    if count or as_json:
        say(as_json, {"removed": count}, f"removed {output.plural(count, 'message')}")
    if not count:
        nothing_there(ctx, f"queue {handle.name!r} has no messages of these ids")


@cli.command(
    epilog="""\b
Examples:
  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
  penstock completion zsh > ~/.zfunc/_penstock
  penstock completion fish > ~/.config/fish/completions/penstock.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print a completion script for your shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    source = kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE").source()
    say(as_json, {"shell": shell, "source": source}, source)


def _entries(store: Store, queue: str) -> list[Any]:
    """The pieces of a queue's file; NotSupported if the store is no text store."""
    shown = getattr(store.backend, "shown", None)
    if shown is None:
        raise NotSupported(f"store {store.url!r} has no entries to show: --entries is for text stores")
    pieces: list[Any] = shown(queue)
    return pieces


def _print_entries(pieces: list[Any]) -> None:
    """Print the file, each piece in the colour of its state, with control characters escaped."""
    for piece in pieces:
        for line in piece.raw.decode(errors="replace").removesuffix("\n").split("\n"):
            click.echo(click.style(output.printable(line), **_STYLES[piece.state]))
