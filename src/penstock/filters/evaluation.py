"""A filter's tree as a function of one message, with SQL's three-valued logic."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from penstock.filters.expressions import (
    And,
    Between,
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
    integer,
    numeric,
)

Check: TypeAlias = Callable[[Subject], bool | None]
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_check(node: Expression) -> Check:
    """A function that answers for one message at a time, with every decision about the filter already taken."""
    match node:
        case And(terms):
            return _combine([compile_check(term) for term in terms], decisive=False)
        case Or(terms):
            return _combine([compile_check(term) for term in terms], decisive=True)
        case Between(operand, low, high):
            checks = [compile_check(Compare(">=", operand, low)), compile_check(Compare("<=", operand, high))]
            return _combine(checks, decisive=False)
        case Not(term):
            check = compile_check(term)
            return lambda subject: None if (result := check(subject)) is None else not result
        case IsNull(operand):
            value = _value(operand, number=False)
            return lambda subject: value(subject) is None
        case Compare(symbol, left, right):
            return _compare(_COMPARISONS[symbol], left, right)
        case In(operand, values):
            value, members = _value(operand, numeric(*values)), frozenset(values)
            return lambda subject: None if (found := value(subject)) is None else found in members
        case Like(operand, pattern):
            value, match = _value(operand, number=False), _like(pattern).fullmatch
            return lambda subject: None if (found := value(subject)) is None else match(found) is not None


def _combine(checks: Sequence[Check], decisive: bool) -> Check:
    def check(subject: Subject) -> bool | None:
        result: bool | None = not decisive
        for check in checks:
            answer = check(subject)
            if answer is decisive:
                return answer
            if answer is None:
                result = None
        return result

    return check


def _compare(test: Callable[[Any, Any], bool], left: Operand, right: Operand) -> Check:
    number = numeric(left, right)
    first, second = _value(left, number), _value(right, number)

    def check(subject: Subject) -> bool | None:
        a, b = first(subject), second(subject)
        return None if a is None or b is None else test(a, b)

    return check


def _value(operand: Operand, number: bool) -> Callable[[Subject], Any]:
    match operand:
        case Field(name):
            return operator.attrgetter(name)
        case Header(name) if number:
            return lambda subject: None if (text := subject.headers.get(name)) is None else integer(text)
        case Header(name):
            return lambda subject: subject.headers.get(name)
        case literal:
            return lambda subject: literal


def _like(pattern: str) -> re.Pattern[str]:
    parts = [""]
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        if piece == "%":
            parts.append("")
        else:
            parts[-1] += "." if piece == "_" else re.escape(piece[-1])
    first, *others = parts
    if not others:
        return re.compile(first, re.DOTALL)
    # The first place where a part fits is as good as any later one, so (?>) never goes back on it. Otherwise a
    # pattern with many % could take a text that almost matches to the power of their number.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)
