"""The table of docs/sqs-clients.md: which client was seen to use which action."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tests.clients.kit import ACTIONS

PAGE = Path(__file__).parents[2] / "docs" / "sqs-clients.md"
WRITE = "PENSTOCK_WRITE_SQS_TABLE"
_TABLE = re.compile(r"^\| action \|.*\n(\|.*\n)+", re.MULTILINE)
_YES = "\u2713"
_ORDER = ["boto3", "boto3, query", "aiobotocore", "JavaScript", "AWS CLI", "AWS CLI, query", "Celery", "dramatiq"]


def check(client: str, done: Iterable[str]) -> None:
    """The table says of a client what it did: nothing more, nothing less."""
    used, shown = sorted(done), read()
    if WRITE in os.environ:
        known = {**shown, client: used}
        write({name: known[name] for name in sorted(known, key=_ORDER.index)})
    else:
        assert shown.get(client, []) == used, "python -m tests.clients writes the table of this page anew"


def read() -> dict[str, list[str]]:
    """The actions of each client."""
    head, _, *rows = [_cells(line) for line in _TABLE.search(PAGE.read_text())[0].splitlines()]  # type: ignore[index]
    return {
        client: [row[0].strip("`") for row in rows if row[column] == _YES]
        for column, client in enumerate(head)
        if column
    }


def write(used: dict[str, list[str]]) -> None:
    """Put the table of these clients in the place of the old one."""
    lines = ["| action | " + " | ".join(used) + " |", "|---|" + ":-:|" * len(used)]
    for action in ACTIONS:
        cells = [_YES if action in actions else "" for actions in used.values()]
        lines.append(f"| `{action}` | " + " | ".join(cells) + " |")
    table = "\n".join(lines) + "\n"
    PAGE.write_text(_TABLE.sub(lambda _: table, PAGE.read_text()))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
