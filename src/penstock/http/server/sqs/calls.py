"""A call: an action with its checked arguments, for one client. Queue URLs and ARNs are made and read here."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from penstock.contract import names
from penstock.contract.operation import Operation
from penstock.contract.operations import Lookup
from penstock.contract.settings import Settings
from penstock.errors import PenstockError
from penstock.http.server.exchange import Request
from penstock.http.server.sqs.errors import SqsError
from penstock.http.server.sqs.memory import Memory

ACCOUNT = "000000000000"
REGION = "us-east-1"
_SCOPE = re.compile(rb"Credential=[^/,\s]*/[0-9]{8}/([a-z0-9-]{1,40})/sqs/")
_ARN = re.compile(r"arn:aws[a-z-]*:sqs:[a-z0-9-]*:[0-9]*:(.+)", re.DOTALL)
Result = TypeVar("Result")


@dataclass(slots=True)
class Call:
    """One action for one client."""

    backend: Any
    memory: Memory  # of the server
    request: Request
    given: dict[str, Any]  # the checked members of the request
    queue: str = ""  # the name in QueueUrl

    @property
    def is_unescaped(self) -> bool:
        """Whether it is JSON in ASCII without escapes: SQS carries its texts, as JSON has no plain controls."""
        body = self.request.body
        return b"x-amz-target" in self.request.headers and body.isascii() and b"\\" not in body

    async def run(self, operation: Operation[Result]) -> Result:
        """Run an operation of the contract."""
        result: Result = await self.backend.run(operation)
        return result

    async def settings(self) -> Settings:
        """The settings of the call's queue; QueueNotFound."""
        return await self.run(Lookup(self.queue))

    def url(self, queue: str) -> str:
        """The URL of a queue, under the name by which the client found the server."""
        headers = self.request.headers
        host = headers.get(b"host", b"localhost").decode("latin-1")
        encrypted = self.request.connection.transport.get_extra_info("ssl_object") is not None
        scheme = headers.get(b"x-forwarded-proto", b"https" if encrypted else b"http")
        return f"{'https' if scheme == b'https' else 'http'}://{host}/{ACCOUNT}/{quote(queue, safe='')}"

    def arn(self, queue: str) -> str:
        """The ARN of a queue, in the region for which the client signs its requests."""
        scope = _SCOPE.search(self.request.headers.get(b"authorization", b""))
        return f"arn:aws:sqs:{scope[1].decode() if scope else REGION}:{ACCOUNT}:{queue}"


Handler: TypeAlias = Callable[[Call], Awaitable[dict[str, Any]]]  # the members of the answer


@lru_cache(maxsize=1024)
def queue_of(url: str) -> str:
    """The queue's name in a queue URL, of any host; a name alone is as good. SqsError."""
    try:
        name = unquote(url.rpartition("/")[2], errors="strict")
        if name:
            return names.checked(name)
    except (PenstockError, ValueError):
        pass
    raise SqsError("InvalidAddress", f"The address {url[:200]} is not valid for this endpoint.")


def queue_of_arn(arn: str) -> str:
    """The queue's name in an ARN; SqsError."""
    matched = _ARN.fullmatch(arn)
    if matched is None or not names.is_legal(matched[1]):
        raise SqsError("InvalidParameterValueException", f"{arn[:200]!r} is not the ARN of a queue.")
    return matched[1]
