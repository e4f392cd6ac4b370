"""What an operation is: its arguments, its answer, who may ask for it, and where it is found over HTTP.

An operation is declared once (`operations.py`), as a class with a field for each argument. The facade makes one
from what a caller gives, the server from a request; a client turns it into a request, the document into words.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


class _Later:
    """An attribute of an operation's class that is made from the declaration when it is first asked for.

    Most processes need few of them, and every process declares all operations.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: Any) -> Any:
        _make(kind)
        return getattr(kind if instance is None else instance, self._name)


def _later() -> Any:
    return _Later()


class Operation(Generic[Result]):
    """Something to be done. The first instance of each compiles its __init__, with a field per argument."""

    runs: ClassVar[str]  # the backend's method that does it
    part: ClassVar[str]  # what the backend has that method on: "", "streams" or "uploads"
    listing: ClassVar[bool] = False  # it lists messages, and has rest(): what is still to be listed
    http: ClassVar[Http] = _later()
    call: ClassVar[Callable[[Any, Any], Any]] = _later()  # with a backend: that method, with the arguments
    on_queue: ClassVar[Callable[[Any, Any], Any] | None] = _later()  # with a queue: its method of that name
    arguments: ClassVar[Mapping[str, Argument]] = _later()
    wires: ClassVar[Mapping[str, tuple[str, Argument]]] = _later()  # by their names over HTTP, with their own
    limits: ClassVar[Sequence[tuple[str, float]]] = _later()
    others: ClassVar[Sequence[str]] = _later()  # names over HTTP of what is neither in the path nor a batch
    required: ClassVar[frozenset[str]] = _later()
    queue: str  # of those that have one
    wait: float  # of those that poll

    def __init__(self, *given: Any, **named: Any) -> None:
        kind: Any = type(self)
        kind.__init__ = _initializer(kind)
        kind.__init__(self, *given, **named)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r:.100}" for name in self.arguments)
        return f"{type(self).__name__}({given})"

    @classmethod
    def default(cls, name: str) -> Any:
        """What an argument is unless something else is said; None where something must be said."""
        return cls.__dict__.get(name)

    def changed(self, **values: Any) -> Self:
        """The operation with other values of some arguments."""
        return type(self)(**{**vars(self), **values})

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
                self = self.changed(**{name: most})
        return self


class Runner(Protocol):
    """What carries out operations."""

    def __call__(self, operation: Operation[Result], /) -> Result:
        """Carry out an operation."""


@dataclass_transform()
def operation(call: str, runs: str, *, part: str = "", **more: Any) -> Callable[[Kind], Kind]:
    """Declare an operation: its method and path, the backend's method that runs it, and more of Http.

    The first line of the class's docstring is its summary, the rest its description.
    """

    def declare(kind: Kind) -> Kind:
        kind.runs, kind.part = runs, part
        kind._declared = call, more  # type: ignore[attr-defined]
        return kind

    return declare


def _make(kind: Any) -> None:
    """Everything that follows from an operation's declaration."""
    call, more = kind._declared
    names = list(kind.__annotations__)
    kind.arguments = {name: found for name in names if (found := _argument(kind.__annotations__[name]))}
    kind.required = frozenset(name for name in names if name not in kind.__dict__)
    kind.wires = {each.wire or name: (name, each) for name, each in kind.arguments.items()}
    kind.limits = [(name, each.most) for name, each in kind.arguments.items() if each.most is not None]
    values = getattr(kind, "values", [f"operation.{name}" for name in names])
    kind.call = _call(kind.part, kind.runs, values)
    kind.on_queue = _call("", kind.runs, values[1:]) if names[:1] == ["queue"] and not kind.part else None
    method, _, path = call.partition(" ")
    summary, _, description = kind.__doc__.strip().partition("\n\n")
    about = {"name": kind.runs, "tag": "Messages", "summary": summary.rstrip("."), **more}
    kind.http = Http(method=method, path=path, description=" ".join(description.split()), **about)
    others = [wire for wire in kind.wires if wire not in kind.http.in_path]
    kind.others = others[:-1] if kind.http.batch else others


def _initializer(kind: type) -> Callable[..., None]:
    """An __init__ with a parameter for each field, as a dataclass has it."""
    names = list(kind.__annotations__)
    parameters = [f"{name}=kind.{name}" if name in kind.__dict__ else name for name in names]
    lines = [f"    self.{name} = {name}" for name in names] or ["    pass"]
    made: dict[str, Any] = {"kind": kind}
    source = "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *lines])
    exec(source, made)  # noqa: S102 - nothing in it comes from outside
    init: Callable[..., None] = made["__init__"]
    return init


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
