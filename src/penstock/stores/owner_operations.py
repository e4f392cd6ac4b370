"""Operations for processes that share a store: only its owner runs them, over its Unix socket (sharing/).

`SlateOwner` has those of slate stores as methods. All of them may be repeated: staged messages are removed when
they are committed.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from penstock.contract.arguments import QueueName, a_text, settings_from_json
from penstock.contract.loads import SinkCommit
from penstock.contract.operation import Answer, Argument, Operation, Runner, operation
from penstock.contract.roles import ANYONE  # a process that may connect may do everything
from penstock.contract.settings import Settings
from penstock.stores.journal.loads import Load
from penstock.stores.journal.staging import Piece

if TYPE_CHECKING:
    from penstock.stores.slate.loads import Frame
    from penstock.stores.slate.loads import Load as SlateLoad
    from penstock.stores.slate.routing import Matches

_MANIFEST = 256 << 20  # bytes of a load's pieces
_LONG = 3_600.0  # seconds added to the usual timeout, for packing and loading


def _member(name: str, kind: Any, **more: Any) -> Answer:
    return Answer(description="", kind=kind, member=name, **more)


def _settings(name: str, value: Any) -> dict[str, Settings]:
    return {name: settings_from_json(settings) for name, settings in value.items()}


def _frames(name: str, value: Any) -> "list[Frame]":
    from penstock.stores.slate.loads import Frame

    return [Frame(*each) for each in value]


def _matches(name: str, value: bytes) -> "Matches":
    from penstock.stores.slate.routing import decode_matches

    return decode_matches(value)


def _sent_matches(matches: "Matches") -> bytes:
    from penstock.stores.slate.routing import encode_matches

    return encode_matches(matches)


Queues = Annotated[
    Mapping[str, Settings],
    Argument(
        check=_settings,
        schema={},
        send=lambda queues: {name: settings.stored() for name, settings in queues.items()},
    ),
]
RunName = Annotated[str | None, Argument(check=lambda name, value: value, schema={})]
Sink = Annotated[
    SinkCommit | None, Argument(check=lambda name, value: SinkCommit(*value) if value else None, schema={})
]


@operation(
    "POST /-/share/pack",
    "shrink",
    role=ANYONE,
    query=True,
    said="packing",
    patience=_LONG,
    answer=_member("freed", int),
)
class Pack(Operation[int]):
    """Pack a queue's journal, if that makes it smaller."""

    queue: QueueName


@operation("GET /-/share/stored", "stored", role=ANYONE, said="look at the queue", answer=_member("bytes", int))
class Stored(Operation[int]):
    """The bytes of a queue's journal."""

    queue: QueueName


@operation(
    "POST /-/share/load",
    "take_in",
    role=ANYONE,
    limit=_MANIFEST,
    said="load",
    patience=_LONG,
    answer=_member("loaded", bool),
)
class TakeIn(Operation[bool]):
    """Commit a load that was staged in the folder of a journal store."""

    name: Annotated[str, a_text("")]
    pieces: Annotated[
        Sequence[Piece], Argument(check=lambda name, value: [Piece(*each) for each in value], schema={}, send=list)
    ]
    queues: Queues
    run: RunName
    sink: Sink

    values = ("operation.load",)

    @property
    def load(self) -> Load:
        return Load(self.name, list(self.pieces), dict(self.queues), self.run, self.sink)


@operation(
    "POST /-/share/frames",
    "take_in",
    part="owner",
    role=ANYONE,
    limit=_MANIFEST,
    said="load",
    patience=_LONG,
    answer=_member("loaded", bool),
)
class TakeInFrames(Operation[bool]):
    """Commit a load that was staged beside the database of a slate store."""

    name: Annotated[str, a_text("")]
    frames: Annotated[Sequence[Any], Argument(check=_frames, schema={})]
    create: Queues
    run: RunName
    sink: Sink

    values = ("operation.load",)

    @property
    def load(self) -> "SlateLoad":
        from penstock.stores.slate.loads import Load

        return Load(self.name, list(self.frames), self.create, self.run, self.sink)


@operation(
    "GET /-/share/run",
    "run",
    part="owner",
    role=ANYONE,
    said="look at a run",
    patience=_LONG,
    answer=_member("brought", list, schema={"type": ["array", "null"]}),
)
class RunOfSlate(Operation[list[list[Any]] | None]):
    """Messages and bytes that a run has loaded into each queue; None if it was not committed."""

    run: Annotated[str, a_text("")]


@operation(
    "POST /-/share/tidy",
    "tidy",
    part="owner",
    role=ANYONE,
    query=True,
    said="tidying",
    patience=_LONG,
    answer=_member("tidy", bool),
)
class Tidy(Operation[bool]):
    """Remove expired messages and unused files."""


@operation(
    "GET /-/share/position",
    "where",
    part="owner",
    role=ANYONE,
    said="look at the log",
    patience=_LONG,
    answer=Answer(description="", kind=dict),
)
class Where(Operation[dict[str, Any]]):
    """The queues' position in the log ("position"), and the name of the instance ("instance")."""


@operation(
    "POST /-/share/route",
    "route",
    part="owner",
    role=ANYONE,
    limit=_MANIFEST,
    batch="Matches",
    said="routing",
    patience=_LONG,
    answer=_member("routed", dict),
)
class Route(Operation[dict[str, int]]):
    """Deliver entries of the log to the queues whose filters match; how many, by queue."""

    matches: Annotated[Any, Argument(check=_matches, schema={}, send=_sent_matches)]


OPERATIONS = (Pack, Stored, TakeIn, TakeInFrames, RunOfSlate, Tidy, Where, Route)


class SlateOwner:
    """The operations of slate stores as methods."""

    def __init__(self, run: Runner) -> None:
        self._carry_out = run

    def take_in(self, load: "SlateLoad") -> bool:
        """Commit a load; False if its run was committed before."""
        return self._carry_out(TakeInFrames(*load))

    def run(self, name: str) -> list[list[Any]] | None:
        return self._carry_out(RunOfSlate(name))

    def tidy(self) -> None:
        self._carry_out(Tidy())

    def position(self) -> int:
        """The queues' position in the log."""
        return int(self._carry_out(Where())["position"])

    def instance(self) -> str | None:
        """The name of the instance; None if the owner is an earlier version, which does not say."""
        return self._carry_out(Where()).get("instance")

    def route(self, matches: "Matches") -> dict[str, int]:
        return self._carry_out(Route(matches))
