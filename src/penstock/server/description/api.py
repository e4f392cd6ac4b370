"""The rest of the contract, below /-/api/."""

from penstock.arguments import MAX_REASON
from penstock.index.rows import STATES
from penstock.server.description import schemas
from penstock.server.description.operation import (
    A_QUEUE,
    A_RECEIPT,
    BATCH,
    CREATES,
    DONE,
    ID,
    LISTED,
    NOW,
    OF_QUEUE,
    PUTS,
    QUEUE,
    READS,
    TAKES,
    UNTIL,
    WRITES,
    Operation,
    answer,
    body,
    drafts,
    query,
)
from penstock.server.description.schemas import Schema, integer, nullable, record, ref, text, texts
from penstock.settings import MAX_COUNT
from penstock.wire import jsons

_QUEUES = "/-/api/queues"
_Q = _QUEUES + "/{queue}"
_CONSUMER = nullable(schemas.CONSUMER)
_RECEIPTS = texts("Receipts of claims, in any order.")
_COUNTED = {
    "200": answer("How many.", schemas.answer({"count": integer("Messages.", 0, MAX_COUNT)}), {"count": 2})
}
_FIELDS = "|".join(jsons.MESSAGE_FIELDS)
_AN_ATTEMPT = {
    "attempt": 1, "consumer": "me", "claimed_at": NOW, "ended_at": NOW + 900, "outcome": "failed",
    "reason": "no disk",
}  # fmt: skip


def _takes(name: str, summary: str, description: str, example: Schema, **members: Schema) -> Operation:
    return Operation(
        call=f"POST {_Q}/{name}",
        id=name,
        tag="Messages",
        summary=summary,
        description=description,
        parameters=[QUEUE],
        body=body(record(members), example, required=False),
        answers={"200": BATCH},
        errors=TAKES,
        polls=True,
    )


def _settles(name: str, summary: str, description: str, example: Schema, **members: Schema) -> Operation:
    return Operation(
        call=f"POST {_Q}/{name}",
        id=name,
        tag="Messages",
        summary=summary,
        description=f"{description} Lost receipts are named by the answer 409, after the rest was settled.",
        parameters=[QUEUE],
        body=body(record({"receipts": _RECEIPTS, **members}, "receipts"), {"receipts": [A_RECEIPT], **example}),
        answers={"204": DONE},
        errors=(*WRITES, "LeaseExpired"),
    )


QUEUES = [
    Operation(
        call=f"GET {_QUEUES}",
        id="list_queues",
        tag="Queues",
        summary="All queues",
        answers={
            "200": answer(
                "Every queue, by name.",
                schemas.answer({"queues": {"type": "array", "items": ref("Queue")}}),
                {"queues": [A_QUEUE]},
            )
        },
    ),
    Operation(
        call=f"POST {_QUEUES}",
        id="create_queue",
        tag="Queues",
        summary="Make a queue",
        body=body(
            record({"name": {**schemas.NAME, "pattern": "^[!-~]{0,255}$"}, "settings": ref("Settings")}, "name"),
            {"name": "jobs", "settings": {"max_size": 1000, "keep_done": 3600}},
        ),
        answers={"201": answer("It is new.", ref("Queue"), A_QUEUE)},
        errors=CREATES,
    ),
    Operation(
        call=f"GET {_Q}",
        id="show_queue",
        tag="Queues",
        summary="One queue",
        parameters=[QUEUE],
        answers={"200": answer("The queue.", ref("Queue"), A_QUEUE)},
        errors=OF_QUEUE,
    ),
    Operation(
        call=f"DELETE {_Q}",
        id="drop_queue",
        tag="Queues",
        summary="Remove a queue and its messages",
        description="The queue `default` always stays.",
        parameters=[QUEUE],
        answers={"204": DONE},
        errors=(*WRITES, "QueueProtected"),
    ),
]

MESSAGES = [
    Operation(
        call=f"POST {_Q}/put",
        id="put",
        tag="Messages",
        summary="Put messages",
        description="All of them or none.",
        parameters=[QUEUE],
        body=drafts("Drafts"),
        answers={
            "200": answer(
                "They are stored.", schemas.answer({"ids": texts("In the order of the batch.")}), {"ids": ["7"]}
            )
        },
        errors=(*OF_QUEUE, *PUTS),
    ),
    _takes(
        "claim",
        "Claim messages",
        "The answer ends early at 16 MiB of payloads.",
        {"n": 10, "lease": 60, "consumer": "me"},
        n=integer("How many at most.", 1, MAX_COUNT, 1),
        lease=schemas.LEASE,
        wait=schemas.WAIT,
        consumer=_CONSUMER,
    ),
    _takes(
        "pop",
        "Claim and acknowledge one message",
        "In one step: if the answer gets lost, so is the message.",
        {"wait": 0},
        wait=schemas.WAIT,
        consumer=_CONSUMER,
    ),
    _settles("ack", "The work is done", "The messages are done, and kept if the queue does (`keep_done`).", {}),
    _settles(
        "fail",
        "The work failed",
        "The messages come back, or end as failed after the last attempt.",
        {"delay": 60, "reason": "no disk"},
        delay={**schemas.DELAY, "description": "Seconds until they come back."},
        reason=nullable(text(f"Why, for people to see; the first {MAX_REASON:,} characters are kept.")),
    ),
    _settles("release", "Give messages back", "They are available again at once.", {}),
    Operation(
        call=f"POST {_Q}/extend",
        id="extend",
        tag="Messages",
        summary="Hold claimed messages for longer",
        description="The lease counts from now.",
        parameters=[QUEUE],
        body=body(
            record({"receipts": _RECEIPTS, "lease": schemas.LEASE}, "receipts"),
            {"receipts": [A_RECEIPT], "lease": 60},
        ),
        answers={
            "200": answer(
                "They are held.",
                schemas.answer(
                    {
                        "lease_until": {"type": "integer", "description": "When the claims end by themselves."},
                        "lost": texts("Receipts that no longer hold their message."),
                    }
                ),
                {"lease_until": NOW + 60_000, "lost": []},
            )
        },
        errors=WRITES,
    ),
    Operation(
        call=f"POST {_Q}/remove",
        id="remove",
        tag="Messages",
        summary="Take messages out, whatever their state",
        parameters=[QUEUE],
        body=body(
            record({"ids": texts("Ids; those that are not there are not counted.")}, "ids"), {"ids": ["7", "8"]}
        ),
        answers=_COUNTED,
        errors=WRITES,
    ),
    Operation(
        call=f"POST {_Q}/redrive",
        id="redrive",
        tag="Messages",
        summary="Try failed messages again",
        description="From their first attempt on.",
        parameters=[QUEUE],
        body=body(record({"ids": texts("Ids. Otherwise all that failed.")}), {"ids": ["7", "8"]}, required=False),
        answers=_COUNTED,
        errors=WRITES,
    ),
    Operation(
        call=f"POST {_Q}/purge",
        id="purge",
        tag="Messages",
        summary="Empty a queue",
        description="Only what is in flight stays.",
        parameters=[QUEUE],
        answers=_COUNTED,
        errors=WRITES,
    ),
    Operation(
        call=f"GET {_Q}/peek",
        id="peek",
        tag="Messages",
        summary="What claim would give",
        description="A page ends at 1,000 messages or 8 MiB of payloads.",
        parameters=[
            QUEUE,
            *query(
                n=integer("How many at most.", 1, MAX_COUNT, 1),
                skip=integer("How many to leave out.", 0, MAX_COUNT, 0),
            ),
        ],
        answers={"200": BATCH},
        errors=READS,
    ),
    Operation(
        call=f"GET {_Q}/messages",
        id="messages",
        tag="Messages",
        summary="Browse all messages",
        description=(
            "In the order in which they were put. A page ends at 1,000 messages or 8 MiB of payloads; go on with "
            "`after`, the last id of the page. The last page is empty."
        ),
        parameters=[
            QUEUE,
            *query(
                state=text("Only those in this state.", enum=list(STATES)),
                after=text("Begin after this id."),
                until=UNTIL,
                limit=integer("How many at most.", 1, MAX_COUNT, 100),
                fields=text(
                    "Only these fields, by commas. Without `payload`, `headers`, `created_at` and `received_at` "
                    "nothing is read from disk.",
                    pattern=f"^({_FIELDS})(,({_FIELDS}))*$",
                ),
            ),
        ],
        answers={"200": LISTED},
        errors=READS,
    ),
    Operation(
        call=f"GET {_Q}/parts",
        id="parts",
        tag="Messages",
        summary="Divide the messages among readers",
        description=(
            "Ids that end parts of about the same size, in their order. Read the messages or the attempts of a "
            "part with `after`, the id before (nothing for the first part), and `until`, its own: what is put "
            "later is in no part, and what stays is in one."
        ),
        parameters=[QUEUE, *query(n=integer("How many parts at most.", 1, 10_000, 1))],
        answers={
            "200": answer(
                "Where parts end.", schemas.answer({"until": texts("Ids.")}), {"until": ["1023", "1500"]}
            )
        },
        errors=OF_QUEUE,
    ),
    Operation(
        call=f"GET {_Q}/attempts",
        id="all_attempts",
        tag="Messages",
        summary="What became of all claims",
        description=(
            "Of the messages that are there, in the order in which they were put. A page ends after about 1,000 "
            "attempts or 10,000 messages, and may have none; go on with `after` as `next` says."
        ),
        parameters=[QUEUE, *query(after=text("Begin after this id."), until=UNTIL)],
        answers={
            "200": answer(
                "A page of attempts.", ref("Attempts"), {"attempts": [{"id": "7", **_AN_ATTEMPT}], "next": None}
            )
        },
        errors=OF_QUEUE,
    ),
    Operation(
        call=f"GET {_Q}/messages/{{id}}/attempts",
        id="attempts",
        tag="Messages",
        summary="What became of a message's claims",
        description="Oldest first; none if there is no such message.",
        parameters=[QUEUE, ID],
        answers={
            "200": answer(
                "Its attempts.",
                schemas.answer({"attempts": {"type": "array", "items": ref("Attempt")}}),
                {"attempts": [_AN_ATTEMPT]},
            )
        },
        errors=OF_QUEUE,
    ),
    Operation(
        call="POST /-/api/publish",
        id="publish",
        tag="Messages",
        summary="Put a message into every queue whose filter matches",
        description="A batch of one, without a key. If one of the queues is full, nothing is put.",
        body=drafts("Published"),
        answers={
            "200": answer(
                "It is stored.", schemas.answer({"id": text("The id of what was published.")}), {"id": "7"}
            )
        },
        errors=PUTS,
    ),
]
