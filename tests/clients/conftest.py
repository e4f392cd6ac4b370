"""A server for each module of tests."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.clients.kit import boto
from tests.http.serving import serving

_numbers = count(1)


@dataclass
class Service:
    """A store and its server."""

    store: penstock.Store
    url: str

    def name(self, end: str = "") -> str:
        """A queue's name that no other test has."""
        return f"queue-{next(_numbers)}{end}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("sqs") / "store"
    with penstock.open(folder) as store, serving(store) as server:
        yield Service(store, server.url)


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, service: Service) -> Iterator[Any]:
    """boto3 in both protocols."""
    with closing(boto(service.url, request.param)) as client:
        yield client


@pytest.fixture
def queue(sqs: Any, service: Service) -> str:
    """The URL of a new queue."""
    url: str = sqs.create_queue(QueueName=service.name())["QueueUrl"]
    return url


@pytest.fixture
def fifo(sqs: Any, service: Service) -> str:
    """The URL of a new FIFO queue."""
    url: str = sqs.create_queue(QueueName=service.name(".fifo"), Attributes={"FifoQueue": "true"})["QueueUrl"]
    return url
