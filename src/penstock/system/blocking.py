"""Run coroutines without an event loop, so that one code serves coroutines and threads.

In a thread, everything that the coroutine awaits blocks instead of suspending, so the coroutine runs to its end in
one step.
"""

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never suspends; RuntimeError if it does."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("this coroutine needs an event loop")


class Lock:
    """A reentrant lock of threads, for `with` and `async with`."""

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
