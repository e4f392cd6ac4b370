"""Where PySpark looks for `format("penstock")`: it imports every top-level module named pyspark_*.

It takes a class DefaultSource from them. Keep this cheap: every Spark that has Penstock installed imports it.
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
