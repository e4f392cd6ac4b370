"""The process that puts jobs: `python -m benchmarks.jobs.producer APP`, told on its stdin what to put.

    one FIRST COUNT          each by itself
    many FIRST COUNT         in batches
    pace FIRST COUNT RATE    so many a second, each by itself

Each is answered with a line once everything is put.
"""

import importlib
import sys
import time
from typing import Any

BATCH = 1_000


def put_paced(app: Any, first: int, count: int, rate: float) -> None:
    """A job that is put late does not delay the ones after it."""
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        app.put(first + number, time.monotonic_ns())


def main() -> None:
    """Put until stdin ends."""
    app = importlib.import_module(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        what, first, count, *rate = line.split()
        begin, end = int(first), int(first) + int(count)
        if what == "one":
            for number in range(begin, end):
                app.put(number, time.monotonic_ns())
        elif what == "many":
            for at in range(begin, end, BATCH):
                app.put_many([(number, time.monotonic_ns()) for number in range(at, min(at + BATCH, end))])
        else:
            put_paced(app, begin, int(count), float(rate[0]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
