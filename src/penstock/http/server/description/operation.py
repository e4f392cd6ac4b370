"""One operation of the document, and the small pieces that operations are put together from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.contract.operations import A_RECEIPT, NOW
from penstock.contract.schemas import NAME, Schema, ref, text
from penstock.wire import frames

JSON = "application/json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `answers` are the good ones, `errors` those beyond what any request can meet."""

    call: str  # "GET /path"
    id: str
    tag: str
    summary: str
    description: str = ""
    parameters: Sequence[Schema] = ()
    body: Schema | None = None
    answers: Mapping[str, Schema]
    errors: Sequence[str] = ()
    polls: bool = False

    @property
    def method(self) -> str:
        """GET and the like."""
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        """With the names of its variable parts in braces."""
        return self.call.partition(" ")[2]


def parameter(place: str, name: str, schema: Schema, example: object = None) -> Schema:
    """What a request says in its path, query or headers; the schema's description becomes the parameter's."""
    described = {"name": name, "in": place, "description": schema["description"]}
    if place == "path":
        described["required"] = True
    described["schema"] = {key: value for key, value in schema.items() if key != "description"}
    return described if example is None else {**described, "example": example}


def query(**given: Schema) -> list[Schema]:
    """Parameters of the query."""
    return [parameter("query", *each) for each in given.items()]


def body(schema: Schema, example: object, required: bool = True) -> Schema:
    """A request's JSON."""
    return {"required": required, "content": {JSON: {"schema": schema, "example": example}}}


def answer(description: str, schema: Schema, example: object) -> Schema:
    """An answer's JSON."""
    return {"description": description, "content": {JSON: {"schema": schema, "example": example}}}


def header(description: str, kind: str = "string", required: bool = True) -> Schema:
    """A header of an answer."""
    return {"description": description, "required": required, "schema": {"type": kind}}


def drafts(schema: str) -> Schema:
    """A request's batch."""
    example = {"messages": [{"payload": "resize cat.jpg", "headers": {"kind": "image"}, "priority": 3}]}
    return {"required": True, "content": {JSON: {"schema": ref(schema), "example": example}, **_FRAME}}


_FRAME: dict[str, Any] = {frames.MEDIA_TYPE: {"schema": {"contentMediaType": frames.MEDIA_TYPE}}}
_A_MESSAGE = {
    "id": "7", "queue": "jobs", "payload": "resize cat.jpg", "headers": {"kind": "image"}, "priority": 3,
    "created_at": NOW, "received_at": NOW, "visible_at": NOW, "expires_at": None, "attempts": 1,
    "state": "in_flight", "receipt": A_RECEIPT, "claimed_at": NOW + 5, "lease_until": NOW + 60_005,
    "consumer": "me", "settled_at": None, "reason": None, "payload_base64": "cmVzaXplIGNhdC5qcGc=",
}  # fmt: skip

QUEUE = parameter("path", "queue", {**NAME, "description": "The queue's name."}, "jobs")
ID = parameter("path", "id", text("The message's id.", minLength=1), "7")
DONE = {"description": "Done."}


def messages(description: str, schema: Schema) -> Schema:
    """An answer's batch."""
    example = {"messages": [_A_MESSAGE]}
    return {"description": description, "content": {JSON: {"schema": schema, "example": example}, **_FRAME}}
