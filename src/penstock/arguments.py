"""Arguments that every edge checks alike: the contract in Python, its async twin, and the server."""

import os
from collections.abc import Iterable
from functools import lru_cache

from penstock.errors import InvalidArgument
from penstock.index.rows import STATES
from penstock.settings import seconds, text

MAX_REASON = 1000
MAX_CONSUMER = 255


def checked_lease(lease: float) -> float:
    """The lease, if it is one."""
    if seconds("lease", lease) == 0:
        raise InvalidArgument("lease=0 would end at once; give the seconds that the work may take")
    return lease


def checked_consumer(consumer: str | None) -> str:
    """The consumer's name; this process, if it has not named itself."""
    if consumer is None:
        return _this_process(os.getpid())
    return text("consumer", consumer, 1, MAX_CONSUMER)


@lru_cache(maxsize=1)  # one string for all claims, and a new one after a fork
def _this_process(pid: int) -> str:
    return f"{os.uname().nodename}:{pid}"


def checked_reason(reason: str | None) -> str | None:
    """The reason, as much of it as is kept."""
    return None if reason is None else str(reason)[:MAX_REASON].encode(errors="replace").decode()


def checked_state(state: str | None) -> str | None:
    """The state, if it is one."""
    if state is not None and state not in STATES:
        raise InvalidArgument(f"state={state!r} is none; give one of {', '.join(STATES)}, or None for all")
    return state


def checked_ids(ids: Iterable[str]) -> list[str]:
    """The ids, if they can be some."""
    for each in ids:
        if not isinstance(each, str):
            raise TypeError(f"an id is a str, not {type(each).__name__}: give message.id")
    return list(ids)
