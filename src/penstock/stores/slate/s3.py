"""As much of S3 as payloads need that are objects of their own: put, get, copy, delete, list; signed by version 4.

Where and as whom is said by the usual variables, as for SlateDB itself: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION (or AWS_DEFAULT_REGION), AWS_ENDPOINT (or AWS_ENDPOINT_URL), AWS_ALLOW_HTTP.
"""

import hashlib
import hmac
import http.client
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from urllib.parse import quote, urlsplit

from penstock.errors import InvalidArgument, StoreUnreachable

_TRIES = 3
_OBJECT = re.compile(rb"<Contents>(.*?)</Contents>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)
_SIZE = re.compile(rb"<Size>\s*(\d+)\s*</Size>")
_MORE = re.compile(rb"<NextContinuationToken>(.*?)</NextContinuationToken>", re.DOTALL)


@dataclass(frozen=True)
class Account:
    """Where a bucket is, and who asks."""

    endpoint: str  # without the bucket; "" is Amazon's
    region: str
    key: str
    secret: str
    token: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Account":
        """As the usual variables say."""

        def first(*names: str) -> str:
            return next((environment[name] for name in names if environment.get(name)), "")

        key, secret = first("AWS_ACCESS_KEY_ID"), first("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            raise InvalidArgument(
                "a store in a bucket needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
                "AWS_ENDPOINT if it is not Amazon's)"
            )
        region = first("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        return cls(first("AWS_ENDPOINT", "AWS_ENDPOINT_URL"), region, key, secret, first("AWS_SESSION_TOKEN"))


class Bucket:
    """Objects under a prefix of a bucket."""

    def __init__(self, account: Account, bucket: str, prefix: str, timeout: float) -> None:
        self._account = account
        self._bucket = bucket
        self._prefix = prefix
        self._timeout = timeout
        endpoint = account.endpoint or f"https://{bucket}.s3.{account.region}.amazonaws.com"
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._authority = parts.netloc
        self._base = parts.path.rstrip("/") + (f"/{bucket}" if account.endpoint else "")

    def put(self, name: str, data: bytes) -> None:
        """Store an object; durable when this returns."""
        self._ask("PUT", self._path(name), {}, data)

    def get(self, name: str) -> bytes:
        """An object; FileNotFoundError."""
        return self._ask("GET", self._path(name), {})

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        self._ask("DELETE", self._path(name), {}, missing=True)

    def copy(self, name: str, to: str) -> None:
        """Give an object another name as well, without its bytes coming here; FileNotFoundError."""
        source = f"/{self._bucket}/{quote(self._prefix + name)}"
        answer = self._ask("PUT", self._path(to), {}, more={"x-amz-copy-source": source})
        if b"<Error>" in answer:  # it begins to answer before it is done
            raise StoreUnreachable(f"the bucket at {self._authority} has not copied {name!r}: try again")

    def list(self, folder: str = "") -> list[str]:
        """The names of all objects, or of those whose names begin so."""
        return [*self.sizes(folder)]

    def sizes(self, folder: str = "", after: str = "") -> dict[str, int]:
        """How long objects are, whose names begin with one text and come after another, in their order."""
        found: dict[str, int] = {}
        query = {"list-type": "2", "prefix": self._prefix + folder}
        if after:
            query["start-after"] = self._prefix + after
        while True:
            answer = self._ask("GET", self._base + "/", query)
            for each in _OBJECT.findall(answer):
                key, size = _KEY.search(each), _SIZE.search(each)
                if key is not None:
                    name = unescape(key[1].decode())[len(self._prefix) :]
                    found[name] = 0 if size is None else int(size[1])
            more = _MORE.search(answer)
            if more is None:
                return found
            query["continuation-token"] = unescape(more[1].decode())

    def check(self, folder: str = "") -> bool:
        """Whether anything is there; FileNotFoundError if there is no bucket, StoreUnreachable if it is closed."""
        query = {"list-type": "2", "max-keys": "1", "prefix": self._prefix + folder}
        return _KEY.search(self._ask("GET", self._base + "/", query)) is not None

    def _path(self, name: str) -> str:
        return f"{self._base}/{quote(self._prefix + name)}"

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes = b"",
        missing: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        failure = ""
        for _ in range(_TRIES):
            try:
                status, answer = self._ask_once(method, path, query, body, more or {})
            except (OSError, http.client.HTTPException) as error:
                failure = str(error) or type(error).__name__
                continue
            if status < 300 or (status == 404 and missing):
                return answer
            if status == 404:
                raise FileNotFoundError(path)
            failure = f"it answered {status}: {answer[:200].decode(errors='replace')}"
            if status < 500 and status != 429:
                break
        raise StoreUnreachable(
            f"the bucket at {self._authority} cannot be used ({failure}): look at it, then try again"
        )

    def _ask_once(
        self, method: str, path: str, query: dict[str, str], body: bytes, more: Mapping[str, str]
    ) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout / _TRIES)
        text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))
        try:
            headers = signed(self._account, self._authority, method, path, text, body, time.time(), more)
            connection.request(method, f"{path}?{text}" if text else path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except TimeoutError as error:
            raise OSError("no answer in time") from error
        finally:
            connection.close()


def signed(
    account: Account,
    host: str,
    method: str,
    path: str,
    query: str,
    body: bytes,
    now: float,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The headers of a request, some more with them, with a signature (AWS Signature Version 4)."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    day, content = stamp[:8], hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": content, "x-amz-date": stamp, **(more or {})}
    if account.token:
        headers["x-amz-security-token"] = account.token
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join((method, path, query, listed, names, content))
    scope = f"{day}/{account.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{account.secret}".encode()
    for part in (day, account.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={account.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
