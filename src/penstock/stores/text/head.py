r"""The settings of a queue, as a comment at the top of its file. Pure.

    # Penstock queue
    \max_attempts=3
    \keep_done=forever

Only what differs from the usual is written; a queue without such a comment has the usual settings. People may edit
it at rest, as everything else.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from penstock.contract.settings import Settings
from penstock.errors import PenstockError
from penstock.stores.text.format import COMMENT, Entry, encode
from penstock.stores.text.variables import quoted, unquoted

_TITLE = "Penstock queue"
_USUAL = Settings()
_NAMES = [each.name for each in fields(Settings)]
_TEXTS = ("filter", "description", "start")


def write_head(settings: Settings, name: str | None) -> bytes:
    """The comment; nothing if there is nothing to say. The name is for a file that could not be named after it."""
    said = {} if name is None else {"name": name}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(_USUAL, field.name):
            said[field.name] = _written(value)
    return encode(COMMENT, f" {_TITLE}".encode(), [f"{k}={v}".encode() for k, v in said.items()]) if said else b""


def is_head(entry: Entry) -> bool:
    """Whether that is the comment."""
    return entry.control == COMMENT and entry.text.strip() == _TITLE


def read_head(entries: Iterable[Entry]) -> tuple[Settings, str | None, list[str]]:
    """The settings, the name if one is given, and what could not be understood."""
    head = next((entry for entry in entries if is_head(entry)), None)
    if head is None:
        return _USUAL, None, []
    said: dict[str, Any] = {}
    name, odd = None, []
    for variable in head.variables:
        text = unquoted(variable.value)
        if variable.name == "name":
            name = text
            continue
        try:
            said[variable.name] = value = _read(variable.name, text)
            Settings(**{variable.name: value})
        except (KeyError, ValueError, TypeError, PenstockError) as error:
            said.pop(variable.name, None)
            odd.append(f"{variable.text!r} is no setting: {error}")
    return Settings(**said), name, odd


def _written(value: Any) -> str:
    if value is None:
        return "forever"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return quoted(value) if isinstance(value, str) else repr(value)


def _read(name: str, text: str) -> Any:
    if name not in _NAMES:
        raise KeyError(name)
    if name in _TEXTS:
        return text
    if name == "priorities":
        return tuple(map(int, text.split()))
    if name == "keep_done" and text == "forever":
        return None
    return float(text) if "." in text or "e" in text else int(text)
