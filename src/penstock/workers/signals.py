"""Signals that ask a worker to stop: SIGTERM and Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` for each such signal, and let things be as they were afterwards.

    Only the main thread is told of signals; elsewhere this does nothing. `stop` is called between any two steps of
    that thread, and so must not take a lock. A Ctrl-C that is ignored, as under nohup, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, frame: FrameType | None) -> None:
        stop(number)

    before = {each: signal.getsignal(each) for each in STOPPING}
    try:
        for each in STOPPING:
            if before[each] is not signal.SIG_IGN:
                signal.signal(each, told)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
