"""Spark's errors as Penstock's errors.

An error in a Spark process reaches the driver as text, between the stack traces of Java and Python. This module
finds the PenstockError in that text, or else the line with Spark's own message.
"""

import re

from penstock import errors
from penstock.errors import LeaseExpired, PenstockError

_OURS = re.compile(r"penstock\.(?:contract\.)?errors\.([A-Za-z]\w*): ([^\n]*)")
_TRACEBACK = "Traceback (most recent call last):\n"
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]*\] ")  # Spark's error condition
_STATE = re.compile(r"\.?\s*SQLSTATE: \w{5}")
_CALL = re.compile(r"An error occurred while calling [^\n]*\n: (?:[\w$]+\.)*[\w$]+(?:: |\n)")  # the name in Java


def is_of_spark(error: BaseException) -> bool:
    """Whether PySpark or Py4J raised the error."""
    return any(kind.__module__.startswith(("pyspark.errors", "py4j.protocol")) for kind in type(error).__mro__)


def cause(error: BaseException) -> str:
    """The message of the PenstockError inside an error, else Spark's message, in one line."""
    return str(as_ours(error))


def as_ours(error: BaseException) -> PenstockError:
    """The PenstockError inside an error of Spark; if there is none, a new one with Spark's message."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if not found:
        return PenstockError(_shown(text) or type(error).__name__)
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)) or kind is LeaseExpired:
        kind = PenstockError  # LeaseExpired is built from receipts, which the text does not have
    return kind(message)


def _shown(text: str) -> str:
    """Spark's message: the line that is no part of a stack trace."""
    _, called, after = text.rpartition(_TRACEBACK)
    if called:  # a user's function raised: a traceback ends with the first line that is not indented
        text = next((line for line in after.splitlines() if line[:1].strip()), "")
    line = _CALL.sub("", text).strip().partition("\n")[0]
    return _STATE.sub("", _CONDITION.sub("", line)).strip().rstrip(";: ")
