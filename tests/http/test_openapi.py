"""The server's description of itself: true, complete, and readable."""

import base64
import hashlib
import json
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig

import penstock
from penstock.contract import roles
from penstock.contract.arguments import SETTINGS
from penstock.contract.message import MAX_KEY, MESSAGE_FIELDS, Attempt, Draft, Entry
from penstock.contract.settings import MAX_SECONDS
from penstock.contract.stream_operations import Streams
from penstock.http.server import Access, exchange, page, routes, tokens
from penstock.http.server.openapi import document
from penstock.sharing.backend import engine_of
from penstock.stores.journal.store import JournalBackend
from penstock.wire import frames, problems
from tests.http.serving import ask, serving

LEGAL = re.compile("[!-~]{1,255}")
PAIR = re.compile("-?[0-9]+,-?[0-9]+")
BACKOFF = re.compile(r"[0-9]+(\.[0-9]+)?(,[0-9]+(\.[0-9]+)?){2}")
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
FILTER = "priority < 3 OR region IN ('eu', 'us')"
CONFIG = {
    "seed": 1,
    "suppress-health-check": ["too_slow"],  # that is for the machine to say
    "generation": {"max-examples": 15, "deterministic": True, "allow-x00": False},
    "phases": {"stateful": {"enabled": False}},
    "checks": {
        "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", 501]},
        "negative_data_rejection": {"expected-statuses": ["4xx", 501]},
        "positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", 403, 404, 409, 501]},
    },
}

schemathesis.openapi.media_type(
    frames.MEDIA_TYPE,
    st.builds(Entry, payload=st.binary(max_size=50), priority=st.integers(-9, 9)).map(
        lambda entry: frames.encode_entries([entry])
    ),
)

DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
ERRORS = {*problems.STATUSES, *exchange.STATUSES}
api = schemathesis.openapi.from_dict(deepcopy(DOCUMENT), config=SchemathesisConfig.from_dict(CONFIG))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path_factory.mktemp("store"), sync="never") as store:
        yield store


@pytest.fixture(scope="module")
def url(store: penstock.Store) -> Iterator[str]:
    with serving(store) as server:
        yield server.url


@pytest.fixture(scope="module")
def guarded_url(store: penstock.Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With tokens, a server answers under any name."""
    path = str(tmp_path_factory.mktemp("access") / "tokens")
    tokens.create(path, "me", roles.ADMIN)
    with serving(store, access=Access(path)) as server:
        yield server.url


@api.parametrize()
def test_every_answer_is_as_described(case: Any, store: penstock.Store, url: str) -> None:
    if "x-schemathesis-unknown-property" in (case.headers or {}):
        return  # every client sends headers that a server does not know
    prepare(case, store)
    case.call_and_validate(base_url=url)


def prepare(case: Any, store: penstock.Store) -> None:
    """What no schema can say: which queues and messages there are, and how one argument depends on another."""
    names = {info.name for info in store.queues()}
    for name in names - {"default", "jobs"}:
        store.delete(name)  # or else its filter and priorities would say what can be published
    jobs = store.queue("jobs") if "jobs" in names else store.create("jobs")
    if jobs.count() < 2:
        jobs.put("work", headers={"kind": "image"})
    path, query, headers, body = case.path_parameters or {}, case.query or {}, case.headers or {}, case.body
    is_negative = case.meta.generation.mode.is_negative
    name = unquote(path.get("queue", ""))
    if name and (len(name) % 2 if LEGAL.fullmatch(name) else not is_negative):  # schemathesis decodes %0A as well
        path["queue"] = "jobs"
    if "id" in path and ("receipt" in query or len(path["id"]) % 2):
        path["id"] = next(jobs.messages()).id
    if isinstance(body, dict) and body.get("target") == (queue := unquote(path.get("queue", ""))):
        body["target"] = "jobs" if queue == "default" else "default"
    prepare_load(path, body, store, is_negative)
    prepare_stream(path, body, store, is_negative)
    if isinstance(query.get("receipt"), str):
        query["receipt"] = path["id"] + "." + query["receipt"].replace(".", "")
    if PAIR.fullmatch(str(query.get("priorities"))):
        query["priorities"] = ",".join(sorted(query["priorities"].split(","), key=int))
    if BACKOFF.fullmatch(str(query.get("backoff"))):
        query["backoff"] = ",".join(map(str, rising(*map(float, query["backoff"].split(",")))))
    if "filter" in query:
        query["filter"] = FILTER
    if "dead_letter" in query:
        query["dead_letter"] = dead_letter(query["dead_letter"])
    for given in (query, body if isinstance(body, dict) else {}):
        wait = str(given.get("wait"))
        if NUMBER.fullmatch(wait) and 0.01 < float(wait) <= MAX_SECONDS:
            given["wait"] = 0.01
    if is_negative and "Idempotency-Key" in headers and 0 < len(headers.get("X-Message-Key", "")) <= MAX_KEY:
        del headers["X-Message-Key"]  # or else the other would not be looked at
    if isinstance(body, dict | list):
        case.body = as_written(body)
    elif case.media_type == frames.MEDIA_TYPE and is_negative and case.path.startswith("/-/"):
        case.body = body[1:]  # schemathesis only knows valid ones


def prepare_load(path: dict[str, Any], body: Any, store: penstock.Store, is_negative: bool) -> None:
    """Only one load is open; most requests name it."""
    backend = engine_of(store)
    assert isinstance(backend, JournalBackend)
    uploads = backend.uploads()
    for each in list(uploads._open):
        uploads.abort(each)
    if "load" in path and len(path["load"]) % 3:
        path["load"] = uploads.begin({})
    if not is_negative and "number" in path:
        path["number"] = 0
    if not is_negative and isinstance(body, dict) and "parts" in body:
        body["parts"] = []


def prepare_stream(path: dict[str, Any], body: Any, store: penstock.Store, is_negative: bool) -> None:
    """Most requests are about a stream that holds a batch, and whose reader is gone."""
    streams = Streams(store.run)
    reader = "2147483647-1-1@x@" + socket.gethostname()
    if "stream" not in path or is_negative or len(path["stream"]) % 3 == 0:
        return
    info = streams.begin("jobs", "nightly", reader)
    path["queue"] = "jobs"
    if not (isinstance(body, dict) and "after" in body):
        path["stream"] = "nightly"
    if isinstance(body, dict) and "start" in body:
        body["start"] = info.settled
    if isinstance(body, dict) and "reader" in body:
        body["reader"] = reader
    batch = streams.next("jobs", "nightly", reader, info.settled, 1, 1 << 30)
    if "batch" in path and batch is not None:
        path["batch"] = batch


def rising(first: float, factor: float, most: float) -> list[float]:
    """A backoff whose factor is not below 1, nor its end below its beginning."""
    return [min(first, most), max(factor, 1), max(first, most)]


def dead_letter(name: Any) -> Any:
    """One that takes dead letters in half of the cases, else one that there is not."""
    return "default" if LEGAL.fullmatch(str(name)) and name != "none" and len(name) % 2 else name


def as_written(value: Any) -> Any:
    """As a client writes it: whole numbers without a point, ranges from low to high, filters that are some."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [as_written(each) for each in value]
    if not isinstance(value, dict):
        return value
    written = {name: as_written(each) for name, each in value.items()}
    with suppress(TypeError, KeyError):
        written["priorities"] = sorted(written["priorities"])
    with suppress(TypeError, KeyError):
        written["backoff"] = rising(*written["backoff"])
    if isinstance(written.get("filter"), str):
        written["filter"] = FILTER
    if isinstance(written.get("dead_letter"), str):
        written["dead_letter"] = dead_letter(written["dead_letter"])
    return written


def test_the_document_is_valid(url: str) -> None:
    api.validate()
    assert json.loads(ask(url, "/-/openapi.json")[2]) == DOCUMENT


def test_every_example_is_as_its_schema_says() -> None:
    count = 0
    for media in find(DOCUMENT, "application/json") + find(DOCUMENT, problems.MEDIA_TYPE):
        validator = jsonschema_rs.validator_for({"components": DOCUMENT["components"], **media["schema"]})
        examples = [each["value"] for each in media.get("examples", {}).values()]
        for example in [media["example"], *examples] if "example" in media else examples:
            validator.validate(example)
            count += 1
    assert count > 50


def find(value: Any, name: str) -> list[Any]:
    """Every member of that name, however deep."""
    if isinstance(value, list):
        return [each for item in value for each in find(item, name)]
    if not isinstance(value, dict):
        return []
    found = [each for item in value.values() for each in find(item, name)]
    return [value[name], *found] if name in value else found


def served(node: routes.Node, path: str = "") -> Iterator[tuple[str, str]]:
    """Every method of every path below one; whatever stands in a path is {}."""
    for method, route in node.methods.items():
        yield method.decode(), path
        if method == b"GET" and not route.polls:
            yield "HEAD", path
    for part, below in node.named.items():
        yield from served(below, f"{path}/{part.decode()}")
    if node.variable is not None:
        yield from served(node.variable, f"{path}/{{}}")


def test_every_route_is_described_and_nothing_else() -> None:
    mqcore = {
        "/": routes._START,
        "/-/": routes._CONSOLE,
        "/{}": routes._QUEUE,
        "/{}/messages": routes._MESSAGES,
        "/{}/messages/{}": routes._MESSAGE,
    }
    found = set(served(routes._TREE))
    for path, methods in mqcore.items():
        found |= set(served(routes.Node(methods=methods), path))
    described = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
    }
    files = {(method, "/-/console/{}/{}") for method in ("GET", "HEAD")}  # of the console; no API
    assert described == found - files
    assert files < found


def test_every_field_is_described() -> None:
    assert set(SCHEMAS["Settings"]["properties"]) == set(SETTINGS)
    assert set(SCHEMAS["Message"]["properties"]) == {*MESSAGE_FIELDS, "payload_base64"}
    assert set(SCHEMAS["Draft"]["properties"]) == {*Draft.__dataclass_fields__, "payload_base64"}
    assert set(SCHEMAS["Attempt"]["properties"]) == set(Attempt._fields)


def watch_a_queue(call: Callable[..., Any], q: str) -> None:
    """Ask for what the server remembers of a queue with messages, one of which has failed once."""
    change = call("GET", "/-/api/changes", 200).json()["change"]
    assert call("GET", "/-/api/overview", 200, {"search": "life", "sort": "oldest"}).json()["found"] == 1
    assert call("GET", "/-/api/history", 200, {"span": "day"}).json()["change"] >= change
    assert call("GET", q + "/history", 200).json()["series"]["available"][-1] >= 1
    assert call("GET", q + "/reasons", 200, {"state": "available"}).json()["reasons"]
    assert call("GET", q + "/find", 200, {"state": "available"}).json()["messages"]
    assert call("GET", "/-/api/activity", 200).json()["consumers"][0]["queue"] == "life"


def test_a_life_in_which_every_success_happens(url: str) -> None:
    """Random requests seldom succeed; here all of them do, each in every way that the document knows."""
    seen: set[tuple[str, str, str]] = set()

    def call(method: str, path: str, expected: int, query: Any = None, body: Any = None, **headers: str) -> Any:
        operation = api[path][method]
        given = {} if body is None else {"body": body, "media_type": headers.pop("media", "application/json")}
        known = {"queue": "life", "id": id_, "load": load, "part": "0", "number": 0, "run": load}
        known |= {"stream": "nightly", "batch": 1, "follower": "me"}
        variables = {name: value for name, value in known.items() if f"{{{name}}}" in path}
        case = operation.Case(path_parameters=variables, query=query or {}, headers=headers, **given)
        response = case.call(base_url=url, allow_redirects=False)
        assert response.status_code == expected, response.text
        case.validate_response(response)
        seen.add((method, path, str(expected)))
        return response

    id_ = load = "0"
    queues, q = "/-/api/queues", "/-/api/queues/{queue}"
    frame = frames.MEDIA_TYPE
    call("PUT", "/{queue}", 201, {"keep_done": "none", "priorities": "0,9"})
    call("PUT", "/{queue}", 204, {"keep_done": "none"})
    call("GET", "/{queue}", 200)
    call("GET", queues, 200)
    call("GET", q, 200)
    call("PATCH", q, 200, body={"settings": {"max_attempts": 9, "priorities": [0, 9]}})
    call("GET", "/{queue}/messages", 204)
    posted = call("POST", "/{queue}/messages", 201, body=b"\xff", media="application/octet-stream")
    id_ = posted.headers["x-message-id"][0]
    claimed = call("GET", "/{queue}/messages", 200, {"lease": 60})
    assert claimed.content == b"\xff"
    call("DELETE", "/{queue}/messages/{id}", 204, {"receipt": claimed.headers["x-message-receipt"][0]})
    put = call("POST", q + "/put", 200, body={"messages": [{"payload": "a", "headers": {"b": "c"}}] * 4})
    call("POST", q + "/put", 200, body={"messages": [{"payload": "m", "group": "g"}]})
    [moving] = [each["id"] for each in call("GET", q + "/messages", 200).json()["messages"] if each["group"]]
    assert call("POST", q + "/move", 200, body={"target": "default", "ids": [moving]}).json() == {"count": 1}
    call("POST", q + "/put", 200, body=frames.encode_entries([Entry(b"f")]), media=frame)
    call("GET", q + "/peek", 200, {"n": 2})
    messages = call("POST", q + "/claim", 200, body={"n": 3}).json()["messages"]
    first, second, third = [message["receipt"] for message in messages]
    call("POST", q + "/extend", 200, body={"receipts": [first, "0.0"]})
    call("POST", q + "/ack", 204, body={"receipts": [first]})
    call("POST", q + "/ack", 409, body={"receipts": ["1.0000000000000000"]})
    call("POST", q + "/fail", 204, body={"receipts": [second], "reason": "no disk"})
    call("POST", q + "/release", 204, body={"receipts": [third]})
    id_ = messages[1]["id"]
    watch_a_queue(call, q)
    assert "life" in [each["queue"] for each in call("GET", "/-/api/figures", 200).json()["queues"]]
    assert call("GET", q + "/messages/{id}", 200).json()["messages"][0]["id"] == id_
    assert call("GET", q + "/messages/{id}/attempts", 200).json()["attempts"][0]["reason"] == "no disk"
    answer = call("POST", q + "/claim", 200, body={"n": 9}, Accept=frame)
    assert len(frames.decode_messages(answer.content, "life")) == 4
    call("POST", q + "/pop", 200)
    call("GET", q + "/messages", 200, {"state": "in_flight"})
    call("GET", q + "/messages", 200, {"fields": "id,payload", "until": messages[2]["id"]})
    assert call("GET", q + "/parts", 200, {"n": 2}).json()["until"]
    assert len(call("GET", q + "/attempts", 200).json()["attempts"]) >= 3
    assert call("POST", q + "/revoke", 200, body={"ids": put.json()["ids"]}).json() == {"count": 3}
    call("POST", q + "/remove", 200, body={"ids": put.json()["ids"]})
    call("POST", q + "/redrive", 200)
    call("POST", q + "/purge", 200)
    call("POST", "/-/api/publish", 200, body={"messages": [{"payload": "p"}]})
    call("DELETE", q, 204)
    call(
        "POST", queues, 201, body={"name": "life", "settings": {"filter": "type = 'order'", "priorities": [1, 2]}}
    )
    call("DELETE", "/{queue}", 204)
    loads = "/-/loads"
    load = call("POST", loads, 201, body={"queues": {"life": {"max_size": 2}}}).json()["load"]
    call("PUT", loads + "/{load}/{part}/{number}", 204, {"queue": "life"}, {"messages": [{"payload": "l"}]})
    call("POST", loads + "/{load}/commit", 400, body={"parts": [{"part": "0", "batches": 2}]})
    for _ in range(2):
        committed = call("POST", loads + "/{load}/commit", 200, body={"parts": [{"part": "0", "batches": 1}]})
        assert committed.json() == {"loaded": True, "messages": 1}
    assert call("GET", "/-/runs/{run}", 200).json()["queues"] == [{"queue": "life", "messages": 1, "bytes": 1}]
    call("DELETE", loads + "/{load}", 204)
    read_a_stream(call, frame)
    follow(call, frame)
    call("DELETE", "/{queue}", 204)
    for path, status in (
        ("/", 303), ("/-/", 200), ("/-/docs", 200), ("/-/openapi.json", 200), ("/-/healthz", 200),
        ("/-/readyz", 200), ("/-/metrics", 200), ("/-/api/whoami", 200), ("/-/api/server", 200),
    ):  # fmt: skip
        call("GET", path, status)
    described = {
        (method.upper(), path, status)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        for status in operation["responses"]
        if method != "head" and int(status) < 400
    }
    assert described <= seen


def read_a_stream(call: Callable[..., Any], frame: str) -> None:
    """With one message in the queue."""
    stream, gone = "/-/streams/{queue}/{stream}", {"reader": "2147483647-1-1@x@" + socket.gethostname()}
    call("POST", stream + "/begin", 200, body=gone)
    assert call("POST", stream + "/next", 200, body={**gone, "rows": 9}).json() == {"batch": 1}
    assert call("POST", stream + "/next", 200, body=gone).json() == {"batch": 1}
    [info] = [each for each in call("GET", "/-/streams", 200).json()["streams"] if each["queue"] == "life"]
    assert (info["batch"], info["messages"]) == (1, 1)
    assert b"files" in call("POST", stream + "/{batch}/read", 200, body={"pins": None}).content
    [message] = call("GET", stream + "/{batch}/messages", 200).json()["messages"]
    answer = call("GET", stream + "/{batch}/messages", 200, Accept=frame)
    assert len(frames.decode_messages(answer.content, "life")) == 1
    call("POST", stream + "/{batch}/fail", 204, body={"ids": [message["id"]], "reason": "no"})
    assert call("POST", stream + "/release", 200).json() == {"count": 1}
    call("POST", stream + "/follow", 409, body=gone)
    assert call("POST", stream + "/{batch}/settle", 200).json() == {"settled": True}
    call("DELETE", stream, 204)
    call("POST", stream + "/follow", 204, body={**gone, "after": 1})


def follow(call: Callable[..., Any], frame: str) -> None:
    follower = "/-/followers/{queue}/{follower}"
    began = call("GET", follower + "/start", 200, {"at": "0"}).json()
    ahead = call("GET", follower + "/ahead", 200, {**began, "rows": 1}).json()
    assert (ahead["lost"], ahead["parts"]) == (None, [{"until": ahead["until"], "messages": 1}])
    given = {"after": began["after"], "until": ahead["until"]}
    assert len(call("GET", follower + "/messages", 200, given).json()["messages"]) == 1
    answer = call("GET", follower + "/messages", 200, given, Accept=frame)
    assert len(frames.decode_messages(answer.content, "life")) == 1
    call("DELETE", follower, 204)


# The page for people


@pytest.fixture(scope="module")
def html(url: str) -> str:
    return ask(url, "/-/docs")[2].decode()


def test_the_page_explains_every_error(url: str, html: str) -> None:
    anchors = re.findall(r'<article id="(\w+)">', html)
    assert sorted(anchors) == sorted(ERRORS)
    for path in ("/nobody", "/a/b/c", "/-/api/queues/%20", "/default/messages?lease=0"):
        problem = json.loads(ask(url, path)[2])
        assert problem["type"].removeprefix("/-/docs#") in anchors


def test_every_error_of_the_document_is_one_that_can_be_answered() -> None:
    described = [name for response in DOCUMENT["components"]["responses"] for name in response.split(".")]
    assert set(described) <= ERRORS


def test_the_page_explains_every_operation(html: str) -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            assert method == "head" or f'<details id="{operation["operationId"]}">' in html, path


def test_every_link_of_the_page_leads_somewhere(html: str) -> None:
    anchors = re.findall(r'\bid="([^"]+)"', html)
    assert len(anchors) == len(set(anchors))
    assert {link[1:] for link in re.findall(r'href="([^"]+)"', html) if link != "/-/openapi.json"} <= set(anchors)


def test_the_page_needs_nothing_from_anywhere(url: str, html: str) -> None:
    assert not re.search(r"<(script|link|img|iframe|object|embed|form|base)\b|\bsrc=|\bon\w+=|@import|url\(", html)
    assert set(re.findall(r"\w+://[^/\s]+", html)) == {f"{url}&quot;)"}
    headers = ask(url, "/-/docs")[1]
    [style] = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert headers["Content-Security-Policy"].startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ['"><script>', "a b", "a/b", "<b>", "a&b", "", "x" * 300])
def test_the_page_shows_no_host_that_is_none(guarded_url: str, host: str) -> None:
    status, _, body = ask(guarded_url, "/-/docs", Host=host)
    assert status == 200
    assert page.HOST.encode() in body


@pytest.mark.parametrize("host", ["queue.example:80", "10.0.0.1:8390", "[::1]:8390", "localhost"])
def test_the_examples_of_the_page_name_the_server(guarded_url: str, host: str) -> None:
    assert f"curl -i -X PUT {host}/jobs".encode() in ask(guarded_url, "/-/docs", Host=host)[2]


def test_the_quick_start_works(store: penstock.Store, url: str) -> None:
    with suppress(penstock.QueueNotFound):
        store.delete("jobs")
    claim: Any = {}
    statuses = []
    for command in page.QUICK_START.values():
        command = command.replace("/ID", f"/{claim.get('X-Message-Id')}")
        command = command.replace("RECEIPT", str(claim.get("X-Message-Receipt")))
        status, claim, _ = curl(url, command)
        statuses.append(status)
    assert statuses == [201, 201, 200, 204, 200]
    assert sum(store.queue("jobs").counts().values()) == 0


def curl(url: str, command: str) -> tuple[int, Any, bytes]:
    words = iter(shlex.split(command.replace("\\\n", " "))[1:])
    method, body, headers, target = "GET", None, {}, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word in ("-d", "--data-binary"):
            method, body = "POST", next(words).encode()
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word != "-i":
            target = word
    assert target.startswith(page.HOST)
    return ask(url, target.removeprefix(page.HOST), method, body, **headers)
