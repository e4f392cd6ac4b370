"""The OpenAPI 3.1 document: the operations with everything that is common to them."""

from itertools import groupby
from typing import Any

from penstock.contract import loads, operations, stream_operations
from penstock.contract.roles import ANY_ROLE, names
from penstock.contract.schemas import ref, schemas
from penstock.http.server.description import about, monitoring, mqcore
from penstock.http.server.description.declared import described
from penstock.http.server.description.errors import COMMON, FAILURES, GUARDED
from penstock.http.server.description.operation import Operation
from penstock.version import __version__
from penstock.wire import problems

_OPERATIONS = [
    *mqcore.OPERATIONS,
    *map(
        described, (*operations.QUEUES, *operations.OF_MESSAGES, *loads.OPERATIONS, *stream_operations.OPERATIONS)
    ),
    *monitoring.OPERATIONS,
    *about.OPERATIONS,
]
_RETRY = {"Retry-After": {"required": True, "description": "Seconds to wait.", "schema": {"type": "integer"}}}

_CHALLENGE = {"WWW-Authenticate": {"required": True, "description": "Bearer.", "schema": {"type": "string"}}}


def document() -> dict[str, Any]:
    """Everything that the server answers."""
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
            "description": about.ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in about.TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {**schemas(), "Stream": stream_operations.INFO},
            "responses": responses,
            "securitySchemes": about.SECURITY,
        },
    }


def _described(operation: Operation, responses: dict[str, Any]) -> dict[str, Any]:
    from penstock.http.server.routes import find  # here, as routes lead to this document

    needed = find(operation.method.encode(), operation.path.encode())[0].roles
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": list(operation.parameters),
        "requestBody": operation.body,
        "responses": {**operation.answers, **_refusals(operation, responses, bool(needed))},
        # Either one of these roles, or a server without tokens.
        "security": [*_tokens(needed), {}] if needed else [],
    }
    return {name: value for name, value in described.items() if value}


def _tokens(needed: int) -> list[dict[str, list[str]]]:
    return [{"token": []}] if needed == ANY_ROLE else [{"token": [name]} for name in names(needed)]


def _head(described: dict[str, Any]) -> dict[str, Any]:
    """HEAD is GET without the body."""
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
    """What goes wrong, by status; which is a response that operations share if they share its errors."""
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
