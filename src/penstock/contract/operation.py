"""What an operation is: its arguments, its answer, who may ask for it, and where it is found over HTTP.

An operation is declared once (`operations.py`), as a class with a field for each argument. The facade makes one
from what a caller gives, the server from a request; a client turns it into a request, the document into words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

from penstock.contract.schemas import Schema

Result = TypeVar("Result")
Kind = TypeVar("Kind", bound="type[Operation[Any]]")
BODY = 65_536  # bytes of a request's body, where nothing else is said
LIST = 8 << 20  # of receipts or ids
BATCH = 64 << 20  # of messages


@dataclass(frozen=True, kw_only=True)
class Argument:
    """What a value may be.

    check: from the argument's name and its value to the value; TypeError, InvalidArgument
    schema: its JSON schema, for the OpenAPI document
    wire: its name over HTTP, if that is another
    omit: it is left out of a request while it has its default
    most: what one request gets at most; more is as good as that
    send: from the value to what JSON, or a query, has for it
    """

    check: Callable[[str, Any], Any]
    schema: Schema
    example: object = None
    wire: str = ""
    omit: bool = False
    most: float | None = None
    send: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an operation answers: a value of a kind, or of many, alone or as the member of an object."""

    description: str
    kind: Any = None
    member: str = ""
    many: bool = False
    status: int = 200
    schema: Schema = field(default_factory=dict)
    example: object = None


@dataclass(frozen=True, kw_only=True)
class Http:
    """Where an operation is found, and how it is carried.

    name: the operation's name for the document and for people
    role: one of these roles is needed, where there are tokens
    limit: bytes of a request's body
    batch: the body is a batch of messages, with that schema; it is the last argument, and the others are a query
    query: the arguments are a query, though the method would take a body
    then: what is done, and answered, after it
    pick: what a client wants of the answer
    polls: it may wait for long, and must stop once nobody listens any more
    lists: it answers with many bodies, so that only some do so at a time
    repeatable: doing it twice is as good as doing it once
    patience: seconds that its answer may take beyond the usual
    said: what an error calls it
    errors: by name, beyond those that any request can meet
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    description: str
    role: int
    answer: Answer
    limit: int = BODY
    polls: bool = False
    lists: bool = False
    repeatable: bool = True
    patience: float = 0.0
    said: str = ""
    errors: Sequence[str] = ()
    example: Mapping[str, Any] | None = None
    batch: str = ""
    query: bool = False
    then: "type[Operation[Any]] | None" = None
    pick: Callable[[Any], Any] | None = None

    @cached_property
    def in_query(self) -> bool:
        """Whether arguments that are not in the path are in the query."""
        return bool(self.query or self.batch or self.method in ("GET", "DELETE"))

    @cached_property
    def segments(self) -> list[str]:
        """The parts of the path, variable ones in braces."""
        return self.path.split("/")[1:]

    @cached_property
    def in_path(self) -> list[str]:
        """The names of the path's variable parts."""
        return [part[1:-1] for part in self.segments if part[:1] == "{"]


class Operation(Generic[Result]):
    """Something to be done."""

    __slots__ = ()
    http: ClassVar[Http]
    runs: ClassVar[str]  # the backend's method that does it
    part: ClassVar[str]  # what the backend has that method on: "", "streams" or "uploads"
    listing: ClassVar[bool] = False  # it lists messages, and has rest(): what is still to be listed
    call: ClassVar[Callable[[Any, Any], Any]]  # of the operation and a backend: that method, with the arguments
    on_queue: ClassVar[Callable[[Any, Any], Any] | None]  # the same of the queue itself, where it names one
    arguments: ClassVar[Mapping[str, Argument]]
    wires: ClassVar[Mapping[str, tuple[str, Argument]]]  # the same by their names over HTTP, with their own
    limits: ClassVar[Sequence[tuple[str, float]]]
    others: ClassVar[Sequence[str]]  # names over HTTP of what is neither in the path nor a batch
    required: ClassVar[frozenset[str]]
    queue: str  # of those that have one
    wait: float  # of those that poll
    _defaults: ClassVar[Mapping[str, Any]]

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r:.100}" for name in self.arguments)
        return f"{type(self).__name__}({given})"

    @classmethod
    def default(cls, name: str) -> Any:
        """What an argument is unless something else is said."""
        return cls._defaults.get(name)

    def is_repeatable(self) -> bool:
        """Whether doing it twice is as good as doing it once."""
        return self.http.repeatable

    def picked(self, answer: Any) -> Any:
        """What the caller wants of the answer."""
        return answer if self.http.pick is None else self.http.pick(answer)

    @classmethod
    def checked(cls, given: Mapping[str, Any], wires: Iterable[str]) -> dict[str, Any]:
        """The arguments that have these names over HTTP, by their own; TypeError, InvalidArgument."""
        values = {}
        for wire in wires:
            name, argument = cls.wires[wire]
            if wire in given or name in cls.required:
                values[name] = argument.check(wire, given.get(wire))
        return values

    def within_limits(self) -> Self:
        """The operation as one request carries it."""
        for name, most in self.limits:
            if getattr(self, name) > most:
                self = replace(self, **{name: most})  # type: ignore[type-var]
        return self


class Runner(Protocol):
    """What carries out operations."""

    def __call__(self, operation: Operation[Result], /) -> Result:
        """Carry out an operation."""


@dataclass_transform()
def operation(
    call: str,
    runs: str,
    *,
    role: int,
    answer: Answer,
    part: str = "",
    name: str = "",
    tag: str = "Messages",
    **more: Any,
) -> Callable[[Kind], Kind]:
    """Declare an operation: its method and path, the backend's method that runs it, the role it needs, its answer.

    The first line of the class's docstring is its summary, the rest its description.
    """

    def declare(kind: Kind) -> Kind:
        made: Any = dataclass(slots=True, eq=False, repr=False)(kind)
        hints = kind.__annotations__
        names = [each.name for each in fields(made)]
        made.arguments = {name: found for name in names if (found := _argument(hints[name])) is not None}
        made.required = frozenset(
            each.name for each in fields(made) if each.default is each.default_factory is MISSING
        )
        made._defaults = {each.name: each.default for each in fields(made)}
        made.wires = {each.wire or name: (name, each) for name, each in made.arguments.items()}
        made.limits = [(name, each.most) for name, each in made.arguments.items() if each.most is not None]
        made.runs, made.part = runs, part
        values = getattr(kind, "values", [f"operation.{name}" for name in names])
        made.call = _call(part, runs, values)
        made.on_queue = _call("", runs, values[1:]) if names[:1] == ["queue"] and not part else None
        method, _, path = call.partition(" ")
        summary, _, description = (kind.__doc__ or "").strip().partition("\n\n")
        made.http = Http(
            method=method,
            path=path,
            name=name or runs,
            tag=tag,
            summary=summary.rstrip("."),
            description=" ".join(description.split()),
            role=role,
            answer=answer,
            **more,
        )
        others = [wire for wire in made.wires if wire not in made.http.in_path]
        made.others = others[:-1] if made.http.batch else others
        return made  # type: ignore[no-any-return]

    return declare


def _argument(hint: Any) -> Argument | None:
    """What an annotation says of its values; None: it never travels."""
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint) if isinstance(each, Argument)), None)


def _call(part: str, runs: str, values: Sequence[str]) -> Callable[[Any, Any], Any]:
    """A function that has a backend run an operation. It is compiled, as every operation comes by here."""
    on = f"backend.{part}()" if part else "backend"
    call: Callable[[Any, Any], Any] = eval(  # noqa: S307 - nothing in it comes from outside
        f"lambda operation, backend: {on}.{runs}({', '.join(values)})"
    )
    return call
