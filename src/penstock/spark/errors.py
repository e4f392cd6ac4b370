"""Errors of ours inside of Spark: one line that says what is wrong, without the calls that led to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def in_one_line() -> Iterator[None]:
    """An error of ours says all that there is to say: Spark need not show the calls that led to it.

    The process of Spark in which it happens ends with it, so that nothing else is hidden.
    """
    try:
        yield
    except PenstockError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
