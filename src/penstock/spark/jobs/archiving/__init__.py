"""The job `archive`: `job.py` the run, `folder.py` the archive on disk, `reading.py` its tables, `removal.py`."""
