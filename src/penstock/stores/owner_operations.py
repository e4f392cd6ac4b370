"""What only the processes of one machine that share a store ask of its owner, over its Unix socket (sharing/).

`SlateOwner` has those of slate stores as methods. No operation of these does harm twice: what was staged goes when
it has taken effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
_LONG = 3_600.0  # seconds that packing and loading may take beyond the usual


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
        send=lambda queues: {name: asdict(settings) for name, settings in queues.items()},
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
    """Let a load take effect that was staged in the folder of a journal store."""

    name: Annotated[str, a_text("")]
    pieces: Annotated[
        Sequence[Piece], Argument(check=lambda name, value: [Piece(*each) for each in value], schema={}, send=list)
    ]
    queues: Queues
    run: RunName
    sink: Sink

    values = ("operation.load",)

    @classmethod
    def of(cls, load: Load) -> "TakeIn":
        """The operation for a load."""
        return cls(load.name, load.pieces, load.queues, load.run, load.sink)

    @property
    def load(self) -> Load:
        """The load."""
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
    """Let a load take effect that was staged beside the database of a slate store."""

    name: Annotated[str, a_text("")]
    frames: Annotated[Sequence[Any], Argument(check=_frames, schema={})]
    create: Queues
    run: RunName
    sink: Sink

    values = ("operation.load",)

    @property
    def load(self) -> "SlateLoad":
        """The load."""
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
    """What a run has brought into each queue: messages, bytes."""

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
    """Let time take what it may, and remove files that nobody needs."""


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
    """How far the queues are in the log ("position"), and which instance was opened."""


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
    """Deliver entries of the log to the queues that want them; how many, by queue."""

    matches: Annotated[Any, Argument(check=_matches, schema={}, send=_sent_matches)]


OPERATIONS = (Pack, Stored, TakeIn, TakeInFrames, RunOfSlate, Tidy, Where, Route)


class SlateOwner:
    """What only slate stores can do."""

    def __init__(self, run: Runner) -> None:
        self._carry_out = run

    def take_in(self, load: "SlateLoad") -> bool:
        """Let a load take effect; False if its run has before."""
        return self._carry_out(TakeInFrames(*load))

    def run(self, name: str) -> list[list[Any]] | None:
        """What a run has brought into each queue: messages, bytes."""
        return self._carry_out(RunOfSlate(name))

    def tidy(self) -> None:
        """Let time take what it may, and remove files that nobody needs."""
        self._carry_out(Tidy())

    def position(self) -> int:
        """How far the queues are in the log."""
        return int(self._carry_out(Where())["position"])

    def instance(self) -> str | None:
        """The instance that was opened; None if the owner does not say, as an earlier version."""
        return self._carry_out(Where()).get("instance")

    def route(self, matches: "Matches") -> dict[str, int]:
        """Deliver; how many messages were, by queue."""
        return self._carry_out(Route(matches))
