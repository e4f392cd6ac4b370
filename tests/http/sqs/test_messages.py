"""Attributes, checksums and receipt handles, for every message there may be."""

import hashlib
import json
import struct
import uuid
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract.message import MAX_HEADER_BYTES, SQS_HEADER, Message, checked_headers
from penstock.http.server.sqs import messages
from penstock.http.server.sqs.errors import SqsError

ALL = messages.wanted(["All"], ["All"])
ARN = "arn:aws:sqs:us-east-1:000000000000:"

plain_text = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), min_size=1)
labels = st.sampled_from(["", ".uuid", ".int é"])
attribute = st.one_of(
    st.tuples(labels.map("String{}".format), plain_text.map(lambda text: {"StringValue": text})),
    st.tuples(labels.map("Number{}".format), st.integers().map(lambda number: {"StringValue": str(number)})),
    st.tuples(labels.map("Binary{}".format), st.binary(min_size=1).map(lambda data: {"BinaryValue": data})),
).map(lambda typed: {**typed[1], "DataType": typed[0]})
names = st.one_of(st.from_regex(r"[A-Za-z0-9_-]{1,20}(\.[A-Za-z0-9_-]{1,9})?", fullmatch=True)).filter(
    lambda name: not name.lower().startswith(("aws.", "amazon."))
)
values = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("atdg") | st.text(), inner),
)
attributes = st.dictionaries(st.one_of(names, names.map("penstock.{}".format)), attribute, max_size=10)


def received(
    headers: dict[str, str] | None, payload: bytes = b"x", queue: str = "jobs", **more: Any
) -> dict[str, Any]:
    message = Message(
        "7", queue, payload, headers or {}, 0, 5, 6, 6, None, 1, "in_flight", f"7.{'0' * 16}", 8, **more
    )
    return messages.as_sqs(message, ALL, ARN + queue, None)


def reference(attributes: dict[str, Any]) -> str:
    """The checksum as Amazon's documentation describes it."""
    data = b""
    for name, value in sorted(attributes.items()):
        kind = value["DataType"].encode()
        is_binary = kind.startswith(b"Binary")
        content = value["BinaryValue"] if is_binary else value["StringValue"].encode()
        data += struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(kind)) + kind
        data += (b"\2" if is_binary else b"\1") + struct.pack(">I", len(content)) + content
    return hashlib.md5(data).hexdigest()


@given(attributes)
def test_attributes_come_back_with_the_checksum_with_which_they_were_sent(attributes: dict[str, Any]) -> None:
    sent = messages.sent({"MessageAttributes": attributes}, False)
    checked_headers(sent.headers or {})  # so that a Python program may put them again
    message = received(sent.headers)
    back = {
        name: {**value, "BinaryValue": b64decode(value["BinaryValue"])} if "BinaryValue" in value else value
        for name, value in message.get("MessageAttributes", {}).items()
    }
    assert back == attributes
    assert sent.sums == ({"MD5OfMessageAttributes": reference(attributes)} if attributes else {})
    assert message.get("MD5OfMessageAttributes") == sent.sums.get("MD5OfMessageAttributes")


@given(attributes)
def test_attributes_of_type_string_are_headers(attributes: dict[str, Any]) -> None:
    headers = messages.sent({"MessageAttributes": attributes}, False).headers or {}
    plain = {
        name: value["StringValue"]
        for name, value in attributes.items()
        if value["DataType"] == "String" and not name.startswith("penstock.")
    }
    assert {name: value for name, value in headers.items() if name != SQS_HEADER} == plain
    assert (SQS_HEADER in headers) == (len(plain) < len(attributes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", {"DataType": "Text", "StringValue": "b"}),
        ("a", {"DataType": "", "StringValue": "b"}),
        ("a", {"DataType": "String." + "x" * 250, "StringValue": "b"}),
        ("a", {"DataType": "String.\ud800", "StringValue": "b"}),
        ("a", {"DataType": "String"}),
        ("a", {"DataType": "String", "StringValue": ""}),
        ("a", {"DataType": "String", "StringValue": "\0"}),
        ("a", {"DataType": "String", "StringValue": "\ud800"}),
        ("a", {"DataType": "String", "BinaryValue": b"b"}),
        ("a", {"DataType": "String", "StringValue": "b", "StringListValues": ["b"]}),
        ("a", {"DataType": "Number", "StringValue": "many"}),
        ("a", {"DataType": "Binary", "StringValue": "b"}),
        ("", {"DataType": "String", "StringValue": "b"}),
        ("a" * 257, {"DataType": "String", "StringValue": "b"}),
        ("a b", {"DataType": "String", "StringValue": "b"}),
        ("é", {"DataType": "String", "StringValue": "b"}),
        (".a", {"DataType": "String", "StringValue": "b"}),
        ("a.", {"DataType": "String", "StringValue": "b"}),
        ("a..b", {"DataType": "String", "StringValue": "b"}),
        ("AWS.a", {"DataType": "String", "StringValue": "b"}),
        ("amazon.a", {"DataType": "String", "StringValue": "b"}),
        ("a", {"DataType": "String", "StringValue": "b" * MAX_HEADER_BYTES}),
    ],
)
def test_an_attribute_that_amazon_refuses_is_refused(name: str, value: dict[str, Any]) -> None:
    with pytest.raises(SqsError):
        messages.sent({"MessageAttributes": {name: value}}, False)


def test_a_message_has_ten_attributes_at_most() -> None:
    many = {f"a{n}": {"DataType": "String", "StringValue": "b"} for n in range(11)}
    messages.sent({"MessageAttributes": dict(list(many.items())[:10])}, False)
    with pytest.raises(SqsError, match=r"\[11\] exceeds the allowed maximum \[10\]"):
        messages.sent({"MessageAttributes": many}, False)


@given(st.text() | values.map(json.dumps))
def test_a_reserved_header_that_somebody_else_wrote_breaks_nothing(text: str) -> None:
    for queue in ("jobs", "jobs.fifo"):
        json.dumps(received({SQS_HEADER: text, "a": "b"}, queue=queue))


@given(st.binary(min_size=1))
def test_a_payload_that_is_no_text_comes_as_base64(payload: bytes) -> None:
    message = received(None, payload)
    assert message["MD5OfBody"] == hashlib.md5(message["Body"].encode()).hexdigest()
    encoded = "MessageAttributes" in message
    assert (b64decode(message["Body"]) if encoded else message["Body"].encode()) == payload
    if encoded:
        assert message["MessageAttributes"] == {
            "penstock.encoding": {"StringValue": "base64", "DataType": "String"}
        }
    else:
        assert messages.payload_of(message["Body"]) == payload


@pytest.mark.parametrize("payload", [b"\xff", b"a\0b", "\ufffe".encode()])
def test_control_characters_and_other_bytes_are_no_text(payload: bytes) -> None:
    assert received(None, payload)["Body"] == b64encode(payload).decode()


def test_penstocks_own_headers_are_no_attributes() -> None:
    headers = {"penstock.origin": "mails", "penstock.reason": "lease expired", "a": "b"}
    message = received(headers)
    assert set(message["MessageAttributes"]) == {"a"}
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == ARN + "mails"


@given(st.text(), st.integers(1, 10**9), st.sampled_from(["7", str(uuid.uuid1()), "0123456789abcdef"]))
def test_a_receipt_handle_is_one_of_its_queue_only(queue: str, attempts: int, name: str) -> None:
    receipt = f"{name}.{'0f' * 8}"
    message = Message(name, queue, b"", {}, 0, 0, 0, 0, None, attempts, "in_flight", receipt)
    handle = messages.handle(message)
    assert messages.parsed(handle, queue) == (receipt, attempts)
    assert messages.parsed(handle, queue).id == name
    for wrong in (handle[:-1], handle + "0", "x" + handle[1:], receipt, ""):
        with pytest.raises(SqsError):
            messages.parsed(wrong, queue)
    with pytest.raises(SqsError):
        messages.parsed(handle, queue + "x")


def test_sequence_numbers_have_twenty_digits_and_grow() -> None:
    for ids in (map(str, (1, 9, 10, 10**18)), [str(uuid.uuid1()) for _ in range(100)]):
        numbers = [messages.sequence(each, 0) for each in ids]
        assert {len(number) for number in numbers} == {20}
        assert sorted(set(numbers)) == numbers
    assert messages.sequence("0123456789abcdef", 1) < messages.sequence("0000000000000000", 2)
