"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, queues, serve, upkeep
from penstock.cli.app import cli

# isort: split
from penstock.cli import tokens, work  # after the others, as they are in the list of commands

# isort: split
from penstock.cli import files, jobs, streams

__all__ = ["cli", "files", "jobs", "main", "messages", "queues", "serve", "streams", "tokens", "upkeep", "work"]


def main() -> None:
    """Run the command line."""
    cli()
