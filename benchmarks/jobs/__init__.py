"""Job queues to compare with, each with what its documentation gives for production, and set to be durable.

`systems.py` declares them. Their programs are in `apps/` and run in an environment of their own, which
`environment.py` makes: nothing of it is installed where Penstock is developed. `run.py` starts a system's server,
workers and producer, which tell their times through `times.py`.
"""
