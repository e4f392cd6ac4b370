"""Streams, below /-/streams."""

from penstock.arguments import MAX_REASON
from penstock.server.description import schemas
from penstock.server.description.operation import (
    BATCH,
    BYTES,
    DONE,
    NOW,
    QUEUE,
    READS,
    UNTIL,
    WRITES,
    Operation,
    answer,
    body,
    parameter,
    query,
)
from penstock.server.description.schemas import integer, nullable, record, ref, text, texts
from penstock.server.streams import MAX_BATCH, MAX_READER, MAX_ROWS, MAX_RUN
from penstock.settings import MAX_COUNT
from penstock.streams import LONGEST

_TAG = "Streams"
_S = "/-/streams/{queue}/{stream}"
_A_READER = "4711-88120-4026531836@0b5c8f6e-3f1d-4a57-9f0e-3d8d1c0b7a11@worker-1"
_NAME = {"type": "string", "pattern": f"^[!-~]{{1,{LONGEST}}}$"}
_STREAM = parameter("path", "stream", {**_NAME, "description": "The stream's name."}, "nightly")
_NUMBER = parameter("path", "batch", integer("The batch's number.", 0, MAX_BATCH), 7)
_READER = text("The process that reads, by a name of its own.", minLength=1, maxLength=MAX_READER)
_AN_INFO = {
    "queue": "jobs", "stream": "nightly", "mode": "consume", "batch": 8, "settled": 7, "messages": 1000,
    "since": NOW, "failures": 0, "reader": _A_READER, "lag": 25,
}  # fmt: skip
_MISSING = ("StreamNotFound", "NotSupported")
INFO = schemas.answer(
    {
        "queue": {**schemas.NAME, "description": "The queue's name."},
        "stream": {**_NAME, "description": "The stream's name."},
        "mode": {"enum": ["consume", "follow"], "description": "Whether it holds what it reads."},
        "batch": integer("The number of its latest batch, 0 if there was none.", 0, MAX_BATCH),
        "settled": integer("The number of the last one that was settled, 0 if none was.", 0, MAX_BATCH),
        "messages": integer("Messages that it holds.", 0, MAX_COUNT),
        "since": nullable(schemas.time("When it claimed them.")),
        "failures": integer("Those of them that are to fail.", 0, MAX_COUNT),
        "reader": text("The process that reads it, or was the last to do so."),
        "lag": integer("Messages that wait to be read.", 0, MAX_COUNT),
    }
)

OPERATIONS = [
    Operation(
        call="GET /-/streams",
        id="list_streams",
        tag=_TAG,
        summary="All streams",
        answers={
            "200": answer(
                "Every stream of every queue.",
                schemas.answer({"streams": {"type": "array", "items": ref("Stream")}}),
                {"streams": [_AN_INFO]},
            )
        },
        errors=("NotSupported",),
    ),
    Operation(
        call=f"POST {_S}/begin",
        id="begin_stream",
        tag=_TAG,
        summary="Read a stream, alone",
        description=(
            "The stream is made if it is not there. Another process is refused while this one lives; one on "
            "another machine lives as long as it says so once a minute."
        ),
        parameters=[QUEUE, _STREAM],
        body=body(record({"reader": _READER}, "reader"), {"reader": _A_READER}),
        answers={"200": answer("It is yours.", ref("Stream"), _AN_INFO)},
        errors=(*WRITES, "StreamInUse", "NotSupported"),
    ),
    Operation(
        call=f"POST {_S}/next",
        id="next_batch",
        tag=_TAG,
        summary="Settle a batch that was read, and go on with the next",
        description=(
            "`start` is the number of a batch whose outcome is safe, 0 before the first: it is settled. The "
            "answer names the batch after it. Only if there is none yet, messages are claimed for it, in the "
            "order of claiming; they are held until the batch is settled. With a `run` only messages are claimed "
            "that were there when that name was first given, each once: what fails in a run is for the next."
        ),
        parameters=[QUEUE, _STREAM],
        body=body(
            record(
                {
                    "reader": _READER,
                    "start": integer("The number of a batch, or 0.", 0, MAX_BATCH, 0),
                    "rows": integer("At most so many messages; 0: claim none.", 0, MAX_ROWS, 1_000),
                    "bytes": integer("No more bytes than that beyond the first message.", 1, MAX_BATCH, MAX_BATCH),
                    "run": nullable(text("A name of your own for one run.", minLength=1, maxLength=MAX_RUN)),
                },
                "reader",
            ),
            {"reader": _A_READER, "start": 7, "rows": 1000},
        ),
        answers={
            "200": answer(
                "The number of the next batch; null: nothing is there.",
                schemas.answer({"batch": nullable(integer("A number.", 1, MAX_BATCH))}),
                {"batch": 8},
            )
        },
        errors=(*WRITES, "StreamInUse", "StreamMismatch", *_MISSING),
    ),
    Operation(
        call=f"POST {_S}/follow",
        id="follow_queue",
        tag=_TAG,
        summary="Say how far one who follows has read",
        description="Files that have what entered later are not packed, as long as they are not too many.",
        parameters=[QUEUE, _STREAM],
        body=body(
            record({"reader": _READER, "after": integer("The id of a message, or 0.", 0, MAX_BATCH, 0)}, "reader"),
            {"reader": _A_READER, "after": 1200},
        ),
        answers={"204": DONE},
        errors=(*WRITES, "StreamInUse", "NotSupported"),
    ),
    Operation(
        call=f"POST {_S}/{{batch}}/read",
        id="read_batch",
        tag=_TAG,
        summary="Where the messages of a batch are",
        description=(
            "For who sees the server's files: rows and places, and, with `pins`, files that are held for a "
            "process of the same machine (`PROCESS@BOOT`). What was to fail of the batch is forgotten."
        ),
        parameters=[QUEUE, _STREAM, _NUMBER],
        body=body(record({"pins": nullable(text("For which process."))}), {"pins": None}, required=False),
        answers={
            "200": {
                "description": "A head of JSON and rows.",
                "content": {BYTES: {"schema": {"contentMediaType": BYTES}}},
            }
        },
        errors=(*WRITES, "StreamMismatch", *_MISSING),
    ),
    Operation(
        call=f"GET {_S}/{{batch}}/messages",
        id="list_batch",
        tag=_TAG,
        summary="The messages of a batch",
        description="By ascending id. A page ends at 1,000 messages or 8 MiB; go on with `after`.",
        parameters=[
            QUEUE,
            _STREAM,
            _NUMBER,
            *query(
                after=text("Begin after this id."),
                until=UNTIL,
                limit=integer("At most so many.", 1, MAX_ROWS, 100),
            ),
        ],
        answers={"200": BATCH},
        errors=(*READS, "StreamMismatch", *_MISSING),
    ),
    Operation(
        call=f"POST {_S}/{{batch}}/fail",
        id="fail_in_batch",
        tag=_TAG,
        summary="Let messages of a batch fail when it is settled",
        description="Those of the others are done then. Of a batch that is settled nothing changes any more.",
        parameters=[QUEUE, _STREAM, _NUMBER],
        body=body(
            record(
                {
                    "ids": texts("Ids of messages; what is not in the batch is skipped."),
                    "reason": nullable(text("Why.", maxLength=MAX_REASON)),
                    "delay": {**schemas.DELAY, "description": "Seconds from then on until they are tried again."},
                },
                "ids",
            ),
            {"ids": ["7"], "reason": "not a number"},
        ),
        answers={"204": DONE},
        errors=(*WRITES, "StreamMismatch", *_MISSING),
    ),
    Operation(
        call=f"POST {_S}/{{batch}}/settle",
        id="settle_batch",
        tag=_TAG,
        summary="Settle a batch",
        parameters=[QUEUE, _STREAM, _NUMBER],
        body=body(record({}), {}, required=False),
        answers={
            "200": answer(
                "It is settled.",
                schemas.answer({"settled": {"type": "boolean", "description": "False: it was before."}}),
                {"settled": True},
            )
        },
        errors=(*WRITES, "StreamMismatch", *_MISSING),
    ),
    Operation(
        call=f"POST {_S}/release",
        id="release_stream",
        tag=_TAG,
        summary="Give back what a stream holds",
        description="Its reader must be gone. The batch has no messages any more, whoever reads it again.",
        parameters=[QUEUE, _STREAM],
        body=body(record({}), {}, required=False),
        answers={
            "200": answer("How many.", schemas.answer({"count": integer("Messages.", 0, MAX_COUNT)}), {"count": 2})
        },
        errors=(*WRITES, "StreamInUse", *_MISSING),
    ),
    Operation(
        call=f"DELETE {_S}",
        id="delete_stream",
        tag=_TAG,
        summary="Forget a stream",
        description="It must hold nothing, and its reader must be gone. Numbers of batches are not used again.",
        parameters=[QUEUE, _STREAM],
        answers={"204": DONE},
        errors=(*WRITES, "StreamInUse", *_MISSING),
    ),
]
