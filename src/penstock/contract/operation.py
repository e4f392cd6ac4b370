"""Operations as data: arguments with their checks, answer, role, and HTTP route.

An operation is declared once (`operations.py`), as a class with a field for each argument. `Store` and `Queue`
make instances from a caller's arguments, the server from a request. Clients turn instances into requests, and the
OpenAPI document describes the classes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
BODY = 65_536  # the default limit of a request's body, in bytes
LIST = 8 << 20  # for lists of receipts or ids
BATCH = 64 << 20  # for batches of messages


@dataclass(frozen=True, kw_only=True)
class Argument:
    """The type and limits of an argument.

    check: takes the argument's name and value, returns the checked value; TypeError, InvalidArgument
    schema: the JSON schema, for the OpenAPI document
    wire: the name over HTTP, if it differs
    omit: requests leave the argument out while it has its default
    most: the highest value that a request carries; higher values are sent as this one
    send: converts the value for JSON or a query
    """

    check: Callable[[str, Any], Any]
    schema: Schema
    example: object = None
    wire: str = ""
    omit: bool = False
    most: float | None = None
    send: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Answer:
    """The result of an operation: a value, or many, alone or as the member of a JSON object."""

    description: str
    kind: Any = None
    member: str = ""
    many: bool = False
    status: int = 200
    schema: Schema = field(default_factory=dict)
    example: object = None


@dataclass(frozen=True, kw_only=True)
class Http:
    """The route of an operation, and how requests carry it.

    name: the operation's name in the OpenAPI document
    role: a token needs one of these roles
    limit: the most bytes of a request's body
    batch: the schema of a body that is a batch of messages; the batch is the last argument, the others are a query
    query: the arguments are a query, even though the method has a body
    then: a second operation, run after this one, whose result is the answer
    pick: extracts the caller's result from the answer
    polls: may wait for long, and stops when the client disconnects
    lists: answers with many payloads, so the server limits how many run at a time
    repeatable: running it twice has the effect of running it once, so clients may retry
    patience: seconds that the answer may take beyond the usual timeout
    said: the operation's name in error messages
    errors: names of errors, beyond those of any request
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
        """Whether arguments outside of the path are in the query."""
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
    """A class attribute that is computed from the declaration on first use.

    Every process declares all operations, and most processes use few of them.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, kind: Any) -> Any:
        _make(kind)
        return getattr(kind if instance is None else instance, self._name)


def _later() -> Any:
    return _Later()


class Operation(Generic[Result]):
    """Base of all operations. The first instance of each class compiles an __init__ with a field per argument."""

    runs: ClassVar[str]  # the backend's method that runs it
    part: ClassVar[str]  # the part of the backend that has the method: "", "streams" or "uploads"
    listing: ClassVar[bool] = False  # lists messages page by page; rest() makes the operation for the next page
    http: ClassVar[Http] = _later()
    call: ClassVar[Callable[[Any, Any], Any]] = _later()  # runs it on a backend
    on_queue: ClassVar[Callable[[Any, Any], Any] | None] = _later()  # runs it on one queue of a backend
    arguments: ClassVar[Mapping[str, Argument]] = _later()
    wires: ClassVar[Mapping[str, tuple[str, Argument]]] = _later()  # by HTTP name: (own name, argument)
    limits: ClassVar[Sequence[tuple[str, float]]] = _later()
    others: ClassVar[Sequence[str]] = _later()  # HTTP names of arguments in neither path nor batch
    required: ClassVar[frozenset[str]] = _later()
    queue: str  # only of operations on one queue
    wait: float  # only of operations that poll

    def __init__(self, *given: Any, **named: Any) -> None:
        kind: Any = type(self)
        kind.__init__ = _initializer(kind)
        kind.__init__(self, *given, **named)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r:.100}" for name in self.arguments)
        return f"{type(self).__name__}({given})"

    @classmethod
    def default(cls, name: str) -> Any:
        """An argument's default; None for required arguments."""
        return cls.__dict__.get(name)

    def changed(self, **values: Any) -> Self:
        """A copy with other values of some arguments."""
        return type(self)(**{**vars(self), **values})

    def is_repeatable(self) -> bool:
        """Whether doing it twice is as good as doing it once."""
        return self.http.repeatable

    def picked(self, answer: Any) -> Any:
        """The caller's result, from the answer."""
        return answer if self.http.pick is None else self.http.pick(answer)

    @classmethod
    def checked(cls, given: Mapping[str, Any], wires: Iterable[str]) -> dict[str, Any]:
        """Checked arguments by their own names, from values by their HTTP names; TypeError, InvalidArgument."""
        values = {}
        for wire in wires:
            name, argument = cls.wires[wire]
            if wire in given or name in cls.required:
                values[name] = argument.check(wire, given.get(wire))
        return values

    def within_limits(self) -> Self:
        """The operation with arguments cut to what one request carries (`Argument.most`)."""
        for name, most in self.limits:
            if getattr(self, name) > most:
                self = self.changed(**{name: most})
        return self


class Runner(Protocol):
    """Runs operations: `Backend.run` and its like."""

    def __call__(self, operation: Operation[Result], /) -> Result:
        """Run an operation."""


class AsyncRunner(Protocol):
    """Runs operations for coroutines: `AsyncBackend.run` and its like."""

    def __call__(self, operation: Operation[Result], /) -> Awaitable[Result]:
        """Run an operation."""


@dataclass_transform()
def operation(call: str, runs: str, *, part: str = "", **more: Any) -> Callable[[Kind], Kind]:
    """Declare an operation: HTTP method and path, the backend's method that runs it, and fields of Http.

    The first line of the class's docstring is its summary, the rest its description.
    """

    def declare(kind: Kind) -> Kind:
        kind.runs, kind.part = runs, part
        kind._declared = call, more  # type: ignore[attr-defined]
        return kind

    return declare


def _make(kind: Any) -> None:
    """Compute the class attributes that follow from a declaration."""
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
    """An __init__ with a parameter for each field, like a dataclass's."""
    names = list(kind.__annotations__)
    parameters = [f"{name}=kind.{name}" if name in kind.__dict__ else name for name in names]
    lines = [f"    self.{name} = {name}" for name in names] or ["    pass"]
    made: dict[str, Any] = {"kind": kind}
    source = "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *lines])
    exec(source, made)  # noqa: S102 - nothing in it comes from outside
    init: Callable[..., None] = made["__init__"]
    return init


def _argument(hint: Any) -> Argument | None:
    """The Argument of an annotation; None: the field is not sent over HTTP."""
    if get_origin(hint) is not Annotated:
        return None
    return next((each for each in get_args(hint) if isinstance(each, Argument)), None)


def _call(part: str, runs: str, values: Sequence[str]) -> Callable[[Any, Any], Any]:
    """A function that runs an operation on a backend. It is compiled because every operation passes through it."""
    on = f"backend.{part}()" if part else "backend"
    call: Callable[[Any, Any], Any] = eval(  # noqa: S307 - nothing in it comes from outside
        f"lambda operation, backend: {on}.{runs}({', '.join(values)})"
    )
    return call
