"""Expression trees of filters, and their compiler to Python functions with SQL's three-valued logic.

A compiler for another engine (Spark) needs only the tree.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from penstock.contract.message import Entry
from penstock.system.clock import at_least_one


class Subject(NamedTuple):
    """The fields of a message that a filter sees. Times are in milliseconds since the epoch."""

    headers: Mapping[str, str]
    priority: int
    size: int
    created_at: int
    received_at: int
    visible_at: int

    @classmethod
    def of(cls, entry: Entry, now: int) -> "Subject":
        """A message that arrives now."""
        return cls(
            headers=entry.headers or {},
            priority=entry.priority,
            size=len(entry.payload),
            created_at=now if entry.created_at is None else entry.created_at,
            received_at=now,
            visible_at=now + at_least_one(entry.delay) if entry.delay else now,
        )


FIELDS = Subject._fields[1:]


@dataclass(frozen=True, slots=True)
class Header:
    """A header's text, or NULL if the message does not have it."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """One of the message's own integers, FIELDS; never NULL."""

    name: str


Operand: TypeAlias = Header | Field | str | int
"""A header, a field, or a literal as a plain str or int."""


@dataclass(frozen=True, slots=True)
class Compare:
    """One of = != < <= > >=, by number if `numeric(left, right)`, else by code point."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class In:
    """The operand equals one of the values, which are all str or all int."""

    operand: Operand
    values: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """operand >= low AND operand <= high."""

    operand: Operand
    low: Operand
    high: Operand


@dataclass(frozen=True, slots=True)
class Like:
    """The whole text matches the pattern, in which backslashes escape as Spark's LIKE has it."""

    operand: Header | str
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull:
    """The operand is a header that the message does not have."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """NULL stays NULL. NOT IN, NOT BETWEEN, NOT LIKE and IS NOT NULL are this around the plain node."""

    term: "Expression"


@dataclass(frozen=True, slots=True)
class And:
    """FALSE if a term is, else NULL if a term is, else TRUE. At least two terms."""

    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """TRUE if a term is, else NULL if a term is, else FALSE. At least two terms."""

    terms: tuple["Expression", ...]


Expression: TypeAlias = Compare | In | Between | Like | IsNull | Not | And | Or


def numeric(*operands: Operand) -> bool:
    """Whether these operands are compared as integers: one of them is an integer or a field."""
    return any(isinstance(operand, Field | int) for operand in operands)


def integer(text: str) -> int | None:
    """The integer that a header's text stands for, or None for NULL."""
    # The leading zeros are set aside because int() refuses to read more than a few thousand digits.
    if not (match := re.fullmatch(r"([+-]?)0*([0-9]{1,19})", text)):
        return None
    value = int(match[1] + match[2])
    return value if -(2**63) <= value < 2**63 else None


# A tree as a function

_SHORT = 64  # letters of a part with _ that may be compared again at each place
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
    """A function from a message to TRUE, FALSE or None (NULL)."""
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
            value, match = _value(operand, number=False), _like(pattern)
            return lambda subject: None if (found := value(subject)) is None else match(found)


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


def _like(pattern: str) -> Callable[[str], bool]:
    """Whether a text matches a LIKE pattern, in one pass over the text.

    The first place where a part between two % fits is as good as any later one, so nothing is tried twice.
    """
    parts: list[list[str | None]] = [[]]  # letters, None for _
    for piece in re.findall(r"\\.|.", pattern, re.DOTALL):
        if piece == "%":
            parts.append([])
        else:
            parts[-1].append(None if piece == "_" else piece[-1])
    first, last = _fits(parts[0]), _fits(parts[-1])
    if len(parts) == 1:
        return lambda text: len(text) == len(parts[0]) and first(text, 0)
    finders = [_find(part) for part in parts[1:-1] if part]
    begin, end = len(parts[0]), len(parts[-1])

    def check(text: str) -> bool:
        tail = len(text) - end
        if tail < begin or not first(text, 0) or not last(text, tail):
            return False
        at = begin
        for find in finders:
            at = find(text, at, tail)
            if at < 0:
                return False
        return True

    return check


def _fits(part: list[str | None]) -> Callable[[str, int], bool]:
    """Whether a part matches at a position of a text."""
    plain = "".join(letter or "" for letter in part)
    if len(plain) == len(part):
        return lambda text, at: text.startswith(plain, at)
    letters = [(at, letter) for at, letter in enumerate(part) if letter is not None]
    return lambda text, start: all(text[start + at] == letter for at, letter in letters)


def _find(part: list[str | None]) -> Callable[[str, int, int], int]:
    """The end of a part's first match between two positions of a text; -1 if there is none."""
    size, plain = len(part), "".join(letter or "" for letter in part)
    if len(plain) == size:
        return lambda text, start, end: -1 if (at := text.find(plain, start, end)) < 0 else at + size
    if size <= _SHORT:
        letters = "".join("." if letter is None else re.escape(letter) for letter in part)
        search = re.compile(letters, re.DOTALL).search
        return lambda text, start, end: -1 if (found := search(text, start, end)) is None else found.end()
    wanted: dict[str, list[int]] = {}  # where in the part
    for at, letter in enumerate(part):
        if letter is not None:
            wanted.setdefault(letter, []).append(at)

    def look(text: str, start: int, end: int) -> int:
        for at in range(start, end - size + 1, 4 * size):
            found = _first(text[at : min(at + 5 * size - 1, end)], wanted, size)
            if found >= 0:
                return at + found + size
        return -1

    return look


def _first(text: str, wanted: dict[str, list[int]], size: int) -> int:
    """The first position of a text at which all letters match, or -1.

    Places are bits of an integer, so that all of them are compared with a letter at once.
    """
    there: dict[str, list[int]] = {}
    for at, letter in enumerate(text):
        there.setdefault(letter, []).append(at)
    left = (1 << max(len(text) - size + 1, 0)) - 1
    for letter, offsets in wanted.items():
        places = bytearray(len(text) // 8 + 1)
        for at in there.get(letter, ()):
            places[at >> 3] |= 1 << (at & 7)
        bits = int.from_bytes(places, "little")
        for offset in offsets:
            left &= bits >> offset
        if not left:
            return -1
    return (left & -left).bit_length() - 1
