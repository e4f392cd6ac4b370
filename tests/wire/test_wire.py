"""Frames, JSON and problem details: round trips and refusals."""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import InvalidArgument, LeaseExpired, Message, PenstockError, Settings, errors
from penstock.contract import refusals
from penstock.contract.arguments import settings_from_json
from penstock.contract.message import LATEST, Attempt, Entry, Plain
from penstock.contract.settings import QueueInfo
from penstock.wire import frames, jsons, problems

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
headers = st.dictionaries(texts.filter(lambda name: name and not name.startswith("penstock.")), texts, max_size=3)
times = st.integers(0, LATEST)
priorities = st.integers(-(2**63), 2**63 - 1)
durations = st.integers(0, 4_294_967_295) | st.floats(0, 4_294_967_295)
entries = st.builds(
    Entry,
    payload=st.binary(max_size=50),
    priority=st.just(0) | priorities,
    headers=st.none() | headers,
    delay=st.just(0) | durations,
    retention=st.none() | durations,
    key=st.none() | texts.filter(bool),
    created_at=st.none() | times,
)
messages = st.builds(
    Message,
    id=texts,
    queue=st.just("jobs"),
    payload=st.binary(max_size=50),
    headers=headers,
    priority=priorities,
    created_at=times,
    received_at=times,
    visible_at=times,
    expires_at=st.none() | times,
    attempts=st.integers(0, 2**32),
    state=st.sampled_from(["delayed", "available", "in_flight", "done", "failed"]),
    receipt=st.none() | texts,
    claimed_at=st.none() | times,
    lease_until=st.none() | times,
    consumer=st.none() | texts,
    settled_at=st.none() | times,
    reason=st.none() | texts,
)
MESSAGE = Message("7", "jobs", b"hello", {"kind": "a"}, 3, 10, 11, 12, None, 1, "in_flight", "7.ff", 13, 14, "me")


def encode_messages(messages: list[Message]) -> bytes:
    return b"".join(frames.message_parts(messages))


def frame(head: object, payloads: bytes = b"") -> bytes:
    encoded = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(encoded)) + encoded + payloads


@given(st.lists(entries, max_size=10))
def test_drafts_come_out_of_a_frame_as_they_went_in(drafts: list[Entry]) -> None:
    assert list(frames.decode_entries(frames.encode_entries(drafts))) == drafts


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=10))
def test_payloads_alone_stay_payloads_alone(payloads: list[bytes]) -> None:
    decoded = frames.decode_entries(frames.encode_entries(Plain(payloads)))
    assert isinstance(decoded, Plain)
    assert decoded.payloads == payloads


@given(st.lists(entries, max_size=5), st.integers(0, LATEST // 2))
def test_times_take_the_place_of_delays_and_retentions(drafts: list[Entry], now: int) -> None:
    staged = frames.decode_staged(frames.with_times(frames.encode_entries(drafts), now))
    assert list(staged.entries) == [replace(entry, delay=0, retention=None) for entry in drafts]
    for at, entry in enumerate(drafts):
        visible = staged.visible_at[at] if staged.visible_at else None
        expires = staged.expires_at[at] if staged.expires_at else None
        assert visible == (now + max(1, round(entry.delay * 1000)) if entry.delay else None)
        kept = entry.retention
        assert expires == (None if kept is None else now + max(1, round(kept * 1000)) if kept else 0)


@given(st.lists(messages, max_size=10))
def test_messages_come_out_of_a_frame_as_they_went_in(batch: list[Message]) -> None:
    assert frames.decode_messages(encode_messages(batch), "jobs") == batch


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_refused(body: bytes) -> None:
    for decode in (frames.decode_entries, lambda body: frames.decode_messages(body, "jobs")):
        with pytest.raises(InvalidArgument):
            decode(body)


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_damaged_frame_is_refused_or_read_as_another_one(batch: list[Message], data: st.DataObject) -> None:
    body = bytearray(encode_messages(batch))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(InvalidArgument):
        assert len(frames.decode_messages(bytes(body), "jobs")) <= len(body)


def test_a_frame_is_laid_out_as_documented() -> None:
    drafts = [Entry(b"hello", 3), Entry(b"world!", 7)]
    assert frames.encode_entries(drafts) == b'\x00\x00\x00\x20{"sizes":[5,6],"priority":[3,7]}helloworld!'


def test_what_is_the_same_for_all_is_sent_once_and_defaults_are_not_sent() -> None:
    drafts = [Entry(b"a", -1, {"kind": "a"}, delay=5), Entry(b"b", -1, {"kind": "a"}, delay=5, key="k")]
    body = frames.encode_entries(drafts)
    assert json.loads(body[4:-2]) == {
        "sizes": [1, 1],
        "priority": -1,
        "headers": {"kind": "a"},
        "delay": 5,
        "key": [None, "k"],
    }
    first, second = frames.decode_entries(body)
    assert first.headers is not second.headers


def test_messages_that_share_headers_do_not_share_the_dict() -> None:
    first, second = frames.decode_messages(encode_messages([MESSAGE, replace(MESSAGE)]), "jobs")
    first.headers["kind"] = "b"
    assert second.headers == {"kind": "a"}


def test_a_newer_server_may_say_more_of_a_message() -> None:
    body = encode_messages([MESSAGE])
    head = json.loads(body[4:-5])
    assert frames.decode_messages(frame({**head, "colour": "red", "shape": [1]}, b"hello"), "jobs") == [MESSAGE]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "a frame of 0 bytes"),
        (b"\x00\x00\x00", "a frame of 3 bytes"),
        (b"\x00\x00\x00\x05{}", "has 5 bytes, but only 2 follow"),
        (struct.pack(">I", frames.MAX_HEAD + 1) + b" " * (frames.MAX_HEAD + 1), "the most is 16777216"),
        (frame(b"{"), "not a JSON document in UTF-8"),
        (frame(b"\xff{}"), "not a JSON document in UTF-8"),
        (frame(b'{"sizes":[1],"delay":NaN}', b"a"), "NaN is no JSON"),
        (frame(b"[" * 100_000), "not a JSON document"),
        (frame([]), "is a JSON object"),
        (frame({}), "'sizes' in the head"),
        (frame({"sizes": 3}), "'sizes' in the head"),
        (frame({"sizes": [-1, 1]}), "'sizes' in the head"),
        (frame({"sizes": [True]}, b"a"), "'sizes' in the head"),
        (frame({"sizes": [1.0]}, b"a"), "'sizes' in the head"),
        (frame({"sizes": [2]}, b"a"), "2 bytes by their sizes, but 1 follow"),
        (frame({"sizes": [1]}, b"ab"), "1 bytes by their sizes, but 2 follow"),
        (frame({"sizes": [0] * 100_001}), "a batch of 100001 messages; the most is 100000"),
        (frame({"sizes": [1], "priority": [1, 2]}, b"a"), "'priority' of a frame has 2 values for 1 messages"),
        (frame({"sizes": [1], "priority": []}, b"a"), "'priority' of a frame has 0 values"),
        (frame({"sizes": [1], "colour": "red"}, b"a"), "a draft has no 'colour'; it has created_at, delay"),
        (frame({"sizes": [1, 1], "priority": [1, "2"]}, b"ab"), "message 1 of the batch: priority is an integer"),
        (frame({"sizes": [1], "delay": -1}, b"a"), "message 0 of the batch: delay=-1 is not a duration"),
        (frame({"sizes": [1], "headers": {"a": 1}}, b"a"), "message 0 of the batch: headers are str: str"),
        (frame({"sizes": [1], "key": "\ud800"}, b"a"), "not valid Unicode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_frame_of_drafts_is_refused_with_the_reason(body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint.replace("(", r"\(")):
        frames.decode_entries(body)


@pytest.mark.parametrize("name", ["id", "priority", "state", "attempts", "received_at"])
@pytest.mark.parametrize("value", [None, [None], {}, 1.5])
def test_a_message_lacks_nothing_it_must_have(name: str, value: object) -> None:
    body = encode_messages([MESSAGE])
    head = {**json.loads(body[4:-5]), name: value}
    with pytest.raises(InvalidArgument, match=f"'{name}' of a frame has values of a wrong type"):
        frames.decode_messages(frame(head, b"hello"), "jobs")


@given(entries)
def test_a_draft_may_be_json(entry: Entry) -> None:
    fields = {name: getattr(entry, name) for name in ("priority", "headers", "delay", "retention", "key")}
    given = json.loads(
        jsons.dumps({**fields, "created_at": entry.created_at, "payload_base64": _base64(entry.payload)})
    )
    assert jsons.entry_from_json(given) == entry


def _base64(payload: bytes) -> str:
    return str(jsons.message_as_json(replace(MESSAGE, payload=payload))["payload_base64"])


def test_a_payload_is_text_or_base64() -> None:
    assert jsons.entry_from_json({"payload": "größe"}).payload == "größe".encode()
    assert jsons.entry_from_json({"payload": "", "payload_base64": None}).payload == b""
    assert jsons.entry_from_json({"payload_base64": "AP8="}).payload == b"\x00\xff"
    text = jsons.message_as_json(MESSAGE)
    assert (text["payload"], text["payload_base64"]) == ("hello", "aGVsbG8=")
    binary = jsons.message_as_json(replace(MESSAGE, payload=b"\xff"))
    assert (binary["payload"], binary["payload_base64"]) == (None, "/w==")
    assert {"id", "queue", "headers", "receipt", "lease_until", "reason"} < set(text)
    assert not any(name.startswith("_") for name in text)


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        ([], "a message is a JSON object, not a list"),
        ({}, "give one of them"),
        ({"payload": "a", "payload_base64": "YQ=="}, "give one of them"),
        ({"payload": 3}, "payload is text, not a number"),
        ({"payload_base64": "a"}, "no base64"),
        ({"payload_base64": "YQ=\n="}, "no base64"),
        ({"payload_base64": "ü"}, "no base64"),
        ({"payload_base64": 7}, "no base64"),
        ({"payload": "a", "id": "7"}, "has no 'id'"),
        ({"payload": "a", "priority": 1.5}, "priority is an integer"),
        ({"payload": "a", "headers": []}, "headers are a dict"),
        ({"payload": "\ud800"}, "not valid Unicode"),
    ],
)
def test_a_wrong_draft_is_refused_with_the_reason(draft: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        jsons.entry_from_json(draft)
    with pytest.raises(InvalidArgument, match=f"message 1 of the batch: .*{complaint}"):
        jsons.entries_from_json({"messages": [{"payload": "fine"}, draft]})


def test_a_batch_is_an_object_with_a_list_of_messages() -> None:
    assert jsons.entries_from_json({"messages": []}) == []
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "with a list of messages"),
        ({"messages": {}}, "with a list of messages"),
        ({"messages": [], "more": 1}, "a batch has no 'more'"),
        ({"messages": [{}] * 100_001}, "the most is 100000"),
    ]
    for batch, complaint in wrong:
        with pytest.raises(InvalidArgument, match=complaint):
            jsons.entries_from_json(batch)


def test_a_body_is_one_json_object_or_nothing() -> None:
    assert jsons.loads_object(b"") == {}
    assert jsons.loads_object(b'{"a": 1}') == {"a": 1}
    for body in (b"[]", b"3", b"{} {}", b'"a"', b"\xef\xbb\xbf{}", b"1" * 10_000):
        with pytest.raises(InvalidArgument):
            jsons.loads_object(body)


SETTINGS = Settings(
    max_size=3,
    max_attempts=7,
    keep_done=None,
    filter="type = 'ö' AND priority < 3",
    max_payload=100,
    priorities=(-2, 9),
    max_lease=99.5,
    retention=1000,
    description="für alle",
)


def test_a_queue_comes_back_as_it_was_described() -> None:
    for settings in (Settings(), SETTINGS):
        info = QueueInfo("a/b", settings, {"available": 3})
        described = json.loads(jsons.dumps(jsons.queue_as_json(info)))
        described["settings"]["colour"] = described["colour"] = "of a newer server"
        assert jsons.queue_from_json(described) == info
        assert settings_from_json(json.loads(jsons.dumps(dict(settings)))) == settings


@pytest.mark.parametrize("garbage", [{}, {"name": "a"}, {"name": "a", "settings": [], "counts": 3}])
def test_what_describes_no_queue_is_refused(garbage: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        jsons.queue_from_json(garbage)


def test_settings_are_read_from_a_query() -> None:
    query = [
        ("max_size", "3"), ("max_attempts", "7"), ("keep_done", "none"), ("filter", SETTINGS.filter or ""),
        ("max_payload", "100"), ("priorities", "-2,9"), ("max_lease", "99.5"), ("retention", "1000"),
        ("description", "für alle"), ("start", "now"),
    ]  # fmt: skip
    read = jsons.settings_from_query(query)
    assert read == SETTINGS
    assert type(read.retention) is int
    assert jsons.settings_from_query([]) == Settings()
    nothing = jsons.settings_from_query([("filter", "none"), ("priorities", "none"), ("description", "none")])
    assert nothing == Settings(description="none")
    assert jsons.settings_from_query([("start", "17")]).start == 17


@pytest.mark.parametrize(
    ("query", "kind", "complaint"),
    [
        ([("colour", "red")], InvalidArgument, "a queue has no 'colour'; it has description"),
        ([("max_size", "3"), ("max_size", "3")], InvalidArgument, "max_size is given twice"),
        ([("max_size", "three")], InvalidArgument, "max_size='three' is not a number"),
        ([("max_size", "1.5")], InvalidArgument, "max_size is an integer"),
        ([("max_size", "none")], InvalidArgument, "is not a number"),
        ([("keep_done", "nan")], InvalidArgument, "is not a duration"),
        ([("priorities", "1")], InvalidArgument, "is not a range"),
        ([("priorities", "9,1")], InvalidArgument, "is empty"),
        ([("filter", "")], penstock.InvalidFilter, "filter"),
        ([("filter", "DROP TABLE")], penstock.InvalidFilter, "unexpected TABLE"),
    ],
)
def test_a_wrong_query_is_refused_with_the_reason(
    query: Sequence[tuple[str, str]], kind: type[PenstockError], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        jsons.settings_from_query(query)


@pytest.mark.parametrize(
    "settings", [[], {"colour": 1}, {"max_size": "3"}, {"start": None}, {"start": True}, {"filter": 3}]
)
def test_wrong_settings_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidArgument):
        settings_from_json(settings)


def test_attempts_come_back_as_they_were_described() -> None:
    for attempt in (Attempt(1, "me", 10), Attempt(2, None, 10, 20, "failed", "größe")):
        described = json.loads(jsons.dumps(attempt._asdict()))
        assert jsons.attempt_from_json({**described, "colour": "of a newer server"}) == attempt
    with pytest.raises(InvalidArgument):
        jsons.attempt_from_json({"attempt": 1})


ERRORS = [getattr(penstock, name) for name in problems.STATUSES]


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind is not LeaseExpired])
def test_an_error_arrives_as_what_it_was(kind: type[PenstockError]) -> None:
    status, problem = problems.as_problem(kind("what happened in /home/me/data"))
    assert status == problem["status"] == problems.STATUSES[kind.__name__]
    assert problem["title"] == problem["error"] == kind.__name__
    assert problem["type"] == f"/-/docs#{kind.__name__}"
    arrived = problems.as_error(json.loads(jsons.dumps(problem)))
    assert type(arrived) is kind
    assert str(arrived) == problem["detail"]


def test_an_error_arrives_with_its_advice_for_every_caller() -> None:
    error = refusals.full("jobs", 2, 2, 1)
    _, problem = problems.as_problem(error)
    arrived = problems.as_error(json.loads(jsons.dumps(problem)))
    assert (type(arrived), str(arrived)) == (penstock.QueueFull, str(error))
    assert (arrived.what, arrived.advice) == (error.what, error.advice)
    assert problems.as_problem(arrived) == problems.as_problem(error)
    assert error.advice is not None
    assert problem["detail"] == f"{error.what}: {error.advice.http}"


@pytest.mark.parametrize("advice", [None, "x", {}, {"what": "x", "python": "x", "command": "x"}, {"what": 1}])
def test_an_error_without_advice_for_every_caller_says_its_detail(advice: object) -> None:
    problem = {"error": "QueueNotFound", "detail": "there is no queue 'a'", "advice": advice}
    arrived = problems.as_error(problem)
    assert (type(arrived), str(arrived), arrived.advice) == (penstock.QueueNotFound, "there is no queue 'a'", None)


def test_every_error_of_the_contract_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    named = {kind.__name__ for kind in kinds if issubclass(kind, PenstockError)}
    assert named - {"PenstockError"} == set(problems.STATUSES)


def test_lost_receipts_arrive_by_name() -> None:
    status, problem = problems.as_problem(LeaseExpired("jobs", ["1.a", "\ud800"]))
    arrived = problems.as_error(json.loads(jsons.dumps(problem)))
    assert status == 409
    assert isinstance(arrived, LeaseExpired)
    assert (arrived.queue, arrived.receipts) == ("jobs", ["1.a", "\ud800"])


@pytest.mark.parametrize(
    "error",
    [
        penstock.StoreClosed("/home/me/data"),
        penstock.StoreCorrupt("/home/me/data"),
        penstock.StoreLocked("/home/me/data"),
        penstock.StoreUnreachable("http://inner:1/home/me/data"),
        penstock.DiskFull("/home/me/data"),
        PenstockError("/home/me/data"),
        OSError(28, "No space left on device", "/home/me/data"),
        KeyError("/home/me/data"),
    ],
)
def test_what_is_only_the_servers_business_stays_there(error: Exception) -> None:
    status, problem = problems.as_problem(error)
    assert status >= 500
    assert "/home" not in json.dumps(problem)
    assert "Traceback" not in json.dumps(problem)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ({"error": "Overloaded", "detail": "too many"}, "too many (Overloaded)"),
        ({"error": "LeaseExpired", "detail": "lost"}, "lost (LeaseExpired)"),
        ({"error": "Sequence", "detail": "x"}, "x (Sequence)"),
        ({"detail": "x"}, "x"),
        ({"title": "Bad Gateway"}, "Bad Gateway"),
        ({"error": 3, "detail": 4}, "the server gave no reason"),
        ({}, "the server gave no reason"),
    ],
)
def test_a_problem_of_an_unknown_name_is_still_an_error_of_ours(problem: dict[str, Any], text: str) -> None:
    arrived = problems.as_error(problem)
    assert type(arrived) is PenstockError
    assert str(arrived) == text
