"""Loads, below /-/loads."""

from penstock.landing import LONGEST
from penstock.server.description import schemas
from penstock.server.description.operation import (
    DONE,
    Operation,
    answer,
    body,
    drafts,
    parameter,
    query,
)
from penstock.server.description.schemas import integer, nullable, record, ref, text
from penstock.server.streams import MAX_BATCH
from penstock.settings import MAX_COUNT
from penstock.uploads import MAX_RUN

_TAG = "Loads"
_A_LOAD = "0-0-1767225600000.0c9f4d2e8a51b673"
_PART = text("1 to 64 of a-z, 0-9, _ and -.", pattern="^[a-z0-9_-]{1,64}$")
_LOAD = parameter("path", "load", text("The load's name.", minLength=1), _A_LOAD)
_RUN = text(
    f"A name for what is done here, at most {MAX_RUN} bytes: a run takes effect once, in whatever load.",
    minLength=1,
    maxLength=MAX_RUN,
)
_SENT = record(
    {"part": _PART, "batches": integer("How many batches it has; another number is refused.", 0, MAX_COUNT)},
    "part",
    "batches",
)

_SINK = {
    **nullable(
        record(
            {
                "id": text("What it is written by.", minLength=1, maxLength=LONGEST),
                "query": text("The query, whose batches are numbered.", minLength=1, maxLength=LONGEST),
                "batch": integer("The batch's number.", 0, MAX_BATCH),
            },
            "id",
            "query",
            "batch",
        )
    ),
    "description": "It is a batch of a stream, which takes effect once, and after that no lower number does.",
}

OPERATIONS = [
    Operation(
        call="POST /-/loads",
        id="begin_load",
        tag=_TAG,
        summary="Begin a load",
        description=(
            "It is dropped when nobody has touched it for a day, or when the server ends. `queues` are made when "
            "it is committed, if they are not there by then."
        ),
        body=body(
            record(
                {
                    "queues": {
                        "type": "object",
                        "propertyNames": {"pattern": "^[!-~]{0,255}$"},
                        "additionalProperties": ref("Settings"),
                    }
                }
            ),
            {"queues": {"jobs": {"max_size": 1000}}},
            required=False,
        ),
        answers={
            "201": answer("It is open.", schemas.answer({"load": text("The load's name.")}), {"load": _A_LOAD})
        },
        errors=("InvalidName", "InvalidFilter", "NotSupported", "DiskFull"),
    ),
    Operation(
        call="PUT /-/loads/{load}/{part}/{number}",
        id="add_to_load",
        tag=_TAG,
        summary="Add a batch to a part of a load",
        description=(
            "A part is filled by one sender, one batch after the other, numbered from 0 on. Sending the last one "
            "again changes nothing. Messages have no key. The columns of a frame may also be `visible_at` and "
            "`expires_at`: times, 0 for never, null for what the queue has. Delays count from here on."
        ),
        parameters=[
            _LOAD,
            parameter("path", "part", _PART, "0"),
            parameter("path", "number", integer("The batch's number.", 0, MAX_COUNT), 0),
            *query(queue={**schemas.NAME, "pattern": "^[!-~]{0,255}$", "description": "The queue's name."}),
        ],
        body=drafts("Loaded"),
        answers={"204": {"description": "It is on stable storage, and nobody sees it."}},
        errors=("InvalidName", "InvalidPriority", "QueueNotFound", "LoadNotFound", "NotSupported", "DiskFull"),
    ),
    Operation(
        call="POST /-/loads/{load}/commit",
        id="commit_load",
        tag=_TAG,
        summary="Let a load take effect",
        description=(
            "All of it, in the order of `parts`, or nothing; other parts are dropped. What is refused, as queues "
            "are full or not there, stays open. Asking again gets the same answer, also after the server has "
            "started anew: for a week, and for ever if `run` is given."
        ),
        parameters=[_LOAD],
        body=body(
            record({"parts": {"type": "array", "items": _SENT}, "run": nullable(_RUN), "sink": _SINK}, "parts"),
            {"parts": [{"part": "0", "batches": 1}], "run": "monday"},
        ),
        answers={
            "200": answer(
                "It is there.",
                schemas.answer(
                    {
                        "loaded": {
                            "type": "boolean",
                            "description": "False: another load has taken effect as this run before.",
                        },
                        "messages": integer("How many it brought.", 0, MAX_COUNT),
                    }
                ),
                {"loaded": True, "messages": 2},
            )
        },
        errors=(
            "InvalidPriority", "QueueNotFound", "LoadNotFound", "NotSupported", "QueueFull", "DiskFull",
            "StoreCorrupt", "StreamMismatch",
        ),
    ),
    Operation(
        call="GET /-/runs/{run}",
        id="run",
        tag=_TAG,
        summary="What a run has brought",
        parameters=[parameter("path", "run", _RUN, "monday")],
        answers={
            "200": answer(
                "How much came into each queue.",
                schemas.answer(
                    {
                        "queues": {
                            "type": ["array", "null"],
                            "items": schemas.answer(
                                {
                                    "queue": {**schemas.NAME, "description": "The queue's name."},
                                    "messages": integer("How many.", 0, MAX_COUNT),
                                    "bytes": {"type": "integer", "description": "Of payloads."},
                                }
                            ),
                            "description": "Null: no such run has taken effect.",
                        }
                    }
                ),
                {"queues": [{"queue": "jobs", "messages": 2, "bytes": 28}]},
            )
        },
        errors=("NotSupported", "StoreCorrupt"),
    ),
    Operation(
        call="DELETE /-/loads/{load}",
        id="abort_load",
        tag=_TAG,
        summary="Drop a load that is open",
        description="One that has taken effect stays.",
        parameters=[_LOAD],
        answers={"204": DONE},
        errors=("NotSupported",),
    ),
]  # fmt: skip
