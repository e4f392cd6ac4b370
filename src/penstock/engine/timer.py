"""A timer on a store's clock, which in tests is not that of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.system.clock import pause


class Timer:
    """Calls back after so many seconds of a store's clock."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Any, seconds: float, call: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._call = call
        self._deadline = clock.monotonic() + seconds
        self._handle = loop.call_later(pause(clock, seconds), self._look)

    def _look(self) -> None:
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            self._call()
        else:
            self._handle = self._loop.call_later(pause(self._clock, left), self._look)

    def cancel(self) -> None:
        """Do not call back."""
        self._handle.cancel()
