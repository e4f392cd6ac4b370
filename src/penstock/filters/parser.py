"""The parser of filters: from text to expression tree, with errors that point at the place."""

import re
from typing import NamedTuple

from penstock.errors import InvalidFilter
from penstock.filters.expressions import (
    FIELDS,
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
    integer,
    numeric,
)

MAX_BYTES = 65_535  # a stored filter is a Utf8 with a 16-bit length
MAX_DEPTH = 64  # parentheses and NOTs inside each other; no walk over a tree comes near Python's stack limit

_KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"])
_COMPARISONS = ("=", "!=", "<>", "<", "<=", ">", ">=")
# Everything before an unclosed quote. Not possessive: Python 3.11 before 3.11.5 has a bug there.
_CLOSED = re.compile(r"(?:[^'`]+|'[^']*(?:''[^']*)*'(?!')|`[^`]*(?:``[^`]*)*`(?!`))*")
# A text (N'...' is one, and refused) or a quoted name, a symbol, or a word. Only quotes and these symbols end a
# word: so a.b, content-type, -5 and x::int are one each, and what would open a comment is a word that the parser
# refuses in its place.
_TOKEN = re.compile(r"[Nn]?'[^']*(?:''[^']*)*'|`[^`]*(?:``[^`]*)*`|!=|<>|<=|>=|==|[(),;=<>!\"]|[^\s(),;=<>!'`\"]+")

_BOOLEAN = "there are no booleans; a header is text, so compare it with 'true' or 'false' in quotes"
_ADVICE = {
    "NULL": "nothing equals NULL; write IS NULL or IS NOT NULL",
    "TRUE": _BOOLEAN,
    "FALSE": _BOOLEAN,
    "==": "write = for equality",
    "!": "write NOT",
    ";": "a filter is a single condition, without a semicolon",
    '"': "text goes in 'single quotes', an odd header name in `backticks`",
    "'": "this text is never closed; end it with a single quote, and double the quotes inside it",
    "`": "this name is never closed; end it with a backtick, and double the backticks inside it",
    "number": "numbers are integers: digits, with a minus sign right before them if need be",
    "odd": "filters have names, integers, 'text' and comparisons; no arithmetic, casts, comments or parameters",
}
_OPERAND = f"here belongs a header, one of {', '.join(FIELDS)}, 'text' or an integer"
_PREDICATE = "here belongs a comparison: = != < <= > >=, [NOT] IN, [NOT] BETWEEN, [NOT] LIKE or IS [NOT] NULL"
_LIST = "IN takes a list of literals, as in IN ('eu', 'us')"


class _Token(NamedTuple):
    kind: str  # a keyword's is its upper case, a symbol's is itself
    source: str
    at: int

    @property
    def shown(self) -> str:
        return _printable(self.source if len(self.source) <= 40 else self.source[:37] + "...")


class _Placed(NamedTuple):
    value: Operand
    token: _Token


def _tokens(text: str) -> list[_Token]:
    """The filter's tokens, then "end" or the unclosed quote."""
    unclosed = _CLOSED.sub("", text, count=1)
    end = len(text) - len(unclosed)
    tokens = [_Token(_kind(found[0]), found[0], found.start()) for found in _TOKEN.finditer(text, 0, end)]
    if unclosed:
        return tokens + [_Token(unclosed[0], unclosed[0], end)]
    return tokens + [_Token("end", "end", len(text.rstrip()))]


def _kind(source: str) -> str:
    if source[0] in "'`":
        return "text" if source[0] == "'" else "quoted name"
    if source[0] in '(),;=<>!"':
        return source
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", source):
        return source.upper() if source.upper() in _KEYWORDS else "name"
    if re.fullmatch(r"-?[0-9]+", source):
        return "integer"
    return "number" if re.fullmatch(r"[-+]|[-+]?\.?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?", source) else "odd"


def _unquote(source: str) -> str:
    quote = source[0]
    return source[1:-1].replace(quote * 2, quote)


def _printable(text: str) -> str:
    """The text with spaces for unprintable characters, which would displace the caret."""
    return "".join(char if char.isprintable() else " " for char in text)


def _invalid(text: str, at: int, problem: str, advice: str) -> InvalidFilter:
    """The error for a place in a filter: what is wrong, what to write, and the line with a caret under it."""
    start, end = text.rfind("\n", 0, at) + 1, (text + "\n").find("\n", at)
    place = f"column {at - start + 1}"
    if "\n" in text:
        place = f"line {text[:at].count(chr(10)) + 1}, {place}"
    left, right = max(start, at - 60), min(end, at + 40)
    before, after = "..." if left > start else "", "..." if right < end else ""
    shown = f"{before}{_printable(text[left:right])}{after}"
    caret = " " * (len(before) + at - left) + "^"
    return InvalidFilter(f"{problem} at {place}: {advice}\n  {shown}\n  {caret}")


class _Parser:
    """A method per line of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0
        self.depth = 0

    def parse(self) -> Expression:
        expression = self.condition()
        self.expect("end", "here belongs AND, OR or the end of the filter")
        return expression

    def condition(self) -> Expression:
        terms = [self.all()]
        while self.take("OR"):
            terms.append(self.all())
        return Or(tuple(terms)) if len(terms) > 1 else terms[0]

    def all(self) -> Expression:
        terms = [self.term()]
        while self.take("AND"):
            terms.append(self.term())
        return And(tuple(terms)) if len(terms) > 1 else terms[0]

    def term(self) -> Expression:
        opening = self.take("NOT", "(")
        if not opening:
            return self.predicate()
        if self.depth == MAX_DEPTH:
            advice = f"parentheses and NOTs go at most {MAX_DEPTH} levels deep"
            raise self.invalid(opening, "too much nesting", advice)
        self.depth += 1
        if opening.kind == "NOT":
            inner: Expression = Not(self.term())
        else:
            inner = self.condition()
            self.expect(")", "here belongs AND, OR or a closing parenthesis")
        self.depth -= 1
        return inner

    def predicate(self) -> Expression:
        left = self.operand()
        if symbol := self.take(*_COMPARISONS):
            right = self.operand()
            self.check_types(left, right)
            return Compare("!=" if symbol.kind == "<>" else symbol.kind, left.value, right.value)
        if self.take("IS"):
            negated = self.take("NOT")
            self.expect("NULL", "after IS comes NULL or NOT NULL")
            return Not(IsNull(left.value)) if negated else IsNull(left.value)
        negated = self.take("NOT")
        if self.take("IN"):
            inner: Expression = self.values(left)
        elif self.take("BETWEEN"):
            inner = self.bounds(left)
        elif self.take("LIKE"):
            inner = self.pattern(left)
        elif negated or self.token.kind not in ("end", ")", "AND", "OR"):
            raise self.unexpected(_PREDICATE)
        else:
            written = left.token.shown
            example = f"{written} > 0" if numeric(left.value) else f"{written} = 'true'"
            raise self.invalid(left.token, f"{written} is no condition", f"compare it, for example {example}")
        return Not(inner) if negated else inner

    def values(self, left: _Placed) -> In:
        self.expect("(", _LIST)
        values: list[str | int] = []
        while not values or self.take(","):
            token, value = self.token, self.literal(_LIST)
            if values and type(value) is not type(values[0]):
                raise self.invalid(token, "mixed list", "the values of IN are all text or all integers")
            self.check_types(left, _Placed(value, token))
            values.append(value)
        self.expect(")", "here belongs a comma or a closing parenthesis")
        return In(left.value, tuple(values))

    def bounds(self, left: _Placed) -> Between:
        low = self.operand()
        self.expect("AND", "BETWEEN takes two bounds, as in BETWEEN 1 AND 9")
        high = self.operand()
        self.check_types(left, low)
        self.check_types(left, high)
        if numeric(left.value, low.value) != numeric(left.value, high.value):
            advice = "one bound compares text, the other numbers; write both as 'text' or both as integers"
            raise self.invalid(high.token, "mixed bounds", advice)
        return Between(left.value, low.value, high.value)

    def pattern(self, left: _Placed) -> Like:
        if isinstance(left.value, Field | int):
            advice = f"{left.token.shown} is a number; LIKE matches text"
            raise self.invalid(left.token, "number before LIKE", advice)
        token = self.expect("text", "LIKE takes a pattern in single quotes, as in LIKE 'eu-%'")
        for backslash in re.finditer(r"\\([\\%_]?)", token.source):
            if not backslash[1]:
                advice = r"a backslash goes before %, _ or another backslash; write \\ for itself"
                raise _invalid(self.text, token.at + backslash.start(), "unknown escape", advice)
        return Like(left.value, _unquote(token.source))

    def operand(self) -> _Placed:
        token = self.token
        if self.take("quoted name"):
            return _Placed(Header(_unquote(token.source)), token)
        if self.take("name"):
            return _Placed(self.name(token), token)
        return _Placed(self.literal(_OPERAND), token)

    def name(self, token: _Token) -> Header | Field:
        name = token.source
        if self.token.kind == "(":
            advice = "filters compare headers and fields, they do not call functions"
            raise self.invalid(token, "unexpected function call", advice)
        if name in FIELDS:
            return Field(name)
        if name.lower() in FIELDS:
            advice = f"write {name.lower()} for the message's own, or `{name}` in backticks for a header"
            raise self.invalid(token, f"ambiguous {name}", advice)
        return Header(name)

    def literal(self, wanted: str) -> str | int:
        if token := self.take("text"):
            return _unquote(token.source)
        token = self.expect("integer", wanted)
        value = integer(token.source)
        if value is None:
            raise self.invalid(token, "integer out of range", f"integers go from {-(2**63)} to {2**63 - 1}")
        return value

    def check_types(self, left: _Placed, right: _Placed) -> None:
        """Refuse to compare text with a number; a header goes with both."""
        for (text, token), number in (left, right), (right, left):
            if isinstance(text, str) and numeric(number.value):
                meant = integer(text)
                fix = "compare it with an integer" if meant is None else f"write {meant} without quotes"
                raise self.invalid(token, "unexpected text", f"{number.token.shown} is a number; {fix}")

    @property
    def token(self) -> _Token:
        return self.tokens[self.index]

    def take(self, *kinds: str) -> _Token | None:
        token = self.token
        if token.kind not in kinds:
            return None
        self.index += 1
        return token

    def expect(self, kind: str, wanted: str) -> _Token:
        if token := self.take(kind):
            return token
        raise self.unexpected(wanted)

    def unexpected(self, wanted: str) -> InvalidFilter:
        token = self.token
        advice = _ADVICE.get(token.kind, wanted)
        if token.kind in _KEYWORDS or (token.kind == "odd" and token.source[0].isalnum()):
            advice += f"; a header of that name goes in backticks: `{token.shown}`"
        return self.invalid(token, f"unexpected {token.shown}", advice)

    def invalid(self, token: _Token, problem: str, advice: str) -> InvalidFilter:
        return _invalid(self.text, token.at, problem, advice)


def parse_expression(text: str) -> Expression:
    """The tree of a filter, or InvalidFilter."""
    if not text.strip():
        raise InvalidFilter("the filter is empty: write a condition, or leave filter=None for no filter")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        advice = "a filter is stored as UTF-8, which has only whole ones"
        raise _invalid(text, error.start, "half a surrogate pair", advice) from None
    if size > MAX_BYTES:
        raise InvalidFilter(f"the filter has {size:,} bytes: {MAX_BYTES:,} bytes of UTF-8 are the most")
    return _Parser(text).parse()
