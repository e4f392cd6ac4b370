"""Workers, public names: results that a handler returns, and delays between retries."""

from penstock.workers import Fail, Release, Result, Worked, exponential, work

__all__ = ["Fail", "Release", "Result", "Worked", "exponential", "work"]
