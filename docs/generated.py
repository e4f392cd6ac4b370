"""Pages of the site that are made when it is built: the references from the declarations, and files beside docs/.

`make docs` calls on_files() through `hooks` in mkdocs.yml.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from penstock.cli import cli
from penstock.contract.roles import ANY_ROLE, names
from penstock.http.server.openapi import document
from penstock.http.server.sqs.actions import ACTIONS, Action
from penstock.http.server.sqs.shapes import Member, Text, Whole

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of docs/."""
    pages = {
        "reference/cli.md": command_line(),
        "reference/http.md": routes(),
        "reference/sqs.md": sqs_actions(),
        "architecture.md": beside_docs("ARCHITECTURE.md"),
        "changelog.md": beside_docs("CHANGELOG.md"),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def beside_docs(name: str) -> str:
    """A file of the repository's root, its links turned to pages of the site."""
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", (ROOT / name).read_text())
    text = re.sub(r"\[([^]]*)\]\(\)", r"\1", text)  # the folder docs itself
    return re.sub(r"\]\((ARCHITECTURE|CHANGELOG)\.md\)", lambda name: f"]({name[1].lower()}.md)", text)


# The command line


def command_line() -> str:
    """Every command with its arguments, options and examples."""
    head = [
        "# Command line",
        "`penstock [--store URL] COMMAND`. The store is `--store`, `$PENSTOCK_STORE` or `./penstock-data`.",
        "Exit codes: 0 ok, 1 an error with its message on stderr, 2 wrong usage, 3 an empty queue.",
    ]
    return "\n\n".join([*head, *commands(cli, click.Context(cli, info_name="penstock"))]) + "\n"


def commands(group: click.Group, context: click.Context) -> Iterator[str]:
    """The sections of a group's commands, those of groups inside it included."""
    for name in group.list_commands(context):
        command = group.commands[name]
        inner = click.Context(command, info_name=name, parent=context)
        yield from section(command, inner)
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def section(command: click.Command, context: click.Context) -> Iterator[str]:
    """One command."""
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"## {context.command_path.removeprefix('penstock ')}"
    yield f"```\n{usage}\n```"
    yield paragraphs(command.help)
    options = [option for option in command.params if isinstance(option, click.Option)]
    rows = [
        f'| <code class="option">{cell(escaped(name))}</code> | {cell(escaped(text))} |'
        for option in options
        for name, text in filter(None, [option.get_help_record(context)])
    ]
    if rows:
        yield "\n".join(["| option | |", "|---|---|", *rows])
    if command.epilog:
        yield "```\n" + re.sub(r"(?m)^ {2}", "", command.epilog.replace("\b", "").strip()) + "\n```"


def paragraphs(text: str | None) -> str:
    """A help text as Markdown: each paragraph on a line, preformatted ones as they are."""
    blocks = re.split(r"\n\s*\n", (text or "").strip())
    return "\n\n".join(
        f"```\n{block.lstrip().removeprefix(chr(8)).strip()}\n```"
        if block.lstrip().startswith("\b")
        else escaped(" ".join(block.split()))
        for block in blocks
    )


def cell(text: str) -> str:
    """A text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "&#124;")


def escaped(text: str) -> str:
    """Text whose angle brackets are no tags and whose stars no emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*")


# HTTP


def routes() -> str:
    """Every route of the server, from the OpenAPI document."""
    described = document()
    sections = [
        "# HTTP routes",
        "Made from the OpenAPI document, which every server has at `/-/openapi.json` and shows at `/-/docs`.",
        "[HTTP, explained](../http.md) has the ideas: batches, loads, tokens, errors.",
    ]
    tag = ""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                sections.append(f"## {tag}")
            sections.extend(route(method.upper(), path, operation, described))
    return "\n\n".join(sections) + "\n"


def route(method: str, path: str, operation: Mapping[str, Any], described: Mapping[str, Any]) -> Iterator[str]:
    """One method of one path."""
    yield f"### {operation['summary']}"
    yield f"`{method} {path}`"
    if operation.get("description"):
        yield operation["description"]
    given = [resolved(each, described) for each in operation.get("parameters", ())]
    rows = [(each["name"], each["in"], each.get("description", "")) for each in given]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    members = resolved(body, described).get("properties", {}) if body else {}
    rows += [
        (name, "body", resolved(schema, described).get("description", "")) for name, schema in members.items()
    ]
    if rows:
        yield "\n".join(
            [
                "| | in | |",
                "|---|---|---|",
                *(f"| `{name}` | {place} | {cell(text)} |" for name, place, text in rows),
            ]
        )
    answers = [(status, resolved(answer, described)) for status, answer in operation["responses"].items()]
    good = [f"{status}: {answer['description']}" for status, answer in answers if status < "3"]
    bad = sorted({status for status, _ in answers if status >= "4"})
    yield f"Answers {' '.join(good)}" + (f" Errors: {', '.join(bad)}." if bad else "")


# SQS


def sqs_actions() -> str:
    """Every action of SQS, from the declarations."""
    rows = [
        f"| `{action.name}` | {roles_of(action.role)} | {cell(action.runs)} | {cell(action.note)} |"
        for action in ACTIONS.values()
    ]
    head = [
        "# SQS actions",
        "Made from the declarations of the server. [Amazon SQS](../sqs.md) says how to use it, and what differs.",
        "\n".join(["| action | role | carried out by | |", "|---|---|---|---|", *rows]),
        "## Members and limits",
        "Members in bold are required. Amazon's own reference says what they mean.",
    ]
    return "\n\n".join([*head, *(sqs_action(action) for action in ACTIONS.values())]) + "\n"


def sqs_action(action: Action) -> str:
    """One action: the members of request and answer, and the errors."""
    lines = [
        f"### {action.name}",
        "takes: " + (", ".join(map(sqs_member, action.takes.members)) or "nothing"),
        "gives: " + (", ".join(map(sqs_member, action.gives.members)) or "nothing"),
        "errors: " + ", ".join(f"`{name}`" for name in action.errors),
    ]
    return "\n\n".join(lines)


def sqs_member(member: Member) -> str:
    """A member with its limits."""
    name = f"**`{member.name}`**" if member.required else f"`{member.name}`"
    shape = member.shape
    if isinstance(shape, Whole) and shape.highest is not None:
        return f"{name} ({shape.lowest} to {shape.highest})"
    if isinstance(shape, Text) and shape.longest is not None:
        return f"{name} ({shape.shortest} to {shape.longest} characters)"
    return name


def roles_of(role: int) -> str:
    """The role that an action needs."""
    return "any" if role == ANY_ROLE else ", ".join(f"`{name}`" for name in names(role))


def resolved(schema: Mapping[str, Any], described: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the document, or the component that it refers to."""
    while "$ref" in schema:
        found: Any = described
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    return schema
