"""A server for each module of tests, and requests to it as bytes on the wire."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as Xml

import pytest

import penstock
from tests.http.serving import serving

_numbers = count(1)
FORM = "application/x-www-form-urlencoded"


class Told(NamedTuple):
    """An answer: status, headers, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The name of an error, as the query protocol has it."""
        if self.headers["content-type"] == "application/x-amz-json-1.0":
            assert self.json.keys() == {"__type", "message"}
            return self.headers["x-amzn-query-error"].partition(";")[0]
        assert self.headers["content-type"] == "text/xml"
        return next(each.text or "" for each in Xml.fromstring(self.body).iter() if each.tag.endswith("}Code"))


@dataclass
class Service:
    """A store and its server."""

    store: penstock.Store
    url: str

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Told:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Told(answer.status, told, answer.read())
        finally:
            connection.close()

    def json(self, action: str, members: Any = None, **headers: str) -> Told:
        """A request of the JSON protocol; members as bytes are sent as they are."""
        body = members if isinstance(members, bytes) else json.dumps(members or {}).encode()
        content = "application/x-amz-json-1.0"
        return self.ask("POST", "/", body, X_Amz_Target=f"AmazonSQS.{action}", Content_Type=content, **headers)

    def form(self, action: str, path: str = "/", **members: str) -> Told:
        """A request of the query protocol; a double underscore stands for a dot."""
        named = {name.replace("__", "."): value for name, value in members.items()}
        return self.ask("POST", path, urlencode({"Action": action, **named}).encode(), Content_Type=FORM)

    def done(self, action: str, **members: Any) -> Any:
        """The answer of the JSON protocol to a request that is carried out."""
        told = self.json(action, members)
        assert told.status == 200, told
        return told.json

    def refused(self, action: str, **members: Any) -> str:
        """Why a request is refused."""
        told = self.json(action, members)
        assert told.status >= 400, told
        return told.error

    def queue(self, end: str = "", **attributes: str) -> str:
        """The URL of a new queue."""
        if end == ".fifo":
            attributes = {"FifoQueue": "true", **attributes}
        name = f"queue-{next(_numbers)}{end}"
        url: str = self.done("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def receive(self, url: str, **members: Any) -> list[Any]:
        found: list[Any] = self.done("ReceiveMessage", QueueUrl=url, **members).get("Messages", [])
        return found

    def behind(self, url: str) -> penstock.Queue:
        """The queue behind a URL."""
        return self.store.queue(url.rpartition("/")[2])


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with penstock.open("memory:") as store, serving(store) as server:
        yield Service(store, server.url)
