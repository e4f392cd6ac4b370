"""The command line: `penstock [--store URL] COMMAND`."""

from penstock.cli import messages, moving, queues, serving, upkeep
from penstock.cli.app import cli

__all__ = ["cli", "main", "messages", "moving", "queues", "serving", "upkeep"]


def main() -> None:
    """Run the command line."""
    cli()
