"""JSON schemas of requests and answers, with the limits and defaults of the code that checks them."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.contract.message import LATEST, MAX_HEADERS, MAX_KEY, MAX_MESSAGES, OUTCOMES, STATES
from penstock.contract.settings import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_COUNT,
    MAX_PAYLOAD,
    MAX_SECONDS,
    Settings,
)

Schema = dict[str, Any]
MAX_DESCRIPTION = 1_000  # bytes
MAX_CONSUMER = 255


def ref(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def number(description: str, *, over: float | None = None, default: float | None = None) -> Schema:
    """A duration in seconds."""
    lowest = {"minimum": 0} if over is None else {"exclusiveMinimum": over}
    return _with({"type": "number", **lowest, "maximum": MAX_SECONDS, "description": description}, default)


def integer(description: str, lowest: int, highest: int, default: int | None = None) -> Schema:
    """A whole number."""
    schema = {"type": "integer", "minimum": lowest, "maximum": highest, "description": description}
    return _with(schema, default)


def text(description: str, **more: Any) -> Schema:
    """A text; further keywords belong to the schema."""
    return {"type": "string", **more, "description": description}


def time(description: str) -> Schema:
    """A moment."""
    return integer(description, 0, LATEST)


def texts(description: str) -> Schema:
    """A list of ids or receipts."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def array(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def record(properties: Mapping[str, Schema], *required: str, closed: bool = True) -> Schema:
    """An object. Requests are closed: the server refuses unknown members."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


def answer(properties: Mapping[str, Schema]) -> Schema:
    """An object in an answer, with all members. A newer server may add members."""
    return record(properties, *properties, closed=False)


def _with(schema: Schema, default: object) -> Schema:
    return schema if default is None else {**schema, "default": default}


def _documented(kind: type) -> dict[str, str]:
    """The description of each field in a docstring, with null for None."""
    found = re.findall(r"^    (\w+): (.+)$", inspect.getdoc(kind) or "", re.MULTILINE)
    return {name: meaning[0].upper() + meaning[1:].replace("None", "null") for name, meaning in found}


_SAYS = _documented(Settings)
NAME = text("1 to 255 visible ASCII characters.", pattern="^[!-~]{1,255}$")
PRIORITY = integer("Lower comes first.", LOWEST_PRIORITY, HIGHEST_PRIORITY, 0)
LEASE = number("Seconds that the work may take; the queue's `max_lease` at most.", over=0)
WAIT = number("Seconds to wait for a message if none is available; at most 60 take effect.")
CONSUMER = text(
    f"The consumer's name, for people; at most {MAX_CONSUMER} bytes. Default: the client's address.",
    minLength=1,
    maxLength=MAX_CONSUMER,
)
KEY = text(
    f"Idempotency key, at most {MAX_KEY} bytes: for five minutes a put with the same key adds nothing.",
    minLength=1,
    maxLength=MAX_KEY,
)
RETENTION = number("Seconds after which the message expires; 0 = never. Default: the queue's `retention`.")
DELAY = number("Seconds until the message is available.", default=0)
HEADERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "propertyNames": {"minLength": 1, "not": {"pattern": "^penstock\\."}},
    "maxProperties": MAX_HEADERS,
    "description": "Texts by name, for consumers and filters; 65,535 bytes altogether.",
}
_WHOLE_PRIORITY = integer("", LOWEST_PRIORITY, HIGHEST_PRIORITY)
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _setting(name: str, default: object, schema: Schema) -> Schema:
    return {**schema, "default": default, "description": _SAYS[name] + "."}


_KINDS: dict[str, Schema] = {
    "max_size": integer("", 0, MAX_COUNT),
    "max_attempts": integer("", 0, 65_535),
    "keep_done": nullable(number("")),
    "filter": nullable(text("")),
    "start": {"type": ["string", "integer"]},
    "max_payload": integer("", 0, MAX_PAYLOAD),
    "priorities": {
        "type": ["array", "null"],
        "prefixItems": [{"type": "integer", "minimum": LOWEST_PRIORITY, "maximum": HIGHEST_PRIORITY}] * 2,
        "minItems": 2,
        "maxItems": 2,
    },
    "max_lease": number("", over=0),
    "retention": number(""),
    "description": text("", maxLength=MAX_DESCRIPTION),
}
SETTINGS = {each.name: _setting(each.name, each.default, _KINDS[each.name]) for each in fields(Settings)}

_CHANGES = {
    name: {key: value for key, value in schema.items() if key != "default"} for name, schema in SETTINGS.items()
}


def in_query(name: str) -> Schema:
    """A setting in the query of a URL: a text, with `none` for null."""
    schema = dict(SETTINGS[name])
    schema["description"] = schema["description"].replace("null", "none")
    if name == "priorities":
        return {
            "type": "string", "pattern": "^(none|-?[0-9]{1,19},-?[0-9]{1,19})$", "default": "none",
            "description": schema["description"] + " Written as `0,9`.",
        }  # fmt: skip
    if name == "filter":
        return text(schema["description"], default="none")
    if name == "start":
        return {**schema, "type": "string"}
    if not isinstance(schema["type"], list):
        return schema
    says, default = schema.pop("description"), schema.pop("default")
    schema["type"] = schema["type"][0]
    return {"anyOf": [schema, {"const": "none"}], "default": default, "description": says}


_DRAFT = {
    "payload": nullable(text("The payload, if it is text.")),
    "payload_base64": nullable(text("Any payload.", contentEncoding="base64", pattern=_BASE64)),
    "priority": PRIORITY,
    "headers": nullable(HEADERS),
    "delay": DELAY,
    "retention": nullable(RETENTION),
    "key": nullable(KEY),
    "created_at": nullable(time("When the work came up, for people. Default: now.")),
}
_TEXT, _NULL = {"type": "string"}, {"type": "null"}
_PAYLOADS = [
    {"required": ["payload"], "properties": {"payload": _TEXT, "payload_base64": _NULL}},
    {"required": ["payload_base64"], "properties": {"payload": _NULL, "payload_base64": _TEXT}},
]
_MESSAGE = {
    "id": text("The message's id, unique in its queue."),
    "queue": {**NAME, "description": "The queue's name."},
    "payload": nullable(text("The payload, or null if it is not UTF-8.")),
    "headers": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Texts by name."},
    "priority": {**_WHOLE_PRIORITY, "description": "Lower comes first."},
    "created_at": time("When the work came up."),
    "received_at": time("When the message was stored."),
    "visible_at": {"type": "integer", "description": "From when on it is available."},
    "expires_at": {"type": ["integer", "null"], "description": "When it expires."},
    "attempts": integer("How often it was claimed.", 0, MAX_COUNT),
    "state": {"type": "string", "enum": list(STATES), "description": "The message's state."},
    "receipt": nullable(text("Settles this claim; changes with every claim.")),
    "claimed_at": {"type": ["integer", "null"], "description": "When it was claimed last."},
    "lease_until": {"type": ["integer", "null"], "description": "When the lease of that claim ends."},
    "consumer": nullable(text("The consumer that claimed it.")),
    "settled_at": {"type": ["integer", "null"], "description": "When it was done or failed."},
    "reason": nullable(text("Why it failed last.")),
    "payload_base64": text("The payload in base64.", contentEncoding="base64"),
}
_ATTEMPT = {
    "attempt": integer("Counts from 1.", 0, MAX_COUNT),
    "consumer": nullable(text("The consumer that claimed the message.")),
    "claimed_at": time("When it was claimed."),
    "ended_at": {"type": ["integer", "null"], "description": "When it ended; null while it runs."},
    "outcome": {"type": ["string", "null"], "enum": [*OUTCOMES, None], "description": "How it ended."},
    "reason": nullable(text("Why it failed.")),
}
_PROBLEM = {
    "type": text("Where this error is explained.", format="uri-reference"),
    "title": text("The error's name."),
    "status": integer("The answer's status.", 400, 599),
    "detail": text("What happened, to what, and what to do next."),
    "error": text("The error's name: that of the Python error, where there is one."),
}
_LOST = {
    "queue": {**NAME, "description": "LeaseExpired: the queue's name."},
    "receipts": texts("LeaseExpired: the receipts that were lost."),
}


_ADVICE = {
    **answer(
        {
            "what": text("What happened."),
            "python": text("What a Python program does."),
            "command": text("What a person at the command line does."),
            "http": text("What an HTTP client does."),
        }
    ),
    "description": "The parts of `detail`, for clients that advise in their own words; where that differs.",
}
_LAG = {
    "type": "integer",
    "minimum": 0,
    "description": "Of a filtered queue in a slate store: entries of the log that it has not taken yet.",
}


def schemas() -> dict[str, Schema]:
    """The named schemas of the OpenAPI document."""
    problem = answer(_PROBLEM)
    problem["properties"] |= {**_LOST, "advice": _ADVICE}
    queue = answer({"name": NAME, "settings": ref("Settings"), "counts": _counts()})
    queue["properties"]["lag"] = _LAG
    return {
        "Settings": record(SETTINGS),
        "Changes": {**record(_CHANGES), "description": "Settings to change; those that are left out stay."},
        "Queue": queue,
        "Draft": {**record(_DRAFT), "oneOf": _PAYLOADS},
        "Drafts": _drafts(ref("Draft"), 0, MAX_MESSAGES),
        "Published": _drafts({"allOf": [ref("Draft")], "properties": {"key": _NULL}}, 1, 1),
        "Loaded": _drafts({"allOf": [ref("Draft")], "properties": {"key": _NULL}}, 0, MAX_MESSAGES),
        "Message": answer(_MESSAGE),
        "Messages": answer({"messages": array(ref("Message"))}),
        "Listed": answer({"messages": array(record(_MESSAGE, closed=False))}),
        "Figures": _figures(),
        "Attempt": answer(_ATTEMPT),
        "Attempts": answer(
            {
                "attempts": array(answer({"id": text("The message's id."), **_ATTEMPT})),
                "next": nullable(text("`after` of the next page; null: this is the last page.")),
            }
        ),
        "Problem": problem,
    }


def _drafts(draft: Schema, least: int, most: int) -> Schema:
    return record({"messages": {"type": "array", "items": draft, "minItems": least, "maxItems": most}}, "messages")


def _figures() -> Schema:
    whole = {"type": "integer", "minimum": 0}
    return answer(
        {
            "queue": {**NAME, "description": "The queue's name."},
            "up": {
                "type": "boolean",
                "description": "False: an error has stopped the queue, and no other figure is known.",
            },
            "counts": {
                "type": "object",
                "additionalProperties": whole,
                "description": "How many messages are in each state.",
            },
            "waiting_seconds": number("For how long the available message has waited that has waited longest."),
            "in_line": {**whole, "description": "Consumers that wait for a message."},
            "events": {
                "type": "object",
                "additionalProperties": whole,
                "description": "Messages by what happened to them: `put`, `claimed`, `acked` and so on.",
            },
            "leases_expired": {**whole, "description": "Leases that ran out before the message was settled."},
            "expired": {**whole, "description": "Messages whose retention ended before they were done."},
            "given_up": {**whole, "description": "Messages that failed for good."},
        }
    )


def _counts() -> Schema:
    counts = {state: {"type": "integer", "minimum": 0} for state in STATES}
    return {**answer(counts), "description": "How many messages are in each state."}
