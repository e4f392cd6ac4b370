"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, queues, serving, upkeep
from penstock.cli.app import cli

# isort: split
from penstock.cli import history  # after the others, as it is in the list of commands

__all__ = ["cli", "history", "main", "messages", "queues", "serving", "upkeep"]


def main() -> None:
    """Run the command line."""
    cli()
