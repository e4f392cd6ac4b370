"""What an error that Spark raises is about, in one line.

What goes wrong in Spark's own processes comes back as text, with the calls of Java and Python that led to it. An
error of Penstock's says all that there is to say: here it is found again.
"""

import re

from penstock import errors
from penstock.errors import LeaseExpired, PenstockError

_OURS = re.compile(r"penstock\.(?:contract\.)?errors\.([A-Za-z]\w*): ([^\n]*)")
_TRACEBACK = "Traceback (most recent call last):\n"
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]*\] ")  # Spark's name for the error
_STATE = re.compile(r"\.?\s*SQLSTATE: \w{5}")
_CALL = re.compile(r"An error occurred while calling [^\n]*\n: (?:[\w$]+\.)*[\w$]+(?:: |\n)")  # of Java


def is_of_spark(error: BaseException) -> bool:
    """Whether it is Spark, or the bridge to it, that raised this."""
    return any(kind.__module__.startswith(("pyspark.errors", "py4j.protocol")) for kind in type(error).__mro__)


def cause(error: BaseException) -> str:
    """What went wrong, in one line: what Penstock said if the error is one of ours, else what Spark says."""
    return str(as_ours(error))


def as_ours(error: BaseException) -> PenstockError:
    """The error of ours that an error of Spark's tells of; a PenstockError in its words if it tells of none."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if not found:
        return PenstockError(_shown(text) or type(error).__name__)
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PenstockError)) or kind is LeaseExpired:
        kind = PenstockError  # LeaseExpired is made of receipts, not of its message
    return kind(message)


def _shown(text: str) -> str:
    """The line that says what happened."""
    _, called, after = text.rpartition(_TRACEBACK)
    if called:  # of someone's function: its last line is the first that is not indented
        text = next((line for line in after.splitlines() if line[:1].strip()), "")
    line = _CALL.sub("", text).strip().partition("\n")[0]
    return _STATE.sub("", _CONDITION.sub("", line)).strip().rstrip(";: ")
