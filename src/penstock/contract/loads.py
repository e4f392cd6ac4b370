"""Loads: many messages, staged in batches by many senders and committed in one atomic step.

`Loads` has a method for each operation; the declarations follow. All of them are safe to repeat.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, dataclass_transform

from penstock.contract import names, schemas
from penstock.contract.arguments import a_text, a_whole, check_known, settings_from_json
from penstock.contract.operation import BATCH, LIST, Answer, Argument, Kind, Operation, Runner, operation
from penstock.contract.operations import DONE
from penstock.contract.roles import READ, WRITE
from penstock.contract.schemas import array, integer, nullable, record, ref, text
from penstock.contract.settings import MAX_COUNT, Settings, whole
from penstock.contract.settings import text as text_of
from penstock.errors import InvalidArgument, PenstockError, StreamMismatch

MAX_RUN = 255  # bytes
MAX_SINK = 255  # characters of a sink's name
_MAX_NUMBER = 2**63 - 1
_LONG = 600.0  # seconds that an answer may take beyond the usual


class TooManyLoads(PenstockError):
    """The limit of open loads is reached: try again later."""


class Sent(NamedTuple):
    """A part of a load that is committed, and its number of batches."""

    part: str
    batches: int


class Outcome(NamedTuple):
    """The result of a commit. `loaded` is False if the same run was committed before."""

    loaded: bool
    messages: int


class LoadInfo(NamedTuple):
    """A load under way."""

    load: str
    began: int
    touched: int  # when a request touched it last
    parts: int
    messages: int
    queues: list[str]  # that it makes


class Brought(NamedTuple):
    """The messages of a run in one queue."""

    queue: str
    messages: int
    bytes: int  # of payloads


class SinkCommit(NamedTuple):
    """A batch of a streaming query, and the sink that it is written to.

    Spark numbers the batches of a query in order and repeats only the last one, so a store remembers one number
    per sink.
    """

    sink: str
    query: str
    batch: int


def is_repeated(landing: SinkCommit, last: SinkCommit) -> bool:
    """Whether a batch was committed before, given the sink's last one; StreamMismatch for a new query."""
    if landing.batch > last.batch:
        return False
    if landing.query != last.query:
        raise StreamMismatch(
            f"batch {landing.batch} for sink {landing.sink!r} is of a new query (another checkpoint), and batch "
            f"{last.batch} of the one before has landed: give the new query a sinkId of its own, or go on with "
            "the checkpoint of the other"
        )
    return True


class Loads:
    """The loads of a store. Every method may wait for the disk."""

    def __init__(self, run: Runner) -> None:
        self._carry_out = run

    def run(self, run: str) -> list[Brought] | None:
        """The messages of a run by queue; None if the run was not committed."""
        return self._carry_out(Run(run))

    def begin(self, queues: Mapping[str, Settings]) -> str:
        """Open a load and return its name. Its commit creates these queues if they do not exist by then."""
        return self._carry_out(BeginLoad(queues))

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Stage the next batch of a part on stable storage. Repeating the last batch changes nothing."""
        self._carry_out(AddToLoad(load, part, number, queue, frame))

    def commit(self, load: str, sent: Sequence[Sent], run: str | None, sink: SinkCommit | None = None) -> Outcome:
        """Commit these parts in this order, in one atomic step."""
        return self._carry_out(CommitLoad(load, sent, run, sink))

    def abort(self, load: str) -> None:
        """Drop a load, if it is open."""
        self._carry_out(AbortLoad(load))


# The operations

_A_LOAD = "0-0-1767225600000.0c9f4d2e8a51b673"
_PART = {"description": "1 to 64 of a-z, 0-9, _ and -.", "pattern": "^[a-z0-9_-]{1,64}$"}
_RUN = text(
    f"The name of a run, at most {MAX_RUN} bytes. A run is committed once, even by several loads.",
    minLength=1,
    maxLength=MAX_RUN,
)
_SENT = record(
    {
        "part": text(**_PART),
        "batches": integer("The number of its batches; a wrong number is refused.", 0, MAX_COUNT),
    },
    "part",
    "batches",
)
_SINK = {
    **nullable(
        record(
            {
                "id": text("The sink's name.", minLength=1, maxLength=MAX_SINK),
                "query": text("The streaming query that numbers the batches.", minLength=1, maxLength=MAX_SINK),
                "batch": integer("The batch's number.", 0, _MAX_NUMBER),
            },
            "id",
            "query",
            "batch",
        )
    ),
    "description": "A batch of a streaming query, committed once. After it, lower numbers are not committed.",
}


def _queues(name: str, value: Any) -> dict[str, Settings]:
    if not isinstance(value, dict):
        raise InvalidArgument('"queues" is an object: {"queues": {NAME: {settings}}}')
    return {names.checked(name): settings_from_json(settings) for name, settings in value.items()}


def _sent(name: str, value: Any) -> list[Sent]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidArgument('"parts" is a list: {"parts": [{"part": NAME, "batches": COUNT}]}')
    sent = []
    for each in value:
        check_known(each, Sent._fields, "a part")
        part = each.get("part")
        if not isinstance(part, str):
            raise InvalidArgument('a part has its name as "part", and how many "batches" it has')
        sent.append(Sent(part, whole("batches", each.get("batches"), 0, MAX_COUNT)))
    return sent


def _run(name: str, value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidArgument('"run" is a text')
    return value


def _sink(name: str, value: Any) -> SinkCommit | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidArgument('"sink" is an object: {"id": NAME, "query": ID, "batch": NUMBER}')
    check_known(value, ("id", "query", "batch"), "a sink")
    members: dict[str, Any] = {"id": None, "query": None, "batch": None, **value}
    sink, query = (text_of(member, members[member], 1, MAX_SINK) for member in ("id", "query"))
    return SinkCommit(sink, query, whole("batch", members["batch"], 0, _MAX_NUMBER))


def _sends_queues(queues: Mapping[str, Settings]) -> dict[str, Any]:
    return {name: settings.stored() for name, settings in queues.items()}


def _sends_sink(sink: SinkCommit) -> dict[str, Any]:
    return dict(zip(("id", "query", "batch"), sink, strict=True))


@dataclass_transform()
def _load(call: str, runs: str, **more: Any) -> Callable[[Kind], Kind]:
    return operation(call, runs, part="uploads", **{"tag": "Loads", "role": WRITE, **more})


Load = Annotated[str, a_text("The load's name.", minLength=1, example=_A_LOAD)]


@_load(
    "POST /-/loads",
    "begin",
    name="begin_load",
    limit=LIST,
    said="beginning of a load",
    errors=("InvalidName", "InvalidFilter", "NotSupported", "DiskFull"),
    example={"queues": {"jobs": {"max_size": 1000}}},
    answer=Answer("The new load.", str, "load", status=201, schema=text("The load's name."), example=_A_LOAD),
)
class BeginLoad(Operation[str]):
    """Begin a load.

    A load that is not used for a day is dropped, and so are all loads when the server ends. `queues` are created
    by the commit, if they do not exist by then.
    """

    queues: Annotated[
        Mapping[str, Settings],
        Argument(
            check=_queues,
            schema={
                "type": "object",
                "propertyNames": {"pattern": "^[!-~]{0,255}$"},
                "additionalProperties": ref("Settings"),
            },
            send=_sends_queues,
        ),
    ] = {}


@_load(
    "PUT /-/loads/{load}/{part}/{number}",
    "add",
    name="add_to_load",
    limit=BATCH,
    batch="Loaded",
    patience=_LONG,
    said="sending of a batch",
    errors=("InvalidName", "InvalidPriority", "QueueNotFound", "LoadNotFound", "NotSupported", "DiskFull"),
    answer=Answer("The batch is on stable storage, and invisible.", status=204),
)
class AddToLoad(Operation[None]):
    """Add a batch to a part of a load.

    A part is filled by one sender, batch by batch, numbered from 0 on. Sending the last batch again changes
    nothing. Messages have no key. A frame may also have the columns `visible_at` and `expires_at`: times, 0 for
    never, null for the queue's default. Delays count from this request on.
    """

    load: Load
    part_name: Annotated[str, a_text(**_PART, example="0", wire="part")]
    number: Annotated[int, a_whole("The batch's number.", 0, MAX_COUNT, example=0)]
    queue: Annotated[
        str,
        Argument(
            check=lambda name, value: names.checked(value),
            schema={**schemas.NAME, "pattern": "^[!-~]{0,255}$", "description": "The queue's name."},
        ),
    ] = names.DEFAULT
    frame: Annotated[bytes, Argument(check=lambda name, value: value, schema={})] = b""


@_load(
    "POST /-/loads/{load}/commit",
    "commit",
    name="commit_load",
    limit=LIST,
    patience=_LONG,
    said="commit of a load",
    errors=(
        "InvalidPriority", "QueueNotFound", "LoadNotFound", "NotSupported", "QueueFull", "DiskFull",
        "StoreCorrupt", "StreamMismatch",
    ),
    example={"parts": [{"part": "0", "batches": 1}], "run": "monday"},
    answer=Answer("The result of the commit.", Outcome, schema=schemas.answer(
            {
                "loaded": {
                    "type": "boolean",
                    "description": "False: the run was committed before, by another load.",
                },
                "messages": integer("The number of loaded messages.", 0, MAX_COUNT),
            }
        ), example={"loaded": True, "messages": 2}),
)  # fmt: skip
class CommitLoad(Operation[Outcome]):
    """Commit a load.

    All messages of `parts` are added, in that order, or none; other parts are dropped. A refused load (a queue is
    full or does not exist) stays open. Repeating the commit gets the same answer, also after a restart of the
    server: for a week, or for ever if `run` is given.
    """

    load: Load
    parts: Annotated[
        Sequence[Sent],
        Argument(
            check=_sent,
            schema=array(_SENT),
            send=lambda sent: [each._asdict() for each in sent],
        ),
    ]
    run: Annotated[str | None, Argument(check=_run, schema=nullable(_RUN))] = None
    sink: Annotated[SinkCommit | None, Argument(check=_sink, schema=_SINK, omit=True, send=_sends_sink)] = None


@_load(
    "GET /-/runs/{run}",
    "run",
    role=READ | WRITE,
    said="look at a run",
    errors=("NotSupported", "StoreCorrupt"),
    answer=Answer(
        "The messages of the run in each queue.",
        Brought,
        "queues",
        many=True,
        schema={
            "type": ["array", "null"],
            "items": schemas.answer(
                {
                    "queue": {**schemas.NAME, "description": "The queue's name."},
                    "messages": integer("The number of messages.", 0, MAX_COUNT),
                    "bytes": {"type": "integer", "description": "Of payloads."},
                }
            ),
            "description": "Null: no such run was committed.",
        },
        example=[{"queue": "jobs", "messages": 2, "bytes": 28}],
    ),
)
class Run(Operation[list[Brought] | None]):
    """Show the messages of a run."""

    run: Annotated[str, Argument(check=lambda name, value: value, schema=_RUN, example="monday")]


@_load(
    "DELETE /-/loads/{load}",
    "abort",
    name="abort_load",
    said="end of a load",
    errors=("NotSupported",),
    answer=DONE,
)
class AbortLoad(Operation[None]):
    """Drop an open load.

    A committed load stays.
    """

    load: Load


# In the order of the OpenAPI document
OPERATIONS = (BeginLoad, AddToLoad, CommitLoad, Run, AbortLoad)
