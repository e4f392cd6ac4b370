"""The job `report`: `job.py` the run, `numbers.py` what is computed, `charts.py` and `page.py` how it looks."""
