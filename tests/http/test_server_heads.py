"""Requests whose heads the server knows by heart are answered as if it read them for the first time."""

from pathlib import Path

import pytest

import penstock
from penstock.contract import roles
from penstock.http.server import Access, connection, exchange, serve_in_thread, tokens
from penstock.http.server.routes import find
from tests.http.victim import Client, Victim, chunk, chunked, get, put, request


def known(server: Victim) -> int:
    return len(server.service.heads._known)


def parsed(head: bytes, **headers: bytes) -> exchange.Request:
    """What the parser makes of a put with these headers."""
    method, target = head.split(b" ")[:2]
    given = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return exchange.Request(exchange.Head(*find(method, target), given, False, method, target), None)


def test_the_same_request_is_answered_alike_the_second_time(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.client()
    for payload in (b"one", b"two", b"six"):
        client.send(put(payload))
        assert client.answer().status == 201
    assert known(victim) == 1
    assert [message.payload for message in jobs.messages()] == [b"one", b"two", b"six"]


def test_a_known_request_may_come_in_pieces(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.tell(put(b"whole"))
    assert client.answer().status == 201
    for byte in put(b"piece"):
        client.send(bytes([byte]))
    assert client.answer().status == 201
    assert [message.payload for message in jobs.messages()] == [b"whole", b"piece"]


def test_known_requests_may_come_together_and_are_answered_in_turn(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.tell(put(b"0000"))
    assert client.answer().status == 201
    client.send(put(b"0001") + get() + put(b"0002") + put(b"00")[:-1])
    assert [client.answer().status for _ in range(3)] == [201, 200, 201]
    client.send(b"3" + put(b"0004"))
    assert [client.answer().status for _ in range(2)] == [201, 201]
    assert [message.payload for message in jobs.messages()] == [b"0000", b"0001", b"0002", b"03", b"0004"]


def test_the_end_of_a_head_in_a_payload_is_payload(victim: Victim, jobs: penstock.Queue) -> None:
    client = victim.client()
    for _ in range(3):
        client.send(put(b"a\r\n\r\n" + put(b"b")))
        assert client.answer().status == 201
    assert {message.payload for message in jobs.messages()} == {b"a\r\n\r\n" + put(b"b")}


def test_a_known_head_with_a_refused_payload_is_refused_in_the_same_words(victim: Victim) -> None:
    victim.store.create("small", max_payload=10)
    victim.store.create("sized", max_payload=20)
    client = victim.tell(put(b"x" * 15, "sized"))
    assert client.answer().status == 201
    victim.store.delete("sized")
    victim.store.create("sized", max_payload=10)
    client.send(put(b"x" * 15, "sized"))
    refused = client.last_answer()
    strange = victim.tell(put(b"x" * 15, "small")).last_answer()
    assert (refused.status, refused.error) == (strange.status, strange.error) == (413, "PayloadTooLarge")
    assert refused.body.replace(b"sized", b"small") == strange.body


def test_a_known_head_of_a_queue_that_has_gone_is_404(victim: Victim) -> None:
    victim.store.create("brief")
    client = victim.tell(put(b"a", "brief"))
    assert client.answer().status == 201
    victim.store.delete("brief")
    client.send(put(b"b", "brief") + request("GET", "/jobs"))
    answer = client.answer()
    assert (answer.status, answer.error) == (404, "QueueNotFound")
    assert client.answer().status == 200


def test_a_token_that_was_taken_back_is_refused_though_its_requests_are_known(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens")
    secret = tokens.create(path, "producer", roles.WRITE)
    message = put(b"a", "default", f"Authorization: Bearer {secret}\r\n".encode())
    with penstock.open(tmp_path / "store") as store:
        access = Access(path)
        running = serve_in_thread(store, access=access)
        client = Client(int(running.url.rpartition(":")[2]), [])
        try:
            for _ in range(2):
                client.send(message)
                assert client.answer().status == 201
            tokens.revoke(path, "producer")
            access.reload()
            client.send(message)
            assert client.last_answer().status == 401
        finally:
            client.close()
            running.stop()


def test_what_only_the_parser_understands_is_not_learned(victim: Victim) -> None:
    client = victim.client()
    for each in (
        chunked(chunk(b"a"), chunk(b"")),
        put(b"a", headers=b"X-Request-Id: mine\r\n"),
        put(b"a") + put(b"b"),
    ):
        client.send(each)
        while client.answer().headers.get(b"x-message-id") is None:
            pass
    client.answer()
    assert known(victim) == 0


def test_no_more_heads_are_known_than_the_memory_is_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST", 3)
    learned = connection.Heads()
    for number in range(10):
        head = b"POST /q%d/messages HTTP/1.1\r\nContent-Length: 1\r\n\r\n" % number
        learned.learn(head + b"a", parsed(head, content_length=b"1"))
        found = learned.find(head + b"b")
        assert found is not None
        assert (found.start, found.head.arguments) == (len(head), (f"q{number}",))
        assert len(learned._known) <= 3
    long = b"POST /q/messages HTTP/1.1\r\nX: %b\r\nContent-Length: 0\r\n\r\n" % (b"x" * exchange.LONG)
    learned.learn(long, parsed(long, content_length=b"0"))
    assert learned.find(long) is None


def ack(message: penstock.Message, queue: str = "jobs") -> bytes:
    return request("DELETE", f"/{queue}/messages/{message.id}?receipt={message.receipt}")


def lines(server: Victim) -> int:
    return len(server.service.heads._lines)


def test_an_ack_whose_header_lines_are_known_does_what_a_first_one_does(
    victim: Victim, jobs: penstock.Queue
) -> None:
    jobs.put_many([b"%d" % number for number in range(4)])
    first, second, third, fourth = jobs.claim(4)
    client = victim.tell(ack(first))
    assert client.answer().status == 204
    assert lines(victim) == 1
    client.send(ack(second))
    assert client.answer().status == 204
    client.send(ack(third) + ack(fourth))
    assert [client.answer().status for _ in range(2)] == [204, 204]
    assert list(jobs.messages()) == []
    assert known(victim) == 1  # each ack has another path: none of them is asked for again


@pytest.mark.parametrize(
    "asked",
    [
        request("DELETE", "/jobs/messages/1?receipt=1.0000000000000000"),
        request("DELETE", "/jobs/messages/1?receipt=2.0000000000000000"),
        request("DELETE", "/jobs/messages/1?receipt="),
        request("DELETE", "/jobs/messages/1?receipt=1&receipt=1"),
        request("DELETE", "/jobs/messages/1?other=1"),
        request("DELETE", "/jobs/messages/7"),
        request("DELETE", "/nothing/messages/1?receipt=1.0000000000000000"),
        request("DELETE", "/nothing/at/all/here"),
        request("DELETE", "/jobs/messages/%zz"),
        request("GET", "/nothing/messages"),
    ],
)
def test_a_refusal_is_the_same_whether_the_header_lines_are_known_or_not(
    victim: Victim, jobs: penstock.Queue, asked: bytes
) -> None:
    parsed_first = victim.tell(asked).answer()
    victim.service.heads._known.clear()
    client = victim.tell(request("GET", "/jobs"))
    assert client.answer().status == 200
    assert lines(victim) == 1
    client.send(asked)
    again = client.answer()
    assert (again.status, again.body) == (parsed_first.status, parsed_first.body)
    assert again.status >= 400


@pytest.mark.parametrize(
    "header", [b"User-Agent: Mozilla/5.0\r\n", b"Origin: http://localhost\r\n", b"Sec-Fetch-Site: same-origin\r\n"]
)
def test_header_lines_of_a_browser_are_checked_each_time(victim: Victim, header: bytes) -> None:
    victim.tell(request("GET", "/jobs", header)).answer()
    assert lines(victim) == 0


def test_no_more_header_lines_are_known_than_the_memory_is_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST", 3)
    learned = connection.Heads()
    for number in range(10):
        head = b"GET /q/messages HTTP/1.1\r\nX: %d\r\n\r\n" % number
        learned.learn(head, parsed(head, x=b"%d" % number))
        assert learned.find_lines(head) is not None
        assert len(learned._lines) <= 3
    long = b"GET /q/messages HTTP/1.1\r\nX: %b\r\n\r\n" % (b"x" * exchange.LONG)
    learned.learn(long, parsed(long))
    assert learned.find_lines(long) is None
