"""Queue filters as Spark columns, with the same result as Filter.evaluate for every message, NULL included.

A filter becomes Spark SQL over the columns `headers` MAP<STRING, STRING>, `priority` BIGINT, `payload` BINARY,
`created_at`, `received_at` and `visible_at` TIMESTAMP. SQL text, not calls of PySpark's functions: Spark parses a
thousand conditions in the time of a few calls into Java, and makes a flat tree of a long AND or OR.
"""

import re
from typing import TYPE_CHECKING

from penstock.filters import (
    And,
    Between,
    Compare,
    Expression,
    Field,
    Filter,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Operand,
    Or,
    numeric,
    parse,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

SIZE = "octet_length(payload)"
_INTEGER = "(?s)^[+-]?[0-9]+(?!.)"
_SHORT = 50  # characters of a pattern, or regexes in a row, that Java matches without a deep stack


def column(wanted: Filter | str, size: str = SIZE) -> "Column":
    """The filter's three-valued result as a column, as in messages.where(column("type = 'order'")).

    `size` is SQL for the payload's size: for rows without a payload, the name of a column with its size.
    """
    from pyspark.sql.functions import expr

    return expr(condition(wanted, size))


def condition(wanted: Filter | str, size: str = SIZE) -> str:
    """The filter as a condition in Spark SQL."""
    return _condition(parse(wanted).expression if isinstance(wanted, str) else wanted.expression, size)


def _condition(node: Expression, size: str) -> str:
    match node:
        case And(terms):
            return " AND ".join(f"({_condition(term, size)})" for term in terms)
        case Or(terms):
            return " OR ".join(f"({_condition(term, size)})" for term in terms)
        case Not(term):
            return f"NOT ({_condition(term, size)})"
        case Compare(operator, left, right):
            number = numeric(left, right)
            return f"{_value(left, number, size)} {operator} {_value(right, number, size)}"
        case In(operand, values):
            members = ", ".join(_value(value, False, size) for value in values)
            return f"{_value(operand, numeric(*values), size)} IN ({members})"
        case Between(operand, low, high):
            return _condition(And((Compare(">=", operand, low), Compare("<=", operand, high))), size)
        case Like(operand, pattern):
            return f"{_value(operand, False, size)} {_like(pattern)}"
        case IsNull(operand):
            return f"{_value(operand, False, size)} IS NULL"


def _value(operand: Operand, number: bool, size: str) -> str:
    match operand:
        case Field("priority"):
            return "priority"
        case Field("size"):
            return f"({size})"
        case Field(name):
            return f"unix_millis({name})"
        case Header(name):
            header = f"headers[{_text(name)}]"
            # The cast alone would accept a number with blanks around it.
            integer = f"CASE WHEN {header} RLIKE '{_INTEGER}' THEN try_cast({header} AS BIGINT) END"
            return integer if number else header
        case int():
            return f"{operand}L"
        case str():
            return _text(operand)


def _text(text: str) -> str:
    """A string literal with the same meaning under all settings of Spark's parser."""
    if text.isprintable() and not re.search(r"['\\$]", text):  # $ may start a variable
        return f"'{text}'"
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _like(pattern: str) -> str:
    """LIKE, or RLIKE if Spark's LIKE could backtrack exponentially or overflow Java's stack."""
    parts: list[list[str]] = [[]]  # the pieces between two %
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        if piece == "%":
            parts.append([])
        else:
            parts[-1].append(piece)
    first, middle, last = parts[0], [part for part in parts[1:-1] if part], parts[-1]
    if len(pattern) <= _SHORT and (not middle or (len(middle) == 1 and not last)):
        kept = [first] if len(parts) == 1 else [first, *middle, last]
        return f"LIKE {_text('%'.join(map(''.join, kept)))}"
    # If a part matches early, a later match is no better: (?>) does not backtrack into it.
    regexes = [_regex(first), *(f"(?>.*?{_regex(part)})" for part in middle)]
    if len(parts) > 1:
        regexes.append(f".*{_regex(last)}")
    return f"RLIKE {_text(f'(?s)^{_in_turn(regexes)}(?!.)')}"


def _regex(part: list[str]) -> str:
    return _in_turn(["." if piece == "_" else re.escape(piece[-1]) for piece in part])


def _in_turn(regexes: list[str]) -> str:
    """Regexes in a row, nested in groups: Java's stack grows with the length of a row."""
    while len(regexes) > _SHORT:
        regexes = [f"(?>{''.join(regexes[at : at + _SHORT])})" for at in range(0, len(regexes), _SHORT)]
    return "".join(regexes)
