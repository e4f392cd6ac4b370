"""Arguments that every edge checks alike: the contract in Python, its async twin, and the server."""

import os
from collections.abc import Iterable
from functools import lru_cache

from penstock.errors import InvalidArgument
from penstock.index.rows import STATES
from penstock.message import Message
from penstock.settings import Settings, seconds, text

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


def checked_settings(settings: Settings) -> Settings:
    """The settings, if their filter can be understood."""
    if settings.filter is not None:
        from penstock import filters  # here, so that import penstock stays quick for the many who use none

        filters.parse(settings.filter)
    return settings


def receipts_of(messages: Iterable[Message | str], queue: str) -> list[str]:
    """The receipts of what was claimed from a queue; a str is one already."""
    receipts = []
    for each in messages:
        if isinstance(each, str):
            receipts.append(each)
        elif not isinstance(each, Message):
            raise TypeError(f"give messages or receipts, not {type(each).__name__}")
        elif each.receipt is None:
            raise InvalidArgument(f"message {each.id} was not claimed, so it cannot be settled: use claim()")
        elif each.queue != queue:
            raise InvalidArgument(f"message {each.id} is of queue {each.queue!r}, not of {queue!r}")
        else:
            receipts.append(each.receipt)
    return receipts
