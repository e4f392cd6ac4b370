"""Transaction ids: a message's follows from its sequence number, so it needs no room anywhere.

An xid is 32 bits, signed and never 0, and counts 1, 2, ... 2**31-1, -2**31, ... -1 and then 1 again. Two messages
share one only if they are PERIOD numbers apart; a number whose xid is still open is left out.
"""

PERIOD = 2**32 - 1


def xid_of(seq: int) -> int:
    """The xid of a message."""
    xid = (seq - 1) % PERIOD + 1
    return xid if xid < 2**31 else xid - 2**32


def before(xid: int) -> int:
    """The last used xid that makes the next one this."""
    return xid - 1 if xid != -(2**31) else 2**31 - 1


def last_xid(next_seq: int) -> int:
    """The xid of the message before this one."""
    return xid_of(next_seq - 1) if next_seq > 1 else 0
