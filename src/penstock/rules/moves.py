"""Rules of moves between queues: dead letters, their headers and settings, and which messages may move. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.contract.message import ORIGIN_HEADER, REASON_HEADER
from penstock.contract.settings import Settings
from penstock.errors import InvalidArgument, InvalidPriority, PayloadTooLarge
from penstock.rules.rows import AVAILABLE, DELAYED, FAILED

MOVABLE = (DELAYED, AVAILABLE, FAILED)
REFUSED = (InvalidPriority, PayloadTooLarge)  # errors of messages that a dead-letter queue does not take


def sources_of(queues: Iterable[tuple[str, Settings]]) -> dict[str, list[str]]:
    """The queues whose dead letters each queue takes, by name."""
    sources: dict[str, list[str]] = {}
    for name, settings in sorted(queues, key=lambda each: each[0]):
        if (target := settings.dead_letter) not in (None, name):
            sources.setdefault(target, []).append(name)
    return sources


def check_dead_letter(
    queue: str, settings: Settings, find: Callable[[str], Settings], sources: Mapping[str, Sequence[str]]
) -> None:
    """Refuse a dead-letter queue that has one itself, or whose source takes dead letters; `find` those without."""
    target = settings.dead_letter
    if target is None:
        return
    if target == queue:
        raise InvalidArgument(f"dead_letter={target!r} is the queue itself: name another")
    further = find(target).dead_letter
    if further is not None:
        raise InvalidArgument(
            f"queue {target!r} has a dead_letter itself ({further!r}), and dead letters move once: name that "
            f"one, or set the dead_letter of {target!r} to None"
        )
    if queue in sources:
        raise InvalidArgument(
            f"queue {queue!r} takes the dead letters of {', '.join(map(repr, sources[queue]))}, and dead "
            "letters move once: leave its dead_letter None"
        )


def check_target(queue: str, target: str) -> None:
    """Refuse a move of messages to the queue that they are in."""
    if queue == target:
        raise InvalidArgument(f"messages of queue {queue!r} cannot move to {target!r}: name another queue")


def without_past(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of a dead letter that goes back to its origin."""
    return {name: value for name, value in headers.items() if name not in (ORIGIN_HEADER, REASON_HEADER)}


def of_dead_letter(headers: Mapping[str, str], origin: str, reason: str | None) -> dict[str, str]:
    """Headers of a message that failed for good in a queue."""
    why = {} if reason is None else {REASON_HEADER: reason}
    return {**without_past(headers), ORIGIN_HEADER: origin, **why}


def visible_after_move(state: int, visible_at: int, now: int) -> int:
    """When a message that moves now is available in its new queue."""
    return now if state == FAILED else max(now, visible_at)
