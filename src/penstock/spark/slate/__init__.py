"""Slate stores in Spark: `planning.py` what tasks read, `scan.py` how, `log.py` the log as columns."""
