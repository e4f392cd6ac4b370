"""The OpenAPI 3.1 document, made from the declarations of operations; other endpoints are described here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from penstock import errors
from penstock.contract import loads, monitoring, operations, schemas, stream_operations
from penstock.contract.message import LATEST, MAX_MESSAGES, Message
from penstock.contract.operation import Argument
from penstock.contract.operation import Operation as Declared
from penstock.contract.operations import A_QUEUE, A_RECEIPT, CREATES, NOW, OF_QUEUE, PUTS, TAKES, WRITES
from penstock.contract.roles import ANY_ROLE, names
from penstock.contract.schemas import NAME, Schema, integer, record, ref, text
from penstock.contract.schemas import answer as members
from penstock.contract.streams import BatchPlan
from penstock.http.server import exchange, metrics
from penstock.version import __version__
from penstock.wire import frames, problems

# Meanings of errors of HTTP, and of errors that mean something else here than in Python.
_MEANINGS = {
    "BadRequest": "What came is no HTTP/1.1 request: its head cannot be read, or it ended too early.",
    "Unauthorized": "The server asks for a token that it knows: `Authorization: Bearer TOKEN`.",
    "Forbidden": (
        "The token lacks the role that this needs, which the answer names; or the server asks for no tokens, and "
        "the request may be that of a web page: its `Host` is no name of the server, or its `Origin` another."
    ),
    "NotFound": "There is nothing at this path. A `/` in a name is written as `%2F`.",
    "MessageNotFound": "The queue has no such message (any more).",
    "LoadNotFound": (
        "No such load is open: it was aborted, not touched for a day, or the server has started anew since. "
        "Nothing of it is there; begin again."
    ),
    "MethodNotAllowed": "This path does not take this method; `Allow` names those that it takes.",
    "RequestTimeout": "The request took too long to arrive.",
    "QueueExists": "There is a queue of that name already, or one with other settings than were asked for.",
    "PayloadTooLarge": (
        "The body is larger than this path takes, or a payload is larger than the queue's `max_payload`; store it "
        "elsewhere and queue its address."
    ),
    "UnsupportedMediaType": (
        "The body is of a type that is not taken here, or has a `Content-Encoding`; send it as the table says."
    ),
    "HeadersTooLarge": "The request's line and headers together are too long.",
    "ServerError": "The server failed at this request; its log says why.",
    "Overloaded": (
        "The server has too many connections or open loads, or too much is arriving; try again a little later."
    ),
    "StoreClosed": "The server is stopping; try again once it is back.",
    "StoreCorrupt": "Stored bytes are damaged: the server's log says where, `penstock doctor` what can be saved.",
    "StoreLocked": "Another process holds the server's store; try again later.",
    "StoreUnavailable": "The system refuses a file of the store; the server's log says which, and why.",
    "StoreUnreachable": "The server cannot reach its store; try again later.",
    "LeaseExpired": (
        "Receipts no longer hold their message: its lease ended, or it was settled or removed. `receipts` names "
        "them; the others of the request were settled. Drop that work: another consumer may have the message."
    ),
}


class Failure(NamedTuple):
    """An error that the document describes."""

    name: str
    status: int
    meaning: str


def _failure(name: str, status: int) -> Failure:
    return Failure(name, status, _MEANINGS.get(name) or (getattr(errors, name).__doc__ or "").partition("\n")[0])


STATUSES = problems.STATUSES | exchange.STATUSES
FAILURES = {name: _failure(name, status) for name, status in sorted(STATUSES.items(), key=lambda each: each[::-1])}

# Errors of any request that needs a role, where there are tokens.
GUARDED = ("Unauthorized",)
# Errors of any request.
COMMON = (
    "BadRequest", "InvalidArgument", "Forbidden", "RequestTimeout", "PayloadTooLarge", "UnsupportedMediaType",
    "HeadersTooLarge", "ServerError", "Overloaded", "StoreClosed",
)  # fmt: skip


JSON = "application/json"
BYTES = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `answers` are successes by status, `errors` are names beyond COMMON and GUARDED."""

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
        """The method: GET, POST or another."""
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with the names of its variable segments in braces."""
        return self.call.partition(" ")[2]


def parameter(place: str, name: str, schema: Schema, example: object = None) -> Schema:
    """A parameter in a path, query or header; the schema's description becomes the parameter's."""
    described = {"name": name, "in": place, "description": schema["description"]}
    if place == "path":
        described["required"] = True
    described["schema"] = {key: value for key, value in schema.items() if key != "description"}
    return described if example is None else {**described, "example": example}


def query(**given: Schema) -> list[Schema]:
    """Parameters of a query."""
    return [parameter("query", *each) for each in given.items()]


def body(schema: Schema, example: object, required: bool = True) -> Schema:
    """A JSON body of a request."""
    return {"required": required, "content": {JSON: {"schema": schema, "example": example}}}


def answer(description: str, schema: Schema, example: object) -> Schema:
    """An answer with a JSON body."""
    return {"description": description, "content": {JSON: {"schema": schema, "example": example}}}


def header(description: str, kind: str = "string", required: bool = True) -> Schema:
    """A header of an answer."""
    return {"description": description, "required": required, "schema": {"type": kind}}


def drafts(schema: str) -> Schema:
    """A body that is a batch of drafts, as JSON or a frame."""
    example = {"messages": [{"payload": "resize cat.jpg", "headers": {"kind": "image"}, "priority": 3}]}
    return {"required": True, "content": {JSON: {"schema": ref(schema), "example": example}, **_FRAME}}


_FRAME: dict[str, Any] = {frames.MEDIA_TYPE: {"schema": {"contentMediaType": frames.MEDIA_TYPE}}}
_A_MESSAGE = {
    "id": "7", "queue": "jobs", "payload": "resize cat.jpg", "headers": {"kind": "image"}, "priority": 3,
    "created_at": NOW, "received_at": NOW, "visible_at": NOW, "expires_at": None, "attempts": 1,
    "state": "in_flight", "receipt": A_RECEIPT, "claimed_at": NOW + 5, "lease_until": NOW + 60_005,
    "consumer": "me", "settled_at": None, "reason": None, "group": None, "payload_base64": "cmVzaXplIGNhdC5qcGc=",
}  # fmt: skip

QUEUE = parameter("path", "queue", {**NAME, "description": "The queue's name."}, "jobs")
ID = parameter("path", "id", text("The message's id.", minLength=1), "7")
DONE = {"description": "Done."}


def messages(description: str, schema: Schema) -> Schema:
    """An answer with a batch of messages, as JSON or a frame."""
    example = {"messages": [_A_MESSAGE]}
    return {"description": description, "content": {JSON: {"schema": schema, "example": example}, **_FRAME}}


def described(kind: type[Declared[Any]]) -> Operation:
    """The description of a declared operation."""
    http = kind.http
    wires = dict(kind.wires)
    if http.batch:
        wires.popitem()
    in_path = [parameter("path", wire, wires[wire][1].schema, wires[wire][1].example) for wire in http.in_path]
    others = {wire: _schema(kind, *found) for wire, found in wires.items() if wire not in http.in_path}
    needed = [wire for wire in others if wires[wire][0] in kind.required]
    return Operation(
        call=f"{http.method} {http.path}",
        id=http.name,
        tag=http.tag,
        summary=http.summary,
        description=http.description,
        parameters=[*in_path, *(parameter("query", *each) for each in others.items() if http.in_query)],
        body=(
            drafts(http.batch)
            if http.batch
            else body(record(others, *needed), http.example, required=bool(needed))
            if others and not http.in_query
            else None
        ),
        answers={str(http.answer.status): _answer(http.answer)},
        errors=http.errors,
        polls=http.polls,
    )


def _schema(kind: type[Declared[Any]], name: str, argument: Argument) -> Schema:
    """An argument's schema with its default, unless the default stands for a missing value."""
    default = kind.default(name)
    told = isinstance(default, int | float | str) and default != ""
    return {**argument.schema, "default": default} if told else argument.schema


def _answer(given: Any) -> Schema:
    if given.status == 204:
        return {"description": given.description}
    if given.kind is Message:
        return messages(given.description, given.schema)
    if given.kind is BatchPlan:
        return {"description": given.description, "content": {BYTES: {"schema": {"contentMediaType": BYTES}}}}
    schema, example = given.schema, given.example
    if given.member:
        schema, example = members({given.member: schema}), {given.member: example}
    return answer(given.description, schema, example)


_PAYLOAD = {"schema": {}, "example": "resize cat.jpg"}
_TOLD = [
    parameter("header", "X-Message-Priority", schemas.PRIORITY),
    {
        "name": "X-Message-Headers",
        "in": "header",
        "description": "The headers as a JSON object of texts, 65,535 bytes altogether.",
        "content": {JSON: {"schema": schemas.HEADERS}},
    },
    parameter("header", "X-Message-Delay", schemas.DELAY),
    parameter("header", "X-Message-Retention", schemas.RETENTION),
    parameter("header", "X-Message-Key", schemas.KEY),
    parameter("header", "Idempotency-Key", {**schemas.KEY, "description": "The same as `X-Message-Key`."}),
    parameter("header", "X-Message-Created-At", integer("When the work came up. Otherwise now.", 0, LATEST)),
    parameter("header", "X-Message-Group", schemas.GROUP),
]
_TELLS = {
    "X-Message-Id": header("The message's id."),
    "X-Message-Receipt": header("What acknowledges this claim."),
    "X-Message-Priority": header("Its priority.", "integer"),
    "X-Message-Attempts": header("How often it was claimed.", "integer"),
    "X-Message-Created-At": header("When the work came up.", "integer"),
    "X-Message-Received-At": header("When the message was stored.", "integer"),
    "X-Message-Lease-Until": header("When this claim ends by itself.", "integer"),
    "X-Message-Group": header("Its group, if it has one that fits into a header.", required=False),
    "X-Message-Headers": header("Its headers as a JSON object of texts, if it has any.", required=False),
}


def _setting_in_query(name: str) -> Schema:
    """The parameter of a setting: JSON for labels, which have no other form, a text for the others."""
    if name != "labels":
        return parameter("query", name, schemas.in_query(name))
    schema = dict(schemas.SETTINGS[name])
    return {
        "name": name,
        "in": "query",
        "description": schema.pop("description"),
        "content": {JSON: {"schema": schema}},
    }


_MQCORE = [
    Operation(
        call="GET /{queue}",
        id="get_queue",
        tag="MQ-Core",
        summary="Is there such a queue?",
        description="Settings and counts, if `Accept` has JSON or `*/*`, as that of `curl` does; or else no body.",
        parameters=[QUEUE],
        answers={"200": answer("There is.", ref("Queue"), A_QUEUE)},
        errors=OF_QUEUE,
    ),
    Operation(
        call="PUT /{queue}",
        id="put_queue",
        tag="MQ-Core",
        summary="Make a queue",
        description="Its settings are in the query, with `none` for null. A body is discarded. Unless "
        "`max_attempts` is given, messages are delivered again and again.",
        parameters=[QUEUE, *map(_setting_in_query, schemas.SETTINGS)],
        answers={
            "201": {"description": "It is new."},
            "204": {"description": "It was there, as the query asks for it."},
        },
        errors=CREATES,
    ),
    Operation(
        call="DELETE /{queue}",
        id="delete_queue",
        tag="MQ-Core",
        summary="Remove a queue and its messages",
        description="The queue `default` always stays.",
        parameters=[QUEUE],
        answers={"204": DONE},
        errors=(*WRITES, "QueueProtected"),
    ),
    Operation(
        call="GET /{queue}/messages",
        id="get_message",
        tag="MQ-Core",
        summary="Claim a message",
        description="The body is the payload. The message is yours until the lease ends: acknowledge it by then.",
        parameters=[
            QUEUE,
            *query(
                lease=schemas.LEASE,
                wait={**schemas.WAIT, "default": 0},
                consumer=schemas.CONSUMER,
            ),
        ],
        answers={
            "200": {"description": "A message.", "headers": _TELLS, "content": {BYTES: _PAYLOAD}},
            "204": {"description": "There is none."},
        },
        errors=TAKES,
        polls=True,
    ),
    Operation(
        call="POST /{queue}/messages",
        id="post_message",
        tag="MQ-Core",
        summary="Put a message",
        description="The body is the payload, of whatever type.",
        parameters=[QUEUE, *_TOLD],
        body={"content": {BYTES: _PAYLOAD, "*/*": {"schema": {}}}},
        answers={"201": {"description": "It is stored.", "headers": {"X-Message-Id": _TELLS["X-Message-Id"]}}},
        errors=(*OF_QUEUE, *PUTS),
    ),
    Operation(
        call="DELETE /{queue}/messages/{id}",
        id="delete_message",
        tag="MQ-Core",
        summary="Acknowledge or remove a message",
        description="With a receipt this acknowledges a claim. Without one it removes a message, claimed or not.",
        parameters=[QUEUE, ID, *query(receipt=text("`X-Message-Receipt` of the claim."))],
        answers={"204": DONE},
        errors=(*WRITES, "MessageNotFound", "LeaseExpired"),
    ),
]


def _status(value: str) -> dict[str, dict[str, object]]:
    schema = members({"status": {"const": value, "description": "It is."}})
    return {"200": answer("It is.", schema, {"status": value})}


_MONITORING = [
    Operation(
        call="GET /-/healthz",
        id="healthz",
        tag="Monitoring",
        summary="Is the process alive?",
        description="Says nothing of its store. Restart a process that does not answer here.",
        answers=_status("ok"),
    ),
    Operation(
        call="GET /-/readyz",
        id="readyz",
        tag="Monitoring",
        summary="Can it be given work?",
        description="503 if it is stopping, if its store has failed, or if a commit hangs.",
        answers=_status("ready"),
    ),
    Operation(
        call="GET /-/metrics",
        id="metrics",
        tag="Monitoring",
        summary="Numbers for Prometheus",
        description=(
            "Of each queue: messages by state, the age of the oldest, events, lease expiries; histograms of how "
            "long commits take and how much each makes durable; the server and its process."
        ),
        answers={
            "200": {
                "description": "Prometheus text format.",
                "content": {metrics.MEDIA_TYPE: {"schema": {"type": "string"}}},
            }
        },
    ),
]


ABOUT = """\
Producers put messages into queues; consumers claim them for as long as a lease lasts, and acknowledge them once
the work is done. A message that is not acknowledged comes back. Success means that the change is on stable
storage.

Names and ids are percent-encoded, each in one segment of the path: queue `a/b` is `/a%2Fb`. Times are integer
milliseconds since 1970 (UTC), durations are seconds. `HEAD` works where `GET` changes nothing. Query parameters
and members of a body that are not listed here are refused.

A server may ask for a token, `Authorization: Bearer TOKEN`. Each operation says which role that needs; `admin`
includes the others. One that asks for none answers no web page of another origin, and only requests whose `Host`
is an IP address, `localhost` or a name that it was told (`--allow-host`)."""
SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": (
            "What `penstock token create` printed. Roles: `read`, `write`, `consume`, `admin`, of which the last "
            "includes the others. A server that was started without tokens asks for none."
        ),
    }
}
_BATCHES = f"""\
The rest of the contract. A batch of messages is JSON for people, or a frame for speed: `Content-Type` says which
one a request has, `Accept` which one the answer shall have (JSON, unless it names the frame's type). A batch has
at most {MAX_MESSAGES:,} messages and {frames.MAX_BYTES >> 20} MiB.

A frame, `{frames.MEDIA_TYPE}`, is the length of its head as u32 big-endian, the head, then the
payloads, one right after the other. The head is a JSON object in UTF-8 with `sizes`, the length of each payload,
and columns: the name of a field, and either a list with a value for each message, or one value (never a list) that
holds for all. What is missing has its default (drafts) or is null (messages)."""
_LOADS = """\
Many messages that take effect all at once, or not at all. Senders add batches to parts of a load, side by side; a
commit names the parts that count. Until then nobody sees anything of it. Only journal
and slate stores take loads."""
_STREAMS = """\
The reader of a stream holds one numbered batch of a queue's messages at a time, until it settles the batch. Until
then that number has the same messages, whatever crashes; a settled batch can be read until the next one is
settled. Spark's `readStream` works so. Only journal and slate stores have streams."""
TAGS = {
    "MQ-Core": "The six endpoints that `curl` needs: a queue is a path, a message is a body.",
    "Queues": "Queues as JSON.",
    "Messages": _BATCHES,
    "Loads": _LOADS,
    "Streams": _STREAMS,
    "Monitoring": "Health and metrics.",
    "About": "The server describes itself.",
}
_ITSELF = [
    Operation(
        call="GET /-/api/whoami",
        id="whoami",
        tag="About",
        summary="What may I do?",
        description="For programs that show what is allowed. An unknown token has neither name nor roles.",
        answers={
            "200": answer(
                "The token and its roles.",
                members(
                    {
                        "needs_token": {"type": "boolean", "description": "Whether the server asks for tokens."},
                        "name": schemas.nullable(text("The token's name; null: none, or an unknown one.")),
                        "roles": schemas.texts("Roles of the request; without tokens all of them."),
                    }
                ),
                {"needs_token": True, "name": "me", "roles": ["read"]},
            )
        },
    ),
    Operation(
        call="GET /",
        id="start",
        tag="About",
        summary="Where to begin",
        answers={
            "303": {
                "description": "Browsers: at the console. Programs: at the page that documents the API.",
                "headers": {"Location": header("`/-/` or `/-/docs`.")},
            },
        },
    ),
    Operation(
        call="GET /-/",
        id="console",
        tag="About",
        summary="The console, for browsers",
        description="The page has no data: its scripts ask the API, with the person's token.",
        answers={
            "200": {
                "description": "HTML.",
                "headers": {
                    "Content-Security-Policy": header("The console's own scripts, style and pictures."),
                    "X-Content-Type-Options": header("`nosniff`."),
                },
                "content": {"text/html": {"schema": {"type": "string"}}},
            }
        },
    ),
    Operation(
        call="GET /-/docs",
        id="docs",
        tag="About",
        summary="The page for people",
        description="Each error is explained at `/-/docs#NAME`.",
        answers={
            "200": {
                "description": "HTML.",
                "headers": {
                    "Content-Security-Policy": header("Nothing but the page's own style."),
                    "X-Content-Type-Options": header("`nosniff`."),
                },
                "content": {"text/html": {"schema": {"type": "string"}}},
            }
        },
    ),
    Operation(
        call="GET /-/openapi.json",
        id="openapi",
        tag="About",
        summary="The document for programs",
        answers={
            "200": answer("OpenAPI 3.1.", {"type": "object", "required": ["openapi"]}, {"openapi": "3.1.0"}),
        },
    ),
]


_OPERATIONS = [
    *_MQCORE,
    *map(
        described, (*operations.QUEUES, *operations.OF_MESSAGES, *loads.OPERATIONS, *stream_operations.OPERATIONS)
    ),
    *_MONITORING,
    *map(described, monitoring.OPERATIONS),
    *_ITSELF,
]
_RETRY = {"Retry-After": header("Seconds to wait.", "integer")}
_CHALLENGE = {"WWW-Authenticate": header("Bearer.")}


def document() -> dict[str, Any]:
    """The document, as Python values."""
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for operation in _OPERATIONS:
        entry = _described(operation, responses)
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
        if operation.method == "GET" and not operation.polls:
            paths[operation.path]["head"] = _head(entry)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "summary": "A durable work queue over HTTP",
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {**schemas.schemas(), "Stream": stream_operations.INFO},
            "responses": responses,
            "securitySchemes": SECURITY,
        },
    }


def _described(operation: Operation, responses: dict[str, Any]) -> dict[str, Any]:
    from penstock.http.server.routes import find  # late: routes import this module

    needed = find(operation.method.encode(), operation.path.encode())[0].roles
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": list(operation.parameters),
        "requestBody": operation.body,
        "responses": {**operation.answers, **_refusals(operation, responses, bool(needed))},
        # One of these roles is needed, or none at a server without tokens.
        "security": [*_tokens(needed), {}] if needed else [],
    }
    return {name: value for name, value in described.items() if value}


def _tokens(needed: int) -> list[dict[str, list[str]]]:
    return [{"token": []}] if needed == ANY_ROLE else [{"token": [name]} for name in names(needed)]


def _head(described: dict[str, Any]) -> dict[str, Any]:
    """The description of HEAD, made from that of GET."""
    answers = {
        status: {name: value for name, value in answer.items() if name != "content"}
        for status, answer in described["responses"].items()
        if "$ref" not in answer
    }
    refusals = {
        status: {"description": "As GET has it, without the body."}
        for status in described["responses"]
        if status not in answers
    }
    return {
        **described,
        "operationId": f"head_{described['operationId']}",
        "summary": f"{described['summary']}: the headers only",
        "responses": {**answers, **refusals},
    }


def _refusals(operation: Operation, responses: dict[str, Any], guarded: bool) -> dict[str, Any]:
    """References to error responses, by status. Operations with the same errors share a response."""
    met = (*operation.errors, *COMMON, *(GUARDED if guarded else ()))
    failures = [each for each in FAILURES.values() if each.name in met]
    refusals = {}
    for status, group in groupby(failures, lambda failure: failure.status):
        names = [failure.name for failure in group]
        key = ".".join(names)
        responses.setdefault(key, _refusal(status, names))
        refusals[str(status)] = {"$ref": f"#/components/responses/{key}"}
    return refusals


def _refusal(status: int, names: list[str]) -> dict[str, Any]:
    schema = {
        "allOf": [ref("Problem")],
        "properties": {"status": {"const": status}, "error": {"enum": names}, "title": {"enum": names}},
    }
    examples = {name: {"value": problems.problem(status, name, FAILURES[name].meaning)} for name in names}
    if "LeaseExpired" in names:
        schema["required"] = ["queue", "receipts"] if names == ["LeaseExpired"] else []
        examples["LeaseExpired"]["value"].update(queue="jobs", receipts=["7.0c9f4d2e8a51b673"])
    return {
        "description": " ".join(f"{name}: {FAILURES[name].meaning}" for name in names),
        **({"headers": _RETRY} if status in (503, 507) else {}),
        **({"headers": _CHALLENGE} if status == 401 else {}),
        "content": {problems.MEDIA_TYPE: {"schema": schema, "examples": examples}},
    }
