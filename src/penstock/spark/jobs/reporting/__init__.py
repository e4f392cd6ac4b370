"""The job report: `job.py` runs it, `numbers.py` computes with Spark, `charts.py` and `page.py` draw the page."""
