"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import backups, daemons, messages, queues, serving, tokens, upkeep, working
from penstock.cli.app import cli

# isort: split
from penstock.cli import history, moving, queries  # after the others, as they are in the list of commands

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
    "tokens",
    "upkeep",
    "working",
]


def main() -> None:
    """Run the command line."""
    cli()
