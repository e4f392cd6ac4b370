"""State and attempts of messages from another store, as columns of a load's frame.

    received_at, claimed_at, settled_at    times; null = does not apply (received_at: now)
    state, attempts, consumer, reason      as a message has them
    history                                null, or a list of ended attempts, each a list of Attempt's fields

All messages of a batch are done, or none is.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.contract.arguments import arguments, checked_reason
from penstock.contract.message import LATEST, OUTCOMES, STATES, Attempt
from penstock.contract.schemas import MAX_CONSUMER
from penstock.contract.settings import text, whole
from penstock.errors import InvalidArgument

_MOST = 100  # attempts in the history of one message
_ATTEMPTS = 1_000_000_000  # leaves room for further attempts in 32 bits


class Columns(NamedTuple):
    """The checked columns by name."""

    received_at: list[int | None]
    state: list[str]
    attempts: list[int]
    claimed_at: list[int | None]
    settled_at: list[int | None]
    consumer: list[str | None]
    reason: list[str | None]
    history: list[list[Attempt] | None]


def take(columns: dict[str, Any], count: int) -> Columns | None:
    """Remove these columns from a frame's columns, and check them; None if the frame has none of them."""
    given = {name: columns.pop(name) for name in Columns._fields if name in columns}
    if not given:
        return None
    if "state" not in given:
        raise InvalidArgument(f"a frame with {', '.join(given)} needs the column 'state' as well")
    checked = {}
    for name, check in _CHECKS.items():
        column = given.get(name, _MISSING.get(name))
        column = column if isinstance(column, list) else [column] * count
        if len(column) != count:
            raise InvalidArgument(f"column {name!r} of a frame has {len(column)} values for {count} messages")
        with arguments(f"column {name!r} of a frame: "):
            checked[name] = [check(value) for value in column]
    if len({state == "done" for state in checked["state"]}) > 1:
        raise InvalidArgument("a batch has messages that are done and others: send them apart")
    return Columns(**checked)


def attempts_as_json(attempts: Iterable[Attempt]) -> list[list[Any]]:
    """Ended attempts, encoded for the column `history`."""
    return [list(each) for each in attempts if each.ended_at is not None][-_MOST:]


def _time(value: Any) -> int | None:
    return None if value is None else whole("a time", value, 0, LATEST)


def _state(value: Any) -> str:
    if value not in STATES:
        raise InvalidArgument(f"there is no state {str(value)[:20]!r}; there are {', '.join(STATES)}")
    return str(value)


def _consumer(value: Any) -> str | None:
    return None if value is None else text("a consumer", value, 0, MAX_CONSUMER)


def _reason(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"a reason is a text, not {type(value).__name__}")
    return checked_reason(value)


def _history(value: Any) -> list[Attempt] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > _MOST:
        raise InvalidArgument(f"a history is a list of at most {_MOST} attempts")
    return [_attempt(each) for each in value]


def _attempt(value: Any) -> Attempt:
    if not isinstance(value, list) or len(value) != len(Attempt._fields) or value[4] not in OUTCOMES:
        raise InvalidArgument(f"an attempt that has ended is a list of {', '.join(Attempt._fields)}")
    number, consumer, claimed_at, ended_at, outcome, reason = value
    return Attempt(
        whole("an attempt", number, 0, _ATTEMPTS),
        _consumer(consumer),
        whole("a time", claimed_at, 0, LATEST),
        whole("a time", ended_at, 0, LATEST),
        outcome,
        _reason(reason),
    )


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "received_at": _time,
    "state": _state,
    "attempts": lambda value: whole("attempts", value, 0, _ATTEMPTS),
    "claimed_at": _time,
    "settled_at": _time,
    "consumer": _consumer,
    "reason": _reason,
    "history": _history,
}
_MISSING = {"attempts": 0}
