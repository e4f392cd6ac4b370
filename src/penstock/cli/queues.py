"""Commands on queues: list, show, create, set, delete, purge, redrive, remove; and shell completion."""

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from penstock.cli import output
from penstock.cli.app import (
    Command,
    cli,
    confirm,
    json_option,
    nothing_there,
    open_store,
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
}
_HIDDEN_DEFAULTS = {"filter": "", "priorities": "  [default: all]", "description": ""}  # shown as this text


def _setting_options(new: bool) -> Callable[[Command], Command]:
    """An option for each setting, with its default for a new queue and without one for an existing queue."""

    def add(command: Command) -> Command:
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
  penstock create orders --filter "type = 'order' AND priority < 3\""""
)
@queue_argument()
@_setting_options(new=True)
@json_option
@click.pass_context
def create(ctx: click.Context, /, queue: str, as_json: bool, **settings: Any) -> None:
    """Create QUEUE, and the store if it does not exist."""
    store = open_store(ctx, make=True)
    _say_queue(as_json, store, "created", store.create(queue, **settings).name)


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
@json_option
@click.pass_context
def set_settings(
    ctx: click.Context, /, queue: str, no_filter: bool, all_priorities: bool, as_json: bool, **settings: Any
) -> None:
    """Change settings of QUEUE; the others stay as they are.

    Changes take effect at once, also for waiting consumers. A lower --max-size removes no messages: puts are
    refused until there is room. --max-attempts applies from the next fail on. A shorter --keep-done drops done
    messages that are older. --filter, --max-payload, --priorities and --retention apply to new messages,
    --max-lease to new claims. --start cannot be changed.
    """
    given = {name: value for name, value in settings.items() if _is_given(ctx, name)}
    for name, nothing in (("filter", no_filter), ("priorities", all_priorities)):
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


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


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
  penstock redrive jobs
  penstock redrive jobs 17 18"""
)
@queue_argument()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_option
@click.pass_context
def redrive(ctx: click.Context, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Start failed messages of QUEUE over: available again, with attempts at 0.

    Without an ID, all failed messages. Exits with 3 if there was none.
    """
    handle = open_store(ctx).queue(queue)
    count = handle.redrive(*ids)
    if count or as_json:
        say(as_json, {"redriven": count}, f"{output.plural(count, 'message')} available again")
    if not count:
        nothing_there(ctx, f"queue {handle.name!r} has no failed messages{' of these ids' if ids else ''}")


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
