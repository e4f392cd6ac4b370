"""Listing a queue over HTTP for who reads all of it: ranges, fields, parts, and the attempts of all messages."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock.contract import operations
from penstock.rules.rows import PAGE
from penstock.wire import frames
from tests.http.serving import serving

QUEUE = "/-/api/queues/jobs"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[penstock.Store]:
    with penstock.open(tmp_path, sync="never") as store:
        yield store


@pytest.fixture
def jobs(store: penstock.Store) -> penstock.Queue:
    return store.create("jobs", keep_done=None, max_attempts=2)


@pytest.fixture
def connection(store: penstock.Store) -> Iterator[HTTPConnection]:
    with serving(store) as server, closing(HTTPConnection(urlsplit(server.url).netloc)) as connection:
        yield connection


def get(connection: HTTPConnection, path: str, accept: str = "*/*", status: int = 200) -> bytes:
    connection.request("GET", QUEUE + path, headers={"Accept": accept})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == status, body
    return body


def get_json(connection: HTTPConnection, path: str, status: int = 200) -> Any:
    return json.loads(get(connection, path, status=status))


def test_a_range_of_ids_is_listed(jobs: penstock.Queue, connection: HTTPConnection) -> None:
    ids = jobs.put_many([b"%d" % number for number in range(1_000)])

    def listed(path: str) -> list[str]:
        return [each["id"] for each in get_json(connection, f"/messages?limit=1000&{path}")["messages"]]

    assert listed(f"after={ids[9]}&until={ids[700]}") == ids[10:701]
    assert listed(f"until={ids[0]}") == ids[:1]
    assert listed(f"after={ids[5]}&until={ids[5]}") == []
    assert listed(f"after={ids[998]}&until=99999") == ids[999:]
    jobs.remove(ids[3], ids[5])
    assert listed(f"after={ids[2]}&until={ids[5]}") == ids[4:5]  # ids of what is gone are still ends


def test_only_the_fields_that_are_asked_for_are_sent(jobs: penstock.Queue, connection: HTTPConnection) -> None:
    jobs.put("text", headers={"a": "b"}, priority=3)
    jobs.put(b"\xff", priority=4)
    assert get_json(connection, "/messages?fields=id,priority")["messages"] == [
        {"id": "1", "priority": 3},
        {"id": "2", "priority": 4},
    ]
    assert get_json(connection, "/messages?fields=payload,queue,headers")["messages"] == [
        {"queue": "jobs", "payload": "text", "headers": {"a": "b"}, "payload_base64": "dGV4dA=="},
        {"queue": "jobs", "payload": None, "headers": {}, "payload_base64": "/w=="},
    ]
    frame = get(connection, "/messages?fields=id,state,reason", accept=frames.MEDIA_TYPE)
    assert frames.decode_columns(frame) == ({"id": ["1", "2"], "state": "available"}, [b"", b""])
    frame = get(connection, "/messages?fields=payload", accept=frames.MEDIA_TYPE)
    assert frames.decode_columns(frame) == ({}, [b"text", b"\xff"])
    for fields in ("", "id,", "size", "id, state"):
        path = f"/messages?fields={fields.replace(' ', '%20')}"
        assert "a message has no" in get_json(connection, path, status=400)["detail"]


@pytest.mark.parametrize("count", [0, 1, PAGE, 10 * PAGE + 5])
@pytest.mark.parametrize("n", [1, 3, 7, 10_000])
def test_parts_have_every_message_once(
    jobs: penstock.Queue, connection: HTTPConnection, count: int, n: int
) -> None:
    jobs.put_many([b"gone"] * 1_500)
    jobs.purge()
    jobs.put_many([b"x"] * count)
    ends = list(map(int, get_json(connection, f"/parts?n={n}")["until"]))
    assert ends == sorted(set(ends))
    assert len(ends) <= n
    sizes, after = [], 0
    for until in ends:
        sizes.append(len([each for each in range(1_501, 1_501 + count) if after < each <= until]))
        after = until
    assert sum(sizes) == count
    assert 0 not in sizes
    assert max(sizes, default=0) <= count / min(n, 10) + 2 * PAGE
    assert get_json(connection, "/parts?n=0", status=400)["error"] == "InvalidArgument"


def test_the_attempts_at_all_messages_are_listed_page_by_page(
    jobs: penstock.Queue, connection: HTTPConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_LOOKED_AT", 100)
    monkeypatch.setattr(operations, "_LISTED", 30)
    jobs.put_many([b"x"] * 1_000)
    jobs.remove(*[str(number) for number in range(500, 700)])
    for _ in range(2):
        jobs.fail(*jobs.claim(40), reason="no luck")
    jobs.ack(*jobs.claim(7, consumer="me"))
    expected = [
        {"id": message.id, **attempt._asdict()}
        for message in jobs.messages()
        for attempt in jobs.attempts(message.id)
    ]
    found: list[Any] = []
    after, pages = "", 0
    while after is not None:
        page = get_json(connection, f"/attempts?after={after}")
        found += page["attempts"]
        assert len(page["attempts"]) <= 31
        after, pages = page["next"], pages + 1
    assert found == expected
    assert len(found) == 87
    assert 8 <= pages <= 20
    page = get_json(connection, "/attempts?after=2&until=4")
    assert ({each["id"] for each in page["attempts"]}, page["next"]) == ({"3", "4"}, None)


def test_a_queue_without_a_name_is_not_the_default_one(store: penstock.Store, connection: HTTPConnection) -> None:
    store.queue().put(b"a")
    for method, path in [("POST", "/purge"), ("POST", "/claim"), ("GET", "/messages")]:
        connection.request(method, f"/-/api/queues/{path}")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]) == (404, "NotFound")
    assert store.queue().counts()["available"] == 1


def test_a_message_without_an_id_has_no_attempts(jobs: penstock.Queue, connection: HTTPConnection) -> None:
    assert get_json(connection, "/messages//attempts") == {"attempts": []}


@pytest.mark.parametrize("kind", ["memory", "journal", "text", "folder", "slate"])
def test_a_claim_ends_where_the_answer_would_be_too_large(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open("memory:" if kind == "memory" else f"{kind}:{tmp_path / 'store'}") as store:
        jobs = store.create("jobs")
        assert store.backend.run(operations.Claim("jobs", 4, 30.0, 0, "me", 250)) == []
        # Of what is claimed, not of what an earlier look has found: messages may come meanwhile.
        monkeypatch.setattr(type(store.backend), "peek", None, raising=False)
        jobs.put_many([b"%d" % number + b"x" * 99 for number in range(5)])
        claimed = [store.backend.run(operations.Claim("jobs", 4, 30.0, 0, "me", most)) for most in (250, 1, None)]
        assert [b"".join(message.payload[:1] for message in each) for each in claimed] == [b"01", b"2", b"34"]
