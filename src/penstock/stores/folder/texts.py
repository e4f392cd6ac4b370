"""Small files of text and JSON, read by those who can do without."""

import json
from typing import Any

from penstock.system.files import Disk


def read_text(disk: Disk, path: str) -> str | None:
    """The text of a file; None if it is not there."""
    try:
        with disk.open(path) as file:
            return file.read(0, file.size()).decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return None


def read_json(text: str | None, otherwise: Any = None) -> Any:
    """What JSON says; something else if it is none, as a crash may have left it."""
    try:
        return json.loads(text or "")
    except ValueError:
        return otherwise
