"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, queues, serving, upkeep
from penstock.cli.app import cli

# isort: split
from penstock.cli import tokens, working  # after the others, as they are in the list of commands

# isort: split
from penstock.cli import backups, daemons

# isort: split
from penstock.cli import history, moving, queries, streams

__all__ = [
    "backups",
    "cli",
    "daemons",
    "history",
    "main",
    "messages",
    "moving",
    "queries",
    "queues",
    "serving",
    "streams",
    "tokens",
    "upkeep",
    "working",
]


def main() -> None:
    """Run the command line."""
    cli()
