"""Threads and locks of stores on disk. Tests replace them, and schedule the threads in a known order."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Lock(Protocol):
    """What `threading.Lock` and `threading.RLock` can do."""

    def acquire(self) -> bool:
        """Take the lock, waiting until it is free."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Task(Protocol):
    """A running thread."""

    def join(self) -> None:
        """Wait until it has ended."""


class Threads(Protocol):
    """What a store needs of threads."""

    def lock(self) -> Lock:
        """A lock that any thread may release."""

    def rlock(self) -> Lock:
        """A lock that its holder may take again."""

    def start(self, name: str, run: Callable[[], None]) -> Task:
        """Run a function on a daemon thread."""


class SystemThreads:
    """The threads of the operating system."""

    def lock(self) -> Lock:
        return threading.Lock()

    def rlock(self) -> Lock:
        return threading.RLock()

    def start(self, name: str, run: Callable[[], None]) -> Task:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread
