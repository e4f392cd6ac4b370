"""How many functions of Penstock one operation calls, in how many files: `python -m benchmarks.calls`.

Counted with a profile hook in every thread of this process, over the second operation of its kind: the first one
loads modules and opens connections.
"""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import penstock

_SOURCE = str(Path(penstock.__file__).parent)
_SETTLED = 0.2  # seconds in which threads finish what an operation has left to them


class _Count:
    """The calls since start(), by function."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._counting = False

    def hook(self, frame: FrameType, event: str, argument: object) -> None:
        """What every thread calls at every call."""
        if self._counting and event == "call" and frame.f_code.co_filename.startswith(_SOURCE):
            self._calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def of(self, operation: Callable[[], object]) -> tuple[int, int]:
        """Calls and files of an operation."""
        self._calls.clear()
        self._counting = True
        operation()
        self._counting = False
        return self._calls.total(), len({file for file, _ in self._calls})


def _measured(count: _Count, name: str, operation: Callable[[], object]) -> None:
    operation()
    time.sleep(_SETTLED)
    calls, files = count.of(operation)
    print(f"{name:24} {calls:5} calls in {files:3} files")


def main() -> None:
    """Count and print."""
    count = _Count()
    threading.setprofile(count.hook)
    sys.setprofile(count.hook)
    from penstock.http.server import serve_in_thread

    with tempfile.TemporaryDirectory() as folder:
        with penstock.open(f"{folder}/journal") as store:
            jobs = store.create("jobs")
            _measured(count, "journal, put", lambda: jobs.put(b"x"))
            jobs.put_many([b"x"] * 10)
            _measured(count, "journal, claim", lambda: jobs.claim())
            with penstock.open(f"{folder}/journal") as guest:
                asked = guest.queue("jobs")
                _measured(count, "guest, claim", lambda: asked.claim())
        with penstock.open("memory:") as store:
            store.create("jobs")
            server = serve_in_thread(store)
            try:
                with penstock.open(server.url) as remote:
                    put = remote.queue("jobs")
                    _measured(count, "HTTP, put", lambda: put.put(b"x"))
            finally:
                server.stop()
        with penstock.open(f"slate:{folder}/slate") as store:
            slated = store.create("jobs")
            _measured(count, "slate, put", lambda: slated.put(b"x"))


if __name__ == "__main__":
    main()
