"""Operations of the contract as the document has them, from their declarations."""

from dataclasses import fields
from typing import Any

from penstock.contract.message import Message
from penstock.contract.operation import Argument
from penstock.contract.operation import Operation as Declared
from penstock.contract.schemas import Schema, answer, record
from penstock.contract.streams import BatchPlan
from penstock.http.server.description.operation import BYTES, JSON, Operation, body, drafts, messages, parameter


def described(kind: type[Declared[Any]]) -> Operation:
    """An operation for the document."""
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
    """What a value may be, with its default, unless that only means that nothing was said."""
    default = next(field.default for field in fields(kind) if field.name == name)  # type: ignore[arg-type]
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
        schema, example = answer({given.member: schema}), {given.member: example}
    return {"description": given.description, "content": {JSON: {"schema": schema, "example": example}}}
