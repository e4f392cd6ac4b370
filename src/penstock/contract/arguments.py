"""Checks of arguments, shared by every edge, and the argument types that operations declare."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Annotated, Any

from penstock.contract import names, schemas
from penstock.contract.message import STATES, Message, State
from penstock.contract.operation import Argument
from penstock.contract.schemas import MAX_CONSUMER, integer, nullable, text, texts
from penstock.contract.settings import Settings, seconds, whole
from penstock.contract.settings import text as text_of
from penstock.errors import InvalidArgument, QueueExists

MAX_REASON = 1000
SETTINGS = tuple(field.name for field in fields(Settings))
MAX_WAIT = 60.0  # seconds of one long poll; clients that wait longer poll again


def checked_lease(lease: float | None) -> float | None:
    """The lease; InvalidArgument unless it is more than 0 seconds. None: the queue's own."""
    if lease is not None and seconds("lease", lease) == 0:
        raise InvalidArgument("lease=0 would end at once; give the seconds that the work may take")
    return lease


def checked_delay(delay: float | None) -> float | None:
    """The delay after a fail; None: by the queue's backoff."""
    return None if delay is None else seconds("delay", delay)


def checked_consumer(consumer: str | None) -> str:
    """The consumer's name; without one, host:pid."""
    if consumer is None:
        return _this_process(os.getpid())
    return text_of("consumer", consumer, 1, MAX_CONSUMER)


@lru_cache(maxsize=1)  # one string for all claims, and a new one after a fork
def _this_process(pid: int) -> str:
    return f"{os.uname().nodename}:{pid}"


def checked_reason(reason: str | None) -> str | None:
    """The reason, cut to the length that stores keep."""
    return None if reason is None else str(reason)[:MAX_REASON].encode(errors="replace").decode()


def checked_state(state: State | None) -> State | None:
    """The state; InvalidArgument if there is no such state."""
    if state is not None and state not in STATES:
        raise InvalidArgument(f"state={state!r} is none; give one of {', '.join(STATES)}, or None for all")
    return state


def checked_ids(ids: Iterable[str]) -> list[str]:
    """The ids; TypeError unless all are str."""
    for each in ids:
        if not isinstance(each, str):
            raise TypeError(f"an id is a str, not {type(each).__name__}: give message.id")
    return list(ids)


def checked_settings(settings: Settings) -> Settings:
    """The settings; InvalidFilter if their filter does not parse."""
    if settings.filter is not None:
        from penstock import filters  # here, so that import penstock stays quick

        filters.parse(settings.filter)
    return settings


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings to change, checked as those of a new queue; TypeError for unknown names."""
    for name in changes:
        if name not in SETTINGS:
            raise TypeError(
                f"update() got an unexpected keyword argument {name!r}; there are {', '.join(SETTINGS)}"
            )
    checked = checked_settings(Settings(**changes))
    return {name: checked[name] for name in changes}


def check_same(queue: str, wanted: Mapping[str, Any], there: Settings) -> None:
    """QueueExists, naming them, if settings of an existing queue differ from those that were asked for."""
    differing = [
        f"{name}={there[name]!r}, not {value!r}" for name, value in wanted.items() if there[name] != value
    ]
    if differing:
        raise QueueExists(
            f"queue {queue!r} exists with {'; '.join(differing)}: leave that out, or change it with "
            f"store.queue({queue!r}).update()"
        )


def receipts_of(messages: Iterable[Message | str], queue: str) -> list[str]:
    """The receipts of messages claimed from a queue; a str is a receipt already."""
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


def receipts_in(ack: Message | str | Iterable[Message | str], queue: str) -> Sequence[str]:
    """The receipts of one message, or of many, that a claim acknowledges."""
    return receipts_of([ack] if isinstance(ack, Message | str) else ack, queue) or ()


class arguments:  # noqa: N801 - a context manager, written out as every request enters it
    """Turns a TypeError of an argument that came over the wire into InvalidArgument, with `where` before it."""

    def __init__(self, where: str = "") -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TypeError) or (self._where and isinstance(error, InvalidArgument)):
            raise InvalidArgument(f"{self._where}{error}") from None


def check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse unknown names; InvalidArgument lists the known ones."""
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise InvalidArgument(
            f"{what} has no {', '.join(map(repr, unknown[:3]))}; it has {', '.join(sorted(known))}"
        )


def settings_from_json(settings: Mapping[str, Any]) -> Settings:
    """A queue's settings from a JSON object, checked."""
    if not isinstance(settings, dict):
        raise InvalidArgument(f"settings are a JSON object, not {kind_of(settings)}")
    check_known(settings, SETTINGS, "a queue")
    with arguments():
        checked = Settings(**settings)
        if not isinstance(checked.start, str | int) or isinstance(checked.start, bool):
            raise TypeError(f"start is a str or an int, not {type(checked.start).__name__}")
    return checked_settings(checked)


def changes_from_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings to change from a JSON object, checked."""
    checked = settings_from_json(settings)
    return {name: checked[name] for name in settings}


def kind_of(value: object) -> str:
    """The JSON type of a value, in words."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


# Argument types for declarations


def a_whole(description: str, lowest: int, highest: int, **more: Any) -> Argument:
    """An integer within limits."""
    return Argument(
        check=lambda name, value: whole(name, value, lowest, highest),
        schema=integer(description, lowest, highest),
        **more,
    )


def a_text(description: str, **more: Any) -> Argument:
    """A text; further keywords belong to its schema."""
    ways = {name: more.pop(name) for name in ("check", "wire", "omit", "example", "send") if name in more}
    ways.setdefault("check", _text)
    return Argument(schema=text(description, **more), **ways)


def a_list(description: str, **more: Any) -> Argument:
    """Ids or receipts."""
    return Argument(check=_list, schema=texts(description), **more)


def a_reason(description: str, **more: Any) -> Argument:
    """The reason of a failure, or null."""
    return Argument(check=_reason, schema=nullable(text(description, **more)))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return value


def _reason(name: str, value: Any) -> str | None:
    return None if value is None else checked_reason(_text(name, value))


def _list(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidArgument(f'"{name}" is a list of texts: {{"{name}": [...]}}')
    return checked_ids(value)


QUEUE = Argument(
    check=lambda name, value: names.checked(value),
    schema={**schemas.NAME, "description": "The queue's name."},
    example="jobs",
)
QueueName = Annotated[str, QUEUE]
MessageId = Annotated[str, a_text("The message's id.", minLength=1, example="7")]
Receipts = Annotated[Sequence[str], a_list("Receipts of claims, in any order.")]
Lease = Annotated[
    float | None,
    Argument(check=lambda name, value: checked_lease(value), schema=nullable(schemas.LEASE), omit=True),
]
Wait = Annotated[float, Argument(check=seconds, schema=schemas.WAIT, most=MAX_WAIT)]
# Not checked here: the edges fill in a default, this process or the client's address.
Consumer = Annotated[str | None, Argument(check=lambda name, value: value, schema=nullable(schemas.CONSUMER))]
After = Annotated[str, a_text("Begin after this id.", omit=True)]
Until = Annotated[str, a_text("End with this id.", omit=True)]
