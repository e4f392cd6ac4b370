"""Dispatch: which of many filters match a message, at a cost that does not grow with their number.

Most filters require that a header or field equals a literal. A dict finds those filters by the message's values,
and only they are evaluated. The few other filters are evaluated for every message.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

from penstock.filters import Filter
from penstock.filters.expressions import And, Compare, Expression, Field, Header, In, Operand, Or, Subject, integer

Target = TypeVar("Target")
Key: TypeAlias = tuple[Header | Field, str | int]
"""A header and its text, or a header or field and its integer."""


def keys_of(node: Expression) -> frozenset[Key] | None:
    """Keys of which every matching message has at least one; None if there are no such keys."""
    match node:
        case Compare("=", left, right):
            return _equal(left, (right,)) or _equal(right, (left,))
        case In(operand, values):
            return _equal(operand, values)
        case And(terms):
            return min(filter(None, map(keys_of, terms)), key=len, default=None)
        case Or(terms):
            found = [keys for keys in map(keys_of, terms) if keys is not None]
            return frozenset().union(*found) if len(found) == len(terms) else None
    return None


def is_exact(node: Expression) -> bool:
    """Whether every message with one of the keys matches."""
    match node:
        case Compare() | In():
            return keys_of(node) is not None
        case Or(terms):
            return all(map(is_exact, terms))
    return False


def _equal(operand: Operand, values: tuple[Operand, ...]) -> frozenset[Key] | None:
    if isinstance(operand, Field) and all(isinstance(value, int) for value in values):
        return frozenset((operand, value) for value in values if isinstance(value, int))
    if isinstance(operand, Header) and all(isinstance(value, str | int) for value in values):
        return frozenset((operand, value) for value in values if isinstance(value, str | int))
    return None


class Dispatcher(Generic[Target]):
    """Finds the targets whose filters match a message."""

    def __init__(self, targets: Iterable[tuple[Filter, Target]]) -> None:
        self._targets: list[Target] = []
        self._filters: list[Filter | None] = []  # None: having a key is enough to match
        self._by_text: dict[str, dict[str, list[int]]] = {}
        self._by_integer: dict[str, dict[int, list[int]]] = {}
        self._by_field: dict[str, dict[int, list[int]]] = {}
        self._always: list[int] = []
        for each, target in targets:
            self._add(each, target)

    def _add(self, each: Filter, target: Target) -> None:
        number, keys = len(self._targets), keys_of(each.expression)
        self._targets.append(target)
        self._filters.append(None if keys is not None and is_exact(each.expression) else each)
        if keys is None:
            self._always.append(number)
            return
        for where, value in keys:
            if isinstance(value, str):
                self._by_text.setdefault(where.name, {}).setdefault(value, []).append(number)
            else:
                by = self._by_field if isinstance(where, Field) else self._by_integer
                by.setdefault(where.name, {}).setdefault(value, []).append(number)

    # For many messages at once: log_tables.py of slate stores asks for each distinct value of a column

    @property
    def targets(self) -> Sequence[Target]:
        """All targets; a target's number is its place among them."""
        return self._targets

    @property
    def filters(self) -> Sequence[Filter | None]:
        """Each target's filter that has yet to be evaluated; None: a value that asks for the target is enough."""
        return self._filters

    @property
    def always(self) -> Sequence[int]:
        """The targets that no value asks for: their filters are evaluated for every message."""
        return self._always

    @property
    def headers(self) -> set[str]:
        """The headers whose values ask for targets."""
        return {*self._by_text, *self._by_integer}

    @property
    def fields(self) -> set[str]:
        """The fields whose values ask for targets."""
        return set(self._by_field)

    def asked_by_header(self, name: str, text: str) -> list[int]:
        """The targets that a header's text asks for."""
        found = self._by_text.get(name, {}).get(text, [])
        numbers = self._by_integer.get(name)
        number = integer(text) if numbers else None
        return found if not numbers or number is None else [*found, *numbers.get(number, ())]

    def asked_by_field(self, name: str, value: int) -> list[int]:
        """The targets that a field's value asks for."""
        return self._by_field.get(name, {}).get(value, [])

    def matching(self, subject: Subject) -> list[Target]:
        """The targets whose filters match, in the order in which they were given."""
        found = set(self._always)
        headers = subject.headers
        # Whichever is fewer: the headers that a message has, or those that filters ask for.
        for name in headers if len(headers) < len(self._by_text) else self._by_text:
            if (values := self._by_text.get(name)) and (value := headers.get(name)) is not None:
                found.update(values.get(value, ()))
        for name in headers if len(headers) < len(self._by_integer) else self._by_integer:
            if (numbers := self._by_integer.get(name)) and (value := headers.get(name)) is not None:
                number = integer(value)
                if number is not None:
                    found.update(numbers.get(number, ()))
        for name, numbers in self._by_field.items():
            found.update(numbers.get(getattr(subject, name), ()))
        targets, filters = self._targets, self._filters
        return [
            targets[each] for each in sorted(found) if (check := filters[each]) is None or check.matches(subject)
        ]
