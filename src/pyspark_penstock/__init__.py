"""Discovery of `format("penstock")`: PySpark imports every module named pyspark_* and registers its DefaultSource.

The import must stay cheap: every Spark session where Penstock is installed runs it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from penstock.spark.source import DefaultSource

        return DefaultSource
    raise AttributeError(name)
