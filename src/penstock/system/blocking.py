"""Code that is written once for coroutines and for threads.

What differs are the few things that it awaits. For coroutines these give way to an event loop; for threads they
block, and never give way, so that the whole runs to its end at once.
"""

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that blocks this thread where others would give way to an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("this coroutine needs an event loop")


class Lock:
    """A lock of threads, for both `with` and `async with`. A thread that has it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()
