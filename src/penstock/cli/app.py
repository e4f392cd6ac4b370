"""The root command `penstock`, and what all commands share: opening the store, common options, errors, exit codes.

Exit codes: 0 ok, 1 an error with its message on stderr, 2 wrong usage, 3 nothing there.
"""

import errno
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import penstock
from penstock.cli import output
from penstock.cli.times import Duration
from penstock.contract.kinds import check_exists, format_versions
from penstock.errors import InvalidArgument, PenstockError
from penstock.wire import problems

NOTHING_THERE = 3
_AS_JSON = "penstock.as_json"  # of a context: whether --json was given
DEFAULT_STORE = "./penstock-data"
Command = TypeVar("Command", bound=Callable[..., Any])
seconds = Duration()  # the type of every option in seconds


class Failure(click.ClickException):
    """An error shown on stderr without a traceback, with a hint about the next command."""

    def __init__(self, error: Exception, note: str = "") -> None:
        said, advice = str(error), None
        if isinstance(error, PenstockError) and error.advice is not None:
            said, advice = error.what, error.advice.command
        super().__init__(said + note)
        self.error = error
        self.hint = advice

    def show(self, file: Any = None) -> None:
        """Print it to stderr."""
        click.echo(f"penstock: {self.message}", err=True)
        if self.hint:
            click.echo(f"hint: {self.hint}", err=True)


class JsonFailure(click.ClickException):
    """An error shown as one line of JSON, with the exit code that it has without --json."""

    def __init__(self, failure: click.ClickException) -> None:
        super().__init__(failure.format_message())
        self.exit_code = failure.exit_code  # type: ignore[misc]
        self._name, self._more = "UsageError", dict[str, object]()
        if isinstance(failure, Failure):
            self._name, self._more = problems.name_of(failure.error), problems.members(failure.error)
            if failure.hint:
                self._more["hint"] = failure.hint
        elif isinstance(failure.__cause__, PenstockError):
            self._name = problems.name_of(failure.__cause__)

    def show(self, file: Any = None) -> None:
        """Print it to stderr."""
        click.echo(json.dumps({"error": self._name, "message": self.message, **self._more}), err=True)


class App(click.Group):
    """A group of commands that turns Penstock's errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their definition: the everyday ones first."""
        return list(self.commands)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments of the command."""
        # --json is looked up here, because with a usage error nothing is parsed.
        as_json = "--json" in takewhile(lambda each: each != "--", args)
        with _errors(as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta.setdefault(_AS_JSON, as_json)
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        with _errors(ctx.meta[_AS_JSON]):
            try:
                return self._invoke(ctx)
            except Failure as failure:
                if failure.hint and ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE:
                    store = f"`penstock --store {shlex.quote(ctx.params['store'])} "
                    failure.hint = failure.hint.replace("`penstock ", store)
                raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk fails here, while the exit code can still say so
        except InvalidArgument as error:
            raise click.UsageError(str(error)) from error
        except UnicodeEncodeError as error:
            raise Failure(
                ValueError(f"this terminal cannot show {error.object[error.start]!r}: use --json")
            ) from error
        except MemoryError as error:
            raise Failure(ValueError("the payload does not fit into memory: put it in parts")) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has left: click exits quietly
                raise
            raise Failure(error) from error
        except PenstockError as error:
            raise Failure(error) from error
        return result


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Show errors as JSON, if that is wanted."""
    try:
        yield
    except click.ClickException as error:
        if not as_json or isinstance(error, JsonFailure):
            raise
        raise JsonFailure(error) from error


def open_store(ctx: click.Context, peers: int = 0, make: bool = False) -> penstock.Store:
    """Open the store that --store names until the command ends; with `make`, create a missing one."""
    url = ctx.find_root().params["store"] if make else store_url(ctx)
    return ctx.with_resource(penstock.open(url, peers=peers))


def store_url(ctx: click.Context) -> str:
    """The URL that --store names; PenstockError if there is no store."""
    url: str = ctx.find_root().params["store"]
    check_exists(url)
    return url


def nothing_there(ctx: click.Context, why: str) -> NoReturn:
    """End with the exit code for an empty queue, and say why: on stderr, for people."""
    if not ctx.meta[_AS_JSON]:
        click.echo(output.printable(why), err=True)
    ctx.exit(NOTHING_THERE)


def _complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    url = ctx.find_root().params.get("store") or DEFAULT_STORE
    try:
        check_exists(url)
        with penstock.open(url) as store:
            infos = store.queues()
    except PenstockError:
        return []
    return [
        CompletionItem(info.name, help=info.settings.description)
        for info in infos
        if info.name.startswith(incomplete)
    ]


def queue_argument(required: bool = True) -> Callable[[Command], Command]:
    """The QUEUE argument, completed by the shell; its default, unless required, is the queue `default`."""
    if required:
        return click.argument("queue", shell_complete=_complete_queue)
    return click.argument("queue", default="default", shell_complete=_complete_queue)


def json_option(command: Command) -> Command:
    """The --json option of every command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def pairs_option(*names: str, metavar: str, help: str) -> Callable[[Command], Command]:  # noqa: A002 - click's word
    """A repeatable option whose values NAME=VALUE become a dict."""
    return click.option(*names, multiple=True, metavar=metavar, callback=_pairs, help=f"{help}; repeatable.")


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not {param.metavar}")
        pairs[name] = value
    return pairs


def confirm(yes: bool, question: str) -> None:
    """Ask at a terminal before something that cannot be undone; UsageError elsewhere without --yes."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} This cannot be undone: say --yes, or run it at a terminal to be asked")
    click.confirm(question, abort=True)


def yes_option(command: Command) -> Command:
    """The --yes option of commands that remove messages."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")(
        command
    )


def say(as_json: bool, value: dict[str, Any], text: str) -> None:
    """Print a result: `value` as JSON with --json, else `text`."""
    if as_json:
        output.print_json(value)
    else:
        click.echo(text)


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    formats = format_versions()
    told = ", ".join(f"{kind} {version}" for kind, version in formats.items())
    said = {"version": penstock.__version__, "formats": formats}
    say(ctx.params["as_json"], said, f"penstock, version {penstock.__version__}\nformats: {told}")
    ctx.exit()


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  penstock create jobs --max-attempts 3
  penstock put jobs 'resize cat.jpg' --priority 5
  penstock claim jobs --lease 60
  penstock ack jobs RECEIPT
  penstock list

Each command explains itself: penstock COMMAND --help.
Exit codes: 0 ok, 1 an error, 2 wrong usage, 3 nothing there (an empty queue).""",
)
@click.option(
    "--store", envvar="PENSTOCK_STORE", default=DEFAULT_STORE, show_default=True, show_envvar=True, metavar="URL",
    help="The store: a folder, journal:DIR[?dialect=2.x], text:DIR, NAME.tq, folder:DIR, slate:DIR, "
    "slate:s3://BUCKET/PREFIX or http://HOST:PORT.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, is_eager=True, hidden=True)  # read before --version
@click.option("--version", is_flag=True, expose_value=False, callback=_show_version,
              help="Show the version and those of the stores' formats, and exit.")  # fmt: skip
def cli(store: str, as_json: bool) -> None:
    """A durable work queue that your data pipeline can open.

    Producers put messages into a QUEUE. Consumers claim them on a lease, and ack each when its work is done; a
    message whose lease ends, or whose work fails, is claimed again until its attempts are used up. A STORE keeps
    the queues: a folder on this machine, a bucket, or a server.
    """
    if as_json:
        raise click.UsageError("--json comes after the command, or with --version")
