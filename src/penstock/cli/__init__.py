"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, queries, queues, serving, upkeep
from penstock.cli.app import cli

__all__ = ["cli", "main", "messages", "queries", "queues", "serving", "upkeep"]


def main() -> None:
    """Run the command line."""
    cli()
