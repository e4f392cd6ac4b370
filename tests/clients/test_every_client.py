"""Every client takes the same walk through all actions, and the page in the docs says so."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session
from botocore import xform_name
from botocore.exceptions import ClientError

from tests.clients import table
from tests.clients.conftest import Service
from tests.clients.kit import boto, credentials, node_packages, python_packages, tapped
from tests.clients.tour import Ask, Refused, tour

CLI = "awscli==1.46.2"
OLD = ("awscli==1.29.80", "boto3==1.28.80", "botocore==1.31.80")  # the last that speak the query protocol
SDK = "@aws-sdk/client-sqs@3.1164.0"


@contextmanager
def boto3_in(url: str, protocol: str = "json") -> Iterator[Ask]:
    with closing(boto(url, protocol)) as client:

        def ask(action: str, arguments: dict[str, Any]) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = getattr(client, xform_name(action))(**arguments)
            except ClientError as error:
                raise Refused(error.response["Error"]["Code"]) from error
            return answer

        yield ask


@contextmanager
def aiobotocore_in(url: str) -> Iterator[Ask]:
    with asyncio.Runner() as runner:
        context = get_session().create_client("sqs", endpoint_url=url, **credentials())
        client = runner.run(context.__aenter__())

        def ask(action: str, arguments: dict[str, Any]) -> dict[str, Any]:
            try:
                answer: dict[str, Any] = runner.run(_call(client, xform_name(action), arguments))
            except ClientError as error:
                raise Refused(error.response["Error"]["Code"]) from error
            return answer

        yield ask
        runner.run(context.__aexit__(None, None, None))


async def _call(client: Any, method: str, arguments: dict[str, Any]) -> Any:
    return await getattr(client, method)(**arguments)


@contextmanager
def javascript(url: str) -> Iterator[Ask]:
    program = Path(__file__).parent / "javascript.mjs"
    command = ["node", str(program), str(node_packages(SDK)), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdin is not None
        assert node.stdout is not None
        lines, answers = node.stdin, node.stdout

        def ask(action: str, arguments: dict[str, Any]) -> dict[str, Any]:
            lines.write(json.dumps([action, arguments]) + "\n")
            lines.flush()
            told = json.loads(answers.readline())
            if "error" in told:
                raise Refused(told["error"])
            answer: dict[str, Any] = told["answer"]
            return answer

        yield ask


@contextmanager
def command_line(url: str, *packages: str) -> Iterator[Ask]:
    """The AWS CLI of a folder of packages: a process for each action."""
    folder = python_packages(*packages)
    told = {f"AWS_{name.removeprefix('aws_').upper()}": value for name, value in credentials().items() if value}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))},
        **told, "PYTHONPATH": str(folder), "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url,
    }  # fmt: skip

    def ask(action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, "-m", "awscli", "--endpoint-url", url, "--output", "json", "sqs"]
        command += [xform_name(action, "-"), "--cli-input-json", json.dumps(arguments)]
        if action in ("ListQueues", "ListMessageMoveTasks"):
            command.append("--no-paginate")
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise Refused(ended.stderr)
        answer: dict[str, Any] = json.loads(ended.stdout or "{}")
        return answer

    yield ask


CLIENTS: dict[str, Callable[[str], AbstractContextManager[Ask]]] = {
    "boto3": boto3_in,
    "boto3, query": lambda url: boto3_in(url, "query"),
    "aiobotocore": aiobotocore_in,
    "JavaScript": javascript,
    "AWS CLI": lambda url: command_line(url, CLI),
    "AWS CLI, query": lambda url: command_line(url, *OLD),
}
SLOW = [pytest.param(name, marks=pytest.mark.long) for name in CLIENTS if name.startswith("AWS CLI")]
QUICK = [name for name in CLIENTS if not name.startswith("AWS CLI")]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_a_client_uses_every_action(service: Service, name: str) -> None:
    if name == "JavaScript" and shutil.which("npm") is None:
        pytest.skip("there is no Node with npm on this machine: `make tools` gets it")
    with tapped(service.url) as tap:
        with ExitStack() as stack:
            tour(stack.enter_context(CLIENTS[name](tap.url)), service.name())
        table.check(name, tap.done)
