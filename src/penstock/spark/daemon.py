"""PySpark's daemon, which forks Python's workers, without its words about Java having hung up.

Java hangs up when it has read enough. By TCP nobody notices; by Unix sockets a worker gets EPIPE when it is done,
and the daemon prints a traceback for each. Run by Spark as `python -m penstock.spark.daemon`.
"""

import sys
import traceback

from pyspark import daemon


class _Traceback:
    """Stands for the module traceback, of which the daemon uses these two."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that is being handled, unless it is that."""
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = _Traceback  # type: ignore[assignment,attr-defined]
    daemon.manager()
