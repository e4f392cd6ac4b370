"""What handlers of workers return, and how often they are tried again."""

from penstock.workers import Fail, Release, Result, Worked, exponential, work

__all__ = ["Fail", "Release", "Result", "Worked", "exponential", "work"]
