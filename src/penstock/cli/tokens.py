"""Commands on the access tokens of a server: token create, token list, token revoke."""

from typing import Any

import click

from penstock.cli import output
from penstock.cli.app import App, cli, json_option, say

_ROLES = ("read", "write", "consume", "admin")


def tokens_option(command: Any) -> Any:
    """The --tokens option: the server's token file."""
    return click.option(
        "--tokens", "path", envvar="PENSTOCK_TOKENS", show_envvar=True, required=True, metavar="FILE",
        help="The token file of the server.",
    )(command)  # fmt: skip


@cli.group(
    cls=App,
    epilog="""\b
Examples:
  penstock token create worker-7 --role consume --tokens tokens
  penstock token create shop --role write --role read --tokens tokens --json
  penstock token list --tokens tokens
  penstock token revoke worker-7 --tokens tokens
  penstock --store data serve --host 0.0.0.0 --tokens tokens
  PENSTOCK_TOKEN=pst_... penstock --store http://HOST:8390 list""",
)
def token() -> None:
    """Manage access tokens: who may do what on a server.

    \b
    read     look at queues, messages and metrics
    write    put, publish and load messages
    consume  claim, settle and remove messages
    admin    everything, creating, deleting, purging and redriving included

    A running server reads the token file again when it changes. The file contains hashes, not secrets, and only
    its owner may read it. Every command has --json.
    """


@token.command(
    epilog="""\b
Examples:
  penstock token create worker-7 --role consume --tokens tokens
  export PENSTOCK_TOKEN=$(penstock token create me --role admin --tokens tokens)"""
)
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, required=True, type=click.Choice(_ROLES), help="What it allows; repeatable."
)
@tokens_option
@json_option
def create(name: str, roles: tuple[str, ...], path: str, as_json: bool) -> None:
    """Create a token, and print its secret. This is the only time: the secret itself is not stored."""
    from penstock.contract import roles as known
    from penstock.http.server import tokens

    secret = tokens.create(path, name, sum({known.ROLES[role] for role in roles}))
    say(as_json, {"name": name, "roles": sorted(set(roles)), "token": secret}, secret)


@token.command(name="list", epilog="\b\nExamples:\n  penstock token list --tokens tokens")
@tokens_option
@json_option
def list_tokens(path: str, as_json: bool) -> None:
    """List the tokens of a file with their roles."""
    from penstock.contract import roles
    from penstock.http.server import tokens

    found = [{"name": each.name, "roles": roles.names(each.roles)} for each in tokens.read(path)]
    if as_json:
        output.print_json(found)
        return
    for each in found:
        click.echo(f"{each['name']} {','.join(each['roles'])}")


@token.command(epilog="\b\nExamples:\n  penstock token revoke worker-7 --tokens tokens")
@click.argument("name")
@tokens_option
@json_option
def revoke(name: str, path: str, as_json: bool) -> None:
    """Revoke a token: a running server refuses it within seconds."""
    from penstock.http.server import tokens

    if not tokens.revoke(path, name):
        raise click.UsageError(
            f"there is no token {name!r} in {path}: `penstock token list` shows those there are"
        )
    say(as_json, {"revoked": name}, f"revoked {name}")
