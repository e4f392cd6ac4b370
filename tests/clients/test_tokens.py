"""With tokens on, clients carry theirs as the session token of their credentials; others get Amazon's errors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import boto3
import kombu
import pytest

import penstock
from penstock.contract import roles
from penstock.http.server import Access, tokens
from tests.clients.conftest import Service
from tests.clients.kit import boto, python_packages
from tests.clients.test_boto3 import code
from tests.clients.test_every_client import CLI
from tests.http.serving import serving

FORBIDDEN = {  # of the actions that are tried, those for which a role is not enough
    "read": {"create_queue", "send_message", "receive_message", "purge_queue"},
    "write": {"create_queue", "list_queues", "receive_message", "purge_queue"},
    "consume": {"create_queue", "list_queues", "send_message", "purge_queue"},
    "admin": set(),
}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(tmp_path_factory.mktemp("tokens") / "tokens")
    made = {name: tokens.create(path, name, held) for name, held in roles.ROLES.items()}
    both = tokens.create(path, "worker", roles.WRITE | roles.READ | roles.CONSUME)
    return {**made, "worker": both, "file": path, "wrong": "pst_" + "x" * 43}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, secrets: dict[str, str]) -> Iterator[Service]:
    with (
        penstock.open(tmp_path_factory.mktemp("sqs") / "store") as store,
        serving(store, access=Access(secrets["file"])) as server,
    ):
        store.create("jobs")
        yield Service(store, server.url)


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, guarded: Service, secrets: dict[str, str]) -> dict[str, str]:
    """The environment variables from which every SDK reads its credentials."""
    told = {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_SESSION_TOKEN": secrets["worker"],
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_SQS": guarded.url,
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    return told


@pytest.mark.parametrize("protocol", ["json", "query"])
@pytest.mark.parametrize("role", FORBIDDEN)
def test_a_role_allows_what_it_allows_elsewhere(
    guarded: Service, secrets: dict[str, str], protocol: str, role: str
) -> None:
    with closing(boto(guarded.url, protocol, secrets[role])) as sqs:
        url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
        tried: dict[str, dict[str, Any]] = {
            "create_queue": {"QueueName": "jobs"},
            "list_queues": {},
            "send_message": {"QueueUrl": url, "MessageBody": "x"},
            "receive_message": {"QueueUrl": url},
            "purge_queue": {"QueueUrl": url},
        }
        for action, arguments in tried.items():
            if action not in FORBIDDEN[role]:
                getattr(sqs, action)(**arguments)
                continue
            with pytest.raises(sqs.exceptions.ClientError) as raised:
                getattr(sqs, action)(**arguments)
            told = raised.value.response
            assert told["Error"]["Code"].removesuffix("Exception") == "AccessDenied"
            assert told["ResponseMetadata"]["HTTPStatusCode"] == 403


@pytest.mark.parametrize("protocol", ["json", "query"])
def test_without_a_token_that_is_known_the_error_is_amazons(
    guarded: Service, secrets: dict[str, str], protocol: str
) -> None:
    expected = {
        secrets["wrong"]: {"InvalidClientTokenId", "UnrecognizedClientException"},
        None: {"MissingAuthenticationToken", "MissingAuthenticationTokenException"},
    }
    for token, codes in expected.items():
        with closing(boto(guarded.url, protocol, token)) as sqs:
            with pytest.raises(sqs.exceptions.ClientError) as raised:
                sqs.list_queues()
            assert code(raised) in codes
            assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
            assert secrets["wrong"] not in str(raised.value)


def test_boto3_takes_address_and_token_from_its_environment(surroundings: dict[str, str]) -> None:
    with closing(boto3.client("sqs")) as sqs:
        url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
        assert sqs.send_message(QueueUrl=url, MessageBody="x")["MessageId"]


def test_celerys_transport_takes_its_token_from_its_environment(
    guarded: Service, surroundings: dict[str, str]
) -> None:
    options = {"is_secure": False, "region": "us-east-1"}
    guarded.store.create("simple")
    address = f"sqs://{urlsplit(guarded.url).netloc}"
    with (
        kombu.Connection(address, transport_options=options) as connection,
        closing(connection.SimpleQueue("simple")) as queue,
    ):
        queue.put({"a": 1})
        message = queue.get(timeout=10)
        assert message.payload == {"a": 1}
        message.ack()
    assert sum(guarded.store.queue("simple").counts().values()) == 0


@pytest.mark.long
def test_the_command_line_takes_its_token_from_its_environment(
    surroundings: dict[str, str], secrets: dict[str, str]
) -> None:
    def aws(token: str) -> subprocess.CompletedProcess[str]:
        told = {**os.environ, "PYTHONPATH": str(python_packages(CLI)), "AWS_SESSION_TOKEN": token}
        url = surroundings["AWS_ENDPOINT_URL_SQS"]  # version 1 does not read it
        command = [sys.executable, "-m", "awscli", "--endpoint-url", url, "sqs", "get-queue-url"]
        command += ["--queue-name", "jobs"]
        return subprocess.run(command, env=told, capture_output=True, text=True)

    assert "/jobs" in aws(secrets["worker"]).stdout
    refused = aws(secrets["wrong"])
    assert refused.returncode == 255
    assert "InvalidClientTokenId" in refused.stderr
