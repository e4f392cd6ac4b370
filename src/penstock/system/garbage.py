"""Python's search for garbage in cycles, which looks at everything again and again while much is made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Make very many objects that stay, and are in no cycle: half of the time would go into that search."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
