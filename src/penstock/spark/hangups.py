"""Java hangs up on a process of Python's when it has read enough, and PySpark would print a traceback for each.

By TCP nobody notices; by Unix sockets, which are quicker, the process gets EPIPE when it flushes its last bytes.
"""

import sys
import traceback


class _Traceback:
    """Stands for the module traceback, of which PySpark's daemon uses these two."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that is being handled, unless it is that."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def hush() -> None:
    """In a process that PySpark's daemon has forked: say nothing when Java hangs up."""
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", None) == "pyspark.daemon":
        main.traceback = _Traceback  # type: ignore[attr-defined]
