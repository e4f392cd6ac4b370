"""`GET Q/find`: pages of messages by state and by a text, for people."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

import penstock
from penstock.contract.monitoring import LOOKED_AT
from penstock.http.server import RunningServer
from tests.http.serving import ask, serving


@pytest.fixture(scope="module")
def store() -> Iterator[penstock.Store]:
    with penstock.open("memory:") as store:
        queue = store.create("jobs", max_attempts=1)
        queue.put("A Payload", headers={"Kind": "Image"}, group="Group-1")
        queue.put(b"\xff\x00 broken")
        queue.put_many([f"number {number}" for number in range(8)])
        [message] = queue.claim(consumer="Worker-7")
        message.fail(reason="No Route")
        store.create("long").put_many(["x"] * (LOOKED_AT + 500) + ["needle"])
        store.create("large").put_many(["y" * 1_000_000] * 20)
        yield store


@pytest.fixture(scope="module")
def server(store: penstock.Store) -> Iterator[RunningServer]:
    with serving(store) as running:
        yield running


def find(server: RunningServer, queue: str = "jobs", **query: Any) -> Any:
    status, _, body = ask(server.url, f"/-/api/queues/{queue}/find?{urlencode(query)}")
    return json.loads(body) if status == 200 else status


def ids(found: Any) -> list[str]:
    return [message["id"] for message in found["messages"]]


@pytest.mark.parametrize("text", ["payload", "KIND", "image", "group-1", "worker-7", "no route", "A Pay"])
def test_a_text_is_found_wherever_it_is(server: RunningServer, text: str) -> None:
    assert ids(find(server, text=text)) == ["1"]


def test_a_message_is_described_in_short(server: RunningServer) -> None:
    first, second, *_ = find(server)["messages"]
    assert (first["size"], first["preview"], first["state"], first["reason"]) == (
        9,
        "A Payload",
        "failed",
        "No Route",
    )
    assert second["preview"] == "\ufffd\x00 broken"
    assert not {"receipt", "payload", "payload_base64", "headers"} & first.keys()


def test_pages_end_where_the_next_one_begins(server: RunningServer) -> None:
    page = find(server, limit=4)
    seen = ids(page)
    while page["next"] is not None:
        page = find(server, limit=4, after=page["next"])
        seen += ids(page)
    assert seen == [str(number) for number in range(1, 11)]
    assert find(server, limit=10)["next"] is None
    assert ids(find(server, state="failed")) == ["1"]
    assert ids(find(server, state="available", text="number 3")) == ["6"]
    assert find(server, text="nowhere") == {"messages": [], "looked": 10, "next": None}


def test_a_page_looks_at_a_bounded_number_of_messages_and_bytes(server: RunningServer) -> None:
    page = find(server, "long", text="needle")
    assert (page["messages"], page["looked"]) == ([], LOOKED_AT)
    assert len(find(server, "long", text="needle", after=page["next"])["messages"]) == 1
    page = find(server, "large")
    assert page["looked"] < 12
    assert all(len(message["preview"]) == 300 for message in page["messages"])


def test_what_cannot_be_asked_is_refused(server: RunningServer) -> None:
    for query in ({"state": "odd"}, {"limit": 0}, {"text": "x" * 201}, {"strange": 1}):
        assert find(server, **query) == 400
    assert find(server, "nobody") == 404
