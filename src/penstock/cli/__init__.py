"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, queues, serving, tokens, upkeep
from penstock.cli.app import cli

# isort: split
from penstock.cli import history, moving, queries  # after the others, as they are in the list of commands

__all__ = ["cli", "history", "main", "messages", "moving", "queries", "queues", "serving", "tokens", "upkeep"]


def main() -> None:
    """Run the command line."""
    cli()
