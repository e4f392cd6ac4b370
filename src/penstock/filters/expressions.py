"""What a filter means: a tree of these nodes, which is all that a compiler for another engine has to know."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.contract.message import Entry
from penstock.system.clock import at_least_one


class Subject(NamedTuple):
    """What a filter can see of a message. Times are in milliseconds since the epoch."""

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
    """The same as operand >= low AND operand <= high."""

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
