"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages
from penstock.cli.app import cli

# isort: split
from penstock.cli import single  # in the order of the list of commands

# isort: split
from penstock.cli import queues, serve

# isort: split
from penstock.cli import console, tail, top, upkeep

# isort: split
from penstock.cli import tokens, work

# isort: split
from penstock.cli import dumping, files, jobs, streams, transfer

__all__ = [
    "cli", "console", "dumping", "files", "jobs", "main", "messages", "queues", "serve", "single", "streams",
    "tail", "tokens", "top", "transfer", "upkeep", "work",
]  # fmt: skip


def main() -> None:
    """Run the command line."""
    cli()
