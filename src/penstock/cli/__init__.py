"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import daemons, messages, queues, serving, upkeep
from penstock.cli.app import cli

# isort: split
from penstock.cli import history, moving, queries  # after the others, as they are in the list of commands

__all__ = ["cli", "daemons", "history", "main", "messages", "moving", "queries", "queues", "serving", "upkeep"]


def main() -> None:
    """Run the command line."""
    cli()
