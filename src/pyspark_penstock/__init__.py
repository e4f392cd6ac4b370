"""Where PySpark looks for `format("penstock")`: it imports every top-level module named pyspark_*.

It takes a class DefaultSource from them. Keep this cheap: every Spark that has Penstock installed imports it.
"""
