"""The HTML page /-/docs, rendered from the OpenAPI document: one file without scripts or external resources."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from penstock.contract.refusals import not_found
from penstock.contract.settings import MAX_COUNT
from penstock.http.server.exchange import JSON, Answer, Request
from penstock.http.server.openapi import COMMON, FAILURES, GUARDED, document
from penstock.wire import jsons, problems

HOST = "localhost:8390"  # in the examples; docs() puts the client's Host there
QUICK_START = {
    "Make a queue": f"curl -i -X PUT {HOST}/jobs",
    "Put a message: the body is the payload": f"curl -i --data-binary 'resize cat.jpg' {HOST}/jobs/messages",
    "Claim it for a minute": f"curl -i '{HOST}/jobs/messages?lease=60'",
    "Done: acknowledge it, with X-Message-Id and X-Message-Receipt of the claim": (
        f"curl -i -X DELETE '{HOST}/jobs/messages/ID?receipt=RECEIPT'"
    ),
    "Many at a time, as JSON": (
        "curl -H 'Content-Type: application/json' -d '{\"n\": 10, \"lease\": 60}' \\\n"
        f"     {HOST}/-/api/queues/jobs/claim"
    ),
}
_PYTHON = f"""\
import penstock

store = penstock.open("http://{HOST}")
for message in store.queue("jobs").claim(n=10, lease=60):
    print(message.payload)
    message.ack()
"""
_SCHEMAS = {
    "Settings": "What a queue is created with: in the query of `PUT`, or as JSON.",
    "Draft": "A message to be put.",
    "Message": "A message as it was when it was read.",
    "Attempt": "One claim of a message.",
    "Problem": "What every error answers, as RFC 9457 has it.",
}

_HTML = (
    "Content-Type: text/html; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
)
_PLAIN_HOST = re.compile(rb"[0-9A-Za-z.\-]{1,253}(:[0-9]{1,5})?|\[[0-9a-f:]{2,45}\](:[0-9]{1,5})?")


@cache
def style() -> str:
    """The page's style sheet."""
    return files(__package__).joinpath("page.css").read_text()


@cache
def policy() -> str:
    """The content security policy: this style, and nothing else from anywhere."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def render(document: Mapping[str, Any]) -> str:
    """The page as HTML."""
    info, tags = document["info"], document["tags"]
    sections = ["Quick start", *[tag["name"] for tag in tags], "Fields", "Errors"]
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(info['title'])}: HTTP API</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(info['title'])}</h1>"
        f"<p>{_text(info['summary'])}, version {escape(info['version'])}</p>"
        f'<nav>{links}<a href="/-/openapi.json">openapi.json</a></nav></header>\n<main>\n'
        f"{_paragraphs(info['description'])}{_quick_start()}"
        f"{''.join(_tag(tag, document) for tag in tags)}{_fields(document)}{_errors(document)}"
        "</main>\n</body>\n</html>\n"
    )


def _quick_start() -> str:
    steps = "\n\n".join(f"<i># {escape(what)}</i>\n{escape(command)}" for what, command in QUICK_START.items())
    return (
        f"{_heading('Quick start')}<pre>{steps}</pre>\n"
        f"<p>From Python it is the same contract as that of a store on disk:</p><pre>{escape(_PYTHON)}</pre>\n"
    )


def _tag(tag: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    operations = [_operation(*each, document) for each in _operations(document) if tag["name"] in each[2]["tags"]]
    return f"{_heading(tag['name'])}{_paragraphs(tag['description'])}{''.join(operations)}"


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "head":
                yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    called = re.sub(r"(\{\w+\})", r"<i>\1</i>", escape(path))
    parts = [_paragraphs(operation.get("description", ""))]
    parameters = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    if parameters:
        parts.append(_table(["parameter", "type", "meaning"], map(_parameter, parameters)))
    if "requestBody" in operation:
        parts.append(_body(operation["requestBody"]))
    answers = [
        (f"<b>{status}</b>", _answer(each))
        for status, each in operation["responses"].items()
        if "$ref" not in each
    ]
    parts.append(_table([], answers, "answers"))
    errors = [f'{FAILURES[name].status} <a href="#{name}">{name}</a>' for name in _met_by(operation)]
    common = f'<a href="#{_anchor("Errors")}">those of any request</a>'
    parts.append(f"<p class=errors>Errors: {', '.join([*errors, common])}</p>")
    parts.append(f"<p class=errors>Role: {_role(operation)}</p>")
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><b class="{method.lower()}">{method}</b> '
        f"<code>{called}</code> <span>{_text(operation['summary'])}</span></summary>{''.join(parts)}</details>\n"
    )


def _role(operation: Mapping[str, Any]) -> str:
    """The roles of which a token needs one."""
    named = [role for each in operation.get("security", ()) for role in each.get("token", ())]
    if named:
        return " or ".join(f"<code>{role}</code>" for role in named)
    return "any" if operation.get("security") else "none, and no token either"


def _parameter(parameter: Mapping[str, Any]) -> tuple[str, str, str]:
    schema = parameter.get("schema") or {"type": "object"}
    return _name(parameter["name"]), _kind(schema), _meaning({**schema, "description": parameter["description"]})


def _body(body: Mapping[str, Any]) -> str:
    needed = "" if body.get("required") else " (may be left out)"
    types = [f"<code>{escape(media)}</code>" for media in body["content"]]
    return f"<p>Body{needed}: {' or '.join(types)}</p>{_example(body['content'])}{_members(body['content'])}"


def _members(content: Mapping[str, Any]) -> str:
    """A table of a body's members, or a link to its schema."""
    schema = content.get("application/json", {}).get("schema", {})
    rows = [
        (_name(name, name in schema.get("required", ())), _kind(member), _meaning(member))
        for name, member in schema.get("properties", {}).items()
    ]
    if rows:
        return _table(["member", "type", "meaning"], rows)
    return f"<p>Fields of each: {_kind(schema)}</p>" if "$ref" in schema else ""


def _answer(answer: Mapping[str, Any]) -> str:
    content = answer.get("content", {})
    types = " or ".join(f"<code>{escape(media)}</code>" for media in content)
    headers = [
        f"<li><code>{escape(name)}</code> {_text(header['description'])}</li>"
        for name, header in answer.get("headers", {}).items()
    ]
    listed = f"<ul>{''.join(headers)}</ul>" if headers else ""
    return f"{_text(answer['description'])} {types}{listed}{_example(content)}"


def _example(content: Mapping[str, Any]) -> str:
    examples = [media["example"] for media in content.values() if "example" in media]
    if not examples:
        return ""
    example = examples[0] if isinstance(examples[0], str) else _json(examples[0])
    return f"<pre>{escape(example)}</pre>"


def _json(value: Any, indent: int = 0) -> str:
    """JSON with values on one line where they fit."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= 76 or not isinstance(value, dict | list) or not value:
        return line
    inside = " " * (indent + 2)
    if isinstance(value, list):
        parts, (begin, end) = [_json(each, indent + 2) for each in value], "[]"
    else:
        parts, (begin, end) = [f'"{name}": {_json(each, indent + 2)}' for name, each in value.items()], "{}"
    return begin + "".join(f"\n{inside}{part}," for part in parts).rstrip(",") + "\n" + " " * indent + end


def _fields(document: Mapping[str, Any]) -> str:
    parts = [_heading("Fields")]
    for name, about in _SCHEMAS.items():
        schema = document["components"]["schemas"][name]
        rows = [(_name(each), _kind(member), _meaning(member)) for each, member in schema["properties"].items()]
        parts.append(
            f'<h3 id="{name}">{name}</h3><p>{_text(about)}</p>{_table(["field", "type", "meaning"], rows)}'
        )
    return "".join(parts)


def _met_by(operation: Mapping[str, Any]) -> list[str]:
    """The names of an operation's errors, without those of any request."""
    shared = [answer["$ref"].rpartition("/")[2] for answer in operation["responses"].values() if "$ref" in answer]
    return [name for each in shared for name in each.split(".") if name not in (*COMMON, *GUARDED)]


def _errors(document: Mapping[str, Any]) -> str:
    _, problem = problems.as_problem(not_found("jobz"))
    entries = []
    for name, status, meaning in FAILURES.values():
        ids = [operation["operationId"] for _, _, operation in _operations(document) if name in _met_by(operation)]
        links = ", ".join(f'<a href="#{each}">{each}</a>' for each in ids)
        where = "any request" if name in (*COMMON, *GUARDED) else links or "what is not in these tables"
        entries.append(
            f'<article id="{name}"><h3>{name} <b>{status}</b></h3><p>{_text(meaning)}</p>'
            f"<p class=errors>Met by: {where}</p></article>\n"
        )
    return (
        f"{_heading('Errors')}<p>Problem details, <code>{problems.MEDIA_TYPE}</code>; 503 and 507 say with "
        f"<code>Retry-After</code> when to come back.</p><pre>{escape(_json(problem))}</pre>\n{''.join(entries)}"
    )


def _heading(name: str) -> str:
    return f'<h2 id="{_anchor(name)}">{escape(name)}</h2>\n'


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-") + "-section"  # errors and schemas have anchors without a suffix


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_text(each)}</p>\n" for each in text.split("\n\n") if each)


def _text(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _name(name: str, required: bool = False) -> str:
    return f"<code>{escape(name)}</code>{' (needed)' if required else ''}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return (
        f'<div class="table {kind}"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'
    )


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value in a word or two."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        shown = {"Drafts": "Draft", "Published": "Draft", "Messages": "Message"}.get(name, name)
        return f'<a href="#{shown}">{shown}</a>' if shown in _SCHEMAS else escape(shown)
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"])
    types = schema.get("type", [])
    kind = " or ".join([types] if isinstance(types, str) else types)
    if "items" in schema:
        kind += f" of {_kind(schema['items'])}"
    return kind + _range(schema)


def _range(schema: Mapping[str, Any]) -> str:
    if "exclusiveMinimum" in schema:
        return f" over {schema['exclusiveMinimum']}"
    lowest, highest = schema.get("minimum"), schema.get("maximum", MAX_COUNT)
    if lowest is None or lowest < 0:
        return ""
    return f" from {lowest}" if highest >= MAX_COUNT else f", {lowest:,} to {highest:,}"  # no limit


def _meaning(schema: Mapping[str, Any]) -> str:
    default = f" Default: <code>{escape(json.dumps(schema['default']))}</code>." if "default" in schema else ""
    return _text(schema.get("description", "")) + default


async def openapi(backend: Any, request: Request) -> Answer:
    """GET /-/openapi.json."""
    request.parameters()
    return Answer(200, JSON, _document())


async def docs(backend: Any, request: Request) -> Answer:
    """GET /-/docs. Its examples name this server as the client does, so that they can be pasted."""
    request.parameters()
    headers, body = _page()
    host = request.headers.get(b"host", b"")
    if _PLAIN_HOST.fullmatch(host):  # nothing that a browser could take for HTML
        body = body.replace(HOST.encode(), host)
    return Answer(200, headers, body)


async def start(backend: Any, request: Request) -> Answer:
    """GET /: redirects browsers to the console, and programs to the docs."""
    request.parameters()
    is_browser = b"text/html" in request.headers.get(b"accept", b"")
    return Answer(303, b"Vary: Accept\r\nLocation: %b\r\n" % (b"/-/" if is_browser else b"/-/docs"))


@cache
def _document() -> bytes:
    return jsons.dumps(document())


@cache
def _page() -> tuple[bytes, bytes]:
    return f"{_HTML}Content-Security-Policy: {policy()}\r\n".encode(), render(document()).encode()
