"""Clients that mean harm, or are broken: raw sockets against a server, which must live on and keep its promises.

Every test ends with a healthy client being served, nothing left over in the server, nothing in its log, and no
answer that tells of the machine behind it.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.http.server import Limits, exchange, routes
from penstock.http.server.exchange import MAX_HEADERS
from penstock.http.server.server import Deadlines
from tests.http.serving import until
from tests.http.victim import (
    END,
    HOST,
    Client,
    Serve,
    Victim,
    chunk,
    chunked,
    counted,
    delete,
    get,
    payloads,
    put,
    request,
)  # fmt: skip

# What is too slow


class Slow:
    given_up = False

    def give_up(self) -> None:
        self.given_up = True


def test_nobody_has_less_than_its_seconds_whenever_it_begins() -> None:
    deadlines, early, late = Deadlines(1.0), Slow(), Slow()
    deadlines.tick(10.0)
    deadlines.start(early)
    deadlines.tick(11.001)  # early may have begun a moment ago
    deadlines.start(late)
    assert not early.given_up
    deadlines.tick(12.002)
    assert (early.given_up, late.given_up) == (True, False)
    deadlines.tick(13.003)
    assert late.given_up
    assert not counted(deadlines)


def test_a_request_must_arrive_in_time_however_steadily_it_drips(serve: Serve) -> None:
    victim = serve(Limits(arriving=1.0))
    beginnings = [
        b"GET /",
        b"POST /jobs/messages HTTP/1.1\r\nX-Drip: ",
        request("POST", "/jobs/messages", b"Content-Length: 1000\r\n"),
        chunked(b"400\r\n"),
        chunked(chunk(b"a"), b"0\r\nX-Trailer: "),
        chunked(b"1;extension="),
        put(b"complete") + b"GET /",
    ]
    clients = [victim.tell(beginning) for beginning in beginnings for _ in range(30)]
    dripping = set(clients)
    while dripping:
        time.sleep(0.05)
        ended = selected(dripping)
        dripping -= ended
        for client in dripping:
            with suppress(OSError):
                client.send(b"a")
        healthy = victim.tell(put(b"healthy", headers=b"Connection: close\r\n"))
        assert healthy.last_answer().status == 201
        healthy.close()
    for number, client in enumerate(clients):
        *before, last = client.answers()
        is_second = number >= 30 * (len(beginnings) - 1)
        assert [answer.status for answer in before] == [201] * is_second
        assert last.told == (408, "RequestTimeout")
        client.close()
    assert set(payloads(victim.store.queue("jobs"))) == {b"complete", b"healthy"}


def selected(clients: set[Client]) -> set[Client]:
    """Those to whom the server has said its last word."""
    ended = set()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        for key, _ in selector.select(0):
            heard = key.data.socket.recv(1 << 20, socket.MSG_PEEK)
            if not heard or b"Connection: close" in heard:
                ended.add(key.data)
    return ended


def test_a_request_that_is_late_behind_a_long_poll_does_not_end_the_poll(serve: Serve) -> None:
    victim = serve(Limits(arriving=1.0))
    client = victim.tell(get(query="?wait=60") + b"POST /jobs/mess")
    until(lambda: victim.in_line)
    until(lambda: [each for each in victim.connections if each._refused is not None])
    victim.store.queue("jobs").put(b"a")
    first, second = client.answers()
    assert (first.status, first.body) == (200, b"a")
    assert second.told == (408, "RequestTimeout")


def test_who_says_nothing_for_long_is_let_go_without_a_word(serve: Serve) -> None:
    victim = serve(Limits(idle=1.0))
    silent, served = victim.client(), victim.tell(put(b"a"))
    assert served.answer().status == 201
    assert silent.answers() == []
    assert served.answers() == []


def test_a_long_poll_is_no_silence(serve: Serve) -> None:
    victim = serve(Limits(idle=0.5, arriving=0.5, leaving=0.5))
    assert victim.tell(get(query="?wait=2.5")).answer().status == 204


def test_who_does_not_read_what_it_asked_for_is_cut_off(serve: Serve) -> None:
    victim = serve(Limits(leaving=1.0))
    payload = b"x" * 16_000_000
    victim.store.queue("jobs").put(payload)
    client = victim.client(receive_buffer=4096)
    client.send(get())
    until(lambda: [each for each in victim.connections if each._clogged])
    healthy = victim.tell(put(b"healthy"))
    assert healthy.answer().status == 201
    healthy.close()
    victim.until_nobody_is_there()
    with pytest.raises((ConnectionError, AssertionError)):
        client.answer()


@pytest.mark.parametrize("last", [b"Connection: close\r\n", b""], ids=["closing", "idle"])
def test_who_does_not_read_a_little_is_cut_off_as_well(serve: Serve, last: bytes) -> None:
    """So little that it waits in the server without stopping it from writing: closing would wait for ever."""
    victim = serve(Limits(leaving=1.0, idle=1.0 if not last else 300.0))
    jobs = victim.store.queue("jobs")
    jobs.put_many([b"x" * 30_000] * 300)
    client = victim.client(receive_buffer=4096)
    until(lambda: victim.connections)
    [connection] = victim.connections
    answered = 0
    while not connection.transport.get_write_buffer_size():
        client.send(get(query="?lease=3600"))
        answered += 1
        until(lambda: jobs.counts()["in_flight"] == answered and connection in counted(victim.service.idle))  # noqa: B023
    assert not connection._clogged
    client.send(request("GET", "/jobs", last))
    victim.until_nobody_is_there()


def test_who_pipelines_and_does_not_read_is_not_answered_without_end(serve: Serve) -> None:
    victim = serve(Limits(leaving=1.0))
    victim.store.queue("jobs").put(b"x" * 100_000)
    client = victim.client(receive_buffer=4096)
    client.send(request("GET", "/-/api/queues/jobs/peek") * 1_000)
    until(lambda: [each for each in victim.connections if each._clogged])
    [connection] = victim.connections
    assert connection.transport.get_write_buffer_size() < 1_000_000
    victim.until_nobody_is_there()


# What is too large


@pytest.mark.parametrize(
    ("target", "size", "most"),
    [
        ("/jobs/messages", 16_777_217, 16_777_216),
        ("/jobs/messages", 2**62, 16_777_216),
        ("/nowhere/messages", 16_777_217, 16_777_216),
        ("/small/messages", 11, 10),
        ("/-/api/queues/jobs/put", (64 << 20) + 1, 64 << 20),
        ("/-/api/queues/jobs/pop", 65_537, 65_536),
        ("/-/api/queues/jobs/ack", (8 << 20) + 1, 8 << 20),
    ],
)
@pytest.mark.parametrize("expecting", [b"", b"Expect: 100-continue\r\n"], ids=["", "expecting"])
def test_what_announces_that_it_is_too_large_is_refused_before_it_comes(
    victim: Victim, target: str, size: int, most: int, expecting: bytes
) -> None:
    victim.store.create("small", max_payload=10)
    client = victim.tell(request("POST", target, expecting + b"Content-Length: %d\r\n" % size))
    answer = client.last_answer()
    assert answer.told == (413, "PayloadTooLarge")
    assert str(most) in answer.body.decode()


def test_who_goes_on_sending_what_was_refused_can_still_read_why(victim: Victim) -> None:
    client = victim.client()
    size = 20_000_000
    client.send(request("POST", "/jobs/messages", b"Content-Length: %d\r\n" % size))
    client.send(b"x" * size)
    assert client.last_answer().status == 413


def test_what_turns_out_to_be_too_large_is_refused(victim: Victim) -> None:
    queue = victim.store.create("small", max_payload=1_000)
    head = request("POST", "/small/messages", b"Transfer-Encoding: chunked\r\n")
    assert victim.tell(head + chunk(b"x" * 600) + chunk(b"x" * 401)).last_answer().told == (413, "PayloadTooLarge")
    exact = victim.tell(head + chunk(b"x" * 600) + chunk(b"x" * 400) + END)
    assert exact.answer().status == 201
    assert payloads(queue) == [b"x" * 1_000]


def test_an_endless_body_is_cut_off(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.tell(chunked())
    piece = chunk(b"x" * 1_000_000)
    with suppress(ConnectionError):  # once the server has gone
        while b"413" not in peeked(client):
            client.send(piece)
    assert client.last_answer().status == 413
    assert payloads(jobs) == []


def peeked(client: Client) -> bytes:
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1000, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
    finally:
        client.socket.setblocking(True)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (request("GET", "/jobs")[:-2], b"X-Many: 1\r\n"),
        (request("GET", "/jobs")[:-2], b"X-Same: " + b"x" * 1_000 + b"\r\n"),
        (request("GET", "/jobs")[:-2] + b"X-Endless: ", b"x" * 1_000),
        (request("GET", "/jobs")[:-2], b"x" * 1_000),
        (b"GET /", b"x" * 1_000),
        (b"GET /jobs?", b"consumer=x&" * 100),
        (chunked(b"1;extension="), b"x" * 1_000),
        (chunked(chunk(b"a"), b"0\r\nX-Endless: "), b"x" * 1_000),
        (chunked(chunk(b"a"), b"0\r\n"), b"X-Many: 1\r\n" * 100),
    ],
    ids=["headers", "one header", "value", "name", "path", "query", "chunk extension", "trailer", "trailers"],
)
def test_an_endless_head_is_cut_off(victim: Victim, jobs: penstock.Queue, start: bytes, piece: bytes) -> None:
    client = victim.tell(start)
    with suppress(ConnectionError):  # once the server has gone
        while not peeked(client):
            client.send(piece)
    assert client.last_answer().told == (431, "HeadersTooLarge")
    assert payloads(jobs) == []


def test_a_head_may_be_long_but_not_too_long_in_one_packet_or_in_many(victim: Victim) -> None:
    def asking(size: int) -> bytes:
        start, end = b"GET /jobs HTTP/1.1\r\n" + HOST, b"\r\n"
        lines = b"".join(b"X-%06d: %b\r\n" % (number, b"x" * 88) for number in range(size // 100))
        return start + lines + end

    for size, status in [(MAX_HEADERS - 1_000, 200), (MAX_HEADERS + 1_000, 431)]:
        whole = victim.tell(asking(size))
        pieces = victim.client()
        for start in range(0, len(asking(size)), 1_000):
            pieces.send(asking(size)[start : start + 1_000])
        assert [whole.answer().status, pieces.answer().status] == [status, status]


def test_long_paths_and_queries_are_not_remembered(victim: Victim) -> None:
    def remembered() -> tuple[int, int]:
        return routes._decoded.cache_info().currsize, exchange._parameters.cache_info().currsize

    client = victim.tell(request("GET", "/jobs/messages?consumer=me") + request("GET", "/jobs"))
    assert [client.answer().status for _ in range(2)] == [204, 200]
    before = remembered()
    for number in range(20):
        client.send(request("GET", f"/{number}{'x' * 10_000}"))
        client.send(get(query=f"?consumer={number}{'x' * 10_000}"))
        assert [client.answer().error for _ in range(2)] == ["InvalidName", "InvalidArgument"]
    assert remembered() == before


def test_tiny_chunks_make_a_message_like_any_other(victim: Victim, jobs: penstock.Queue) -> None:
    payload = Random(1).randbytes(100_000)
    client = victim.tell(chunked(*[chunk(payload[at : at + 2]) for at in range(0, len(payload), 2)], END))
    assert client.answer().status == 201
    assert payloads(jobs) == [payload]


# What is no HTTP


GARBAGE = [
    b"\0",
    b"\xff" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"get x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /jobs HTTP/9.9\r\n\r\n",
    b"GET /jobs SMTP/1.1\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b"GET jobs HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /a b HTTP/1.1\r\n\r\n",
    b"GET /jobs HTTP/1.1\nHost: x\n\n",
    b"GET /jobs HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\n: x\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\nHost: x\r\nX-A: b\0c\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\nHost: x\r\nX-A: b\rc\r\n\r\n",
    b"GET /jobs HTTP/1.1\r\nHost x\r\n\r\n",
    b"BREW /jobs HTTP/1.1\r\n" + HOST + b"\r\n",
    b"set jobs 0 0 1\r\na\r\n",
    b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage)[2:30])
def test_garbage_is_answered_with_400_and_the_end(victim: Victim, garbage: bytes) -> None:
    assert victim.tell(garbage).last_answer().told == (400, "BadRequest")


BAD_LENGTHS = [
    b"Content-Length: 3\r\nContent-Length: 3\r\n",
    b"Content-Length: 3\r\nContent-Length: 30\r\n",
    b"Content-Length: 3, 3\r\n",
    b"Content-Length: -3\r\n",
    b"Content-Length: +3\r\n",
    b"Content-Length: 0x3\r\n",
    b"Content-Length: 3 3\r\n",
    b"Content-Length: \r\n",
    b"Content-Length: three\r\n",
    b"Content-Length: 3.0\r\n",
    b"Content-Length: " + b"9" * 30 + b"\r\n",
    b"Content-Length: 18446744073709551619\r\n",
]
BAD_ENCODINGS = [
    b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\nTransfer-Encoding: identity\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b'Transfer-Encoding: "chunked"\r\n',
    b"Transfer-Encoding : chunked\r\nContent-Length: 3\r\n",
    b"Transfer_Encoding: chunked\r\nTransfer-Encoding: cow\r\n",
    b"Content-Encoding: gzip\r\nContent-Length: 3\r\n",
]


@pytest.mark.parametrize("headers", BAD_LENGTHS + BAD_ENCODINGS, ids=lambda headers: repr(headers)[2:60])
def test_no_request_is_smuggled_in_behind_a_doubtful_length(
    victim: Victim, jobs: penstock.Queue, headers: bytes
) -> None:
    smuggled = put(b"smuggled")
    body = b"0\r\n\r\n" + smuggled + b"\r\n0\r\n\r\n"
    answer = victim.tell(request("POST", "/jobs/messages", headers) + body).last_answer()
    assert answer.told in [(400, "BadRequest"), (415, "UnsupportedMediaType")]
    assert payloads(jobs) == []


@pytest.mark.parametrize(
    "rest",
    [
        b"zz\r\n",
        b"-1\r\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na0\r\n\r\n",
        b"1 1\r\na\r\n",
        b"\r\na\r\n",
        b"0x1\r\na\r\n",
        b"fffffffffffffffff\r\n",
        b"1\na\n0\n\n",
        b"1\r\na\r\n0\r\nno trailer\r\n\r\n",
        b"1;\0\r\na\r\n",
    ],
    ids=lambda rest: repr(rest)[2:30],
)
def test_bad_chunks_store_nothing(victim: Victim, jobs: penstock.Queue, rest: bytes) -> None:
    assert victim.tell(chunked(rest)).last_answer().told == (400, "BadRequest")
    assert payloads(jobs) == []


TRUNCATED = [
    b"P",
    b"POST /jobs",
    put(b"abc")[:-5],
    put(b"abc")[:-1],
    request("POST", "/jobs/messages", b"Content-Length: 9\r\n"),
    chunked(),
    chunked(b"3\r\n"),
    chunked(b"3\r\nab"),
    chunked(chunk(b"abc")),
    chunked(chunk(b"abc"), END[:-2]),
]


@pytest.mark.parametrize("half", TRUNCATED, ids=lambda half: repr(half[-20:]))
def test_half_a_request_is_none(victim: Victim, jobs: penstock.Queue, half: bytes) -> None:
    client = victim.tell(half)
    client.send_no_more()
    assert client.last_answer().told == (400, "BadRequest")
    crashed = victim.tell(half)
    until(lambda: [each for each in victim.connections if each._arriving])
    crashed.reset()
    victim.until_nobody_is_there()
    assert payloads(jobs) == []


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.binary(min_size=1, max_size=200))
def test_noise_is_answered_with_400_if_at_all(victim: Victim, noise: bytes) -> None:
    client = victim.tell(noise)
    client.send_no_more()
    assert {answer.status for answer in client.answers()} <= {400}
    client.close()


STREAM = (
    put(b"hello", headers=b"X-Message-Priority: 5\r\n")
    + chunked(chunk(b"wor"), chunk(b"ld"), END)
    + get(query="?lease=60")
    + request("PUT", "/jobs?max_size=0", body=b"ignored")
    + request("DELETE", "/jobs/messages/1?receipt=1.00")
    + request("POST", "/-/api/queues/jobs/claim", b"Content-Type: application/json\r\n", b'{"n": 2}')
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    st.lists(st.tuples(st.integers(0, len(STREAM)), st.integers(0, 4), st.binary(max_size=4)), max_size=4),
    st.integers(1, len(STREAM)),
)
def test_a_damaged_stream_of_requests_is_answered_with_sense(
    victim: Victim, damages: list[tuple[int, int, bytes]], piece: int
) -> None:
    stream = STREAM
    for at, removed, inserted in damages:
        stream = stream[:at] + inserted + stream[at + removed :]
    client = victim.client()
    with suppress(ConnectionError):  # it may have had enough
        for start in range(0, len(stream), piece):
            client.send(stream[start : start + piece])
        client.send_no_more()
    with suppress(ConnectionError):
        assert {answer.status for answer in client.answers()} <= {
            200, 201, 204, 400, 403, 404, 405, 409, 413, 415, 431, 501, 100,  # 403: of a damaged Host
        }  # fmt: skip
    client.close()


# What is HTTP, but seldom


def test_many_requests_in_one_packet_are_answered_in_their_order(victim: Victim) -> None:
    number = 300
    client = victim.tell(b"".join(put(b"%d" % each) for each in range(number)) + get() * (number + 1))
    ids = [int(client.answer().id) for _ in range(number)]
    assert ids == sorted(ids)
    answers = [client.answer() for _ in range(number)]
    assert [(int(answer.id), answer.body) for answer in answers] == [
        (each, b"%d" % place) for place, each in enumerate(ids)
    ]
    assert client.answer().status == 204


def test_requests_that_come_byte_by_byte_are_answered_as_if_they_came_at_once(victim: Victim) -> None:
    at_once = victim.tell(STREAM)
    whole = [at_once.answer() for _ in range(6)]
    client = victim.client()
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in STREAM:
        client.send(bytes([byte]))
    pieces = [client.answer() for _ in range(6)]
    assert (
        [answer.status for answer in pieces]
        == [answer.status for answer in whole]
        == [201, 201, 200, 204, 409, 200]
    )
    assert pieces[2].body == b"world"


def test_whatever_is_pipelined_behind_a_long_poll_waits_for_it(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.tell(get(query="?wait=60") + put(b"b") * 100)
    until(lambda: victim.in_line)
    other = victim.tell(put(b"a"))
    assert other.answer().status == 201
    assert client.answer().body == b"a"
    assert [client.answer().status for _ in range(100)] == [201] * 100
    assert payloads(jobs) == [b"a", *[b"b"] * 100]


def test_however_many_puts_into_no_queue_are_pipelined_each_is_answered(
    victim: Victim, jobs: penstock.Queue
) -> None:
    client = victim.tell(get(query="?wait=60") + put(b"b", "nowhere") * 1_000)
    until(lambda: victim.in_line)
    assert victim.tell(put(b"a")).answer().status == 201
    assert client.answer().body == b"a"
    assert [client.answer().status for _ in range(1_000)] == [404] * 1_000


def test_trailers_are_no_headers_of_the_next_request(victim: Victim, jobs: penstock.Queue) -> None:
    trailers = b"0\r\nX-Message-Priority: 7\r\nX-Message-Key: k\r\nHost: y\r\n\r\n"
    client = victim.tell(chunked(chunk(b"a"), trailers) + put(b"b") + put(b"c"))
    assert [client.answer().status for _ in range(3)] == [201, 201, 201]
    assert [(message.payload, message.priority) for message in jobs.messages()] == [
        (b"a", 0),
        (b"b", 0),
        (b"c", 0),
    ]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0"])
def test_an_upgrade_is_declined_and_the_request_is_an_ordinary_one(
    victim: Victim, jobs: penstock.Queue, protocol: bytes
) -> None:
    """Java's own client asks for h2c with everything it sends."""
    headers = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMA\r\n" % protocol
    payload = request("DELETE", "/jobs")
    together = victim.tell(put(payload, headers=headers) + put(b"next"))
    assert [together.answer().status for _ in range(2)] == [201, 201]
    apart = victim.tell(put(payload, headers=headers)[: -len(payload)])
    until(lambda: [each for each in victim.connections if each._request is not None])
    apart.send(payload)
    assert apart.answer().status == 201
    in_chunks = victim.tell(chunked(chunk(payload), END, headers=headers) + get())
    assert [in_chunks.answer().status for _ in range(2)] == [201, 200]
    assert payloads(jobs) == [payload, b"next", payload, payload]


def test_many_upgrades_in_one_packet_are_declined_one_by_one(victim: Victim) -> None:
    client = victim.tell(request("GET", "/jobs", b"Connection: Upgrade\r\nUpgrade: h2c\r\n") * 1_000)
    assert [client.answer().status for _ in range(1_000)] == [200] * 1_000


def test_an_upgrade_of_a_fetch_is_declined_too(victim: Victim, jobs: penstock.Queue) -> None:
    jobs.put(b"a")
    headers = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    answer = victim.tell(request("GET", "/jobs/messages", headers)).answer()
    assert (answer.status, answer.body) == (200, b"a")


@pytest.mark.parametrize("headers", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_is_answered_and_ended(victim: Victim, headers: bytes) -> None:
    post = b"POST /jobs/messages HTTP/1.0\r\n" + headers + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    assert victim.tell(post).last_answer().status == 201
    answer = victim.tell(b"GET /jobs/messages HTTP/1.0\r\n" + headers + b"\r\n").last_answer()
    assert (answer.status, answer.body) == (200, b"a")
    assert victim.tell(b"GET /jobs/messages HTTP/1.0\r\n" + headers + b"\r\n").last_answer().status == 204


def test_nothing_counts_after_a_request_that_wanted_to_be_the_last(victim: Victim, jobs: penstock.Queue) -> None:
    together = victim.tell(put(b"a", headers=b"Connection: close\r\n") + put(b"b"))
    assert together.last_answer().status == 201
    apart = victim.tell(put(b"c") + get(query="?wait=60&lease=60")[:-2] + b"Connection: close\r\n\r\n")
    assert [answer.status for answer in apart.answers()] == [201, 200]
    assert payloads(jobs) == [b"a", b"c"]


def test_head_has_no_body_so_that_the_next_answer_is_found(victim: Victim) -> None:
    client = victim.tell(
        request("HEAD", "/jobs", b"Accept: application/json\r\n")
        + request("HEAD", "/nowhere")
        + request("HEAD", "/jobs/messages")
        + request("GET", "/jobs")
    )
    heads = [client.answer(is_head=True) for _ in range(3)]
    assert [head.status for head in heads] == [200, 404, 405]
    assert all(int(head.headers[b"content-length"]) for head in heads)
    assert client.answer().status == 200


def test_who_expects_to_be_told_to_go_on_is_told_so(victim: Victim, jobs: penstock.Queue) -> None:
    head = request("POST", "/jobs/messages", b"Expect: 100-Continue\r\nContent-Length: 5\r\n")
    client = victim.tell(head)
    assert client.answer().status == 100
    client.send(b"hello")
    assert client.answer().status == 201
    client.send(head + b"world")
    assert [client.answer().status for _ in range(2)] == [100, 201]
    assert payloads(jobs) == [b"hello", b"world"]


@pytest.mark.parametrize(
    ("start", "status"),
    [
        ("GET http://localhost/jobs", 200),
        ("GET http://localhost:99/jobs?colour=red", 400),
        ("GET http://127.0.0.1/a%2Fb", 404),
        ("GET http://localhost", 303),
        ("OPTIONS *", 400),
        ("GET *", 400),
        ("OPTIONS /jobs", 405),
        ("TRACE /jobs", 405),
    ],
)
def test_targets_of_every_form_are_answered(victim: Victim, start: str, status: int) -> None:
    client = victim.tell(f"{start} HTTP/1.1\r\n".encode() + HOST + b"\r\n" + request("GET", "/jobs"))
    assert [client.answer().status for _ in range(2)] == [status, 200]


def test_nobody_is_tunnelled_anywhere(victim: Victim, jobs: penstock.Queue) -> None:
    tunnel = victim.tell(b"CONNECT elsewhere:80 HTTP/1.1\r\n" + HOST + b"\r\n" + put(b"a"))
    assert tunnel.last_answer().status == 400
    assert payloads(jobs) == []


def test_empty_lines_between_requests_are_skipped(victim: Victim) -> None:
    client = victim.tell(b"\r\n\r\n" + put(b"a") + b"\r\n" + put(b"b"))
    assert [client.answer().status for _ in range(2)] == [201, 201]


def test_a_length_of_thousands_of_digits_is_refused(victim: Victim, jobs: penstock.Queue) -> None:
    for digits in (b"1" * 5_001, b"0" * 5_000 + b"1"):
        head = request("POST", "/jobs/messages", b"Content-Length: %b\r\n" % digits)
        assert victim.tell(head + b"a").last_answer().told == (400, "BadRequest")
    target = f"/-/followers/jobs/me/start?at={'1' * 5_001}"
    assert victim.tell(request("GET", target)).answer().error == "InvalidArgument"
    assert payloads(jobs) == []


# Who leaves in the middle


def test_who_sends_no_more_can_still_read(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.tell(put(b"a") * 50)
    client.send_no_more()
    assert [answer.status for answer in client.answers()] == [201] * 50
    assert len(payloads(jobs)) == 50


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.send_no_more])
def test_a_message_goes_past_those_who_no_longer_wait_for_it(
    victim: Victim, jobs: penstock.Queue, leave: Callable[[Client], None]
) -> None:
    gone = [victim.tell(get(query="?wait=3600&lease=3600")) for _ in range(10)]
    until(lambda: victim.in_line == 10)
    for each in gone:
        leave(each)
    until(lambda: victim.in_line == 0)
    jobs.put(b"a")
    claimed = victim.tell(get()).answer()
    assert (claimed.status, claimed.body, claimed.headers[b"x-message-attempts"]) == (200, b"a", b"1")


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.send_no_more])
def test_a_message_that_is_handed_to_someone_who_just_leaves_comes_back(
    victim: Victim, jobs: penstock.Queue, leave: Callable[[Client], None]
) -> None:
    random = Random(7)
    for number in range(40):
        payload = b"%d" % number
        leaving = victim.tell(get(query="?wait=3600&lease=0.2"))
        until(lambda: victim.in_line == 1)
        producer = victim.client()
        actions = [lambda: producer.send(put(payload)), lambda: leave(leaving)]  # noqa: B023 - called at once
        random.shuffle(actions)
        actions[0]()
        time.sleep(random.choice([0, 0, 0.0002, 0.001]))
        actions[1]()
        assert producer.answer().status == 201
        next_one = victim.tell(get(query="?wait=3600&lease=3600")).answer()
        assert next_one.body == payload
        for client in (leaving, producer):
            client.close()
        victim.tell(delete("jobs", next_one.id)).answer()
        for client in victim.clients:
            client.close()
        victim.clients.clear()
    assert payloads(jobs) == []


@pytest.mark.parametrize("leave", [Client.close, Client.send_no_more])
def test_who_leaves_before_its_fetch_began_claims_nothing(
    victim: Victim, jobs: penstock.Queue, leave: Callable[[Client], None]
) -> None:
    client = victim.tell(put(b"x" * 1_000_000) + get(query="?wait=3600&lease=3600") * 3 + put(b"never"))
    leave(client)
    victim.until_nobody_is_there()
    until(lambda: jobs.counts()["available"] == 1)
    assert victim.in_line == 0


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
def test_a_put_that_arrived_is_stored_whether_its_sender_stays_or_not(
    victim: Victim, jobs: penstock.Queue, leave: Callable[[Client], None]
) -> None:
    clients = [victim.tell(put(b"%d" % number)) for number in range(50)]
    until(lambda: jobs.count() == 50)
    clients += [victim.tell(put(b"%d" % number)) for number in range(50, 100)]
    for client in clients:
        leave(client)
    victim.until_nobody_is_there()
    found = sorted(map(int, payloads(jobs)))
    assert found == sorted(set(found))
    assert set(range(50)) <= set(found) <= set(range(100))


def test_clients_that_leave_at_any_byte_do_no_harm(victim: Victim, jobs: penstock.Queue) -> None:
    random = Random(3)
    for number in range(300):
        stream = put(b"%d" % number) + get(query="?wait=3600&lease=0.001") + get(query="?wait=3600&lease=0.001")
        client = victim.tell(stream[: random.randrange(len(stream))])
        time.sleep(random.choice([0, 0, 0.001]))
        random.choice([client.close, client.reset])()
        victim.clients.remove(client)
    victim.until_nobody_is_there()
    found = payloads(jobs)
    assert len(found) == len(set(found))


# Who comes in masses


def test_one_connection_more_than_allowed_is_told_to_come_back(serve: Serve) -> None:
    victim = serve(Limits(connections=5))
    there = [victim.tell(request("GET", "/jobs")) for _ in range(5)]
    assert [client.answer().status for client in there] == [200] * 5
    for _ in range(10):
        answer = victim.client().last_answer()
        assert answer.told == (503, "Overloaded")
        assert int(answer.headers[b"retry-after"]) > 0
    there[0].send(request("GET", "/jobs"))
    assert there[0].answer().status == 200
    there[0].close()
    until(lambda: len(victim.connections) == 4)
    there[1].send(request("GET", "/jobs"))
    assert there[1].answer().status == 200


def test_bodies_have_only_so_much_room_together(serve: Serve) -> None:
    victim = serve(Limits(buffered=100_000))
    one = victim.tell(put(b"x" * 60_000)[:-1])
    until(lambda: victim.service.buffered == 59_999)
    other = victim.tell(put(b"y" * 60_000))
    answer = other.last_answer()
    assert answer.told == (503, "Overloaded")
    assert int(answer.headers[b"retry-after"]) > 0
    assert victim.service.buffered == 59_999
    one.send(b"x")
    assert one.answer().status == 201
    until(lambda: victim.service.buffered == 0)
    assert victim.tell(put(b"y" * 60_000)).answer().status == 201
    assert payloads(victim.store.queue("jobs")) == [b"x" * 60_000, b"y" * 60_000]


def test_requests_that_wait_for_their_turn_take_up_room_too(serve: Serve) -> None:
    victim = serve(Limits(buffered=100_000))
    client = victim.tell(get(query="?wait=3600&lease=3600") + put(b"x" * 30_000) * 4)
    until(lambda: [each for each in victim.connections if each._refused is not None])
    assert victim.service.buffered == 90_000
    victim.store.queue("jobs").put(b"a")
    answers = client.answers()
    assert [answer.status for answer in answers] == [200, 201, 201, 201, 503]
    assert victim.service.buffered == 0
    client = victim.tell(get(query="?wait=3600", queue="default") + put(b"x" * 30_000) * 3)
    until(lambda: victim.service.buffered == 90_000)
    client.reset()
    until(lambda: victim.service.buffered == 0)


def test_a_body_that_is_discarded_takes_up_no_room_once_it_is_there(serve: Serve) -> None:
    victim = serve(Limits(buffered=100_000))
    client = victim.tell(get(query="?wait=3600") + request("PUT", "/jobs", body=b"x" * 90_000) * 5)
    until(lambda: [each for each in victim.connections if len(each._waiting) == 5])
    victim.store.queue("jobs").put(b"a")
    assert [client.answer().status for _ in range(6)] == [200, 204, 204, 204, 204, 204]


def test_a_thousand_clients_put_at_once(victim: Victim, jobs: penstock.Queue) -> None:
    clients = [victim.client() for _ in range(1_000)]
    for number, client in enumerate(clients):
        client.send(put(b"%d" % number)[:-1])
    for number, client in enumerate(clients):
        client.send(b"%d" % (number % 10))
    answers = [client.answer() for client in clients]
    assert {answer.status for answer in answers} == {201}
    assert len({answer.id for answer in answers}) == 1_000
    by_id = {message.id.encode(): message.payload for message in jobs.messages()}
    assert [by_id[answer.id] for answer in answers] == [b"%d" % number for number in range(1_000)]


def test_a_thousand_consumers_wait_at_once_and_each_gets_its_own(victim: Victim, jobs: penstock.Queue) -> None:
    clients = []
    for number in range(1_000):
        clients.append(victim.tell(get(query="?wait=3600&lease=3600")))
        if number % 100 == 99:
            until(lambda: victim.in_line == number + 1)  # noqa: B023 - called at once
    jobs.put_many([b"%d" % number for number in range(1_000)])
    assert sorted(int(client.answer().body) for client in clients) == list(range(1_000))


def test_queues_that_come_and_go_under_load_are_there_or_not_found(victim: Victim) -> None:
    statuses: list[set[int]] = []

    def hammer(requests: list[bytes]) -> None:
        client = victim.client()
        seen = set()
        for each in requests * 100:
            client.send(each)
            seen.add(client.answer().status)
        statuses.append(seen)

    work = [
        [request("PUT", "/brief"), request("DELETE", "/brief")],
        [put(b"a", "brief")],
        [get("brief", "?wait=0.001"), request("DELETE", "/brief/messages/1")],
        [request("GET", "/brief", b"Accept: */*\r\n"), request("GET", "/-/api/queues/brief/peek")],
    ]
    threads = [threading.Thread(target=hammer, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 4
    assert set().union(*statuses) <= {200, 201, 204, 404}


# What goes wrong in the server


@pytest.mark.parametrize(
    ("method", "message"), [("put_plainly", put(b"a")), ("run", put(b"a", headers=b"X-Message-Priority: 1\r\n"))]
)
def test_a_bug_is_told_to_the_log_and_to_nobody_else(
    victim: Victim,
    method: str,
    message: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError(f"cannot read {tmp_path}")

    with monkeypatch.context() as patch:
        patch.setattr(victim.service.backend, method, fail)
        assert victim.tell(message).last_answer().told == (500, "ServerError")
    [record] = caplog.records
    assert str(tmp_path) in caplog.text
    assert record.name == "penstock.server"
    caplog.clear()


def test_a_store_that_was_closed_is_503_for_everyone(tmp_path: Path) -> None:
    store = penstock.open(tmp_path / "secret-place")
    victim = Victim(store)
    try:
        client = victim.tell(get("default", "?wait=3600"))
        until(lambda: victim.in_line)
        store.close()
        assert client.answer().status == 503
        client.send(put(b"a", "default") + request("GET", "/default"))
        for _ in range(2):
            answer = client.answer()
            assert answer.told == (503, "StoreClosed")
            assert int(answer.headers[b"retry-after"]) > 0
        assert b"secret-place" not in b"".join(victim.said)
        client.close()
    finally:
        victim.running.stop()


# The end


def test_a_server_that_stops_finishes_what_it_does_and_begins_nothing_more(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        victim = Victim(store)
        polls = [victim.tell(get("default", "?wait=3600") * 3 + put(b"never", "default")) for _ in range(20)]
        idle = victim.client()
        arriving = victim.tell(put(b"never", "default")[:-1])
        refused = victim.tell(b"\0")
        until(lambda: victim.in_line == 20 and len(victim.connections) == 23)
        victim.running.stop()
        for poll in polls:
            assert poll.last_answer().told == (503, "StoreClosed")
        assert idle.answers() == []
        assert arriving.answers() == []
        assert refused.last_answer().status == 400
        assert payloads(store.queue()) == []
        assert victim.service.buffered == 0
        for client in victim.clients:
            client.close()


def test_a_put_that_is_being_stored_when_the_server_stops_is_answered(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as store:
        victim = Victim(store)
        live = victim.live.find("default")
        began, go_on = threading.Event(), threading.Event()
        commit = live.commit

        def slow(written: int) -> None:
            began.set()
            go_on.wait()
            commit(written)

        live.commit = slow
        client = victim.tell(put(b"a", "default"))
        began.wait()
        stopping = threading.Thread(target=victim.running.stop)
        stopping.start()
        until(lambda: victim.service.stopping)
        go_on.set()
        assert client.last_answer().status == 201
        stopping.join()
        live.commit = commit
        assert payloads(store.queue()) == [b"a"]
        client.close()
