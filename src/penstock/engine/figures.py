"""What a queue at work tells of itself, for those who watch it."""

from typing import NamedTuple

from penstock.rules.records import Ack, Claim, Extend, Fail, Pop, Redrive, Release, Remove

# What happens to messages, by the record that says so.
EVENTS: dict[type, str] = {
    Claim: "claimed",
    Pop: "popped",
    Ack: "acked",
    Fail: "failed",
    Release: "released",
    Extend: "extended",
    Remove: "removed",
    Redrive: "redriven",
}


class Figures(NamedTuple):
    """A queue as it is now; what is counted, is counted since the store was opened."""

    queue: str
    up: bool  # False: it was stopped by an error, and nothing else is known
    counts: dict[str, int]
    waiting_seconds: float  # that an available message has waited for, the longest of them
    in_line: int  # consumers that wait
    events: dict[str, int]  # messages that were put, claimed and so on
    leases_expired: int
    expired: int  # messages whose retention ended before they were done
    given_up: int  # messages that failed for good
