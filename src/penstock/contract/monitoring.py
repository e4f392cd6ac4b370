"""Operations of servers for people: overview, history, search, reasons, health, changes. No store runs them.

Their answers are JSON objects; the schemas below say what is in them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, dataclass_transform

from penstock.contract import schemas
from penstock.contract.arguments import MAX_WAIT, QUEUE, After, QueueName, a_text, a_whole, checked_state
from penstock.contract.backend import FLOWS
from penstock.contract.message import LATEST, STATES
from penstock.contract.operation import Answer, Argument, Kind, Operation, operation
from penstock.contract.operations import NOW, OF_QUEUE, READS
from penstock.contract.roles import READ
from penstock.contract.schemas import Schema, answer, array, integer, nullable, text, texts
from penstock.contract.settings import MAX_COUNT, seconds
from penstock.contract.stream_operations import INFO
from penstock.errors import InvalidArgument

MOST = 500  # queues on a page of the overview
SORTS = ("queue", *STATES, "in", "out", "failures", "oldest", "consumers")
SEVERITIES = ("error", "warning", "notice")
SPANS = ("hour", "day")
LOOKED_AT = 2_000  # messages that a page of found ones looks at
PREVIEW = 300  # bytes of a payload
MOST_FOUND, _LONGEST_TEXT = 200, 200
_LARGE = 2**53 - 1
_Q = "/-/api/queues/{queue}"


@dataclass_transform()
def _watched(call: str, runs: str, **more: Any) -> Callable[[Kind], Kind]:
    """Declare an operation that reads a server's memory."""
    return operation(call, runs, part="watch", **{"tag": "Monitoring", "role": READ, "said": "look", **more})


# Arguments


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidArgument(f"{name}={value!r} is none; give one of {', '.join(choices)}")
    return str(value)


def _a_choice(description: str, *choices: str) -> Argument:
    return a_text(description, check=lambda name, value: _choice(name, value, choices), enum=list(choices))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise InvalidArgument(f"{name} is a text of at most {_LONGEST_TEXT} characters")
    return value


def _search(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 255:
        raise InvalidArgument(f"{name} is a part of a queue's name, of at most 255 characters")
    return value


SpanName = Annotated[str, _a_choice("`hour`: in steps of 30 seconds; `day`: in steps of 15 minutes.", *SPANS)]

# Answers


def _number(description: str) -> Schema:
    return {"type": "number", "description": description}


def _size(description: str) -> Schema:
    return integer(description, 0, _LARGE)


def _values(description: str) -> Schema:
    return {"type": "array", "items": {"type": ["number", "null"]}, "description": description}


_NAME = {**schemas.NAME, "description": "The queue's name."}
_ONLY = text("A queue's name; the empty one is that of `default`.", pattern="^[!-~]{0,255}$")
_COUNTS = answer({state: {"type": "integer", "minimum": 0} for state in STATES})
_RATES = {
    "in": _number("Messages put a second, in the last minute."),
    "out": _number("Messages acknowledged or popped a second, in the last minute."),
    "failures": _number("Attempts that failed a second, in the last minute."),
}
_LINES = {
    "depth": _values("Messages that wait or are in flight, over the last hour; null: not known."),
    "throughput": _values("Messages acknowledged or popped a second, over the last hour; null: not known."),
}
_A_PROBLEM = answer(
    {
        "kind": text("What is wrong, in one word."),
        "severity": text("How bad it is.", enum=list(SEVERITIES)),
        "queue": nullable(text("The queue's name; null: it is not about one queue.")),
        "what": text("What is wrong, for people."),
        "advice": text("What to do, for people."),
    }
)
_ROW = answer(
    {
        "queue": _NAME,
        "up": {"type": "boolean", "description": "False: an error has stopped the queue."},
        "counts": _COUNTS,
        **_RATES,
        "oldest": nullable(_number("Seconds of the longest wait of an available message.")),
        "consumers": _size("Consumers that wait for a message."),
        **_LINES,
    }
)
_CHANGE = _size("The number of the latest change, for `changes`.")
_NOW = integer("When this was, by the server's clock.", 0, LATEST)
_OVERVIEW = answer(
    {
        "now": _NOW,
        "change": _CHANGE,
        "totals": answer({"queues": _size("How many queues there are."), "counts": _COUNTS, **_RATES, **_LINES}),
        "found": _size("How many queues the search has found."),
        "queues": array(_ROW),
        "problems": array(_A_PROBLEM),
        "problems_found": _size("How many problems there are; `problems` has the worst hundred."),
    }
)
_SERIES = answer({name: _values(f"By step: {name}.") for name in (*STATES, *FLOWS)})
_HISTORY = answer(
    {
        "now": _NOW,
        "change": _CHANGE,
        "seconds": _size("Seconds of a step."),
        "end": integer("When the last step ends, by the server's clock. It may still be running.", 0, LATEST),
        "covered": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Seconds of each step that its rates are of: less in the first and last, more after a "
            "gap. Times a rate it is how many messages.",
        },
        "series": {
            **_SERIES,
            "description": "Values by step, the latest last; null: not known. Counts of messages by state at the "
            "end of the step. Rates a second: `in` (put), `out` (acknowledged or popped), `failures` (attempts), "
            "`leases_expired`, `given_up` (failed for good).",
        },
    }
)
_AN_OVERVIEW = {
    "now": NOW, "change": 17,
    "totals": {
        "queues": 1, "counts": dict.fromkeys(STATES, 0), "in": 0.0, "out": 0.0, "failures": 0.0,
        "depth": [0.0], "throughput": [0.0],
    },
    "found": 0, "queues": [], "problems": [], "problems_found": 0,
}  # fmt: skip
_SOME_HISTORY = {
    "now": NOW, "change": 17, "seconds": 30, "end": NOW, "covered": [30.0],
    "series": {name: [0.0] for name in (*STATES, *FLOWS)},
}  # fmt: skip
_REASONS = answer(
    {
        "state": text("The state of these messages.", enum=list(STATES)),
        "messages": _size("Messages that were looked at, the first in the queue."),
        "complete": {"type": "boolean", "description": "Whether these are all in that state."},
        "reasons": array(
            answer(
                {
                    "reason": nullable(text("The reason of the latest of them; null: without one.")),
                    "count": _size("Messages with this reason. Reasons that differ in numbers only are one."),
                    "latest": nullable(integer("When the latest of them failed, if known.", 0, LATEST)),
                    "message": text("The id of the latest of them."),
                }
            )
        ),
        "others": _size("Messages with reasons that are not listed."),
    }
)
_HEALTH = answer(
    {
        "now": _NOW,
        "version": text("The version of Penstock."),
        "uptime": _number("Seconds since the server started."),
        "store": answer(
            {
                "kind": text("The kind of store, such as `journal`."),
                "open": {"type": "boolean", "description": "False: it was closed or has failed."},
            }
        ),
        "disk": {
            **answer({"free": _size("Bytes that are free."), "total": _size("Bytes of the file system.")}),
            "type": ["object", "null"],
            "description": "The file system of the store; null: it has none here.",
        },
        "commits": {
            **answer(
                {
                    "count": _size("Commits in that time."),
                    "p50": _number("Seconds that half of them took at most."),
                    "p99": _number("Seconds that 99 of 100 took at most."),
                }
            ),
            "type": ["object", "null"],
            "description": "The commits of the last five minutes; null: there were none, or they are not known.",
        },
        "longest_commit": _number("Seconds that the longest running commit has taken so far."),
        "connections": _size("Connections that are open."),
        "buffered": _size("Bytes of request bodies in memory."),
        "answers": {
            "type": "object",
            "additionalProperties": {"type": "integer", "minimum": 0},
            "description": "Answers by status, since the server started.",
        },
        "memory": nullable(_size("Bytes of memory in use; null: not known.")),
        "cpu": _number("Seconds of CPU time."),
        "queues": _size("How many queues there are."),
    }
)
_CONSUMER = answer(
    {
        "queue": _NAME,
        "consumer": text("Its name."),
        "seen": integer("When it asked for messages last.", 0, LATEST),
        "messages": _size("Messages that it was given since it was seen first."),
    }
)
_ACTIVITY = answer(
    {
        "now": _NOW,
        "streams": array(
            answer(
                {
                    **INFO["properties"],
                    "age": nullable(_number("Seconds for which it has held its batch; null: it holds none.")),
                    "gone": {
                        "type": ["boolean", "null"],
                        "description": "Whether its reader has ended; null: not known.",
                    },
                }
            )
        ),
        "followers": array(
            answer(
                {
                    "queue": _NAME,
                    "follower": text("Its name."),
                    "seen": integer("When it asked last.", 0, LATEST),
                    "position": _size("The number of the last message that it has read."),
                    "lag": _size("Messages that it has not read yet, about."),
                    "held_back": nullable(_size("Bytes that are kept for it alone; null: it is just asking.")),
                }
            )
        ),
        "loads": array(
            answer(
                {
                    "load": text("Its name."),
                    "began": integer("When it began.", 0, LATEST),
                    "touched": integer("When a request touched it last.", 0, LATEST),
                    "parts": _size("Its parts so far."),
                    "messages": _size("Its messages so far."),
                    "queues": texts("Queues that it makes."),
                }
            )
        ),
        "consumers": array(_CONSUMER),
    }
)


def _whole_answer(description: str, schema: Schema, example: object) -> Answer:
    return Answer(description, dict, schema=schema, example=example)


_FOUND = answer(
    {
        "messages": array(
            {
                "type": "object",
                "description": "The fields of a message without payload, headers and receipt; the bytes of its "
                f"payload as `size`, and the first {PREVIEW} of them as text, `preview`.",
            }
        ),
        "looked": _size("Messages that were looked at for this page."),
        "next": nullable(text("The `after` of the next page; null: this is the last.")),
    }
)


# Operations


@_watched(
    "GET /-/api/overview",
    "overview",
    name="show_overview",
    answer=_whole_answer("Totals, a page of queues, and problems.", _OVERVIEW, _AN_OVERVIEW),
)
class Overview(Operation[dict[str, Any]]):
    """Everything at a glance.

    Totals, the queues that a search finds, sorted and page by page, and what is wrong, the worst first. Names sort
    upwards, numbers downwards.
    """

    search: Annotated[
        str, a_text("Only queues with this in their name, in upper or lower case.", check=_search, maxLength=255)
    ] = ""
    sort: Annotated[str, _a_choice("What the queues are sorted by.", *SORTS)] = "queue"
    skip: Annotated[int, a_whole("How many queues to leave out.", 0, MAX_COUNT)] = 0
    limit: Annotated[int, a_whole("How many queues at most.", 0, MAX_COUNT, most=MOST)] = 50
    points: Annotated[int, a_whole("How many values of `depth` and `throughput`, about.", 1, 120)] = 60


@_watched(
    "GET /-/api/history",
    "total_history",
    name="show_total_history",
    answer=_whole_answer("Series of all queues together.", _HISTORY, _SOME_HISTORY),
)
class TotalHistory(Operation[dict[str, Any]]):
    """The last hour or day of all queues.

    The server remembers it in memory, from its start.
    """

    span: SpanName = "hour"


@_watched(
    f"GET {_Q}/history",
    "history_of",
    name="show_history",
    errors=OF_QUEUE,
    answer=_whole_answer("Series of the queue.", _HISTORY, _SOME_HISTORY),
)
class QueueHistory(Operation[dict[str, Any]]):
    """The last hour or day of a queue.

    The server remembers it in memory, from its start.
    """

    queue: QueueName
    span: SpanName = "hour"


@_watched(
    f"GET {_Q}/reasons",
    "reasons",
    name="list_reasons",
    lists=True,
    errors=READS,
    answer=_whole_answer(
        "Reasons with counts, the most frequent first.",
        _REASONS,
        {
            "state": "failed", "messages": 3, "complete": True, "others": 0,
            "reasons": [{"reason": "no disk", "count": 3, "latest": NOW, "message": "7"}],
        },
    ),
)  # fmt: skip
class Reasons(Operation[dict[str, Any]]):
    """Why messages failed.

    The reasons of messages in one state, grouped and counted, over at most 10,000 messages. In other states than
    `failed` it is the reason of the last failed attempt.
    """

    queue: QueueName
    state: Annotated[str, _a_choice("The state of the messages.", *STATES)] = "failed"


@_watched(
    f"GET {_Q}/find",
    "find",
    name="find_messages",
    lists=True,
    errors=READS,
    answer=_whole_answer(
        "A page of messages, in the order in which they were put.",
        _FOUND,
        {
            "messages": [{"id": "7", "state": "failed", "size": 14, "preview": "resize cat.jpg"}],
            "looked": 3, "next": None,
        },
    ),
)  # fmt: skip
class Find(Operation[dict[str, Any]]):
    """Find messages.

    For people who look for a message: short descriptions, by state, and by a text that occurs in id, group,
    consumer, reason, headers or payload, in any case. A page ends after `limit` messages, after 2,000 that were
    looked at, or 8 MiB of payloads; it may be empty.
    """

    queue: QueueName
    state: Annotated[
        str | None,
        a_text(
            "Only messages in this state.",
            check=lambda name, value: checked_state(value),
            omit=True,
            enum=list(STATES),
        ),
    ] = None
    text: Annotated[str, a_text("Only messages with this text.", check=_text, maxLength=_LONGEST_TEXT)] = ""
    after: After = ""
    limit: Annotated[int, a_whole("How many at most.", 1, MAX_COUNT, most=MOST_FOUND)] = 50


@_watched(
    "GET /-/api/server",
    "health",
    name="show_server",
    answer=_whole_answer(
        "The server's health.",
        _HEALTH,
        {
            "now": NOW, "version": "1.0", "uptime": 60.0, "store": {"kind": "journal", "open": True},
            "disk": {"free": 8_000_000_000, "total": 64_000_000_000},
            "commits": {"count": 120, "p50": 0.0006, "p99": 0.004}, "longest_commit": 0.0, "connections": 3,
            "buffered": 0, "answers": {"200": 17}, "memory": 60_000_000, "cpu": 1.5, "queues": 1,
        },
    ),
)  # fmt: skip
class Health(Operation[dict[str, Any]]):
    """How the server is.

    Version, uptime, kind of store, disk, latency of commits, connections, memory.
    """


@_watched(
    "GET /-/api/activity",
    "activity",
    name="show_activity",
    answer=_whole_answer(
        "Streams, followers, loads and consumers.",
        _ACTIVITY,
        {"now": NOW, "streams": [], "followers": [], "loads": [], "consumers": []},
    ),
)
class Activity(Operation[dict[str, Any]]):
    """Who works with the store.

    Its streams and followers, loads under way, and the consumers that this server has seen lately, the latest
    first, at most 500. A server on a store that another process owns knows neither followers nor loads.
    """


@_watched(
    "GET /-/api/changes",
    "changes",
    name="wait_for_change",
    errors=OF_QUEUE,
    polls=True,
    answer=_whole_answer("The number of the latest change.", answer({"change": _CHANGE}), {"change": 18}),
)
class Changes(Operation[dict[str, Any]]):
    """Wait for a change.

    Answers as soon as the number of the latest change is another than `since`, or after `wait` seconds. Changes
    of counts, counters and waiting consumers are seen within a second or so, with very many queues a little later.
    With `queue` only changes of that queue count, and its removal.
    """

    since: Annotated[int, a_whole("The number of the last change that the client knows; 0: none.", 0, _LARGE)] = 0
    wait: Annotated[float, Argument(check=seconds, schema=schemas.WAIT, most=MAX_WAIT)] = 0
    only: Annotated[str | None, replace(QUEUE, schema=_ONLY, wire="queue", omit=True)] = None


OPERATIONS = (Overview, TotalHistory, QueueHistory, Find, Reasons, Health, Activity, Changes)
