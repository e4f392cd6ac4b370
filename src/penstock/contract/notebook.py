"""Queues as an HTML table, for notebooks: `_repr_html_` of Store and Queue."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from penstock.contract.message import STATES
from penstock.contract.settings import Settings
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.contract.settings import QueueInfo

_MOST = 100  # queues of a table
# Notebooks typeset what is between dollar signs as mathematics, which a queue's name may have.
_TABLE = '<table class="tex2jax_ignore mathjax_ignore">'


def table_of(shown: object, queues: Callable[[], Sequence[QueueInfo]]) -> str:
    """A table of queues under the repr of what is shown; an error takes the table's place."""
    try:
        infos = queues()
    except PenstockError as error:
        return f"<pre>{escape(repr(shown))}\n{escape(f'{type(error).__name__}: {error}')}</pre>"
    head = _row("th", "queue", *STATES, "settings")
    rows = [
        _row("td", info.name, *(f"{info.counts[state]:,}" for state in STATES), _changed(info.settings))
        for info in infos[:_MOST]
    ]
    if len(infos) > _MOST:
        rows.append(_row("td", f"... and {len(infos) - _MOST:,} more"))
    caption = f"<caption>{escape(repr(shown))}</caption>"
    return f"{_TABLE}{caption}<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cell: str, *texts: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"


def _changed(settings: Settings) -> str:
    """The settings that are not the usual ones."""
    usual = Settings()
    return ", ".join(f"{name}={settings[name]!r}" for name in settings.keys() if settings[name] != usual[name])  # noqa: SIM118
