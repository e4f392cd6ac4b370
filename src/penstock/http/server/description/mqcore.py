"""The six endpoints of MQ-Core."""

from penstock.contract import schemas
from penstock.contract.message import LATEST
from penstock.contract.operations import A_QUEUE, CREATES, OF_QUEUE, PUTS, TAKES, WRITES
from penstock.contract.schemas import integer, ref, text
from penstock.http.server.description.operation import (
    BYTES,
    DONE,
    ID,
    JSON,
    QUEUE,
    Operation,
    answer,
    header,
    parameter,
    query,
)

_TAG = "MQ-Core"
_PAYLOAD = {"schema": {}, "example": "resize cat.jpg"}
_TOLD = [
    parameter("header", "X-Message-Priority", schemas.PRIORITY),
    {
        "name": "X-Message-Headers",
        "in": "header",
        "description": "The headers as a JSON object of texts, 65,535 bytes altogether.",
        "content": {JSON: {"schema": schemas.HEADERS}},
    },
    parameter("header", "X-Message-Delay", schemas.DELAY),
    parameter("header", "X-Message-Retention", schemas.RETENTION),
    parameter("header", "X-Message-Key", schemas.KEY),
    parameter("header", "Idempotency-Key", {**schemas.KEY, "description": "The same as `X-Message-Key`."}),
    parameter("header", "X-Message-Created-At", integer("When the work came up. Otherwise now.", 0, LATEST)),
]
_TELLS = {
    "X-Message-Id": header("The message's id."),
    "X-Message-Receipt": header("What acknowledges this claim."),
    "X-Message-Priority": header("Its priority.", "integer"),
    "X-Message-Attempts": header("How often it was claimed.", "integer"),
    "X-Message-Created-At": header("When the work came up.", "integer"),
    "X-Message-Received-At": header("When the message was stored.", "integer"),
    "X-Message-Lease-Until": header("When this claim ends by itself.", "integer"),
    "X-Message-Headers": header("Its headers as a JSON object of texts, if it has any.", required=False),
}

OPERATIONS = [
    Operation(
        call="GET /{queue}",
        id="get_queue",
        tag=_TAG,
        summary="Is there such a queue?",
        description="Settings and counts, if `Accept` has JSON or `*/*`, as that of `curl` does; or else no body.",
        parameters=[QUEUE],
        answers={"200": answer("There is.", ref("Queue"), A_QUEUE)},
        errors=OF_QUEUE,
    ),
    Operation(
        call="PUT /{queue}",
        id="put_queue",
        tag=_TAG,
        summary="Make a queue",
        description="Its settings are in the query, with `none` for null. A body is discarded. Unless "
        "`max_attempts` is given, messages are delivered again and again.",
        parameters=[QUEUE, *query(**{name: schemas.in_query(name) for name in schemas.SETTINGS})],
        answers={
            "201": {"description": "It is new."},
            "204": {"description": "It was there, as the query asks for it."},
        },
        errors=CREATES,
    ),
    Operation(
        call="DELETE /{queue}",
        id="delete_queue",
        tag=_TAG,
        summary="Remove a queue and its messages",
        description="The queue `default` always stays.",
        parameters=[QUEUE],
        answers={"204": DONE},
        errors=(*WRITES, "QueueProtected"),
    ),
    Operation(
        call="GET /{queue}/messages",
        id="get_message",
        tag=_TAG,
        summary="Claim a message",
        description="The body is the payload. The message is yours until the lease ends: acknowledge it by then.",
        parameters=[
            QUEUE,
            *query(
                lease={**schemas.LEASE, "default": 30},
                wait={**schemas.WAIT, "default": 0},
                consumer=schemas.CONSUMER,
            ),
        ],
        answers={
            "200": {"description": "A message.", "headers": _TELLS, "content": {BYTES: _PAYLOAD}},
            "204": {"description": "There is none."},
        },
        errors=TAKES,
        polls=True,
    ),
    Operation(
        call="POST /{queue}/messages",
        id="post_message",
        tag=_TAG,
        summary="Put a message",
        description="The body is the payload, of whatever type.",
        parameters=[QUEUE, *_TOLD],
        body={"content": {BYTES: _PAYLOAD, "*/*": {"schema": {}}}},
        answers={"201": {"description": "It is stored.", "headers": {"X-Message-Id": _TELLS["X-Message-Id"]}}},
        errors=(*OF_QUEUE, *PUTS),
    ),
    Operation(
        call="DELETE /{queue}/messages/{id}",
        id="delete_message",
        tag=_TAG,
        summary="Acknowledge or remove a message",
        description="With its receipt this acknowledges a claim; without, the message goes, whoever holds it.",
        parameters=[QUEUE, ID, *query(receipt=text("`X-Message-Receipt` of the claim."))],
        answers={"204": DONE},
        errors=(*WRITES, "MessageNotFound", "LeaseExpired"),
    ),
]
