"""Workers: what runs a handler for each message of a queue."""

from penstock.workers.options import Fail, Release, Result, Worked, exponential
from penstock.workers.threads import work

__all__ = ["Fail", "Release", "Result", "Worked", "exponential", "work"]
