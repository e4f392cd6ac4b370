"""The six endpoints of MQ-Core as a new user meets them: a server in a process of its own, and curl."""

import http.client
import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import penstock
from penstock.contract.settings import Settings
from penstock.http.server import serve_in_thread
from penstock.sharing.backend import engine_of
from tests.harness.children import ServerChild

DOCS = Path(__file__).parents[2] / "docs" / "http.md"
EVERY_CHARACTER = "".join(map(chr, range(33, 127)))
NAMES = [
    "jobs", "/", "..", ".", "a/b", "/a//b/", "../../etc/passwd", "%", "%2F", "%%", "-", "+", "a+b", "~", "?",
    "a?b=c", "#", "&", "=", ":", "messages", "-/docs", "api", EVERY_CHARACTER, "x" * 255, "/" * 255,
]  # fmt: skip
ILLEGAL = ["%20", "a%20b", "%00", "a%0A", "%0D%0Aa", "%7F", "%80", "caf%C3%A9", "a" * 256, "%2F" * 256]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return self.headers["x-message-id"]

    @property
    def receipt(self) -> str:
        return self.headers["x-message-receipt"]

    def number(self, name: str) -> int:
        return int(self.headers[f"x-message-{name}"])


def parsed(output: bytes) -> Answer:
    """What `curl -i` printed: interim answers, the head, the body."""
    while True:
        head, _, output = output.partition(b"\r\n\r\n")
        start, *lines = head.decode().split("\r\n")
        status = int(start.split()[1])
        if status >= 200:
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            return Answer(status, headers, output)


class Curl:
    """Runs curl against one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def start(self, method: str, path: str, *options: str) -> "subprocess.Popen[bytes]":
        what = ["-I"] if method == "HEAD" else ["-i", "-X", method]
        command = ["curl", "-sS", "--path-as-is", "-g", *what, *options, self.url + path]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, method: str, path: str, *options: str, body: bytes | None = None) -> Answer:
        if body is not None:
            options = ("--data-binary", "@-", *options)
        running = self.start(method, path, *options)
        output, _ = running.communicate(body)
        assert running.returncode == 0
        return parsed(output)

    def put(self, path: str, body: bytes, **told: object) -> Answer:
        """A message; what is told of it goes into X-Message- headers."""
        headers = [f"-HX-Message-{name.replace('_', '-')}: {value}" for name, value in told.items()]
        answer = self("POST", f"{path}/messages", *headers, body=body)
        assert answer.status == 201
        return answer

    def claim(self, path: str, query: str = "") -> Answer:
        answer = self("GET", f"{path}/messages{query}")
        assert answer.status == 200
        return answer

    def wait_until_in_line(self, path: str, number: int) -> None:
        """Until so many consumers wait at a queue."""
        line = f'penstock_queue_consumers_waiting{{queue="{path[1:]}"}} {number}\n'
        while line.encode() not in self("GET", "/-/metrics").body:
            time.sleep(0.01)

    def counts(self, path: str) -> dict[str, int]:
        return {state: n for state, n in self("GET", path).json["counts"].items() if n}


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curl]:
    with ServerChild(tmp_path_factory.mktemp("served") / "store") as server:
        yield Curl(server.url)
        assert server.stop() == 0
        assert server.errors.read_text() == ""


_numbers = count(1)


@pytest.fixture
def make(curl: Curl) -> Callable[[str], str]:
    """Makes a queue of its own for a test."""

    def make(query: str = "") -> str:
        path = f"/queue{next(_numbers):03}"
        assert curl("PUT", path + query).status == 201
        return path

    return make


Make = Callable[[str], str]


@pytest.fixture
def queue(make: Make) -> str:
    return make("")


def path_of(name: str) -> str:
    return "/" + quote(name, safe="").replace(".", "%2E")


def assert_problem(answer: Answer, status: int, error: str) -> dict[str, Any]:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = json.loads(answer.body)
    expected = {"type": f"/-/docs#{error}", "title": error, "status": status, "error": error}
    assert {name: problem[name] for name in expected} == expected
    assert isinstance(problem["detail"], str)
    assert problem["detail"]
    return problem


# First steps


@pytest.mark.parametrize("wait", ["61", "3600", "4294967295"])
def test_no_request_waits_longer_than_a_minute(wait: str) -> None:
    clock = penstock.SimulatedClock()
    with penstock.open("memory:", clock=clock) as store:
        server = serve_in_thread(store)
        live = engine_of(store)
        assert live is not None
        try:
            for path, body in (
                (f"/default/messages?wait={wait}", None),
                ("/-/api/queues/default/claim", f'{{"wait": {wait}}}'),
                ("/-/api/queues/default/pop", f'{{"wait": {wait}}}'),
            ):
                client = http.client.HTTPConnection(server.url.partition("://")[2])
                client.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"})
                while not live.find("default").in_line:
                    time.sleep(0.005)
                clock.advance(59)
                assert live.find("default").in_line
                clock.advance(1)
                answer = client.getresponse()
                assert (answer.status, answer.read()) in [(204, b""), (200, b'{"messages":[]}')]
                client.close()
        finally:
            server.stop()


def test_the_commands_of_the_documentation_work_as_they_stand(tmp_path: Path) -> None:
    commands = re.findall(r"^    (curl .*)$", DOCS.read_text(), re.MULTILINE)
    with ServerChild(tmp_path / "data") as server:
        answers = [
            parsed(subprocess.check_output(shlex.split(command.replace("localhost:8390", server.url))))
            for command in commands
        ]
    assert [answer.status for answer in answers] == [201, 201, 200, 204, 200, 200]
    assert answers[2].body == b"resize cat.jpg"


# Names


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_every_legal_name_works_percent_encoded(curl: Curl, name: str) -> None:
    path = path_of(name)
    assert curl("PUT", path).status == 201
    assert curl("GET", path).json["name"] == name
    message_id = curl.put(path, b"a").id
    assert curl.claim(path).id == message_id
    assert curl("DELETE", f"{path}/messages/{message_id}").status == 204
    assert curl("DELETE", path).status == 204
    assert_problem(curl("GET", path), 404, "QueueNotFound")


@pytest.mark.parametrize("path", ["/-", "/+", "/~", "/a+b", "/a.b", "/a:b", "/a=b&c", "/queue001:id"])
def test_what_means_nothing_in_a_path_may_stand_there_as_it_is(curl: Curl, path: str) -> None:
    assert curl("PUT", path).status == 201
    assert curl("GET", path).json["name"] == path[1:]
    assert curl.put(path, b"a").id == curl.claim(path).id
    assert curl("DELETE", path).status == 204


@pytest.mark.parametrize(
    ("path", "shown"), [("/%zz", "%zz"), ("/%", "%"), ("/a%2/messages", "%2"), ("/%%41", "%%4")]
)
def test_a_path_with_a_broken_percent_encoding_is_refused_and_says_where(
    curl: Curl, path: str, shown: str
) -> None:
    for method in ("PUT", "GET", "DELETE"):
        problem = assert_problem(curl(method, path), 400, "BadRequest")
        assert f"the path has {shown!r}" in problem["detail"]
        assert "a % itself is written as %25" in problem["detail"]


def test_a_name_that_is_not_ascii_is_refused_with_its_character(curl: Curl) -> None:
    assert "has 'ï' at position 2" in assert_problem(curl("PUT", "/na%C3%AFve"), 400, "InvalidName")["detail"]


def test_a_slash_at_the_end_of_a_path_changes_nothing(curl: Curl, queue: str) -> None:
    assert curl("PUT", f"{queue}/").status == 204
    assert curl("GET", f"{queue}/").json["name"] == queue[1:]
    message_id = curl("POST", f"{queue}/messages/", body=b"a").id
    assert curl("GET", f"{queue}/messages/").headers["x-message-id"] == message_id
    assert curl("DELETE", f"{queue}/messages/{message_id}/").status == 204
    assert curl("GET", f"/-/api/queues{queue}/").json["name"] == queue[1:]
    assert curl("DELETE", f"{queue}/").status == 204


def test_an_encoded_slash_at_the_end_belongs_to_the_name(curl: Curl, queue: str) -> None:
    assert curl("PUT", f"{queue}%2F").status == 201
    assert curl("GET", f"{queue}%2F/").json["name"] == f"{queue[1:]}/"
    assert curl("DELETE", f"{queue}%2F").status == 204
    assert curl("GET", queue).status == 200


@pytest.mark.parametrize("path", ["//", "/-//", "/a//", "/a/messages//", "/-/api/queues//"])
def test_more_slashes_are_no_path(curl: Curl, path: str) -> None:
    assert_problem(curl("DELETE", path), 404, "NotFound")


def test_encoded_or_not_it_is_the_same_queue(curl: Curl) -> None:
    assert curl("PUT", "/same~queue").status == 201
    assert curl("PUT", "/s%61me%7equeue").status == 204


def test_no_name_leaves_the_folder_of_the_store(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with ServerChild(inside / "store") as server:
        curl = Curl(server.url)
        for name in NAMES:
            assert curl("PUT", path_of(name)).status == 201
            curl.put(path_of(name), b"a")
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert sorted(path.name for path in inside.iterdir()) == ["store", "store.errors"]
    with penstock.open(inside / "store") as store:
        assert sorted(info.name for info in store.queues()) == sorted(["default", *NAMES])


@pytest.mark.parametrize("name", ILLEGAL, ids=lambda name: name[:20])
def test_an_illegal_name_is_refused_everywhere(curl: Curl, name: str) -> None:
    for method, path in [
        ("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/messages"), ("DELETE", "/messages/1"),
    ]:  # fmt: skip
        assert_problem(curl(method, f"/{name}{path}"), 400, "InvalidName")
    assert_problem(curl("POST", f"/{name}/messages", body=b"a"), 400, "InvalidName")


# Queues


def test_none_stands_for_none_and_what_is_not_given_has_its_default(make: Make, curl: Curl) -> None:
    path = make("?keep_done=none&filter=none&priorities=none")
    expected = {
        **Settings(),
        "keep_done": None,
        "filter": None,
        "priorities": None,
        "max_attempts": 0,
    }  # MQ-Core's
    assert curl("GET", path).json["settings"] == expected


def test_the_query_takes_every_setting_that_a_queue_goes_by(make: Make, curl: Curl) -> None:
    labels = quote(json.dumps({"team": "käse", "tier": "1"}))
    path = make(f"?lease=90&delay=1.5&backoff=1,2,300&labels={labels}&dead_letter=default")
    settings = curl("GET", path).json["settings"]
    assert {name: settings[name] for name in ("lease", "delay", "backoff", "labels", "dead_letter")} == {
        "lease": 90, "delay": 1.5, "backoff": [1, 2, 300], "labels": {"team": "käse", "tier": "1"},
        "dead_letter": "default",
    }  # fmt: skip
    assert curl("PUT", f"{path}?backoff=1,2,300&labels={labels}").status == 204
    assert_problem(curl("PUT", f"{path}?backoff=1,2,301"), 409, "QueueExists")
    other = make("?backoff=none&labels=none&dead_letter=none")
    settings = curl("GET", other).json["settings"]
    assert [settings[name] for name in ("backoff", "labels", "dead_letter")] == [None] * 3


def test_a_fetch_holds_a_message_for_as_long_as_the_queue_says_unless_it_asks(make: Make, curl: Curl) -> None:
    path = make("?lease=90")
    for query, seconds in (("", 90), ("?lease=45", 45)):
        curl.put(path, b"a")
        claimed = curl.claim(path, query)
        assert claimed.number("lease-until") - 1000 * seconds >= claimed.number("received-at")
        assert claimed.number("lease-until") - 1000 * seconds <= penstock.SystemClock().now()


def test_messages_of_a_group_are_fetched_one_at_a_time(curl: Curl, queue: str) -> None:
    for payload, group in ((b"1", "Läden / 7"), (b"2", "Läden / 7"), (b"3", "other")):
        curl.put(queue, payload, group=group)
    curl.put(queue, b"4")
    fetched = [curl.claim(queue) for _ in range(3)]
    assert [(each.body, each.headers.get("x-message-group")) for each in fetched] == [
        (b"1", "Läden / 7"),
        (b"3", "other"),
        (b"4", None),
    ]
    assert curl("GET", f"{queue}/messages").status == 204
    first = fetched[0]
    assert curl("DELETE", f"{queue}/messages/{first.id}?receipt={first.receipt}").status == 204
    assert curl.claim(queue).body == b"2"


def test_a_group_cannot_write_headers_of_an_answer(curl: Curl, queue: str) -> None:
    draft = {"payload": "a", "group": "g\r\nX-Message-Priority: 7\r\n\r\nbody"}
    body = json.dumps({"messages": [draft]}).encode()
    assert curl("POST", f"/-/api/queues{queue}/put", "-HContent-Type: application/json", body=body).status == 200
    claimed = curl.claim(queue)
    assert (claimed.body, claimed.number("priority")) == (b"a", 0)
    assert "x-message-group" not in claimed.headers


def test_a_queue_that_is_there_is_fine_unless_other_settings_are_asked_for(make: Make, curl: Curl) -> None:
    path = make("?max_size=10&keep_done=60")
    for query in ["", "?max_size=10", "?keep_done=60&max_size=10", "?max_attempts=0", "?keep_done=60.0"]:
        assert curl("PUT", path + query).status == 204
    problem = assert_problem(curl("PUT", f"{path}?max_size=11&keep_done=60"), 409, "QueueExists")
    assert "max_size" in problem["detail"]
    assert "keep_done" not in problem["detail"]
    assert curl("GET", path).json["settings"]["max_size"] == 10


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("max_size=", "InvalidArgument"),
        ("priorities=1,2,3", "InvalidArgument"),
        ("description=%FF", "InvalidArgument"),
        ("start=earliest", "NotSupported"),
        ("backoff=1,2", "InvalidArgument"),
        ("backoff=1,0.5,300", "InvalidArgument"),
        ("backoff=fast", "InvalidArgument"),
        ("lease=0", "InvalidArgument"),
        ("labels=team", "InvalidArgument"),
        ("labels=%7B%22team%22:1%7D", "InvalidArgument"),
        ("dead_letter=refused", "InvalidArgument"),
    ],
)
def test_settings_that_are_none_make_no_queue(curl: Curl, query: str, error: str) -> None:
    assert_problem(curl("PUT", f"/refused?{query}"), 501 if error == "NotSupported" else 400, error)
    assert curl("GET", "/refused").status == 404


def test_the_default_queue_is_there_and_stays(curl: Curl) -> None:
    assert curl("GET", "/default").status == 200
    assert curl("PUT", "/default").status == 204
    assert_problem(curl("DELETE", "/default"), 403, "QueueProtected")
    message_id = curl("POST", "//messages", body=b"the empty name means default").id
    assert curl("DELETE", f"/default/messages/{message_id}").status == 204


# Messages


PAYLOADS = [b"", b"a", b"\0", bytes(range(256)), b"\r\n\r\n0\r\n\r\n", b"a=b&c", b"x" * 1_000_000]


def goes_in_and_out(curl: Curl, queue: str, payload: bytes, *how: str) -> None:
    posted = curl("POST", f"{queue}/messages", *how, body=payload)
    assert (posted.status, posted.body) == (201, b"")
    claimed = curl.claim(queue)
    assert (claimed.id, claimed.body) == (posted.id, payload)
    assert claimed.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: repr(payload[:12]))
def test_a_payload_comes_out_as_it_went_in(curl: Curl, queue: str, payload: bytes) -> None:
    goes_in_and_out(curl, queue, payload)


@pytest.mark.parametrize("how", ["-HTransfer-Encoding: chunked", "--http1.0", "--http2", "-HExpect: 100-continue"])
def test_however_curl_sends_it_it_is_the_same_payload(curl: Curl, queue: str, how: str) -> None:
    for payload in (b"", b"a", bytes(range(256)) * 4096):
        goes_in_and_out(curl, queue, payload, how)


def test_the_largest_payload_fits_and_no_larger_one(curl: Curl, queue: str) -> None:
    payload = b"x" * 16_777_216
    curl.put(queue, payload)
    assert curl.claim(queue).body == payload
    assert_problem(curl("POST", f"{queue}/messages", body=payload + b"x"), 413, "PayloadTooLarge")
    assert curl.counts(queue) == {"in_flight": 1}


def test_a_queue_may_want_smaller_payloads(make: Make, curl: Curl) -> None:
    queue = make("?max_payload=3")
    curl.put(queue, b"abc")
    assert_problem(curl("POST", f"{queue}/messages", body=b"abcd"), 413, "PayloadTooLarge")
    chunked = curl("POST", f"{queue}/messages", "-HTransfer-Encoding: chunked", body=b"abcd")
    assert_problem(chunked, 413, "PayloadTooLarge")
    assert curl.counts(queue) == {"available": 1}


def test_what_the_headers_of_post_tell_the_headers_of_get_tell_again(curl: Curl, queue: str) -> None:
    headers = {"kind": "image", "empty": "", "café ✓": 'line\r\nX-Message-Id: 99, "quoted"'}
    curl.put(queue, b"a", priority=-7, created_at=86_400_000, headers=json.dumps(headers))
    claimed = curl.claim(queue, "?lease=60")
    assert claimed.number("priority") == -7
    assert claimed.number("created-at") == 86_400_000
    assert claimed.number("attempts") == 1
    assert json.loads(claimed.headers["x-message-headers"]) == headers
    now = penstock.SystemClock().now()
    assert claimed.number("received-at") <= claimed.number("lease-until") - 60_000 <= now


@pytest.mark.parametrize(
    ("header", "value", "error"),
    [
        ("Priority", "99999999999999999999", "InvalidPriority"),
        ("Priority", "9" * 5_000, "InvalidArgument"),
        ("Delay", "nan", "InvalidArgument"),
        ("Delay", "inf", "InvalidArgument"),
        ("Created-At", "-1", "InvalidArgument"),
        ("Key", "k" * 256, "InvalidArgument"),
        ("Group", "g" * 256, "InvalidArgument"),
        ("Headers", '{"": "a"}', "InvalidArgument"),
        ("Headers", '{"penstock.queue": "a"}', "InvalidArgument"),
        ("Headers", "[" * 20_000, "InvalidArgument"),
        ("Headers", '{"a": "\\ud800"}', "InvalidArgument"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_post_whose_headers_make_no_sense_is_refused(
    curl: Curl, queue: str, header: str, value: str, error: str
) -> None:
    answer = curl("POST", f"{queue}/messages", f"-HX-Message-{header}: {value}", body=b"a")
    assert_problem(answer, 400, error)
    assert curl.counts(queue) == {}


def test_a_header_that_is_given_twice_is_refused(curl: Curl, queue: str) -> None:
    twice = ("-HX-Message-Priority: 1", "-HX-Message-Priority: 2")
    assert_problem(curl("POST", f"{queue}/messages", *twice, body=b"a"), 400, "InvalidArgument")


# Fetching


def test_consumers_that_wait_are_served_in_the_order_in_which_they_came(curl: Curl, queue: str) -> None:
    waiting = []
    for number in range(1, 4):
        waiting.append(curl.start("GET", f"{queue}/messages?wait=60"))
        curl.wait_until_in_line(queue, number)
    for payload in (b"a", b"b", b"c"):
        curl.put(queue, payload)
    assert [parsed(each.communicate()[0]).body for each in waiting] == [b"a", b"b", b"c"]


def test_a_consumer_is_named_as_it_says_or_by_its_address(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a")
    curl.put(queue, b"b")
    curl.claim(queue, "?consumer=caf%C3%A9%20+1")
    curl.claim(queue)
    listed = curl("GET", f"/-/api/queues{queue}/messages").json["messages"]
    assert listed[0]["consumer"] == "café  1"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", listed[1]["consumer"])


@pytest.mark.parametrize(
    "query",
    [
        "lease=-1", "lease=", "lease=nan", "wait=x", "wait=inf", f"consumer={'c' * 256}", "lease=1&lease=1",
        "lease=1;wait=1", "&".join("a" * 40),
    ],
    ids=lambda query: query[:20],
)  # fmt: skip
def test_a_fetch_whose_query_makes_no_sense_claims_nothing(curl: Curl, queue: str, query: str) -> None:
    curl.put(queue, b"a")
    assert_problem(curl("GET", f"{queue}/messages?{query}"), 400, "InvalidArgument")
    assert curl.counts(queue) == {"available": 1}


# Deleting messages


def test_only_its_own_receipt_acknowledges_a_message(curl: Curl, queue: str) -> None:
    for payload in (b"a", b"b"):
        curl.put(queue, payload)
    one, other = curl.claim(queue), curl.claim(queue)
    for receipt, status, error in [
        (other.receipt, 400, "InvalidArgument"),
        ("", 400, "InvalidArgument"),
        (one.id, 400, "InvalidArgument"),
        (f"{one.id}.", 409, "LeaseExpired"),
        (f"{one.id}.0000000000000000", 409, "LeaseExpired"),
        (one.receipt[:-1], 409, "LeaseExpired"),
        (one.receipt.upper() + "0", 409, "LeaseExpired"),
    ]:
        assert_problem(curl("DELETE", f"{queue}/messages/{one.id}?receipt={receipt}"), status, error)
    assert curl.counts(queue) == {"in_flight": 2}


@pytest.mark.parametrize(
    "message_id", ["0", "99999999", "-1", "1.5", "a", "%2E%2E", "%00", "%FF", "9" * 100, "01"]
)
def test_an_id_that_never_was_one_is_not_found(curl: Curl, queue: str, message_id: str) -> None:
    curl.put(queue, b"a")
    assert_problem(curl("DELETE", f"{queue}/messages/{message_id}"), 404, "MessageNotFound")
    assert curl.counts(queue) == {"available": 1}


# Errors


def test_who_sends_much_to_the_wrong_place_is_told_that_it_is_the_wrong_place(curl: Curl, queue: str) -> None:
    for path, status in [(queue, 405), (f"{queue}/message", 404)]:
        assert curl("POST", path, body=b"x" * 1_000_000).status == status


# The process


def test_what_was_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "store") as server:
        curl = Curl(server.url)
        assert curl("PUT", "/jobs?max_size=10").status == 201
        ids = [curl.put("/jobs", payload).id for payload in (b"a", b"b", b"c")]
        held = curl.claim("/jobs", "?lease=3600")
        assert curl("DELETE", f"/jobs/messages/{ids[1]}").status == 204
        assert server.stop() == 0
    with ServerChild(tmp_path / "store") as server:
        curl = Curl(server.url)
        assert curl("PUT", "/jobs?max_size=10").status == 204
        assert curl.counts("/jobs") == {"available": 1, "in_flight": 1}
        assert curl("DELETE", f"/jobs/messages/{held.id}?receipt={held.receipt}").status == 204
        claimed = curl.claim("/jobs")
        assert (claimed.id, claimed.body) == (ids[2], b"c")
        assert server.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_sends_everyone_home_and_ends_well(
    tmp_path: Path, how: signal.Signals
) -> None:
    with ServerChild(tmp_path / "store") as server:
        curl = Curl(server.url)
        waiting = [curl.start("GET", "/default/messages?wait=3600") for _ in range(5)]
        curl.wait_until_in_line("/default", 5)
        assert curl("PUT", "/jobs").status == 201
        assert server.stop(how) == 0
        for each in waiting:
            answer = parsed(each.communicate()[0])
            assert_problem(answer, 503, "StoreClosed")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["connection"] == "close"
        assert server.errors.read_text() == ""
    with penstock.open(tmp_path / "store") as store:
        assert {info.name: info.counts["available"] for info in store.queues()} == {"default": 0, "jobs": 0}


def test_the_first_line_says_where_and_what_is_served(tmp_path: Path) -> None:
    with ServerChild(tmp_path / "store") as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+ serves .*/store\n", server.first_line)
    with ServerChild(tmp_path / "store", "--json") as server:
        assert server.process.stdout is not None
        lines = iter(server.process.stdout.readline, b"}\n")
        told = json.loads(server.first_line + b"".join(lines).decode() + "}")
        assert Curl(told["url"])("GET", "/default").status == 200
        assert told["store"] == str(tmp_path / "store")


def test_a_second_server_of_a_folder_serves_the_same_store_and_takes_over(tmp_path: Path) -> None:
    with (
        ServerChild(tmp_path / "store") as first,
        ServerChild(tmp_path / "store") as second,
        penstock.open(second.url) as store,
    ):
        queue = store.create("jobs", keep_done=60)
        with penstock.open(first.url) as other:
            other.queue("jobs").put_many([b"a", b"b"])
        held = queue.claim(2, lease=60)
        first.kill()
        held[0].ack()
        held[1].fail(reason="no")
        assert [message.state for message in queue.messages()] == ["done", "available"]
        assert [len(queue.attempts(message.id)) for message in held] == [1, 1]
        assert second.stop() == 0
