"""Shapes: types of the members of SQS requests and answers. Pure functions between JSON, forms, XML and values.

A shape reads a value of the JSON protocol, and refuses what is no such value. A form of the query protocol first
becomes the same JSON: `Entry.1.Id=a` names its place in it, with the shape's `tag` for a list or a map.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from penstock.http.server.sqs.errors import SqsError

Tree = dict[str, Any]  # a form by the parts of its names; a node's own value is under the empty text
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r")
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"})
_MOST_NODES = 5  # parts of the name of a form's value


class Shape:
    """A type. `kind` is its name in Amazon's model of the service."""

    kind: ClassVar[str]

    def read(self, name: str, value: Any) -> Any:
        """The checked value of a member; SqsError."""
        raise NotImplementedError

    def of_form(self, node: Any) -> Any:
        """The JSON value of a node of a form; None: there is none."""
        text = node.get("") if isinstance(node, dict) else node
        return text if isinstance(text, str) else None

    def as_xml(self, tag: str, value: Any) -> Iterator[str]:
        """The pieces of an element, or of several."""
        yield f"<{tag}>{escaped(str(value))}</{tag}>"


@dataclass(frozen=True)
class Text(Shape):
    """A text of so many characters that matches the pattern."""

    shortest: int = 0
    longest: int | None = None
    pattern: str = ""
    kind: ClassVar[str] = "string"

    @cached_property
    def _legal(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def read(self, name: str, value: Any) -> str:
        if type(value) is not str:
            raise malformed(name, "a string", value)
        if len(value) < self.shortest:
            raise missing(name)
        if self.longest is not None and len(value) > self.longest:
            raise invalid(name, f"{value[:40]}...", f"It has {len(value)} characters; the most is {self.longest}")
        if self.pattern and not self._legal.fullmatch(value):
            raise invalid(name, value, f"It must match {self.pattern}")
        return value


@dataclass(frozen=True)
class Whole(Shape):
    """An integer within limits."""

    lowest: int | None = None
    highest: int | None = None
    kind: ClassVar[str] = "integer"

    def read(self, name: str, value: Any) -> int:
        if type(value) is not int:
            raise malformed(name, "an integer", value)
        if self.lowest is not None and self.highest is not None and not self.lowest <= value <= self.highest:
            raise invalid(name, value, f"Must be between {self.lowest} and {self.highest}, if provided")
        return value

    def of_form(self, node: Any) -> Any:
        text = super().of_form(node)
        return int(text) if text is not None and _WHOLE.fullmatch(text) else text


class Long(Whole):
    """An integer of 64 bits; only in answers."""

    kind: ClassVar[str] = "long"


class Flag(Shape):
    """True or false; only in answers."""

    kind: ClassVar[str] = "boolean"

    def as_xml(self, tag: str, value: Any) -> Iterator[str]:
        yield f"<{tag}>{'true' if value else 'false'}</{tag}>"


class Blob(Shape):
    """Bytes; base64 in answers and on the wire."""

    kind: ClassVar[str] = "blob"

    def read(self, name: str, value: Any) -> bytes:
        if type(value) is not str:
            raise malformed(name, "base64", value)
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            raise malformed(name, "base64", value[:40]) from None


@dataclass(frozen=True)
class Listing(Shape):
    """A list; `tag` is the name of an item in forms and XML."""

    item: Shape
    tag: str
    kind: ClassVar[str] = "list"

    def read(self, name: str, value: Any) -> list[Any]:
        if type(value) is not list:
            raise malformed(name, "a list", value)
        read = self.item.read
        return [read(name, each) for each in value]

    def of_form(self, node: Any) -> Any:
        return [self.item.of_form(each) for each in _numbered(node)]

    def as_xml(self, tag: str, value: Any) -> Iterator[str]:
        for each in value:
            yield from self.item.as_xml(self.tag, each)


@dataclass(frozen=True)
class Entries(Listing):
    """The entries of a batch: each is its id with its members, or with the reason why it fails alone."""

    def read(self, name: str, value: Any) -> list[tuple[str, Any]]:
        if type(value) is not list:
            raise malformed(name, "a list", value)
        read = self.item.read
        entries: list[tuple[str, Any]] = []
        for each in value:
            try:
                entry = read(name, each)
                entries.append((entry["Id"], entry))
            except SqsError as error:
                named = each.get("Id") if isinstance(each, dict) else None
                if not isinstance(named, str) or error.name == "SerializationException":
                    raise
                entries.append((named, error))
        return entries


@dataclass(frozen=True)
class Table(Shape):
    """A map from texts; `tag` names an entry in forms and XML, `key` and `value` its parts."""

    item: Shape
    tag: str
    key: str = "Name"
    value: str = "Value"
    kind: ClassVar[str] = "map"

    def read(self, name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise malformed(name, "a map", value)
        return {key: self.item.read(f"{name}.{key}", each) for key, each in value.items()}

    def of_form(self, node: Any) -> Any:
        table = {}
        for each in _numbered(node):
            key = each.get(self.key) if isinstance(each, dict) else None
            if not isinstance(key, str):
                raise missing(self.key)
            table[key] = self.item.of_form(each.get(self.value, ""))
        return table

    def as_xml(self, tag: str, value: Any) -> Iterator[str]:
        for key, each in value.items():
            yield f"<{self.tag}><{self.key}>{escaped(key)}</{self.key}>"
            yield from self.item.as_xml(self.value, each)
            yield f"</{self.tag}>"


@dataclass(frozen=True)
class Member:
    """A member of a structure."""

    name: str
    shape: Shape
    required: bool = False

    @property
    def tag(self) -> str:
        """Its name in forms and XML."""
        shape = self.shape
        return shape.tag if isinstance(shape, Listing | Table) else self.name


@dataclass(frozen=True)
class Structure(Shape):
    """Members by name. Unknown members of a request are skipped, as AWS does."""

    members: Sequence[Member] = field(default_factory=tuple)
    kind: ClassVar[str] = "structure"

    @cached_property
    def _checks(self) -> dict[str, Callable[[str, Any], Any]]:
        return {member.name: member.shape.read for member in self.members}

    @cached_property
    def _required(self) -> list[str]:
        return [member.name for member in self.members if member.required]

    def read(self, name: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise malformed(name, "a structure", value)
        checks, found = self._checks, {}
        for member, given in value.items():
            if given is not None and member in checks:
                found[member] = checks[member](member, given)
        for member in self._required:
            if member not in found:
                raise missing(member)
        return found

    def of_form(self, node: Any) -> Any:
        node = node if isinstance(node, dict) else {}
        return {
            each.name: each.shape.of_form(node.get(each.tag, {}))
            for each in self.members
            if each.tag in node
            or isinstance(each.shape, Entries)  # a form has no way to say that a batch is empty
        }

    def as_xml(self, tag: str, value: Any) -> Iterator[str]:
        yield f"<{tag}>"
        for member in self.members:
            if value.get(member.name) is not None:
                yield from member.shape.as_xml(member.tag, value[member.name])
        yield f"</{tag}>"


def tree(pairs: Mapping[str, str]) -> Tree:
    """A form's values by the parts of their names."""
    root: Tree = {}
    for name, value in pairs.items():
        node = root
        *path, last = name.split(".", _MOST_NODES)
        for part in path:
            below = node.setdefault(part, {})
            if not isinstance(below, dict):
                below = node[part] = {"": below}
            node = below
        if isinstance(node.get(last), dict):
            node[last][""] = value
        else:
            node[last] = value
    return root


def _numbered(node: Any) -> list[Any]:
    """The items of a list in a form, in the order of their numbers; a value without a number is a list of one."""
    if not isinstance(node, dict):
        return [node]
    numbers = sorted((int(key), each) for key, each in node.items() if _WHOLE.fullmatch(key)) if node else []
    return [each for _, each in numbers]


def escaped(text: str) -> str:
    """A text in XML; characters that XML cannot carry become U+FFFD."""
    return _NOT_XML.sub("\ufffd", text).translate(_MARKUP)


def is_plain(text: str) -> bool:
    """Whether SQS carries a text: all of its characters are those of XML."""
    if text.isascii():  # four times as fast as the pattern
        data = text.encode()
        return len(data.translate(None, _CONTROLS)) == len(data)
    return _NOT_XML.search(text) is None


def missing(name: str) -> SqsError:
    """The error of a request without a member."""
    return SqsError("MissingRequiredParameterException", f"The request must contain the parameter {name}.")


def malformed(name: str, wanted: str, value: object) -> SqsError:
    """The error for a value of another type."""
    return SqsError("SerializationException", f"{name} is {wanted}, not {value!r:.80}")


def invalid(name: str, value: object, reason: str) -> SqsError:
    """The error for a value out of range."""
    return SqsError(
        "InvalidParameterValueException", f"Value {value} for parameter {name} is invalid. Reason: {reason}."
    )
