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
    assert [answer.status for answer in answers] == [201, 201, 200, 204]
    assert answers[2].body == b"resize cat.jpg"


def test_a_message_goes_in_and_comes_out_and_is_gone_once_deleted(curl: Curl, queue: str) -> None:
    message_id = curl.put(queue, b"hello").id
    claimed = curl.claim(queue)
    assert (claimed.body, claimed.id) == (b"hello", message_id)
    assert curl("GET", f"{queue}/messages").status == 204
    assert curl("DELETE", f"{queue}/messages/{message_id}").status == 204
    assert curl.counts(queue) == {}


def test_the_first_page_leads_to_the_documentation(curl: Curl) -> None:
    answer = curl("GET", "/")
    assert (answer.status, answer.headers["location"]) == (303, "/-/docs")
    assert curl("GET", "/-/docs").status == 200
    assert curl("GET", "/-/openapi.json").json["openapi"].startswith("3.")


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


@pytest.mark.parametrize("path", ["/-", "/+", "/~", "/a+b", "/a.b", "/a:b", "/a=b&c", "/queue001:id", "/%"])
def test_what_means_nothing_in_a_path_may_stand_there_as_it_is(curl: Curl, path: str) -> None:
    assert curl("PUT", path).status == 201
    assert curl("GET", path).json["name"] == path[1:]
    assert curl.put(path, b"a").id == curl.claim(path).id
    assert curl("DELETE", path).status == 204


def test_encoded_or_not_it_is_the_same_queue(curl: Curl) -> None:
    assert curl("PUT", "/same~queue").status == 201
    assert curl("PUT", "/s%61me%7equeue").status == 204


def test_names_that_differ_in_case_are_two_queues(curl: Curl) -> None:
    assert curl("PUT", "/Case").status == 201
    assert curl("PUT", "/case").status == 201
    curl.put("/Case", b"a")
    assert (curl.counts("/Case"), curl.counts("/case")) == ({"available": 1}, {})


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


def test_a_queue_is_created_once(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a")
    assert curl("PUT", queue).status == 204
    assert curl.counts(queue) == {"available": 1}


def test_the_body_of_put_is_discarded(curl: Curl) -> None:
    assert curl("PUT", "/discarding", body=b'{"max_size": 1}' * 1000).status == 201
    assert curl("GET", "/discarding").json["settings"]["max_size"] == 0


def test_settings_are_given_in_the_query(make: Make, curl: Curl) -> None:
    query = (
        "?max_size=1000&max_attempts=2&keep_done=3600.5&filter=kind%20%3D%20%27a%27&start=now&max_payload=500"
        "&priorities=-3,9&max_lease=60&retention=7200&description=for%20caf%C3%A9s%20%26+bars"
    )
    assert curl("GET", make(query)).json["settings"] == {
        "max_size": 1000, "max_attempts": 2, "keep_done": 3600.5, "filter": "kind = 'a'", "start": "now",
        "max_payload": 500, "priorities": [-3, 9], "max_lease": 60, "retention": 7200,
        "description": "for cafés & bars",
    }  # fmt: skip


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
        ("max_size=-1", "InvalidArgument"),
        ("max_size=many", "InvalidArgument"),
        ("max_size=1.5", "InvalidArgument"),
        ("max_size=", "InvalidArgument"),
        ("max_size=none", "InvalidArgument"),
        ("max_size=4294967296", "InvalidArgument"),
        ("max_payload=16777217", "InvalidArgument"),
        ("priorities=5", "InvalidArgument"),
        ("priorities=9,0", "InvalidArgument"),
        ("priorities=1,2,3", "InvalidArgument"),
        ("keep_done=nan", "InvalidArgument"),
        ("max_lease=0", "InvalidArgument"),
        ("colour=red", "InvalidArgument"),
        ("max_size=1&max_size=1", "InvalidArgument"),
        ("description=%FF", "InvalidArgument"),
        ("filter=", "InvalidFilter"),
        ("filter=a%20%3D", "InvalidFilter"),
        ("start=earliest", "NotSupported"),
    ],
)
def test_settings_that_are_none_make_no_queue(curl: Curl, query: str, error: str) -> None:
    assert_problem(curl("PUT", f"/refused?{query}"), 501 if error == "NotSupported" else 400, error)
    assert curl("GET", "/refused").status == 404


def test_a_queue_shows_its_counts_to_who_accepts_json_and_nothing_to_others(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a")
    curl.put(queue, b"b", delay=60)
    shown = curl("GET", queue).json
    assert shown["counts"] == {"delayed": 1, "available": 1, "in_flight": 0, "done": 0, "failed": 0}
    assert curl("GET", queue, "-HAccept: application/json").json == shown
    plain = curl("GET", queue, "-HAccept:")
    assert (plain.status, plain.body) == (200, b"")


def test_head_is_get_without_a_body(curl: Curl, queue: str) -> None:
    head, get = curl("HEAD", queue), curl("GET", queue)
    assert head.status == 200
    assert head.body == b""
    for name in ("content-length", "content-type"):
        assert head.headers[name] == get.headers[name]
    assert curl("HEAD", "/nowhere").status == 404


def test_a_deleted_queue_is_gone_with_its_messages(curl: Curl, queue: str) -> None:
    message_id = curl.put(queue, b"a").id
    assert curl("DELETE", queue).status == 204
    for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("DELETE", f"/messages/{message_id}")]:
        assert_problem(curl(method, queue + path), 404, "QueueNotFound")
    assert_problem(curl("POST", f"{queue}/messages", body=b"a"), 404, "QueueNotFound")
    assert curl("PUT", queue).status == 201
    assert curl("GET", f"{queue}/messages").status == 204
    assert curl("DELETE", f"{queue}/messages/{message_id}").status == 404


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


def test_a_post_without_a_body_is_an_empty_message(curl: Curl, queue: str) -> None:
    assert curl("POST", f"{queue}/messages").status == 201
    assert curl.claim(queue).body == b""


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


def test_what_was_not_told_is_the_default(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a")
    claimed = curl.claim(queue)
    assert claimed.number("priority") == 0
    assert claimed.number("created-at") == claimed.number("received-at")
    assert "x-message-headers" not in claimed.headers


def test_headers_in_utf8_are_understood_as_well(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a", headers='{"café": "✓"}')
    assert json.loads(curl.claim(queue).headers["x-message-headers"]) == {"café": "✓"}


def test_the_lowest_priority_number_comes_first_and_equals_in_their_order(curl: Curl, queue: str) -> None:
    for payload, priority in [(b"d", 2**63 - 1), (b"b", 0), (b"c", 0), (b"a", -(2**63))]:
        curl.put(queue, payload, priority=priority)
    assert [curl.claim(queue).body for _ in range(4)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("header", ["X-Message-Key", "Idempotency-Key", "x-message-key"])
def test_a_key_makes_a_repeated_post_harmless(curl: Curl, queue: str, header: str) -> None:
    answers = [curl("POST", f"{queue}/messages", f"-H{header}: k", body=b"a") for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].id == answers[1].id
    assert curl.counts(queue) == {"available": 1}


def test_a_delayed_message_comes_when_its_time_has_come(curl: Curl, queue: str) -> None:
    curl.put(queue, b"much later", delay=3600)
    assert curl("GET", f"{queue}/messages").status == 204
    curl.put(queue, b"a", delay=0.5)
    claimed = curl.claim(queue, "?wait=60&lease=10")
    assert claimed.body == b"a"
    assert claimed.number("lease-until") - 10_000 >= claimed.number("received-at") + 500


def test_a_message_is_gone_after_its_retention(curl: Curl, queue: str) -> None:
    message_id = curl.put(queue, b"a", retention=0.001).id
    assert curl("GET", f"{queue}/messages?wait=0.1").status == 204
    assert_problem(curl("DELETE", f"{queue}/messages/{message_id}"), 404, "MessageNotFound")


@pytest.mark.parametrize(
    ("header", "value", "error"),
    [
        ("Priority", "high", "InvalidArgument"),
        ("Priority", "1.5", "InvalidArgument"),
        ("Priority", "99999999999999999999", "InvalidPriority"),
        ("Priority", "9" * 5_000, "InvalidArgument"),
        ("Delay", "-1", "InvalidArgument"),
        ("Delay", "nan", "InvalidArgument"),
        ("Delay", "inf", "InvalidArgument"),
        ("Delay", "soon", "InvalidArgument"),
        ("Retention", "-1", "InvalidArgument"),
        ("Created-At", "-1", "InvalidArgument"),
        ("Created-At", "yesterday", "InvalidArgument"),
        ("Key", "k" * 256, "InvalidArgument"),
        ("Headers", "kind=image", "InvalidArgument"),
        ("Headers", '["kind"]', "InvalidArgument"),
        ("Headers", '{"size": 1}', "InvalidArgument"),
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


def test_a_priority_outside_of_the_range_of_the_queue_is_refused(make: Make, curl: Curl) -> None:
    queue = make("?priorities=0,9")
    curl.put(queue, b"a", priority=9)
    answer = curl("POST", f"{queue}/messages", "-HX-Message-Priority: 10", body=b"a")
    assert_problem(answer, 400, "InvalidPriority")


def test_a_full_queue_says_so_until_there_is_room(make: Make, curl: Curl) -> None:
    queue = make("?max_size=1")
    message_id = curl.put(queue, b"a").id
    full = curl("POST", f"{queue}/messages", body=b"b")
    assert_problem(full, 507, "QueueFull")
    assert int(full.headers["retry-after"]) > 0
    assert curl("DELETE", f"{queue}/messages/{message_id}").status == 204
    curl.put(queue, b"b")


# Fetching


def test_who_waits_gets_the_message_that_comes_meanwhile(curl: Curl, queue: str) -> None:
    waiting = curl.start("GET", f"{queue}/messages?wait=60")
    curl.wait_until_in_line(queue, 1)
    message_id = curl.put(queue, b"a").id
    answer = parsed(waiting.communicate()[0])
    assert (answer.status, answer.id, answer.body) == (200, message_id, b"a")


def test_consumers_that_wait_are_served_in_the_order_in_which_they_came(curl: Curl, queue: str) -> None:
    waiting = []
    for number in range(1, 4):
        waiting.append(curl.start("GET", f"{queue}/messages?wait=60"))
        curl.wait_until_in_line(queue, number)
    for payload in (b"a", b"b", b"c"):
        curl.put(queue, payload)
    assert [parsed(each.communicate()[0]).body for each in waiting] == [b"a", b"b", b"c"]


def test_who_waits_in_vain_is_told_so(curl: Curl, queue: str) -> None:
    answer = curl("GET", f"{queue}/messages?wait=0.1")
    assert (answer.status, answer.body) == (204, b"")


def test_who_waits_at_a_queue_that_is_deleted_is_told_so(curl: Curl, queue: str) -> None:
    waiting = curl.start("GET", f"{queue}/messages?wait=60")
    curl.wait_until_in_line(queue, 1)
    assert curl("DELETE", queue).status == 204
    assert_problem(parsed(waiting.communicate()[0]), 404, "QueueNotFound")


def test_a_message_comes_back_when_its_lease_ends_and_its_old_receipt_is_worth_nothing(
    curl: Curl, queue: str
) -> None:
    message_id = curl.put(queue, b"a").id
    first = curl.claim(queue, "?lease=0.3")
    second = curl.claim(queue, "?wait=60&lease=60")
    assert (second.id, second.body, second.number("attempts")) == (message_id, b"a", 2)
    assert second.number("lease-until") - 60_000 >= first.number("lease-until")
    assert second.receipt != first.receipt
    answer = curl("DELETE", f"{queue}/messages/{message_id}?receipt={first.receipt}")
    lost = assert_problem(answer, 409, "LeaseExpired")
    assert (lost["queue"], lost["receipts"]) == (queue[1:], [first.receipt])
    assert curl.counts(queue) == {"in_flight": 1}
    assert curl("DELETE", f"{queue}/messages/{message_id}?receipt={second.receipt}").status == 204
    assert curl.counts(queue) == {}


def test_a_message_whose_attempts_are_used_up_is_failed(make: Make, curl: Curl) -> None:
    queue = make("?max_attempts=2")
    curl.put(queue, b"a")
    for _ in range(2):
        curl.claim(queue, "?wait=60&lease=0.01")
    assert curl("GET", f"{queue}/messages?wait=0.1").status == 204
    assert curl.counts(queue) == {"failed": 1}


def test_the_lease_is_30_seconds_unless_asked_for_and_no_longer_than_the_queue_allows(
    make: Make, curl: Curl
) -> None:
    queue = make("?max_lease=100")
    for query, seconds in [("", 30), ("?lease=7.5", 7.5), ("?lease=4294967295", 100)]:
        curl.put(queue, b"a")
        before = penstock.SystemClock().now()
        until = curl.claim(queue, query).number("lease-until")
        assert before <= until - seconds * 1000 <= penstock.SystemClock().now()


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
        "lease=0", "lease=-1", "lease=", "lease=long", "lease=nan", "wait=-1", "wait=x", "wait=inf", "consumer=",
        "consumer=%FF", f"consumer={'c' * 256}", "n=2", "lease=1&lease=1", "lease=1;wait=1", "&".join("a" * 40),
    ],
    ids=lambda query: query[:20],
)  # fmt: skip
def test_a_fetch_whose_query_makes_no_sense_claims_nothing(curl: Curl, queue: str, query: str) -> None:
    curl.put(queue, b"a")
    assert_problem(curl("GET", f"{queue}/messages?{query}"), 400, "InvalidArgument")
    assert curl.counts(queue) == {"available": 1}


# Deleting messages


def delayed(curl: Curl, queue: str) -> str:
    return curl.put(queue, b"a", delay=3600).id


def available(curl: Curl, queue: str) -> str:
    return curl.put(queue, b"a").id


def in_flight(curl: Curl, queue: str) -> str:
    available(curl, queue)
    return curl.claim(queue).id


def given_back(curl: Curl, queue: str) -> str:
    available(curl, queue)
    return settled(curl, queue, "release")


def failed(curl: Curl, queue: str) -> str:
    available(curl, queue)
    return settled(curl, queue, "fail")


def done(curl: Curl, queue: str) -> str:
    available(curl, queue)
    return settled(curl, queue, "ack")


def settled(curl: Curl, queue: str, how: str) -> str:
    claimed = curl.claim(queue)
    body = json.dumps({"receipts": [claimed.receipt]}).encode()
    answer = curl("POST", f"/-/api/queues{queue}/{how}", "-HContent-Type: application/json", body=body)
    assert answer.status == 204
    return claimed.id


@pytest.mark.parametrize("bring", [delayed, available, in_flight, given_back, failed, done])
def test_a_message_can_be_deleted_at_any_point_of_its_life(
    curl: Curl, make: Make, bring: Callable[[Curl, str], str]
) -> None:
    queue = make("?keep_done=none&max_attempts=1")
    message_id = bring(curl, queue)
    assert curl.counts(queue) == {"available" if bring is given_back else bring.__name__: 1}
    assert curl("DELETE", f"{queue}/messages/{message_id}").status == 204
    assert curl.counts(queue) == {}
    assert_problem(curl("DELETE", f"{queue}/messages/{message_id}"), 404, "MessageNotFound")


def test_who_holds_a_message_that_is_deleted_is_told_so(curl: Curl, queue: str) -> None:
    curl.put(queue, b"a")
    held = curl.claim(queue)
    assert curl("DELETE", f"{queue}/messages/{held.id}").status == 204
    answer = curl("DELETE", f"{queue}/messages/{held.id}?receipt={held.receipt}")
    assert_problem(answer, 409, "LeaseExpired")


def test_an_ack_can_be_repeated_and_keeps_the_message_among_the_done(make: Make, curl: Curl) -> None:
    queue = make("?keep_done=3600")
    curl.put(queue, b"a")
    held = curl.claim(queue)
    for _ in range(2):
        assert curl("DELETE", f"{queue}/messages/{held.id}?receipt={held.receipt}").status == 204
    assert curl.counts(queue) == {"done": 1}
    assert curl("DELETE", f"{queue}/messages/{held.id}").status == 204
    assert curl.counts(queue) == {}


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


@pytest.mark.parametrize(
    "path", ["/a/b", "/a/messages/1/2", "/a/messages/", "/-/nothing", "/-/api", "/-/api/queues/"]
)
def test_where_nothing_is_a_problem_says_how_paths_look(curl: Curl, path: str) -> None:
    assert "%2F" in assert_problem(curl("GET", path), 404, "NotFound")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/default", {"GET", "PUT", "DELETE", "HEAD"}),
        ("PATCH", "/default", {"GET", "PUT", "DELETE", "HEAD"}),
        ("PUT", "/default/messages", {"GET", "POST"}),
        ("HEAD", "/default/messages", {"GET", "POST"}),
        ("DELETE", "/default/messages", {"GET", "POST"}),
        ("GET", "/default/messages/1", {"DELETE"}),
        ("OPTIONS", "/default/messages/1", {"DELETE"}),
        ("DELETE", "/", {"GET", "HEAD"}),
    ],
)
def test_a_method_that_means_nothing_here_is_told_which_ones_do(
    curl: Curl, method: str, path: str, allowed: set[str]
) -> None:
    answer = curl(method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        assert_problem(answer, 405, "MethodNotAllowed")


def test_who_sends_much_to_the_wrong_place_is_told_that_it_is_the_wrong_place(curl: Curl, queue: str) -> None:
    for path, status in [(queue, 405), (f"{queue}/message", 404)]:
        assert curl("POST", path, body=b"x" * 1_000_000).status == status


def test_no_query_parameter_is_silently_ignored(curl: Curl, queue: str) -> None:
    message_id = curl.put(queue, b"a").id
    for method, path in [
        ("GET", ""), ("DELETE", ""), ("DELETE", f"/messages/{message_id}"), ("POST", "/messages"),
    ]:  # fmt: skip
        assert_problem(curl(method, f"{queue}{path}?colour=red"), 400, "InvalidArgument")
    assert curl.counts(queue) == {"available": 1}


def test_a_body_that_is_packed_is_refused_rather_than_stored_packed(curl: Curl, queue: str) -> None:
    answer = curl("POST", f"{queue}/messages", "-HContent-Encoding: gzip", body=b"a")
    assert_problem(answer, 415, "UnsupportedMediaType")


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
        assert server.stop(how) == 0
        for each in waiting:
            answer = parsed(each.communicate()[0])
            assert_problem(answer, 503, "StoreClosed")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["connection"] == "close"
        assert server.errors.read_text() == ""
    with penstock.open(tmp_path / "store") as store:
        assert store.queue().count() == 0


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
