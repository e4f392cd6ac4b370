"""Following, below /-/followers."""

from penstock.server.description import schemas
from penstock.server.description.operation import (
    BATCH,
    DONE,
    OF_QUEUE,
    QUEUE,
    READS,
    Operation,
    answer,
    parameter,
    query,
)
from penstock.server.description.schemas import integer, text
from penstock.server.following import MAX_NUMBER, MAX_ROWS, PAGE
from penstock.streams import LONGEST

_TAG = "Streams"
_F = "/-/followers/{queue}/{follower}"
_NAME = {
    "type": "string",
    "pattern": f"^[!-~]{{1,{LONGEST}}}$",
    "description": "A name that the one who follows has chosen, as of random letters.",
}
_FOLLOWER = parameter("path", "follower", _NAME, "8c1f02d7")
_MESSAGES = integer("Messages.", 1, MAX_NUMBER)
_LOST = {
    **schemas.answer(
        {
            "first": integer("Not before this number.", 0, MAX_NUMBER),
            "last": integer("And not after that.", 0, MAX_NUMBER),
            "messages": schemas.nullable(integer("How many; null: nobody knows.", 1, MAX_NUMBER)),
        }
    ),
    "type": ["object", "null"],
    "description": "Messages that had entered, and are not stored any more.",
}
_AFTER = integer("The number of a message, after which to begin.", 0, MAX_NUMBER, 0)

OPERATIONS = [
    Operation(
        call=f"GET {_F}/start",
        id="start_following",
        tag=_TAG,
        summary="Where to begin following a queue",
        description=(
            "Who follows reads what enters a queue, in order, and takes nothing. While it goes on asking, once a "
            "minute at least, what it has not read is held for it, up to 1 GiB."
        ),
        parameters=[
            QUEUE,
            _FOLLOWER,
            *query(
                at=text(
                    "`earliest`: with the first message that is stored; `latest`: with the next that enters; or "
                    "with the first that entered at that time, in milliseconds since the epoch, or later.",
                    pattern="^(earliest|latest|[0-9]{1,18})$",
                    default="earliest",
                )
            ),
        ],
        answers={
            "200": answer(
                "The number before the first message, and that below which some are not stored any more.",
                schemas.answer(
                    {
                        "after": integer("A number.", 0, MAX_NUMBER),
                        "gaps": integer("A number.", 0, MAX_NUMBER),
                    }
                ),
                {"after": 1200, "gaps": 1201},
            )
        },
        errors=(*READS, "NotSupported"),
    ),
    Operation(
        call=f"GET {_F}/ahead",
        id="look_ahead",
        tag=_TAG,
        summary="What has entered a queue after a message",
        description=(
            "All up to `after` was read, and is held no longer. The answer says how far a batch goes that is "
            "within `rows` and `bytes`, or that ends with `until`, and in which parts it can be read. With 0 rows "
            "one says only that one still follows."
        ),
        parameters=[
            QUEUE,
            _FOLLOWER,
            *query(
                after=_AFTER,
                gaps=integer("What is lost below this number is not told.", 0, MAX_NUMBER, 0),
                rows=integer("At most so many messages.", 0, MAX_ROWS, PAGE),
                bytes=integer("And bytes, beyond the first message.", 1, MAX_NUMBER, MAX_NUMBER),
                until=integer("End with this number; 0: as the limits say.", 0, MAX_NUMBER, 0),
            ),
        ],
        answers={
            "200": answer(
                "The last number of the batch, its parts, and what is lost.",
                schemas.answer(
                    {
                        "until": integer("The last number.", 0, MAX_NUMBER),
                        "parts": {
                            "type": "array",
                            "items": schemas.answer(
                                {"until": integer("The last number.", 0, MAX_NUMBER), "messages": _MESSAGES}
                            ),
                        },
                        "lost": _LOST,
                    }
                ),
                {"until": 2200, "parts": [{"until": 2200, "messages": 1000}], "lost": None},
            )
        },
        errors=(*READS, "NotSupported"),
    ),
    Operation(
        call=f"GET {_F}/messages",
        id="list_entered",
        tag=_TAG,
        summary="Messages as they entered a queue",
        description="In that order. A page ends at 1,000 messages or 8 MiB; go on with `after`.",
        parameters=[
            QUEUE,
            _FOLLOWER,
            *query(
                after=_AFTER,
                until=integer("End with this number.", 0, MAX_NUMBER, 0),
                limit=integer("At most so many.", 1, MAX_ROWS, 100),
            ),
        ],
        answers={"200": BATCH},
        errors=(*READS, "NotSupported"),
    ),
    Operation(
        call=f"DELETE {_F}",
        id="stop_following",
        tag=_TAG,
        summary="Follow no longer",
        parameters=[QUEUE, _FOLLOWER],
        answers={"204": DONE},
        errors=(*OF_QUEUE, "NotSupported"),
    ),
]
