"""A program for each system: the job as its task, `put`, and `put_many` where the library has such a call.

They get the address of their server from the environment, as JOBS_URL.
"""
