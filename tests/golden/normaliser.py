"""Stable names for values that differ from run to run: the first receipt is <receipt-1> wherever it appears."""

import os
import re

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
_PATTERNS = [  # in this order
    ("date", r"(?<=Date: )\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT"),
    ("request", r"(?<=X-Request-Id: )[0-9a-f]{8}-[0-9a-f]+"),
    ("load", r"\b0-0-\d{13}\.[0-9a-f]{16}\b"),
    ("receipt", rf"(?<![\w<.-])(?:{_UUID}|[0-9a-f]{{16}}|\d{{1,19}})\.[0-9a-f]{{16}}\b"),
    ("id", _UUID),
    ("publish", r"\b[0-9a-f]{32}\b"),
    ("id", r"(?<![\w.-])[0-9a-f]{16}\b"),
    ("secret", r"\bpst_[\w-]{43}"),
    ("peer", r"127\.0\.0\.1:\d{4,}"),
    ("process", re.escape(os.uname().nodename) + r":\d+"),
]


class Normaliser:
    """Replaces random values by names; `literals` are further texts to replace, by name."""

    def __init__(self, **literals: str) -> None:
        self._literals = literals
        self._seen: dict[str, dict[str, str]] = {}
        self._patterns = [(kind, re.compile(pattern)) for kind, pattern in _PATTERNS]

    def undone(self, text: str) -> str:
        """The text with names replaced by their values."""
        for seen in self._seen.values():
            for value, name in seen.items():
                text = text.replace(name, value)
        return text

    def __call__(self, text: str) -> str:
        for name, literal in self._literals.items():
            text = text.replace(literal, f"<{name}>")
        for kind, pattern in self._patterns:
            text = pattern.sub(lambda found, kind=kind: self._named(kind, found[0]), text)  # type: ignore[misc]
        return text

    def _named(self, kind: str, value: str) -> str:
        if kind in ("date", "request", "peer", "process"):  # no test depends on whether two are the same
            return f"<{kind}>"
        seen = self._seen.setdefault(kind, {})
        return seen.setdefault(value, f"<{kind}-{len(seen) + 1}>")
