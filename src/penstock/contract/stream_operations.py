"""Operations on streams and followers. `Streams` has a method for each; the declarations follow."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, dataclass_transform

from penstock.contract import schemas
from penstock.contract.arguments import (
    MAX_REASON,
    After,
    QueueName,
    Until,
    a_list,
    a_reason,
    a_text,
    a_whole,
    checked_delay,
)
from penstock.contract.message import Message
from penstock.contract.operation import LIST, Answer, Argument, Kind, Operation, Runner, operation
from penstock.contract.operations import COUNTED, DONE, MESSAGES, NOW, OF_QUEUE, PAGE, READS, WRITES
from penstock.contract.roles import ADMIN, CONSUME, READ
from penstock.contract.schemas import array, integer, nullable, ref, text
from penstock.contract.settings import MAX_COUNT
from penstock.contract.settings import text as text_of
from penstock.contract.streams import LONGEST, Ahead, BatchPlan, Start, StreamInfo, checked_stream
from penstock.errors import InvalidArgument

MAX_NUMBER = 2**63 - 1
MAX_READER = 512
MAX_RUN = 64
MAX_ROWS = 100_000_000
MAX_FOLLOWED = 2**40
_IDS = 50_000  # ids in one request
_LONG = 600.0  # seconds that a batch of millions of messages may take
_S, _F = "/-/streams/{queue}/{stream}", "/-/followers/{queue}/{follower}"


class Streams:
    """The streams of a store. Methods return once their change is on stable storage."""

    def __init__(self, run: Runner) -> None:
        self._carry_out = run

    def all(self) -> list[StreamInfo]:
        """Every stream of every queue."""
        return self._carry_out(AllStreams())

    def begin(self, queue: str, stream: str, reader: str) -> StreamInfo:
        """Become the reader of a stream, or renew that; StreamInUse while another reader lives."""
        return self._carry_out(Begin(queue, stream, reader))

    def next(
        self, queue: str, stream: str, reader: str, start: int, rows: int, size: int, run: str | None = None
    ) -> int | None:
        """Settle batch `start`, which Spark has committed, and return the number of the next batch.

        The next batch is the one that the stream holds, or a new claim of at most `rows` messages and `size` bytes
        (beyond the first message). None if no message is available, or `rows` is 0. With the name of a run, only
        messages that existed when the run was first named are claimed, each once: failures wait for the next run.
        """
        return self._carry_out(Next(queue, stream, reader, start, rows, size, run))

    def read(self, queue: str, stream: str, batch: int, pins: str | None) -> BatchPlan:
        """Where the messages of a batch are stored. Failures recorded for the batch are dropped.

        With `pins`, the name of a process on the owner's machine (PROCESS@BOOT), files are pinned for it.
        """
        return self._carry_out(Read(queue, stream, batch, pins))

    def messages(self, queue: str, stream: str, batch: int, after: str, until: str, limit: int) -> list[Message]:
        """A page of a batch by ascending id, in (after, until]; fewer than `limit` messages if they are large."""
        return self._carry_out(BatchMessages(queue, stream, batch, after, until, limit))

    def follow(self, queue: str, stream: str, reader: str, position: int) -> None:
        """Record that a named follower has read up to a message. Packing keeps later messages, up to a limit."""
        self._carry_out(Follow(queue, stream, reader, position))

    def start(self, queue: str, follower: str, starting: str | int) -> Start:
        """Where a follower begins: at the "earliest" stored message, after the "latest", or at a time.

        The follower chooses its name. While it keeps asking, unread messages are kept for it, up to a limit.
        """
        return self._carry_out(StartFollowing(queue, follower, starting))

    def ahead(
        self, queue: str, follower: str, after: int, gaps: int, rows: int, size: int, until: int = 0
    ) -> Ahead:
        """The messages that entered after a number, within limits or up to `until`.

        Everything up to `after` counts as read. Lost messages below `gaps` are not reported. A call with 0 rows is
        only a sign of life.
        """
        return self._carry_out(LookAhead(queue, follower, after, gaps, rows, size, until))

    def entered(self, queue: str, follower: str, after: int, until: int, limit: int) -> list[Message]:
        """A page of messages in the order of entry, in (after, until]; fewer than `limit` if they are large."""
        return self._carry_out(Entered(queue, follower, after, until, limit))

    def leave(self, queue: str, follower: str) -> None:
        """End a follower."""
        self._carry_out(Leave(queue, follower))

    def fail(
        self,
        queue: str,
        stream: str,
        batch: int,
        ids: Sequence[str],
        reason: str | None,
        delay: float | None = None,
    ) -> None:
        """Mark messages to fail when the batch is settled; `delay` is in seconds from then.

        Without a delay the queue's `backoff` decides.
        """
        for start in range(0, len(ids), _IDS):
            self._carry_out(FailInBatch(queue, stream, batch, ids[start : start + _IDS], reason, delay))

    def settle(self, queue: str, stream: str, batch: int) -> bool:
        """Settle a batch; False if it was settled before."""
        return self._carry_out(Settle(queue, stream, batch))

    def release(self, queue: str, stream: str) -> int:
        """Release the messages that a stream holds and count them. Its reader must have ended."""
        return self._carry_out(ReleaseStream(queue, stream))

    def delete(self, queue: str, stream: str) -> None:
        """Delete a stream that holds no messages and whose reader has ended."""
        self._carry_out(DeleteStream(queue, stream))


# The operations

_A_READER = "4711-88120-4026531836@0b5c8f6e-3f1d-4a57-9f0e-3d8d1c0b7a11@worker-1"
_A_STREAM = {
    "queue": "jobs", "stream": "nightly", "mode": "consume", "batch": 8, "settled": 7, "messages": 1000,
    "since": NOW, "failures": 0, "reader": _A_READER, "lag": 25,
}  # fmt: skip
_NAME = {"type": "string", "pattern": f"^[!-~]{{1,{LONGEST}}}$"}
_MISSING = ("StreamNotFound", "NotSupported")
INFO = schemas.answer(
    {
        "queue": {**schemas.NAME, "description": "The queue's name."},
        "stream": {**_NAME, "description": "The stream's name."},
        "mode": {
            "enum": ["consume", "follow"],
            "description": "Whether the stream holds the messages that it reads.",
        },
        "batch": integer("The number of the latest batch; 0: none yet.", 0, MAX_NUMBER),
        "settled": integer("The number of the last settled batch; 0: none yet.", 0, MAX_NUMBER),
        "messages": integer("Messages that the stream holds.", 0, MAX_COUNT),
        "since": nullable(schemas.time("When the held messages were claimed.")),
        "failures": integer("Held messages that will fail when the batch is settled.", 0, MAX_COUNT),
        "reader": text("The process that reads the stream, or read it last."),
        "lag": integer("Messages that wait to be read.", 0, MAX_COUNT),
    }
)
_LOST = {
    **schemas.answer(
        {
            "first": integer("The first number of the range.", 0, MAX_NUMBER),
            "last": integer("The last number of the range.", 0, MAX_NUMBER),
            "messages": nullable(integer("The number of messages; null: unknown.", 1, MAX_NUMBER)),
        }
    ),
    "type": ["object", "null"],
    "description": "Messages that entered the queue and are no longer stored.",
}
_PART = {"until": integer("The last number.", 0, MAX_NUMBER), "messages": integer("Messages.", 1, MAX_NUMBER)}


def _reader(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode(errors="replace")) <= MAX_READER:
        raise InvalidArgument(f'"reader" is the name of the process that reads, of 1 to {MAX_READER} bytes')
    return value


def _run(name: str, value: Any) -> str | None:
    return None if value is None else text_of(name, value, 1, MAX_RUN)


def _pins(name: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidArgument('"pins" is a text, or null')
    return value


def _at(name: str, value: Any) -> str | int:
    if value in ("earliest", "latest"):
        return str(value)
    if value.isascii() and value.isdigit() and len(value) < 20 and int(value) <= MAX_NUMBER:
        return int(value)
    raise InvalidArgument(f"at={value!r}: give earliest, latest, or milliseconds since the epoch")


@dataclass_transform()
def _stream(call: str, runs: str, **more: Any) -> Callable[[Kind], Kind]:
    """Declare an operation on streams, with a long timeout: a batch may have millions of messages."""
    usual = {"tag": "Streams", "role": CONSUME, "patience": _LONG, "said": f"{runs} of a stream"}
    return operation(call, runs, part="streams", **{**usual, **more})


StreamName = Annotated[
    str,
    Argument(
        check=lambda name, value: checked_stream(value),
        schema={**_NAME, "description": "The stream's name."},
        example="nightly",
    ),
]
Follower = Annotated[
    str,
    Argument(
        check=lambda name, value: checked_stream(value),
        schema={**_NAME, "description": "The follower's name, of its own choice, such as random letters."},
        example="8c1f02d7",
    ),
]
Batch = Annotated[int, a_whole("The batch's number.", 0, MAX_NUMBER, example=7)]
Reader = Annotated[
    str,
    Argument(
        check=_reader,
        schema=text("The name of the process that reads the stream.", minLength=1, maxLength=MAX_READER),
    ),
]
Position = Annotated[int, a_whole("Begin after the message with this number.", 0, MAX_NUMBER)]


@_stream(
    "GET /-/streams",
    "all",
    name="list_streams",
    role=READ,
    said="listing of streams",
    errors=("NotSupported",),
    answer=Answer(
        "Every stream of every queue.",
        StreamInfo,
        "streams",
        many=True,
        schema=array(ref("Stream")),
        example=[_A_STREAM],
    ),
    patience=0,
)
class AllStreams(Operation[list[StreamInfo]]):
    """All streams."""


@_stream(
    f"POST {_S}/begin",
    "begin",
    name="begin_stream",
    errors=(*WRITES, "StreamInUse", "NotSupported"),
    example={"reader": _A_READER},
    answer=Answer("The stream.", StreamInfo, schema=ref("Stream"), example=_A_STREAM),
)
class Begin(Operation[StreamInfo]):
    """Become the only reader of a stream.

    The stream is created if it does not exist. Other readers are refused while this process lives. A process on
    another machine counts as alive while it repeats this once a minute.
    """

    queue: QueueName
    stream: StreamName
    reader: Reader


@_stream(
    f"POST {_S}/next",
    "next",
    name="next_batch",
    errors=(*WRITES, "StreamInUse", "StreamMismatch", *_MISSING),
    example={"reader": _A_READER, "start": 7, "rows": 1000},
    answer=Answer(
        "The number of the next batch; null: no message is available.",
        int,
        "batch",
        schema=nullable(integer("A number.", 1, MAX_NUMBER)),
        example=8,
    ),
)
class Next(Operation[int | None]):
    """Settle a batch, and get the next one.

    `start` is the number of the last batch whose output is committed, 0 before the first; it is settled. The
    answer is the number of the batch after it. If the stream holds no batch, messages are claimed for a new one,
    and held until that is settled. With a `run`, only messages are claimed that existed when that name was first
    given, each once: failures wait for the next run.
    """

    queue: QueueName
    stream: StreamName
    reader: Reader
    start: Annotated[int, a_whole("The number of the last committed batch, or 0.", 0, MAX_NUMBER)] = 0
    rows: Annotated[int, a_whole("The most messages of a new batch; 0: claim none.", 0, MAX_ROWS)] = 1_000
    size: Annotated[
        int, a_whole("The most bytes of a new batch, beyond its first message.", 1, MAX_NUMBER, wire="bytes")
    ] = MAX_NUMBER
    run: Annotated[
        str | None,
        Argument(
            check=_run,
            schema=nullable(text("The name of a run, of your own choice.", minLength=1, maxLength=MAX_RUN)),
            omit=True,
        ),
    ] = None


@_stream(
    f"POST {_S}/follow",
    "follow",
    name="follow_queue",
    errors=(*WRITES, "StreamInUse", "NotSupported"),
    example={"reader": _A_READER, "after": 1200},
    answer=DONE,
)
class Follow(Operation[None]):
    """Record the position of a named follower.

    Files with later messages are not packed, up to a limit.
    """

    queue: QueueName
    stream: StreamName
    reader: Reader
    after: Annotated[int, a_whole("The id of the last message read, or 0.", 0, MAX_NUMBER)] = 0


@_stream(
    f"POST {_S}/{{batch}}/read",
    "read",
    name="read_batch",
    errors=(*WRITES, "StreamMismatch", *_MISSING),
    example={"pins": None},
    answer=Answer("A head of JSON and rows.", BatchPlan),
)
class Read(Operation[BatchPlan]):
    """Find the messages of a batch in the server's files.

    For readers on the server's machine: rows with the places of bodies. With `pins`, files are kept for that
    process (`PROCESS@BOOT`). Failures recorded for the batch are dropped.
    """

    queue: QueueName
    stream: StreamName
    batch: Batch
    pins: Annotated[str | None, Argument(check=_pins, schema=nullable(text("The process to keep files for.")))] = (
        None
    )


@_stream(
    f"GET {_S}/{{batch}}/messages",
    "messages",
    name="list_batch",
    lists=True,
    said="listing of a batch",
    errors=(*READS, "StreamMismatch", *_MISSING),
    answer=MESSAGES,
    patience=0,
)
class BatchMessages(Operation[list[Message]]):
    """List the messages of a batch.

    By ascending id. A page ends at 1,000 messages or 8 MiB; go on with `after`.
    """

    queue: QueueName
    stream: StreamName
    batch: Batch
    after: After = ""
    until: Until = ""
    limit: Annotated[int, a_whole("How many at most.", 1, MAX_ROWS, most=PAGE)] = 100


@_stream(
    f"POST {_S}/{{batch}}/fail",
    "fail",
    name="fail_in_batch",
    limit=LIST,
    errors=(*WRITES, "StreamMismatch", *_MISSING),
    example={"ids": ["7"], "reason": "not a number"},
    answer=DONE,
)
class FailInBatch(Operation[None]):
    """Mark messages of a batch to fail when it is settled.

    The other messages of the batch will be done. A settled batch does not change.
    """

    queue: QueueName
    stream: StreamName
    batch: Batch
    ids: Annotated[Sequence[str], a_list("Ids; messages outside of the batch are skipped.")]
    reason: Annotated[str | None, a_reason("Why.", maxLength=MAX_REASON)] = None
    delay: Annotated[
        float | None,
        Argument(
            check=lambda name, value: checked_delay(value),
            schema=nullable(
                schemas.number(
                    "Seconds until they are retried, after the batch is settled. Default: the queue's `backoff`."
                )
            ),
            omit=True,
        ),
    ] = None


@_stream(
    f"POST {_S}/{{batch}}/settle",
    "settle",
    name="settle_batch",
    errors=(*WRITES, "StreamMismatch", *_MISSING),
    answer=Answer(
        "Whether this call settled the batch.",
        bool,
        "settled",
        schema={"type": "boolean", "description": "False: it was settled before."},
        example=True,
    ),
)
class Settle(Operation[bool]):
    """Settle a batch."""

    queue: QueueName
    stream: StreamName
    batch: Batch


@_stream(
    f"POST {_S}/release",
    "release",
    name="release_stream",
    role=ADMIN,
    errors=(*WRITES, "StreamInUse", *_MISSING),
    answer=COUNTED,
)
class ReleaseStream(Operation[int]):
    """Release the messages that a stream holds.

    Its reader must have ended. The batch is empty from then on.
    """

    queue: QueueName
    stream: StreamName


@_stream(
    f"DELETE {_S}",
    "delete",
    name="delete_stream",
    role=ADMIN,
    repeatable=False,
    said="end of a stream",
    errors=(*WRITES, "StreamInUse", *_MISSING),
    answer=DONE,
    patience=0,
)
class DeleteStream(Operation[None]):
    """Delete a stream.

    It must hold no messages, and its reader must have ended. Batch numbers are not used again.
    """

    queue: QueueName
    stream: StreamName


@_stream(
    f"GET {_F}/start",
    "start",
    name="start_following",
    role=READ,
    said="start of what has entered",
    errors=(*READS, "NotSupported"),
    answer=Answer(
        "The number before the first message, and the number below which some are no longer stored.",
        Start,
        schema=schemas.answer(
            {
                "after": integer("The number before the first message.", 0, MAX_NUMBER),
                "gaps": integer("Below this number some messages are gone.", 0, MAX_NUMBER),
            }
        ),
        example={"after": 1200, "gaps": 1201},
    ),
)
class StartFollowing(Operation[Start]):
    """Find where to begin following a queue.

    A follower reads the messages that enter a queue, in order, and claims none. While it asks at least once a
    minute, unread messages are kept for it, up to 1 GiB.
    """

    queue: QueueName
    follower: Follower
    at: Annotated[
        str | int,
        a_text(
            "`earliest`: with the first stored message; `latest`: with the next message that enters; or a time in "
            "milliseconds since the epoch: with the first message that entered then or later.",
            check=_at,
            pattern="^(earliest|latest|[0-9]{1,18})$",
        ),
    ] = "earliest"


@_stream(
    f"GET {_F}/ahead",
    "ahead",
    name="look_ahead",
    role=READ,
    said="ahead of what has entered",
    errors=(*READS, "NotSupported"),
    answer=Answer(
        "The last number of the batch, its parts, and lost messages.",
        Ahead,
        schema=schemas.answer(
            {
                "until": integer("The last number.", 0, MAX_NUMBER),
                "parts": array(schemas.answer(_PART)),
                "lost": _LOST,
            }
        ),
        example={"until": 2200, "parts": [{"until": 2200, "messages": 1000}], "lost": None},
    ),
)
class LookAhead(Operation[Ahead]):
    """Plan the next batch of a follower.

    Messages up to `after` count as read, and are no longer kept. The batch after it ends within `rows` and
    `bytes`, or with `until`. The answer has its end, and parts that can be read separately. A request with 0 rows
    is only a sign of life.
    """

    queue: QueueName
    follower: Follower
    after: Position = 0
    gaps: Annotated[int, a_whole("Lost messages below this number are not reported.", 0, MAX_NUMBER)] = 0
    rows: Annotated[int, a_whole("The most messages of the batch.", 0, MAX_FOLLOWED)] = PAGE
    size: Annotated[int, a_whole("The most bytes, beyond the first message.", 1, MAX_NUMBER, wire="bytes")] = (
        MAX_NUMBER
    )
    until: Annotated[int, a_whole("End with this number; 0: by the limits.", 0, MAX_NUMBER)] = 0


@_stream(
    f"GET {_F}/messages",
    "entered",
    name="list_entered",
    role=READ,
    lists=True,
    said="messages of what has entered",
    errors=(*READS, "NotSupported"),
    answer=MESSAGES,
)
class Entered(Operation[list[Message]]):
    """List messages in the order in which they entered a queue.

    A page ends at 1,000 messages or 8 MiB; go on with `after`.
    """

    queue: QueueName
    follower: Follower
    after: Position = 0
    until: Annotated[int, a_whole("End with this number.", 0, MAX_NUMBER)] = 0
    limit: Annotated[int, a_whole("How many at most.", 1, MAX_FOLLOWED, most=PAGE)] = 100


@_stream(
    f"DELETE {_F}",
    "leave",
    name="stop_following",
    role=READ,
    said="end of following",
    errors=(*OF_QUEUE, "NotSupported"),
    answer=DONE,
    patience=0,
)
class Leave(Operation[None]):
    """Stop following a queue."""

    queue: QueueName
    follower: Follower


# In the order of the OpenAPI document
OPERATIONS = (
    AllStreams, Begin, Next, Follow, Read, BatchMessages, FailInBatch, Settle, ReleaseStream, DeleteStream,
    StartFollowing, LookAhead, Entered, Leave,
)  # fmt: skip
