"""boto3 in both protocols, a proxy that notes what a client does, and clients that tests install."""

import gzip
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

from tests.clients.query_model import as_query

_ACTION = re.compile(rb"(?i:x-amz-target): AmazonSQS\.(\w+)|\bAction=(\w+)")
_TAIL = 100  # bytes that may hold the beginning of a match
INSTALLED = Path(sys.prefix) / "clients"  # packages that a test installs for itself


# A proxy


class Tap:
    """A proxy before the server that notes the actions which were answered with 200."""

    def __init__(self, url: str) -> None:
        self._address = (urlsplit(url).hostname, urlsplit(url).port)
        self.done: set[str] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the socket is shut down
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                asked: list[str] = []  # requests of a connection come one after the other
                self._start(self._ask, client, server, asked)
                self._start(self._answer, server, client, asked)

    def _ask(self, client: socket.socket, server: socket.socket, asked: list[str]) -> None:
        rest = b""
        for data in _received(client):
            found = list(_ACTION.finditer(rest + data))
            asked += [(each[1] or each[2]).decode() for each in found]
            rest = (rest + data)[found[-1].end() if found else 0 :][-_TAIL:]
            server.sendall(data)
        _end(server)

    def _answer(self, server: socket.socket, client: socket.socket, asked: list[str]) -> None:
        for data in _received(server):
            if data.startswith(b"HTTP/1.1 200") and asked:
                self.done.add(asked[-1])
            client.sendall(data)
        _end(client)


def _received(connection: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):  # either side may end it
        while data := connection.recv(1 << 16):
            yield data


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def tapped(url: str) -> Iterator[Tap]:
    with closing(Tap(url)) as tap:
        yield tap


# boto3


def credentials(token: str | None = None) -> dict[str, str | None]:
    """What every client of AWS wants to be told: the server looks only at the token."""
    return {
        "aws_access_key_id": "any",
        "aws_secret_access_key": "any",
        "aws_session_token": token,
        "region_name": "us-east-1",
    }


ONCE = {"total_max_attempts": 1}


def boto(url: str, protocol: str = "json", token: str | None = None, **config: Any) -> Any:
    """A client of boto3, in the protocol "json" or the older "query"."""
    options = Config(**{"retries": ONCE, **config})
    return _session(protocol, token).client("sqs", endpoint_url=url, config=options)


def boto_resource(url: str, protocol: str = "json") -> Any:
    return _session(protocol).resource("sqs", endpoint_url=url, config=Config(retries=ONCE))


def _session(protocol: str, token: str | None = None) -> Any:
    session = botocore.session.Session()
    if protocol == "query":
        session.register_component("data_loader", _QueryLoader())
    return boto3.Session(botocore_session=session, **credentials(token))


class _QueryLoader(Loader):  # type: ignore[misc]  # comes without types
    """Has botocore read the model of SQS as it was before the service spoke JSON."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        model = super().load_service_model(service_name, type_name, api_version)
        return as_query(model) if (service_name, type_name) == ("sqs", "service-2") else model


def model() -> dict[str, Any]:
    """botocore's description of the service: operations and shapes."""
    (path,) = (Path(botocore.__file__).parent / "data" / "sqs").glob("*/service-2.json.gz")
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


ACTIONS = sorted(model()["operations"])


# Clients that no one has installed


def python_packages(*requirements: str) -> Path:
    """A folder of Python packages apart from those of the tests, from the package index, kept for the next run."""
    folder = INSTALLED / "-".join(requirements)
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(folder), *requirements], check=True)
        (folder / ".installed").touch()
    return folder


def node_packages(*requirements: str) -> Path:
    """The same for Node."""
    folder = INSTALLED / "-".join(requirements).replace("/", "+")
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"private": true}')
        npm = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--save-exact", "--silent"]
        subprocess.run([*npm, *requirements], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (folder / ".installed").touch()
    return folder
