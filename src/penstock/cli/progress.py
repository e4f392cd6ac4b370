"""Progress of long work, on stderr and only for people who watch."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")


def counted(items: Iterable[list[Item]], what: str) -> Iterator[list[Item]]:
    """The same batches, counted on the screen while they pass."""
    if not sys.stderr.isatty():
        yield from items
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        for batch in items:
            yield batch
            progress.advance(task, len(batch))
