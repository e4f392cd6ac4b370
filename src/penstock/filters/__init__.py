"""Filters: SQL conditions over a message's headers and own fields.

    type = 'order' AND (priority < 3 OR region IN ('eu', 'us')) AND note IS NOT NULL

    condition = all { OR all }
    all       = term { AND term }
    term      = NOT term | "(" condition ")" | predicate
    predicate = operand ( = | != | <> | < | <= | > | >= ) operand
              | operand [NOT] IN "(" literal { "," literal } ")"
              | operand [NOT] BETWEEN operand AND operand
              | operand [NOT] LIKE 'pattern'
              | operand IS [NOT] NULL
    operand   = header | `header` | priority | size | created_at | received_at | visible_at | literal
    literal   = 'text' | digits | -digits

Keywords take any case; names are case-sensitive. In text '' is a quote, in backticks `` is a backtick.
A header is text, and NULL when the message does not have it. Against an integer or a field it is read as
an integer: an optional sign and ASCII digits within signed 64 bits, anything else is NULL. Text compares by
code point. LIKE knows %, _ and the escapes \\%, \\_ and \\\\. The logic is SQL's, with three values.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.errors import InvalidFilter
from penstock.filters.expressions import (
    FIELDS,
    And,
    Between,
    Check,
    Compare,
    Expression,
    Field,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operand,
    Or,
    Subject,
    compile_check,
    integer,
    numeric,
)
from penstock.filters.parser import MAX_BYTES, MAX_DEPTH, parse_expression

__all__ = [
    "FIELDS",
    "MAX_BYTES",
    "MAX_DEPTH",
    "And",
    "Between",
    "Compare",
    "Expression",
    "Field",
    "Filter",
    "Header",
    "In",
    "IsNull",
    "Like",
    "Not",
    "Operand",
    "Or",
    "Subject",
    "integer",
    "numeric",
    "parse",
    "reason_against",
]


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter, made by parse(): its text and its expression tree."""

    text: str
    expression: Expression
    _check: Check = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_check", compile_check(self.expression))

    def matches(self, subject: Subject) -> bool:
        """Whether the condition is TRUE; neither FALSE nor NULL matches."""
        return self._check(subject) is True

    def evaluate(self, subject: Subject) -> bool | None:
        """TRUE, FALSE, or None for SQL's NULL."""
        return self._check(subject)

    def __reduce__(self) -> tuple[Callable[[str], "Filter"], tuple[str]]:
        return parse, (self.text,)  # the compiled check cannot be pickled


def parse(text: str) -> Filter:
    """Parse a filter; InvalidFilter points at the error's place.

    >>> parse("type = 'order'").matches(Subject({"type": "order"}, 0, 0, 0, 0, 0))
    True
    """
    return Filter(text, parse_expression(text))


def reason_against(text: str) -> str | None:
    """The error of a filter that does not parse; None if it does."""
    try:
        parse(text)
    except InvalidFilter as error:
        return str(error)
    return None
