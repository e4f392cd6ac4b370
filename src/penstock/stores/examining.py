"""Findings and wording that the doctors of all kinds of stores share."""

import shlex
from collections.abc import Iterator

from penstock.contract.examination import Finding, note
from penstock.rules.rows import IN_FLIGHT
from penstock.rules.state import State


def times(ledger: State, now: int) -> Iterator[Finding]:
    """Leases and retentions that have ended since the last record."""
    ended = expired = 0
    for seq in ledger.listed(None, 0, ledger.size()):
        page, at = ledger.rows.locate(seq)
        in_flight = page.state[at] == IN_FLIGHT
        if in_flight and not page.for_claims(at).ends_at[at]:
            continue  # a stream holds it, whatever the time
        if 0 < page.expires_at[at] <= now:
            expired += 1
        elif in_flight and page.for_claims(at).ends_at[at] <= now:
            ended += 1
    yield from over(ended, expired)


def over(ended: int, expired: int) -> Iterator[Finding]:
    """Findings about leases that have ended and messages that have expired."""
    if ended:
        yield note(
            f"the leases of {plural(ended, 'message')} ended without an ack",
            "nothing: each is available again, or failed if that was its last attempt; a consumer may have died, "
            "or need a longer lease",
        )
    if expired:
        yield note(f"{plural(expired, 'message')} expired", "nothing: packing takes them out of the files")


def word(name: str) -> str:
    """A queue's name as an argument on the command line."""
    return ("-- " if name.startswith("-") else "") + shlex.quote(name)


def plural(count: int, noun: str, many: str = "") -> str:
    """A count with its noun."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
